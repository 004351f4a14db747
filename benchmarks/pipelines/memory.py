"""Peak memory of a peer of each stage, by that of a peer that has the model in one piece.

    python benchmarks/pipelines/memory.py [--layers 12] [--width 640] [--capped] [--json]

`swarmtrain up` and `swarmtrain join` on loopback; exit status 1 beyond the bar. Linux only: it
reads /proc. Two peers in a run without stages, then two of each stage, beside one that has next to
no model; so every exchange has two contributors. With `--capped` each peer of a stage trains under
a limit of the system on its data (RLIMIT_DATA), under which a peer with all stages must end with
one clear error.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from rig import STAGES, Host, Run, parser_of, told

from swarmtrain.config.built_in import num_values_of
from swarmtrain.config.stages import stage_parameters
from swarmtrain.foundation.error_table import TABLE
from swarmtrain.pipeline.costs import most_slots_of, stage_needs

BAR = 1.15
"""Of the whole model's memory by the number of stages; inputs and activations are beside it."""

ALL = f"0-{STAGES - 1}"

SHORT_OF_MEMORY = "SWT-E407"

CAP = 1.1
"""Of the most data that a peer of a stage had without a limit."""


class Peaks(NamedTuple):
    """The most memory of peers by their spans, in bytes.

    Attributes:
        resident: that was in use.
        data: that a limit on data counts.
    """

    resident: dict[str, int]
    data: dict[str, int]


def peaks(
    folder: Path, deadline_s: float, spans: list[str], *, twice: bool = True, cap: int = 0,
    **settings: int,
) -> tuple[Run, Peaks]:  # fmt: skip
    """A short run's peers and the most memory that each has had.

    Args:
        folder: to be made.
        deadline_s: monotonic; the run is over by then.
        spans: of its peers; "" in a run without stages.
        twice: there are two of each.
        cap: of a process's data, in bytes; 0 for none.
        settings: of the run file.
    """
    folder.mkdir()
    found = Peaks({}, {})
    names = {f"p{span}-{index}": span for span in spans for index in range(1 + twice)}
    hosts = {name: Host(("prlimit", f"--data={cap}")) for name in names} if cap else {}
    with Run(folder, deadline_s, hosts, **settings, context=64, batch=6, steps=2, rounds=2,
             peers=len(names)) as run:  # fmt: skip
        for name, span in names.items():
            run.join(name, *(("--span", span) if span else ()))
        for _ in run.watch():
            for name, span in names.items():
                lines = dict(line.split(":", 1) for line in run.told(name, "status").splitlines())
                for most, what in ((found.resident, "VmHWM"), (found.data, "VmData")):
                    if what in lines:
                        now = 1024 * int(lines[what].split()[0])
                        most[span] = max(most.get(span, 0), now)
    return run, found


def memory(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Peak memory of a peer of each stage by that of one with all of the model."""
    deadline_s = time.monotonic() + options.timeout
    model = {"layers": options.layers, "width": options.width, "heads": 10}
    _, small = peaks(folder / "idle", deadline_s, [ALL], twice=False, layers=3, width=32, heads=2)
    _, one_piece = peaks(folder / "whole", deadline_s, [""], stages=1, **model)
    spans = list(map(str, range(STAGES)))
    run, found = peaks(folder / "stages", deadline_s, spans, **model)
    idle = small.resident[ALL]
    full = one_piece.resident[""] - idle
    parameters = [num_values_of(here) for here in stage_parameters(run.config)]
    stages: dict[str, dict[str, float]] = {}
    for stage, need in enumerate(stage_needs(run.config)):
        held = found.resident[str(stage)] - idle
        beside = most_slots_of(run.config) * need.input_bytes
        room = BAR / STAGES * full + beside + need.pass_bytes
        stages[f"stage {stage}"] = {
            "bytes": held, "of_full": held / full, "room": room,
            "a_parameter": held / parameters[stage],
        }  # fmt: skip
    figures = {
        "parameters": sum(parameters), "idle_bytes": idle, "full_bytes": full, "stages": stages,
        "holds": all(one["bytes"] <= one["room"] for one in stages.values()),
    }  # fmt: skip
    if options.capped:
        cap = int(CAP * max(found.data.values()))
        figures |= {"cap_bytes": cap, "full_data_bytes": one_piece.data[""]}
        peaks(folder / "capped", deadline_s, spans, cap=cap, **model)
        figures["full_says"] = refused(folder / "refused", deadline_s, cap, **model)
        figures["holds"] = figures["holds"] and figures["full_says"].startswith(SHORT_OF_MEMORY)
    return figures


def refused(folder: Path, deadline_s: float, cap: int, **settings: int) -> str:
    """The last words of a peer with all stages under a limit; "" if it ended as if it were well."""
    folder.mkdir()
    with Run(folder, deadline_s, {"full": Host(("prlimit", f"--data={cap}"))}, **settings,
             context=64, batch=6, steps=2, rounds=2, peers=1) as run:  # fmt: skip
        run.join("full", "--span", ALL)
        status = run.processes.pop("full").wait(timeout=max(1.0, deadline_s - time.monotonic()))
        said = (folder / "full.log").read_text(errors="replace")
    _, found, rest = said.partition(SHORT_OF_MEMORY)
    is_clear = bool(found) and "Traceback" not in said
    return found + rest if is_clear and status == TABLE[SHORT_OF_MEMORY].exit_status else ""


def row(name: str, value: Any) -> str:
    """A figure for people."""
    if isinstance(value, str):
        return f"{name}: {value}"
    if name != "stages":
        return f"{name}: {value:.6g}"
    return "\n".join(
        f"{stage}: {one['bytes'] / 1e6:.0f} MB of {one['room'] / 1e6:.0f} MB allowed, "
        f"{one['a_parameter']:.1f} bytes a parameter"
        for stage, one in value.items()
    )


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=640, help="a multiple of 20")
    parser.add_argument("--capped", action="store_true", help="under a limit of the system, too")
    sys.exit(told(parser.parse_args(), memory, row))
