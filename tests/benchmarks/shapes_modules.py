"""The modules of the benchmark of shapes by name, and runs that nobody has to make."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swarmtrain.compare.plan import Plan
from swarmtrain.compare.results import Point, RunResult

PLACE = Path(__file__).resolve().parents[2] / "benchmarks" / "shapes"


@contextmanager
def loaded() -> Iterator[Callable[[str], Any]]:
    """They import each other as a script's neighbours do, and are forgotten afterwards."""
    path = list(sys.path)
    sys.path.insert(0, str(PLACE))
    before = set(sys.modules)
    try:
        yield importlib.import_module
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == PLACE:
                del sys.modules[name]


def result_of(plan: Plan, loss: float | None = 2.0, **more: Any) -> RunResult:
    """Return what a run of this plan could have ended with."""
    figures = {
        "strategy": plan.label, "codec": plan.codec, "seed": plan.seed, "val_loss": loss,
        "replica_loss": None, "replica_spread": 0.0, "held_back": 0.5, "num_values": 12288,
        "tokens": plan.tokens, "ops": 2, "skipped": 0, "left_out": 0, "bytes_up_per_peer": 1000,
        "peak_bytes_per_step": 500, "modelled_seconds": 3.0, "exchange_seconds": 0.5,
        "state_roots": ("ab",), "curve": (Point(0, 0, 0.0, 5.5, 0.5), Point(8, 1, 1.0, 2.0, 0.2)),
    }  # fmt: skip
    return RunResult(**(figures | more))
