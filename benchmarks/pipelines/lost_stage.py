"""All members of a stage killed at once: rounds made again, and seconds until the run goes on.

    python benchmarks/pipelines/lost_stage.py [--rounds 8] [--json]

`swarmtrain up` and `swarmtrain join` on loopback, three stages of two peers each. After some rounds
both peers of the stage in the middle are killed in the same moment, and two others join, which take
the stage's state from its keepers. Exit status 1 if more than one round is made again, the run does
not end, or peers of a stage do not hold the same. `goes_on_s` are the seconds until a round that
has begun since then is booked.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from churn import doubted, roots
from rig import STAGES, Diary, Run, machine, parser_of, told

LOST = 1
"""The stage whose peers are killed."""

KILLED_AFTER = 3
"""Rounds."""


def lost_stage(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Kill a stage, and look how the run goes on."""
    killed_s, goes_on_s, booked = 0.0, None, 0
    with Run(
        folder, time.monotonic() + options.timeout, rounds=options.rounds, steps=4,
        layers=4, width=32, heads=2, context=32, batch=12, peers=2 * STAGES,
    ) as run:  # fmt: skip
        run.join_paced(options.pass_seconds, "--json-events")
        diary, lost = Diary(run), [f"p{LOST}{place}" for place in (0, 1)]
        for view in run.watch():
            diary.note(view)
            if killed_s and goes_on_s is None and len(diary.booked) > booked + 1:
                goes_on_s = diary.booked[-1]["at_s"] - killed_s
            elif not killed_s and len(diary.booked) > KILLED_AFTER:
                for name in lost:
                    run.processes[name].kill()
                killed_s, booked = time.monotonic(), len(diary.booked)
                for name in lost:
                    run.kill(name)
                    paced = ("--pass-seconds", str(options.pass_seconds), "--json-events")
                    run.join(f"{name}-again", "--span", str(LOST), *paced)
    rounds, twice = doubted(folder / "up")
    same, different = roots(folder)
    return {
        "goes_on_s": goes_on_s, "rounds": rounds, "repeated": rounds - options.rounds,
        "counted_twice": twice, "roots_compared": same, "roots_different": different, **machine(),
        "holds": goes_on_s is not None and rounds - options.rounds <= 1 and not different,
    }  # fmt: skip


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--pass-seconds", type=float, default=0.05, help="of a fast peer's pass")
    parser.add_argument("--rounds", type=int, default=8, help="of the run")
    sys.exit(told(parser.parse_args(), lost_stage, "{}: {}".format))
