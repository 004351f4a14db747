"""Books of a round of a pipeline: what its members have counted, held against each other.

A source tells what it has made and how each of it ended; each member tells what is in its gradient,
by source and stage. Nobody else knows. So a claim is believed as far as no other contradicts it: a
micro-batch that its source has not made counts nowhere, and one that two members of a stage have
counted is named, whoever of them is wrong. One of a source that is gone stands as it was told.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.pipeline import orders
from swarmtrain_transport.pipeline.messages import Reason
from swarmtrain_transport.pipeline.route import Process, Span

Named = Mapping[tuple[Process, int], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Books:
    """Counts of a round.

    Attributes:
        round: which.
        made: micro-batches by source.
        counted: micro-batches by stage.
        lost: micro-batches by reason.
        partial: stages of each that is in some and not in others: the ledger names them one by one.
        disputed: numbers by source and stage that two members have counted, or that the source has
            not made; the latter are not in `counted`.
        processes: who has told.
        digest: SHA-256 of all reports, in the order of the processes.
    """

    round: int
    made: Mapping[Process, int]
    counted: tuple[int, ...]
    lost: Mapping[Reason, int]
    partial: Named
    disputed: Named
    processes: frozenset[Process]
    digest: bytes


def check(report: orders.Settled, span: Span) -> None:
    """Check that a member can have counted that, and that its report is no burden.

    Raises:
        RemoteFault: reason ``books``.
    """
    marked = [report.made.whole, *report.made.lost.values()]
    marked += [one.numbers for one in report.counted]
    num_bytes = sum(len(some.bits) for some in marked)
    if num_bytes > limits.MARKS_BYTES_MAX:
        raise RemoteFault("books", f"{num_bytes} bytes of numbers")
    strange = [one.stage for one in report.counted if one.stage not in span]
    if strange:
        raise RemoteFault("books", f"stage {strange[0]}, which it does not serve")


def books_of(round: int, num_stages: int, settled: Mapping[Process, orders.Settled]) -> Books:
    """The books of a round, of reports that `check` passed."""
    made = {}
    lost: dict[Reason, int] = {}
    stages: dict[Process, list[set[int]]] = {}
    disputed: dict[tuple[Process, int], set[int]] = {}
    digest = hashlib.sha256()
    for process, report in sorted(settled.items()):
        digest.update(process.peer + process.boot + msgspec.msgpack.encode(report))
        ended = {reason: orders.numbers(some) for reason, some in report.made.lost.items()}
        for reason, some in ended.items():
            lost[reason] = lost.get(reason, 0) + len(some)
        made[process] = orders.numbers(report.made.whole).union(*ended.values())
        for one in report.counted:
            told = orders.numbers(one.numbers)
            here = stages.setdefault(one.source, [set() for _ in range(num_stages)])[one.stage]
            disputed.setdefault((one.source, one.stage), set()).update(here & told)
            here |= told
    partial = {}
    for source, counted in sorted(stages.items()):
        for stage, some in enumerate(counted) if source in made else ():
            disputed.setdefault((source, stage), set()).update(some - made[source])
            some &= made[source]
        for number in sorted(set[int]().union(*counted)):
            within = tuple(stage for stage, some in enumerate(counted) if number in some)
            if len(within) < num_stages:
                partial[source, number] = within
    return Books(
        round,
        {source: len(some) for source, some in made.items()},
        tuple(sum(len(one[stage]) for one in stages.values()) for stage in range(num_stages)),
        lost,
        partial,
        {key: tuple(sorted(some)) for key, some in sorted(disputed.items()) if some},
        frozenset(settled),
        digest.digest(),
    )
