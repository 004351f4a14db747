"""Time that the optimizer's hook takes in steps between two exchanges; exit status 1 above the bar.

    python benchmarks/hook.py [--steps 2000] [--json]

One peer of a real run on loopback. Its model is next to nothing, so that the hook is seen and not
the model: there the hook counts, looks into its inbox and tells the network side how far it is,
whatever the model is. Steps in which a round ends do not count.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from figures import parser_of
from torch import nn

import swarmtrain

BAR_MS = 0.2

RUN_FILE = """\
[run]
name = "hook"
rounds = 3
[model]
kind = "custom"
[data]
source = "own"
[outer]
inner_steps = {steps}
[exchange]
start_peers = 1
min_contributors = 1
"""


def measure(folder: Path, steps: int) -> list[float]:
    """Milliseconds of the hook in each step that ends no round."""
    (folder / "run.toml").write_text(RUN_FILE.format(steps=steps))
    words = ["up", f"{folder}/run.toml", "--state-dir", f"{folder}/up", "--listen", "127.0.0.1:0"]
    with (folder / "invite").open("wb") as out, (folder / "log").open("wb") as log:
        up = subprocess.Popen([sys.executable, "-m", "swarmtrain", *words], stdout=out, stderr=log)
    try:
        while not (invite := (folder / "invite").read_text().strip()):
            if up.poll() is not None:
                sys.exit((folder / "log").read_text(errors="replace"))
            time.sleep(0.05)
        return _train(invite, folder, steps)
    finally:
        up.kill()
        up.wait()


def _train(invite: str, folder: Path, steps: int) -> list[float]:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    began_s, found = 0.0, []

    def begin(*_: object) -> None:
        nonlocal began_s
        began_s = time.perf_counter()

    optimizer.register_step_post_hook(begin)  # hooks run in the order in which they were registered
    with swarmtrain.join(model, optimizer, invite, state_dir=folder / "peer", strict=True) as swarm:
        for step in range(2 * steps):
            model(torch.randn(8, 64)).square().mean().backward()
            before = swarm.round
            optimizer.step()
            took_ms = 1000 * (time.perf_counter() - began_s)
            optimizer.zero_grad()
            if swarm.round == before and step >= 20 and (step + 1) % steps:
                found.append(took_ms)
            if swarm.should_stop:
                break
    return found


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="inner steps of a round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="swarmtrain-hook-") as folder:
        found = sorted(measure(Path(folder), options.steps))
    median, late = statistics.median(found), found[int(0.99 * len(found))]
    mean = statistics.fmean(found)
    if options.json:
        figures = {"steps": len(found), "mean_ms": mean, "median_ms": median, "p99_ms": late}
        print(json.dumps(figures | {"bar_ms": BAR_MS}))
    else:
        print(
            f"hook: median {median:.3f} ms, mean {mean:.3f} ms, 99 of 100 below {late:.3f} ms, "
            f"of {len(found)} steps (bar {BAR_MS} ms)"
        )
    return 0 if median <= BAR_MS else 1


if __name__ == "__main__":
    sys.exit(main())
