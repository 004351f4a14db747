"""A run whose peers are paused and resumed at random moments: what does it cost the rounds?

    python benchmarks/pauses.py [--pauses 200] [--seed 0] [--json]

A coordinator and three peers on loopback. Each pause is of a peer drawn by chance, for up to two
seconds, and begins up to two seconds after the one before. Bars, written down before the first run:
no round is skipped, nobody is left out of one, and all end with one state root. Exit status 1
beyond a bar.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import parser_of, told
from takeover import PEERS, RUN, joined, started, waited

from swarmtrain import status


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    (folder / "run.toml").write_text(RUN)
    home = folder / "coordinator"
    up = ("up", folder / "run.toml", "--listen", "127.0.0.1:0", "--state-dir", home)
    processes = [started(*up, log=folder / "up")]
    try:
        (folder / "invite").write_text(waited(lambda: (folder / "up.out").read_text().strip()))
        processes += joined(folder)
        waited(lambda: status.ask(home)["committed"] >= 3)
        rng, begun = random.Random(options.seed), status.ask(home)["round"]
        resting: dict[str, float] = {}
        for _ in range(options.pauses):
            time.sleep(rng.uniform(0.0, 2.0))
            for name in [one for one, end_s in resting.items() if end_s <= time.monotonic()]:
                status.order(folder / name, {"order": "resume"})
                del resting[name]
            name = rng.choice(PEERS)
            status.order(folder / name, {"order": "pause"})
            resting[name] = time.monotonic() + rng.uniform(0.0, 2.0)
        for name in PEERS:
            status.order(folder / name, {"order": "resume"})
        told = waited(_settled(home))
        for name in PEERS:
            status.order(folder / name, {"order": "finish"})
        ends = [one.wait(60) for one in processes[1:]]
    finally:
        for one in processes:
            one.terminate()
        for one in processes:
            one.wait(30)
    roots = {peer["state_root"] for peer in told["peers"]}
    left_out = [one for one in told["exclusions"] if one["reason"] != "alone"]
    rounds = told["round"] - begun
    skipped = told["round"] - told["committed"]
    return {
        "pauses": options.pauses, "rounds": rounds, "skipped": skipped,
        "left_out": len(left_out), "roots": len(roots), "exits": ends,
        "holds": skipped == 0 and not left_out and len(roots) == 1 and not any(ends),
    }  # fmt: skip


def _settled(home: Path) -> Any:
    """The coordinator's status at a moment at which all peers tell of the same round."""

    def found() -> Any:
        told = status.ask(home)
        same = len({peer["round"] for peer in told["peers"]}) == 1
        return told if same and len(told["peers"]) == len(PEERS) else None

    return found


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--pauses", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="swarmtrain-pauses-") as folder:
        figures = measure(options, Path(folder))
    return told(figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
