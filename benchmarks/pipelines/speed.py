"""Micro-batches a second of a model in stages by what its peers allow.

    python benchmarks/pipelines/speed.py [--pass-seconds 0.1] [--rounds 3] [--steps 20] [--json]

`swarmtrain up` and `swarmtrain join` on loopback; exit status 1 beyond the bar. Linux only: it
reads /proc. Three stages of two peers each, one twice as fast as the other; peers sleep until a
pass has taken its time, so that the machine need not have six cores. Then the same swarm with
routes that are fixed and equal, which shows what the others gain.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rig import PASSES, STAGES, SWARMTRAIN, Diary, Run, machine, parser_of, told

BAR = 0.90

WARMUP_ROUNDS = 3
"""Until the speed of all peers is known."""

EQUAL_ROUTES = (str(Path(__file__).with_name("equal_routes.py")),)


def rate(
    options: argparse.Namespace, folder: Path, program: Sequence[str] = SWARMTRAIN
) -> dict[str, float]:
    """Micro-batches that all stages have counted, by the clock and by what peers allow."""
    rounds = WARMUP_ROUNDS + options.rounds
    allowed = sum(
        1 / (PASSES * pass_s) for pass_s in (options.pass_seconds, 2 * options.pass_seconds)
    )
    folder.mkdir()
    with Run(
        folder, time.monotonic() + options.timeout, rounds=rounds, steps=options.steps,
        layers=4, width=32, heads=2, context=32, batch=12, peers=2 * STAGES,
    ) as run:  # fmt: skip
        run.join_paced(options.pass_seconds, program=program)
        diary = Diary(run)
        for view in run.watch():
            diary.note(view)
    if len(diary.booked) < rounds:
        raise RuntimeError(f"{len(diary.booked)} rounds were seen of {rounds}")
    found = diary.between(WARMUP_ROUNDS - 1, rounds - 1)
    exchange_s = sum(diary.exchanges_s[WARMUP_ROUNDS - 1 : rounds - 1])
    training = found["micro_batches"] / (found["seconds"] - exchange_s)
    return found | {
        "allowed_per_s": allowed, "ratio": found["micro_batches_per_s"] / allowed,
        "exchange_seconds": exchange_s, "ratio_between_exchanges": training / allowed,
    }  # fmt: skip


def speed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Routes that the run finds, and equal ones beside them."""
    found = rate(options, folder / "found")
    equal = rate(options, folder / "equal", EQUAL_ROUTES)
    return found | {
        "equal_routes_ratio": equal["ratio"], "over_equal_routes": found["ratio"] / equal["ratio"],
        **machine(), "bar": BAR, "holds": found["ratio"] >= BAR,
    }  # fmt: skip


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--pass-seconds", type=float, default=0.1, help="of a fast peer's pass")
    parser.add_argument("--rounds", type=int, default=3, help="after those that warm up")
    parser.add_argument("--steps", type=int, default=20, help="of each peer in a round")
    sys.exit(told(parser.parse_args(), speed))
