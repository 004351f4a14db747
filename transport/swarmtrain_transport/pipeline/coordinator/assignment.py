"""Assignment of stages to peers: the same arithmetic for a joiner and for a forecast. Pure.

A peer makes so many micro-batches in a second as its processor or its link allows, whichever is
slower; a stage makes what all who serve it make together, and a run what its slowest stage makes.
A joiner gets the stages with which the slowest stage gains most. Where it says how much memory it
has, that may be several; else it is one. If a stage is slow all the same, a peer of a faster one
moves there. A peer's word on its speed is its own, so it is bounded by the words of the others, and
counts until a run has seen how fast it is (`moves`).
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarmtrain_transport import limits

_LEAD = 1.1
"""Factor to the slowest stage's rate that a stage keeps at least when a peer leaves it: measured
rates differ by about as much by chance."""

_BACKWARD = 3
"""A backward pass, and the forward pass that it makes again, in forward passes."""


@dataclass(frozen=True, slots=True)
class StageNeed:
    """Demands of one stage on whoever serves it.

    Attributes:
        flops: operations of a micro-batch's forward pass; some, whatever the stage.
        kept_bytes: memory that stays in use: weights, their optimizer's state, and the like.
        pass_bytes: bytes of one micro-batch's activations, from its forward to its backward pass.
        entry_bytes: memory of a peer whose span begins here: its process, and all micro-batches on
            their way that it holds.
        input_bytes: bytes that go to it for a micro-batch, and back as gradient; 0 of the first.
        share: part of all micro-batches that visits it.
    """

    flops: float
    kept_bytes: int
    pass_bytes: int
    entry_bytes: int
    input_bytes: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Server:
    """A peer as it tells of itself; 0 is unsaid.

    Attributes:
        span: the stages that it serves, or wishes to; None for any.
        flops_per_s: speed of its processor.
        link_bytes_per_s: rate of its link, in the slower direction.
        memory_bytes: memory that it gives.
        seen_flops_per_s: speed by what it has counted in the run, and the time that took.
    """

    span: range | None = None
    flops_per_s: float = 0.0
    link_bytes_per_s: float = 0.0
    memory_bytes: int = 0
    seen_flops_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The stages that a peer is to serve, and the reason in words."""

    span: range
    why: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """A peer, by its place, that is to serve another stage, and the reason in words."""

    place: int
    stage: int
    why: str


def memory_of(needs: Sequence[StageNeed], span: range) -> int:
    """Bytes that a peer with this span takes."""
    kept = sum(needs[stage].kept_bytes + needs[stage].pass_bytes for stage in span)
    return kept + needs[span[0]].entry_bytes


def flops_of(needs: Sequence[StageNeed], span: range) -> float:
    """Operations for a micro-batch that is made, both ways, on average of those that visit the
    stages and those that do not. The end of a route makes no forward pass before it
    knows that the micro-batch counts."""
    is_end = span[-1] == len(needs) - 1
    return (_BACKWARD + (not is_end)) * sum(needs[at].share * needs[at].flops for at in span)


def hop_bytes_of(needs: Sequence[StageNeed], span: range) -> int:
    """Bytes of a micro-batch that leave a span, both ways; as many come in."""
    after = needs[span.stop].input_bytes if span.stop < len(needs) else 0
    return round(needs[span[0]].share * needs[span[0]].input_bytes + needs[span[-1]].share * after)


def rate_of(needs: Sequence[StageNeed], server: Server, span: range) -> float:
    """Micro-batches that a peer can make in a second, its speed being known."""
    seconds = flops_of(needs, span) / server.flops_per_s
    if server.link_bytes_per_s:
        seconds = max(seconds, hop_bytes_of(needs, span) / server.link_bytes_per_s)
    return 1 / seconds


def stage_rates(needs: Sequence[StageNeed], servers: Sequence[Server]) -> list[float]:
    """Micro-batches a second of each stage, by all who serve it. A peer that says nothing of its
    speed counts as the middle one of those that do."""
    return _rates(needs, _comparable(servers))


def _rates(needs: Sequence[StageNeed], servers: Sequence[Server]) -> list[float]:
    rates = [0.0] * len(needs)
    for server in servers:
        if server.span:
            rate = rate_of(needs, server, server.span)
            for stage in server.span:
                rates[stage] += rate
    return rates


def spans_that_fit(needs: Sequence[StageNeed], memory_bytes: int) -> list[range]:
    """All spans that so much memory holds, shorter ones first."""
    count = len(needs)
    return [
        span
        for length in range(1, count + 1)
        for span in (range(first, first + length) for first in range(count - length + 1))
        if memory_of(needs, span) <= memory_bytes
    ]


def choose(needs: Sequence[StageNeed], others: Sequence[Server], joiner: Server) -> Choice:
    """The stages of a joiner.

    Args:
        needs: needs of each stage.
        others: members of the run, with their spans.
        joiner: the joiner; its span is its wish; that it fits was seen at the door.
    """
    if joiner.span is not None:
        return Choice(joiner.span, "as it asked")
    single = [range(stage, stage + 1) for stage in range(len(needs))]
    fitting = spans_that_fit(needs, joiner.memory_bytes) if joiner.memory_bytes else single
    *known, me = _comparable([*others, joiner])
    before = _rates(needs, known)

    def after(span: range) -> tuple[int, list[float]]:
        """Stages that somebody serves; once that is all, their rates, the slowest one first."""
        rate = rate_of(needs, me, span)
        rates = sorted(old + rate * (stage in span) for stage, old in enumerate(before))
        are_all_served = rates[0] > 0
        rounded = [float(f"{rate:.9g}") for rate in rates] if are_all_served else []
        return sum(rate > 0 for rate in rates), rounded

    best = max(fitting or single, key=after)  # the first of equals: few stages, low ones
    if len(best) == len(needs) > 1:
        return Choice(best, "all of them fit into its memory")
    if not all(before[stage] for stage in best):
        return Choice(best, "nobody serves " + ("it yet" if len(best) == 1 else "all of them yet"))
    return Choice(best, "there the run gains most")


def stand_in(
    needs: Sequence[StageNeed], servers: Sequence[Server], stage: int, movable: Sequence[int]
) -> int | None:
    """Choose a peer, by its place, for a stage that nobody serves: one whose own stages
    have others, after which the slowest of the others is fastest. None if there is none.

    Args:
        needs: needs of each stage.
        servers: members of the run, with their spans.
        stage: stage that nobody serves.
        movable: places of those who may be sent elsewhere.
    """
    known = _comparable(servers)
    rates = _rates(needs, known)
    memory = memory_of(needs, range(stage, stage + 1))
    best: tuple[float, int] | None = None
    for index in movable:
        server = known[index]
        own = server.span or range(0)
        rest = [one for place, one in enumerate(known) if place != index]
        are_served = all(any(at in (one.span or ()) for one in rest) for at in own)
        if not are_served or 0 < server.memory_bytes < memory:
            continue
        rate = rate_of(needs, server, own)
        slowest = min(rates[at] - rate for at in own)
        if best is None or slowest > best[0]:
            best = slowest, index
    return None if best is None else best[1]


def next_move(
    needs: Sequence[StageNeed], servers: Sequence[Server], movable: Sequence[int]
) -> Transfer | None:
    """Choose a peer of a faster stage for the slowest one: the one after whose move the slowest
    stages are fastest, of equals the slowest peer. None if no move makes the run better off.

    The slowest stage gains, and no other falls to where that was. So with equal speeds no sequence
    of moves comes back to where it began.

    Args:
        needs: needs of each stage.
        servers: members of the run, with their spans.
        movable: places of those who may be sent elsewhere.
    """
    known = _comparable(servers)
    rates = _rates(needs, known)
    slowest = min(range(len(rates)), key=rates.__getitem__)
    there, low = range(slowest, slowest + 1), rates[slowest]
    memory = memory_of(needs, there)
    best: tuple[list[float], float, int] | None = None
    for place in movable:
        server = known[place]
        own = server.span or there
        if not low or slowest in own or 0 < server.memory_bytes < memory:
            continue
        rate = rate_of(needs, server, own)
        after = [old - rate * (stage in own) for stage, old in enumerate(rates)]
        if min(after[stage] for stage in own) < _LEAD * low:
            continue
        after[slowest] += rate_of(needs, server, there)
        found = sorted(float(f"{one:.9g}") for one in after), -rate, -place
        best = found if best is None else max(best, found)
    if best is None:
        return None
    place = -best[2]
    left = min(known[place].span or there, key=rates.__getitem__)
    return Transfer(
        place, slowest, f"stage {slowest} can make {low:.3g} micro-batches a second, "
        f"stage {left} {rates[left]:.3g}",
    )  # fmt: skip


def _comparable(servers: Sequence[Server]) -> list[Server]:
    """All with a speed, which is the one that was seen. A peer that was not seen yet is as fast as
    it says beside the others; nobody is faster than a multiple of the middle one."""
    ratios = [
        server.seen_flops_per_s / server.flops_per_s
        for server in servers
        if server.seen_flops_per_s > 0 < server.flops_per_s
    ]
    ratio = statistics.median_low(ratios) if ratios else 1.0
    speeds = [server.seen_flops_per_s or server.flops_per_s * ratio for server in servers]
    known = [speed for speed in speeds if speed > 0]
    if not known:
        return [replace(server, flops_per_s=1.0, link_bytes_per_s=0.0) for server in servers]
    middle = statistics.median_low(known)
    most = limits.PACE_SPREAD * middle
    return [
        replace(server, flops_per_s=min(speed or middle, most))
        for server, speed in zip(servers, speeds, strict=True)
    ]
