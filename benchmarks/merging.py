"""Processor time that the training thread spends on a round's exchange, by strategy.

    python benchmarks/merging.py [--strategies diloco,eager,streaming] [--rounds 8] [--json]

The production driver and strategies over the built-in model of 10 M values, without a network: what
is given is made, and a result, int8 of the same values, is taken over. By the processor's clock of
the one thread, medians, of as many ops as move all values once; `streaming` has five fragments.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from figures import parser_of

from swarmtrain.config import file as config_file
from swarmtrain.models.build import build_model
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.arithmetic import TensorContribution
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.model_weights import ModelWeights
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain.strategies import strategy_of
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.result import OpResult, SliceResult

BLOCK, CHUNK, STEPS = 1024, 262_144, 20
ME, OTHER = b"me", b"other"
MORE = {"streaming": "fragments = 5\ndelay_steps = 4\n"}
RUN = """
[run]
name = "merging"
[model]
layers = 8
width = 320
heads = 8
[outer]
strategy = "{strategy}"
inner_steps = {steps}
{more}
"""


def result_of(part: OwnPart, noise: torch.Tensor) -> OpResult:
    """A result in which everybody gave as much as we."""
    window = Window("int8", BLOCK, -24, 0)
    size = noise.numel()
    given = TensorContribution(noise)
    chunks = tuple(
        given.encode(start, min(start + CHUNK, size), window) for start in range(0, size, CHUNK)
    )
    slices = (SliceResult(0, size, (ME, OTHER), chunks),)
    return OpResult(part.op, window, CHUNK, size, slices, b"", b"", replayed=False)


def measure(strategy: str, rounds: int, run_file: Path) -> dict[str, float]:
    """Milliseconds of a round."""
    more = MORE.get(strategy, "")
    run_file.write_text(RUN.format(strategy=strategy, steps=STEPS, more=more))
    config = config_file.load(run_file)
    model = build_model(config, seed=1)
    layout = Layout.of(model, BLOCK)
    made = strategy_of(config, layout)
    driver = Driver(
        ME, made, ModelWeights(model, layout), layout=bytes(32), num_values=layout.num_values,
        snapshot_rounds=4,
    )  # fmt: skip
    driver.offer()
    driver.op = 0
    ops = STEPS // made.inner_steps
    chance, parts = torch.Generator().manual_seed(1), list[OwnPart]()
    gives, takes = list[float](), list[float]()
    while len(takes) < ops * (rounds + 1):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1e-3)
        driver.stepped(1)
        if driver.is_at_place or (parts and made.exchange(parts[0].op).delay_steps == 0):
            part = parts.pop(0)
            wanted = made.exchange(part.op).num_values
            result = result_of(part, torch.randn(wanted, generator=chance) * 1e-3)
            began_s = time.thread_time()
            driver.end_op(result)
            takes.append(time.thread_time() - began_s)
        if driver.is_due:
            began_s = time.thread_time()
            parts.append(driver.contribute())
            gives.append(time.thread_time() - began_s)
    return {
        name: round(1000 * ops * statistics.median(found[ops:]), 1)
        for name, found in (("gives_ms", gives), ("takes_ms", takes))
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--strategies", default="diloco,eager,streaming")
    parser.add_argument("--rounds", type=int, default=8, help="rounds after one that warms up")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="swarmtrain-merging-") as folder:
        for strategy in options.strategies.split(","):
            rows[strategy] = measure(strategy, options.rounds, Path(folder) / "run.toml")
            if not options.json:
                print(f"{strategy:13} {rows[strategy]}", flush=True)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
