"""Drawing of a simulated pipeline: who serves what, how the links are, and what goes wrong."""

import random
from dataclasses import dataclass, replace

from swarmtrain.simulate.pipelines.hostile import HABITS, LIES
from swarmtrain_transport.pipeline.wire.route import Span

_LARGE_EVERY = 50
"""Worlds of which one is large."""

_HOSTILE_EVERY = 4
"""Worlds of which one has a hostile member, if its steps are free."""

_TWINS_EVERY = 5
"""Worlds of which one compares every second micro-batch, if its steps are free."""

_SKIPPING_EVERY = 11
"""Worlds of which one has routes that leave stages out."""

_STEPS = 2

_MUTE_PART = 0.1
"""Part of the worlds: they take long."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: "die", "freeze", "cut"; "mute": what it reports does not come; "unplug": it and the
            coordinator do not hear of each other.
        at_s: time when it begins.
        peer: peer that it hits.
        for_s: duration; 0 for a peer that does not come back.
        other: the peer to which nothing comes any more, of a cut.
    """

    kind: str
    at_s: float
    peer: int
    for_s: float
    other: int = -1


@dataclass(frozen=True, slots=True)
class Conditions:
    """One world, before it begins.

    Attributes:
        num_stages: number of the model's stages.
        spans: spans of the peers.
        slots: slots of each peer.
        share: micro-batches of each source, in a round or in a step.
        steps: steps of a round, where they are flushed.
        pass_s: seconds of each peer's pass.
        calm_s: time when the faults stop.
        loss, double, late: probability of each for one message.
        faults: the others.
        repeat_every: number of micro-batches of which one is repeated to compare.
        habits: habits of a hostile member, the last one; none is hostile if it has none.
        calm_rounds: rounds that are to go well after the faults.
        moves_by_need: peers move to slow stages; else in half of the worlds, to any stage.
        visit: stages that a micro-batch visits; 0 for all.
    """

    num_stages: int
    spans: tuple[Span, ...]
    slots: int
    share: int
    steps: int
    pass_s: tuple[float, ...]
    calm_s: float
    loss: float
    double: float
    late: float
    faults: tuple[Fault, ...]
    repeat_every: int = 0
    habits: frozenset[str] = frozenset()
    calm_rounds: int = 2
    moves_by_need: bool = False
    visit: int = 0

    @property
    def hostile(self) -> int:
        """Index of the hostile member; -1 if there is none."""
        return len(self.spans) - 1 if self.habits else -1


def drawn(seed: int, rng: random.Random) -> Conditions:
    """The world of a seed."""
    is_large = seed % _LARGE_EVERY == _LARGE_EVERY - 1
    skips = seed % _SKIPPING_EVERY == 1
    num_stages = (
        rng.randint(5, 8) if is_large else rng.randint(4, 6) if skips else rng.randint(2, 4)
    )
    slots, flushes, share = rng.randint(1, 3), rng.random() < 0.3, rng.randint(2, 5)
    most = 5 if is_large else 3
    spans = [
        Span(stage, stage)
        for stage in range(num_stages)
        for _ in range(rng.randint(1, most if stage else most - 1))
    ]
    if rng.random() < 0.6:
        first = rng.randrange(num_stages)
        spans.append(Span(first, rng.randint(first, num_stages - 1)))
    if rng.random() < 0.3:
        spans.append(Span(0, num_stages - 1))
    calm_s = rng.uniform(40, 150)
    loss = rng.choice((0, 0.02, 0.1))
    double, late = rng.choice((0, 0.05, 0.2)), rng.choice((0, 0.05, 0.2))
    faults = _faults(rng, spans, num_stages, calm_s)
    slow = rng.choice((1.0, 4.0))
    pass_s = tuple(rng.uniform(0.1, 0.5) * rng.choice((1.0, slow)) for _ in spans)
    steps = _STEPS if flushes else 0
    faults += _mute(random.Random(f"mute {seed}"), len(spans), calm_s)
    faults += _unplugged(random.Random(f"unplugged {seed}"), len(spans), calm_s)
    every = 2 if seed % _TWINS_EVERY == 3 and not flushes else 0
    world = Conditions(
        num_stages, tuple(spans), slots, share, steps, pass_s, calm_s, loss, double, late, faults,
        every,
    )  # fmt: skip
    if skips:
        visit = random.Random(f"visit {seed}").randint(3, num_stages - 1)
        world = replace(world, visit=visit, repeat_every=0)
    return with_hostile(seed, world) if seed % _HOSTILE_EVERY == 0 and not flushes else world


def with_hostile(seed: int, world: Conditions) -> Conditions:
    """One more member, which is hostile; where steps are flushed it could void all of them."""
    rng = random.Random(f"hostile {seed}")
    stage = rng.randrange(world.num_stages)
    lies = (LIES,) if world.repeat_every else ()
    return replace(
        world,
        spans=(*world.spans, Span(stage, stage)),
        slots=max(2, world.slots),
        pass_s=(*world.pass_s, 0.2),
        habits=frozenset((*rng.sample(HABITS, rng.randint(1, 3)), *lies)),
    )


def _faults(
    rng: random.Random, spans: list[Span], num_stages: int, calm_s: float
) -> tuple[Fault, ...]:
    """Deaths, freezes and cuts: over all the time, or close together."""
    begin_s = rng.uniform(1, calm_s)
    window = rng.choice(((1.0, calm_s), (begin_s, begin_s + rng.uniform(5, 40))))
    faults = []
    for _ in range(rng.choice((0, 1, 2, 3, 4, 6, 8))):
        at_s, peer = rng.uniform(*window), rng.randrange(len(spans))
        kind = rng.choice(("die", "freeze", "freeze", "cut"))
        if kind == "cut":
            for_s = rng.uniform(10, 120)
            faults.append(Fault(kind, at_s, peer, for_s, rng.randrange(len(spans))))
        elif kind == "die":
            faults.append(Fault(kind, at_s, peer, rng.choice((0, rng.uniform(1, 50)))))
        else:
            faults.append(Fault(kind, at_s, peer, rng.uniform(5, 70)))
    if rng.random() < 0.15:
        faults += _stranded(rng, spans, num_stages, calm_s)
    between = [
        i
        for i, span in enumerate(spans)
        if span.first > 0 and span.last < num_stages - 1
        and sum(span.first in other for other in spans) > 1
    ]  # fmt: skip
    if between and calm_s > 80 and rng.random() < 0.7:
        faults += _forgotten(rng, spans, rng.choice(between), calm_s)
    return tuple(faults)


def _mute(rng: random.Random, num_peers: int, calm_s: float) -> tuple[Fault, ...]:
    """A peer does all that it is told, and never says so: of some worlds."""
    if rng.random() > _MUTE_PART:
        return ()
    return (Fault("mute", rng.uniform(0, calm_s), rng.randrange(num_peers), calm_s),)


def _unplugged(rng: random.Random, num_peers: int, calm_s: float) -> tuple[Fault, ...]:
    """Connections to the coordinator that break while those to other peers stand."""
    return tuple(
        Fault("unplug", rng.uniform(1, calm_s), rng.randrange(num_peers), rng.uniform(1, 40))
        for _ in range(rng.choice((0, 0, 1, 3)))
    )


def _forgotten(rng: random.Random, spans: list[Span], middle: int, calm_s: float) -> list[Fault]:
    """Nobody hears a peer any more, nor it those below: its micro-batches are given up, and their
    gradients come when the round is closed."""
    stage, at_s = spans[middle].last, rng.uniform(3, calm_s - 76)
    others = [i for i in range(len(spans)) if i != middle]
    unheard = [Fault("cut", at_s, middle, 130, i) for i in others if spans[i].first < stage]
    deaf_s = at_s + rng.uniform(-1, 1)
    deaf = [Fault("cut", deaf_s, i, 76, middle) for i in others if spans[i].last > stage]
    return unheard + deaf


def _stranded(rng: random.Random, spans: list[Span], num_stages: int, calm_s: float) -> list[Fault]:
    """A peer is cut off from above, while the next stage hangs and one of that begins anew: its
    micro-batches are sent again elsewhere, and it still goes on with the old ones."""
    stage, at_s = rng.randrange(1, num_stages), rng.uniform(3, calm_s - 35)
    middle = rng.choice([i for i, span in enumerate(spans) if span.last == stage - 1] or [0])
    below = [i for i, span in enumerate(spans) if span.first == stage]
    above = [i for i, span in enumerate(spans) if span.last < spans[middle].first]
    faults = [
        Fault("cut", at_s, one, 35, other)
        for i in above
        for one, other in ((i, middle), (middle, i))
    ]
    faults += [Fault("freeze", at_s + rng.uniform(-2, 1), i, 25) for i in below]
    if below:
        died_s, back_s = at_s + rng.uniform(9, 18), rng.uniform(0.5, 4)
        faults.append(Fault("die", died_s, rng.choice(below), back_s))
    return faults
