"""Peak memory of a peer of each stage by that of a full replica.

    python benchmarks/pipelines/memory.py [--layers 12] [--width 640] [--json]

`swarmtrain up` and `swarmtrain join` on loopback; exit status 1 beyond the bar. Linux only: it
reads /proc. A peer of each stage and a full replica in one run, beside a full replica of next to
no model.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from rig import STAGES, Run, parser_of, told

from swarmtrain.config.built_in import num_values_of
from swarmtrain.config.stages import stage_parameters
from swarmtrain.pipeline.costs import slots_of, stage_needs

BAR = 1.15
"""Of the full replica's memory by the number of stages; inputs and activations are beside it."""


def peaks(folder: Path, deadline_s: float, spans: list[str], **settings: int) -> tuple[Run, Any]:
    """A short run's peers and the most memory that each has had, in bytes."""
    folder.mkdir()
    highest: dict[str, int] = {}
    with Run(folder, deadline_s, **settings, context=64, batch=6, steps=2, rounds=2,
             peers=len(spans)) as run:  # fmt: skip
        for span in spans:
            run.join(span, "--span", span)
        for _ in run.watch():
            for span in spans:
                _, found, rest = run.told(span, "status").partition("VmHWM:")
                if found:
                    highest[span] = 1024 * int(rest.split()[0])
    return run, highest


def memory(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Peak memory of a peer of each stage by that of a full replica."""
    deadline_s, whole = time.monotonic() + options.timeout, f"0-{STAGES - 1}"
    _, small = peaks(folder / "idle", deadline_s, [whole], layers=3, width=32, heads=2)
    spans = [*map(str, range(STAGES)), whole]
    run, highest = peaks(
        folder / "model", deadline_s, spans, layers=options.layers, width=options.width, heads=10
    )
    idle, full = small[whole], highest[whole] - small[whole]
    stages: dict[str, dict[str, float]] = {}
    for stage, need in enumerate(stage_needs(run.config)):
        held, beside = highest[str(stage)] - idle, slots_of(run.config) * need.input_bytes
        room = BAR / STAGES * full + beside + need.pass_bytes
        stages[f"stage {stage}"] = {"bytes": held, "of_full": held / full, "room": room}
    return {
        "parameters": sum(num_values_of(found) for found in stage_parameters(run.config)),
        "idle_bytes": idle, "full_bytes": full, "stages": stages,
        "holds": all(one["bytes"] <= one["room"] for one in stages.values()),
    }  # fmt: skip


def row(name: str, value: Any) -> str:
    """A figure for people."""
    if name != "stages":
        return f"{name}: {value:.6g}"
    return "\n".join(
        f"{stage}: {one['bytes'] / 1e6:.0f} MB of {one['room'] / 1e6:.0f} MB allowed"
        for stage, one in value.items()
    )


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=640, help="a multiple of 20")
    sys.exit(told(parser.parse_args(), memory, row))
