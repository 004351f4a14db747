"""Tokens a second of a model in stages whose peers die and are replaced, by those of before.

    python benchmarks/pipelines/churn.py [--undisturbed 150] [--disturbed 300] [--every 20] [--json]

`swarmtrain up` and `swarmtrain join` on loopback; exit status 1 beyond the bar, or if a micro-batch
was counted twice, or peers of a stage do not hold the same. Three stages of two peers each, one
twice as fast as the other, which sleep until a pass has taken its time. Once their speeds are known
the run is measured undisturbed; then one peer, drawn from a seed, is killed every so many seconds,
and another one as fast joins at once. What a dead peer has done of the round is lost, so a run
under such churn has short rounds.
"""

import argparse
import itertools
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rig import STAGES, Diary, Run, machine, parser_of, told

from swarmtrain.foundation import events
from swarmtrain.verify.coordinator_state import read_records
from swarmtrain_transport.wire.records import Books, body_of, outline_of, tag_of

BAR = 0.70

WARMUP_ROUNDS = 3
"""Until the speed of all peers is known."""

ROUNDS = 10_000
"""More than there is time for."""


def victims(seed: int) -> Iterator[tuple[int, int]]:
    """Stages and places in them: each once, in an order that is drawn, then again in another."""
    rng, places = random.Random(seed), list(itertools.product(range(STAGES), range(2)))
    while True:
        yield from rng.sample(places, len(places))


def watched(options: argparse.Namespace, run: Run) -> tuple[Diary, int, int]:
    """Watch the run, killing from the end of one of its rounds on.

    Returns:
        Its rounds, the one from whose end on peers were killed, and how many were.
    """
    diary, drawn, killed = Diary(run), victims(options.seed), 0
    peers = {f"p{stage}{place}": f"p{stage}{place}" for stage in range(STAGES) for place in (0, 1)}
    begun: int | None = None
    for view in run.watch():
        diary.note(view)
        booked, now_s = diary.booked, time.monotonic()
        if len(booked) < WARMUP_ROUNDS:
            continue
        if begun is None:
            measured_s = booked[-1]["at_s"] - booked[WARMUP_ROUNDS - 1]["at_s"]
            begun = len(booked) - 1 if measured_s >= options.undisturbed else None
            continue
        since_s = booked[begun]["at_s"]
        if booked[-1]["at_s"] - since_s >= options.disturbed:
            return diary, begun, killed
        if now_s - since_s >= killed * options.every:
            stage, place = next(drawn)
            killed += 1
            seat = f"p{stage}{place}"
            run.kill(peers[seat])
            peers[seat] = f"{seat}-{killed}"
            pass_s = options.pass_seconds * (1 + place)
            run.join(
                peers[seat], "--span", str(stage), "--pass-seconds", str(pass_s), "--json-events"
            )
    raise RuntimeError("the run was over too early")


def doubted(state_dir: Path) -> tuple[int, int]:
    """Count the rounds in the ledger, and the micro-batches that two peers of a stage have claimed,
    or that nobody has made."""
    found = (
        body_of(one) for one in read_records(state_dir) if outline_of(one).kind == tag_of(Books)
    )
    books = [body for body in found if isinstance(body, Books)]
    return len(books), sum(member.doubted for one in books for member in one.members)


def roots(folder: Path) -> tuple[int, int]:
    """Count the states that two peers of a stage have told of, and those in which they differ."""
    found: dict[tuple[int, int], list[str]] = defaultdict(list)
    for path in folder.glob("p*.out"):
        for line in path.read_bytes().splitlines():
            event = events.parse(line)
            if isinstance(event, events.RoundEnded) and event.root:
                found[event.stage, event.round].append(event.root)
    shared = [some for some in found.values() if len(some) > 1]
    return len(shared), sum(len(set(some)) > 1 for some in shared)


def churn(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Tokens a second by those of before, and whether all was counted once."""
    with Run(
        folder, time.monotonic() + options.timeout, rounds=ROUNDS, steps=options.steps,
        layers=4, width=32, heads=2, context=32, batch=12, peers=2 * STAGES,
    ) as run:  # fmt: skip
        run.join_paced(options.pass_seconds, "--json-events")
        diary, begun, killed = watched(options, run)
    before = diary.between(WARMUP_ROUNDS - 1, begun)
    found = diary.between(begun, len(diary.booked) - 1)
    ratio = found["tokens_per_s"] / before["tokens_per_s"]
    rounds, twice = doubted(folder / "up")
    same, different = roots(folder)
    return found | {
        "undisturbed_tokens_per_s": before["tokens_per_s"], "ratio": ratio, "killed": killed,
        "rounds": rounds, "counted_twice": twice,
        "roots_compared": same, "roots_different": different,
        **machine(), "bar": BAR,
        "holds": ratio >= BAR and not twice and same > 0 and not different,
    }  # fmt: skip


if __name__ == "__main__":
    parser = parser_of(__doc__, timeout_s=1200.0)
    parser.add_argument("--pass-seconds", type=float, default=0.1, help="of a fast peer's pass")
    parser.add_argument("--steps", type=int, default=3, help="of each peer in a round")
    parser.add_argument("--undisturbed", type=float, default=150.0, help="seconds, at least")
    parser.add_argument("--disturbed", type=float, default=300.0, help="seconds, at least")
    parser.add_argument("--every", type=float, default=20.0, help="seconds from death to death")
    parser.add_argument("--seed", type=int, default=0, help="of the order of deaths")
    sys.exit(told(parser.parse_args(), churn))
