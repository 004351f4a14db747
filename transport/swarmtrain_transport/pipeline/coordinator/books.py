"""Books of a round of a pipeline: what its members have counted, held against each other.

A source tells what it has made and how each of it ended; each member tells what is in its gradient,
by source and stage. Nobody else knows. So a claim is believed as far as no other contradicts it: a
micro-batch that its source has not made counts nowhere, and one that two members of a stage have
counted is named, whoever of them is wrong. One of a source that is gone stands as it was told. Of
none a source is believed to have made more than it was asked for, nor is anybody else.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import Reason
from swarmtrain_transport.pipeline.wire.paths import Paths
from swarmtrain_transport.pipeline.wire.route import Process, Span
from swarmtrain_transport.wire import records

Named = Mapping[tuple[Process, int], tuple[int, ...]]

_DIGITS = 3
"""Digits of seconds in the ledger, after the point."""


@dataclass(frozen=True, slots=True)
class Books:
    """Counts of a round.

    Attributes:
        round: number of the round.
        made: micro-batches by source.
        counted: micro-batches by stage.
        told: micro-batches that each member is believed to have counted, by member and stage.
        lost: micro-batches by reason.
        redone: times that members have sent one to yet another receiver, by reason.
        voided: micro-batches that were made again because their step was void.
        partial: stages of each that is in some of those that it visits and not in others.
        breaks: number of these by the process that has counted last, from which stage
            on, and the reason that the source tells; None, and "", where nobody tells it.
        disputed: numbers by source and stage that two members have counted, or that the source has
            not made or do not visit the stage; the latter are not in `counted`.
        doubted: disputed numbers that each member has told, and those of sources that were not
            asked for as many: nothing that it has told of such a source is believed.
        compared: findings of each source that has made comparisons, as it tells them.
        whole: micro-batches that all stages that they visit have counted.
        spans: spans of the members when the round was closed.
        processes: processes that have told.
        digest: SHA-256 of all reports, in the order of the processes.
        took_s: time from the round's begin until it was closed.
        busy_s: time that each member's passes took, by its own word.
    """

    round: int
    made: Mapping[Process, int]
    counted: tuple[int, ...]
    told: Mapping[tuple[Process, int], int]
    lost: Mapping[Reason, int]
    redone: Mapping[Reason, int]
    voided: int
    partial: Named
    breaks: Mapping[tuple[Process | None, int, str], int]
    disputed: Named
    doubted: Mapping[Process, int]
    compared: Mapping[Process, orders.Compared]
    whole: int
    spans: Mapping[Process, Span]
    processes: frozenset[Process]
    digest: bytes
    took_s: float
    busy_s: Mapping[Process, float]


def check(report: orders.Settled, span: Span, asked: int, left_out: int = 0) -> None:
    """Check that a member can have counted that, and that its report is no burden.

    Args:
        report: report of the member.
        span: span that it serves.
        asked: micro-batches that it was to make in the round.
        left_out: stages that a route leaves out.

    Raises:
        RemoteFault: reason ``books``.
    """
    ended = [report.made.whole, *report.made.lost.values()]
    num_bytes = sum(len(some.bits) for some in (*ended, *(one.numbers for one in report.counted)))
    if num_bytes > limits.MARKS_BYTES_MAX:
        raise RemoteFault("books", f"{num_bytes} bytes of numbers")
    if (made := sum(map(orders.count, ended))) > asked:
        raise RemoteFault("books", f"{made} micro-batches made, of {asked}")
    if not report.compared.odd <= report.compared.times <= made:
        raise RemoteFault("books", f"{report.compared} of {made}")
    if sum(len(one.numbers.bits) for one in report.seen) > limits.SEEN_BYTES_MAX:
        raise RemoteFault("books", "too many bytes of numbers that it has seen")
    # A route may enter a span in its midst.
    near = range(span.first - 1 - left_out, span.last + 2 + left_out)
    strange = [one.stage for one in report.seen if one.stage not in near]
    strange += [one.stage for one in report.counted if one.stage not in span]
    if strange:
        raise RemoteFault("books", f"stage {strange[0]}, of which it cannot know")
    if len(report.norms) not in (0, span.last - span.first + 1):
        raise RemoteFault("books", f"{len(report.norms)} norms of {span}")


def books_of(
    round: int,
    num_stages: int,
    asked: Mapping[Process, int],
    settled: Mapping[Process, orders.Settled],
    spans: Mapping[Process, Span] | None = None,
    voided: int = 0,
    took_s: float = 0.0,
    paths: Paths | None = None,
) -> Books:
    """The books of a round.

    Args:
        round: number of the round.
        num_stages: number of the model's stages.
        asked: micro-batches that each source was to make in it.
        settled: reports that `check` passed.
        spans: spans of the members when the round was closed.
        voided: micro-batches that were made again because their step was void.
        took_s: time from the round's begin until it was closed.
        paths: the stages of each micro-batch; None for all.
    """
    paths = paths or Paths(num_stages)
    lost: Counter[Reason] = Counter()
    redone: Counter[Reason] = Counter()
    ends: dict[Process, dict[int, Reason | None]] = {}
    digest = hashlib.sha256()
    for process, report in sorted(settled.items()):
        digest.update(process.peer + process.boot + msgspec.msgpack.encode(report))
        ends[process] = dict.fromkeys(orders.numbers(report.made.whole))
        for reason, some in report.made.lost.items():
            lost[reason] += orders.count(some)
            ends[process].update(dict.fromkeys(orders.numbers(some), reason))
        for reason, times in report.redone.items():
            redone[reason] = min(redone[reason] + times, limits.COUNT_MAX)
    claims, doubted = _claims(asked, settled)
    outvoted = _outvoted(claims, _words(asked, settled), spans or {})
    stages: dict[tuple[Process, int], set[int]] = {}
    disputed: dict[tuple[Process, int], set[int]] = {}
    for index, claim in enumerate(claims):
        known, place = claim.numbers - outvoted[index], (claim.source, claim.stage)
        if claim.source in ends:
            known = known & ends[claim.source].keys()
        known = {one for one in known if claim.stage in paths.of(claim.source, one)}
        here, wrong = stages.setdefault(place, set()), disputed.setdefault(place, set())
        wrong.update(here & known, claim.twice, claim.numbers - outvoted[index] - known)
        here |= known
    told: Counter[tuple[Process, int]] = Counter()
    for index, claim in enumerate(claims):
        place, numbers = (claim.source, claim.stage), claim.numbers - outvoted[index]
        told[claim.member, claim.stage] += len(numbers & stages[place])
        doubted[claim.member] += len(numbers & disputed[place]) + len(outvoted[index])
    within = _within(stages)
    partial = {name: some for name, some in within.items() if some != paths.of(*name)}
    by_stage = Counter(stage for some in within.values() for stage in some)
    return Books(
        round,
        {source: len(some) for source, some in ends.items()},
        tuple(by_stage[stage] for stage in range(num_stages)),
        dict(told),
        dict(lost),
        dict(redone),
        voided,
        partial,
        _breaks(paths, partial, claims, ends),
        {key: tuple(sorted(some)) for key, some in sorted(disputed.items()) if some},
        +doubted,
        {one: report.compared for one, report in settled.items() if report.compared.times},
        len(within) - len(partial),
        spans or {},
        frozenset(settled),
        digest.digest(),
        took_s,
        {process: report.busy_s for process, report in settled.items()},
    )


def record_of(books: Books) -> records.Books:
    """The books as the ledger keeps them: all sums, and of members and breaks as many as it has
    room for."""
    counts = Counter({process: 0 for process in books.spans})
    for (process, _), count in books.told.items():
        counts[process] += count
    for process, made in books.made.items():
        counts[process] += made
    named: list[records.BooksOfMember] = []
    room = limits.BOOKS_COUNTS_MAX
    for process in sorted(counts, key=lambda process: (-counts[process], process)):
        span = books.spans.get(process)
        stages = range(span.first, span.last + 1) if span is not None else ()
        if not stages or len(stages) > room or len(named) == limits.BOOKS_MEMBERS_MAX:
            continue
        room -= len(stages)
        told = tuple(books.told.get((process, stage), 0) for stage in stages)
        found = books.compared.get(process, orders.Compared())
        named.append(
            records.BooksOfMember(
                process.peer,
                stages[0],
                told,
                books.made.get(process, 0),
                books.doubted.get(process, 0),
                process in books.processes,
                round(books.busy_s.get(process, 0.0), _DIGITS),
                found.times,
                found.odd,
                found.suspect or b"",
            )
        )
    largest = sorted(books.breaks.items(), key=lambda one: (-one[1], one[0][1:]))
    return records.Books(
        books.round,
        sum(books.made.values()),
        books.whole,
        books.counted,
        tuple(sorted(named, key=lambda member: (member.first, member.peer))),
        len(counts),
        books.digest,
        {str(reason): count for reason, count in sorted(books.lost.items())},
        {str(reason): count for reason, count in sorted(books.redone.items())},
        books.voided,
        tuple(
            records.Break(process.peer if process is not None else b"", stage, reason, count)
            for (process, stage, reason), count in largest[: limits.BOOKS_BREAKS_MAX]
        ),
        round(books.took_s, _DIGITS),
    )


@dataclass(frozen=True, slots=True)
class _Claim:
    """Numbers that one member says it has counted, of one source and in one stage.

    Attributes:
        member: member that says so.
        source, stage: source and stage of the micro-batches.
        numbers: numbers of the micro-batches.
        twice: numbers that it has told more than once.
    """

    member: Process
    source: Process
    stage: int
    numbers: set[int]
    twice: set[int]


def _claims(
    asked: Mapping[Process, int], settled: Mapping[Process, orders.Settled]
) -> tuple[list[_Claim], Counter[Process]]:
    """All claims, in the order of the members; and how many each has made of micro-batches of
    sources that were not asked for as many: those are left out."""
    claims: list[_Claim] = []
    strange = Counter[Process]()
    for process, report in sorted(settled.items()):
        sums: Counter[tuple[Process, int]] = Counter()
        for one in report.counted:
            sums[one.source, one.stage] += orders.count(one.numbers)
        mine: dict[tuple[Process, int], _Claim] = {}
        for one in report.counted:
            key = one.source, one.stage
            if sums[key] > asked.get(one.source, 0):
                strange[process] += orders.count(one.numbers)
                continue
            claim = mine.setdefault(key, _Claim(process, *key, set(), set()))
            told = orders.numbers(one.numbers)
            claim.twice.update(claim.numbers & told)
            claim.numbers.update(told)
        claims += mine.values()
    return claims, strange


def _words(
    asked: Mapping[Process, int], settled: Mapping[Process, orders.Settled]
) -> Mapping[tuple[Process, int], list[tuple[int, Process, Process]]]:
    """Stage, speaker and member of what neighbours have seen, by source and number; nothing of a
    source that would have made more than it was asked for."""
    words: dict[tuple[Process, int], list[tuple[int, Process, Process]]] = {}
    for speaker, report in sorted(settled.items()):
        sums: Counter[tuple[Process, int]] = Counter()
        for one in report.seen:
            sums[one.source, one.stage] += orders.count(one.numbers)
        for one in report.seen:
            if one.member == speaker or sums[one.source, one.stage] > asked.get(one.source, 0):
                continue
            for number in orders.numbers(one.numbers):
                told = words.setdefault((one.source, number), [])
                told.append((one.stage, speaker, one.member))
    return words


def _outvoted(
    claims: list[_Claim],
    words: Mapping[tuple[Process, int], list[tuple[int, Process, Process]]],
    spans: Mapping[Process, Span],
) -> list[set[int]]:
    """Numbers of each claim that others know to be somebody else's.

    In the stages of its own span a source serves itself. Beyond that a micro-batch has two
    neighbours who know whom they had to do with. Of several who claim one, those keep it that most
    of the neighbours name; and who alone claims it loses it if two name another. So one word never
    costs anybody anything.
    """
    outvoted: list[set[int]] = [set() for _ in claims]
    claimed: dict[tuple[Process, int, int], list[int]] = {}
    for index, claim in enumerate(claims):
        span = spans.get(claim.source)
        if span is not None and claim.stage in span and claim.member != claim.source:
            outvoted[index] |= claim.numbers
            continue
        for number in claim.numbers:
            claimed.setdefault((claim.source, claim.stage, number), []).append(index)
    for (source, stage, number), rivals in claimed.items():
        told = words.get((source, number), ())
        votes = {
            index: len({speaker for _, speaker, one in told if one == claims[index].member})
            for index in rivals
        }
        most = max(votes.values())
        if len(rivals) == 1 and not most:
            others = {speaker for at, speaker, _ in told if at == stage}
            most = len(others) - 1
        for index, count in votes.items():
            if count < most:
                outvoted[index].add(number)
    return outvoted


def _within(
    stages: Mapping[tuple[Process, int], set[int]],
) -> dict[tuple[Process, int], tuple[int, ...]]:
    """The stages that have counted each micro-batch."""
    within: dict[tuple[Process, int], tuple[int, ...]] = {}
    for (source, stage), some in sorted(stages.items()):
        for number in sorted(some):
            within[source, number] = (*within.get((source, number), ()), stage)
    return dict(sorted(within.items()))


def _breaks(
    paths: Paths,
    partial: Named,
    claims: list[_Claim],
    ends: Mapping[Process, Mapping[int, Reason | None]],
) -> dict[tuple[Process | None, int, str], int]:
    """Partial micro-batches by where their gradients stayed.

    A gradient comes from the last stage; so whoever has counted it in the first of all stages from
    the last one on without a gap is the last who is known to have had it.
    """
    by_place: dict[tuple[Process, int], list[_Claim]] = {}
    for claim in claims:
        by_place.setdefault((claim.source, claim.stage), []).append(claim)
    breaks: Counter[tuple[Process | None, int, str]] = Counter()
    for (source, number), stages in partial.items():
        first = paths.num_stages
        for stage in reversed(paths.of(source, number)):
            if stage not in stages:
                break
            first = stage
        told = by_place.get((source, first), ())
        member = next((one.member for one in told if number in one.numbers), None)
        reason = ends.get(source, {}).get(number)
        breaks[member, first, str(reason) if reason is not None else ""] += 1
    return dict(breaks)
