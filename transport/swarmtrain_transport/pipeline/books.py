"""Books of a round of a pipeline: what its members have counted, held against each other.

A source tells what it has made and how each of it ended; each member tells what is in its gradient,
by source and stage. Nobody else knows. So a claim is believed as far as no other contradicts it: a
micro-batch that its source has not made counts nowhere, and one that two members of a stage have
counted is named, whoever of them is wrong. One of a source that is gone stands as it was told. Of
none a source is believed to have made more than it was asked for, nor is anybody else.
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
        told: micro-batches that each member is believed to have counted, by member and stage.
        lost: micro-batches by reason.
        partial: stages of each that is in some and not in others: the ledger names them one by one.
        disputed: numbers by source and stage that two members have counted, or that the source has
            not made; the latter are not in `counted`.
        strange: how many each member has told of, of sources that were not asked for as many;
            nothing that it has told of such a source is believed.
        processes: who has told.
        digest: SHA-256 of all reports, in the order of the processes.
    """

    round: int
    made: Mapping[Process, int]
    counted: tuple[int, ...]
    told: Mapping[tuple[Process, int], int]
    lost: Mapping[Reason, int]
    partial: Named
    disputed: Named
    strange: Mapping[Process, int]
    processes: frozenset[Process]
    digest: bytes


def check(report: orders.Settled, span: Span, asked: int) -> None:
    """Check that a member can have counted that, and that its report is no burden.

    Args:
        report: of the member.
        span: that it serves.
        asked: micro-batches that it was to make in the round.

    Raises:
        RemoteFault: reason ``books``.
    """
    ended = [report.made.whole, *report.made.lost.values()]
    num_bytes = sum(len(some.bits) for some in (*ended, *(one.numbers for one in report.counted)))
    if num_bytes > limits.MARKS_BYTES_MAX:
        raise RemoteFault("books", f"{num_bytes} bytes of numbers")
    if (made := sum(map(orders.count, ended))) > asked:
        raise RemoteFault("books", f"{made} micro-batches made, of {asked}")
    strange = [one.stage for one in report.counted if one.stage not in span]
    if strange:
        raise RemoteFault("books", f"stage {strange[0]}, which it does not serve")


def books_of(
    round: int,
    num_stages: int,
    asked: Mapping[Process, int],
    settled: Mapping[Process, orders.Settled],
) -> Books:
    """The books of a round.

    Args:
        round: which.
        num_stages: of the model.
        asked: micro-batches that each source was to make in it.
        settled: reports that `check` passed.
    """
    lost: dict[Reason, int] = {}
    made: dict[Process, set[int]] = {}
    digest = hashlib.sha256()
    for process, report in sorted(settled.items()):
        digest.update(process.peer + process.boot + msgspec.msgpack.encode(report))
        ended = {reason: orders.numbers(some) for reason, some in report.made.lost.items()}
        for reason, some in ended.items():
            lost[reason] = lost.get(reason, 0) + len(some)
        made[process] = orders.numbers(report.made.whole).union(*ended.values())
    stages: dict[tuple[Process, int], set[int]] = {}
    disputed: dict[tuple[Process, int], set[int]] = {}
    strange: dict[Process, int] = {}
    by_member: dict[tuple[Process, int], int] = {}
    for process, report in sorted(settled.items()):
        sums: dict[tuple[Process, int], int] = {}
        for one in report.counted:
            key = one.source, one.stage
            sums[key] = sums.get(key, 0) + orders.count(one.numbers)
        for one in report.counted:
            key = one.source, one.stage
            if sums[key] > asked.get(one.source, 0):
                strange[process] = strange.get(process, 0) + orders.count(one.numbers)
                continue
            told, here = orders.numbers(one.numbers), stages.setdefault(key, set())
            known = told & made.get(one.source, told)
            disputed.setdefault(key, set()).update(here & told, told - known)
            by_member[process, one.stage] = by_member.get((process, one.stage), 0) + len(known)
            here |= known
    return Books(
        round,
        {source: len(some) for source, some in made.items()},
        tuple(
            sum(len(some) for (_, at), some in stages.items() if at == stage)
            for stage in range(num_stages)
        ),
        by_member,
        lost,
        _partial(num_stages, stages),
        {key: tuple(sorted(some)) for key, some in sorted(disputed.items()) if some},
        strange,
        frozenset(settled),
        digest.digest(),
    )


def _partial(num_stages: int, stages: Mapping[tuple[Process, int], set[int]]) -> Named:
    """Stages of each micro-batch that is in some and not in others."""
    within: dict[tuple[Process, int], tuple[int, ...]] = {}
    for (source, stage), some in sorted(stages.items()):
        for number in sorted(some):
            within[source, number] = (*within.get((source, number), ()), stage)
    return {key: within[key] for key in sorted(within) if len(within[key]) < num_stages}
