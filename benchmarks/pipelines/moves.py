"""Moves of peers between the stages of a model, from a swarm that began on one of them.

    python benchmarks/pipelines/moves.py [--pass-seconds 0.2] [--steps 2] [--json]

`swarmtrain up` and `swarmtrain join` on loopback; exit status 1 beyond the bar. Five peers of one
speed serve stage 0, one each of the others. Four come with `--span 0`, leave, and come again
without it: they keep their stage, whose state they have, and may be sent elsewhere from then on.
Beside it a run that begins where the coordinator's own choice of moves ends (`spreading`): the best
assignment of these peers. Both rates are measured alike, and the moves are to be no more than those
of that choice.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rig import STAGES, Diary, Run, machine, parser_of, told
from spreading import spreading

from swarmtrain.plan.forecast import parse_peers

BAR = 0.90
BEGIN = (5, 1, 1)
PEERS = f"{sum(BEGIN)}*laptop@fibre"
"""As the plan has them: of one speed, whatever that is."""

ROUNDS = 18
MEASURED = 4
"""Rounds by whose sum the run is judged: the last ones, where all have arrived long since."""


class Swarm:
    """A run, and how many peers serve each stage after each of its rounds."""

    def __init__(self, options: argparse.Namespace, folder: Path, rounds: int) -> None:
        folder.mkdir()
        self.paced = ("--pass-seconds", str(options.pass_seconds))
        self.run = Run(
            folder, time.monotonic() + options.timeout, rounds=rounds, steps=options.steps,
            layers=4, width=32, heads=2, context=32, batch=12, peers=sum(BEGIN),
        )  # fmt: skip
        self.diary = Diary(self.run)
        self.served: list[tuple[int, ...]] = []
        self.moves: dict[tuple[int, str], str] = {}

    def join(self, counts: Sequence[int]) -> list[str]:
        """So many peers ask for each stage; their names."""
        names = [f"p{stage}{index}" for stage in range(STAGES) for index in range(counts[stage])]
        for name in names:
            self.run.join(name, *self.paced, "--span", name[1])
        return names

    def note(self, view: dict[str, Any]) -> None:
        """Look at the coordinator's status."""
        self.diary.note(view)
        stages = view.get("pipeline", {}).get("stages", ())
        if len(self.served) < len(self.diary.booked):
            self.served.append(tuple(len(one["peers"]) for one in stages))
        moved = [event for event in view.get("events", ()) if event["event"] == "moved"]
        self.moves |= {(event["round"], event["peer"]): event["reason"] for event in moved}

    def rate(self) -> float:
        """Micro-batches a second of the last rounds."""
        return self.diary.between(-MEASURED - 1, -1)["micro_batches_per_s"]


def spread(options: argparse.Namespace, folder: Path) -> Swarm:
    """A swarm that begins on stage 0."""
    swarm = Swarm(options, folder, ROUNDS)
    with swarm.run as run:
        leaving = [name for name in swarm.join(BEGIN) if name[1] == "0"][1:]
        for view in run.watch():
            swarm.note(view)
            if leaving and swarm.diary.booked:
                for name in leaving:
                    run.processes[name].send_signal(signal.SIGINT)
                for name in leaving:
                    run.processes[name].wait(options.timeout)
                    run.join(name, *swarm.paced)
                leaving = []
    return swarm


def best(options: argparse.Namespace, folder: Path, counts: Sequence[int]) -> Swarm:
    """A swarm that begins at its best."""
    swarm = Swarm(options, folder, MEASURED + 3)
    with swarm.run as run:
        swarm.join(counts)
        for view in run.watch():
            swarm.note(view)
    return swarm


def moves(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Rates before, after, and of the best assignment."""
    swarm = spread(options, folder / "spread")
    plan = spreading(swarm.run.config, parse_peers(PEERS), BEGIN)
    other = best(options, folder / "best", plan.end)
    lopsided = [number for number, served in enumerate(swarm.served) if served == BEGIN]
    before = swarm.diary.between(lopsided[-3], lopsided[-1])["micro_batches_per_s"]
    ratio = swarm.rate() / other.rate()
    return {
        "moves": len(swarm.moves), "planned_moves": plan.moves,
        "reasons": [reason for _, reason in sorted(swarm.moves.items())],
        "served": swarm.served[-1],
        "before_per_s": before, "after_per_s": swarm.rate(), "best_per_s": other.rate(),
        "before_ratio": before / other.rate(), "ratio": ratio, **machine(), "bar": BAR,
        "holds": ratio >= BAR and len(swarm.moves) <= plan.moves,
    }  # fmt: skip


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--pass-seconds", type=float, default=0.2, help="of a peer's pass")
    parser.add_argument("--steps", type=int, default=2, help="of each peer in a round")
    sys.exit(told(parser.parse_args(), moves, "{}: {}".format))
