"""The weather: draws the faults of one world from its seed, until the run is nearly over.

A seed is harsh or mild, and knows only some kinds of trouble: worlds in which everything happens at
once hide the effect of a single fault. Faults strike at boundaries, because that is where ops are
in the middle of something; their ends are moments in time. Then it is calm: links heal, everybody
goes on, and the run must reach its end.

The weather draws when which kind strikes. Each strike draws the rest from a seed of its own, so a
list of strikes repeats a world even when worlds are drawn otherwise one day (`RepeatedWeather`).
"""

import random
from collections import Counter, deque
from collections.abc import Iterable
from functools import partial
from itertools import islice

from swarmtrain.simulate.checks.invariants import Invariants
from swarmtrain.simulate.faults.plan import Strike
from swarmtrain.simulate.faults.troubles import (
    ADDED,
    BESIDE,
    CELLS,
    CRASH,
    FLIP,
    FORGERY,
    HOSTILE,
    HOSTILE_OWNER,
    LONGEST_S,
    OWNERS_DEEDS,
    WAYS,
    Troubles,
)
from swarmtrain.simulate.ground.handicaps import NO_HANDICAP
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain_transport.kinds import PAIR, WHOLE
from swarmtrain_transport.wire.frames import FrameKind
from swarmtrain_transport.wire.messages import (
    Applied,
    Got,
    Hashes,
    Have,
    Ready,
    Records,
    SliceDone,
    Stranded,
    Welcome,
)
from swarmtrain_transport.wire.records import (
    AnyBody,
    Commit,
    Freeze,
    Reassign,
    Rewind,
    SliceFreeze,
)

_GAPS = (12, 30, 80, 200, 500)
"""Messages between two faults, on average: a seed has one of these. An op has about 160."""

_MOMENTS = (Freeze, SliceFreeze, Reassign, Commit)
_LURK_MESSAGES = 20
"""After such a decision some weathers strike within so many messages: much hangs on little then.
Every second time nobody has heard of it yet."""

_AMBUSH_MESSAGES = 6
"""Other strikes wait for one of the next so many messages of a kind."""

_AMBUSHED = (
    FrameKind.PART, FrameKind.RANGES, FrameKind.RESULT, FrameKind.GET, FrameKind.BLOB,
    FrameKind.PIECE, Got, SliceDone, Have, Applied, Ready, Stranded, Records, Hashes, Welcome,
)  # fmt: skip

_CHOSEN = (*BESIDE, *WAYS, *CELLS)
"""Kinds that happen where they are asked for."""

_HOSTILE_EVERY = 5
"""Among so many worlds one has an owner that signs wrong sums, one a member that says of others
what is not so, and one a member that gives nothing: that is its first fault."""

_STRIKES_MAX = 1000
"""Then it is calm: a coordinator that is stopped again and again would keep a world from its end
for minutes, and show nothing new."""

_NARROW_STRIKES_MAX = 200
"""In a narrow world, where who comes hears many messages, of which each may be a fault's moment."""

_BESIDE_SHARE = 0.3
"""Share of faults that strike beside others, in a world that has such."""

_FALLS_S = (None, 0.0, 0.001, 0.01, 0.1, 1.0)
"""Times after a REWIND of the guard at which the coordinator dies."""

LEAP = "loss leap"
"""Counted beside the faults: times that the guard has gone back."""

_NEVER = 1 << 62
_CALM_OPS = 2
"""Commits at the end of a run during which nothing goes wrong any more."""

_END_S = 900.0
"""Once it is calm the run reaches its end within this time."""


class RepeatedWeather(Troubles):
    """Faults that are known: those of a world that once failed.

    Args:
        swarm: swarm that it hits; its peers are numbered from 0.
        checks: checks that are told who is in trouble.
        strikes: faults to come, in order.
        reckless: True if the newest state may be lost.

    Attributes:
        strikes: faults that have happened, or were not possible when their time came.
        counts: number of faults of each kind that have happened.
        awaited: kind of message that it waits for, if it does.
    """

    def __init__(
        self, swarm: Swarm, checks: Invariants, strikes: Iterable[Strike], *, reckless: bool
    ) -> None:
        super().__init__(swarm, checks, random.Random(0), reckless=reckless)
        self.counts: Counter[str] = Counter()
        self.strikes: list[Strike] = []
        self.awaited: object = None
        self._planned = deque(strikes)
        self.next_boundary = self._planned[0].boundary if self._planned else _NEVER
        swarm.scene.clock.at(LONGEST_S, self.calm)

    # ---- Weather

    def strike(self) -> None:
        """That boundary has come."""
        strike = self._planned.popleft()
        self.next_boundary = self._planned[0].boundary if self._planned else _NEVER
        self._do(strike)

    def heard(self) -> None:
        """A message of the kind that was awaited was heard."""

    def _do(self, strike: Strike) -> None:
        """Let something go wrong now, if it may."""
        is_narrow = self._scene.conditions.is_narrow
        if len(self.strikes) >= (_NARROW_STRIKES_MAX if is_narrow else _STRIKES_MAX):
            self.calm()
        if self.is_calm:
            return
        self.strikes.append(strike)
        self._rng.seed(strike.seed)
        story = self._every[strike.kind]()
        if story is not None:
            self.counts[strike.kind] += 1
            self._scene.say("FAULT", story)

    def logged(self, body: AnyBody) -> None:
        """Let calm begin before the run's end."""
        if (
            isinstance(body, Commit)
            and self._checks.decided.commits >= self._scene.conditions.last_round - _CALM_OPS
        ):
            self.calm()

    def calm(self) -> None:
        """Everything is well again, for good; the run must end soon."""
        if self.is_calm:
            return
        self.is_calm = True
        swarm, scene = self._swarm, self._scene
        scene.say("CALM", "no faults from here on")
        self._checks.calm()
        swarm.network.heal_all()
        for peer in swarm.peers.values():
            line = swarm.network.lines[peer.peer_id]
            if peer.is_handicapped:
                # An op that has begun may still wait for it, and what it sent late is not passed.
                self._trouble(peer, swarm.network.longest_s(line))
            peer.handicap = NO_HANDICAP
            line.lag_s = 0.0
        swarm.coordinator.sync_s = scene.conditions.sync_s
        staying = [peer for peer in swarm.survivors if not peer.is_leaving]
        elsewhere = self._checks.decided.elsewhere
        first = [peer for peer in staying if peer.peer_id not in elsewhere]
        conditions = scene.conditions
        missing = max(conditions.all_peers - len(staying), conditions.num_peers - len(first))
        for number in range(missing):
            scene.clock.after(1.0 + number, swarm.add_peer)
        scene.end_s = scene.clock.now_s + _END_S


class DrawnWeather(RepeatedWeather):
    """One world's faults, drawn.

    Args:
        swarm: swarm that it hits; its peers are numbered from 0.
        checks: checks that are told who is in trouble.
        rng: random numbers of this weather.
        kinds: names of what may happen; everything if it is empty.
        beside: kinds of `BESIDE`, `WAYS` and `CELLS` that happen, too.
    """

    def __init__(
        self,
        swarm: Swarm,
        checks: Invariants,
        rng: random.Random,
        kinds: tuple[str, ...] = (),
        beside: tuple[str, ...] = (),
    ) -> None:
        super().__init__(swarm, checks, (), reckless=rng.random() < 0.25)
        conditions = swarm.scene.conditions
        self._draw = rng
        known = kinds or tuple(name for name in self.kinds if name not in _CHOSEN)
        names = [name for name in self.kinds if name in known]
        self._beside = beside
        self._draw_beside = random.Random(f"beside {conditions.seed}")
        if conditions.kind in WHOLE:
            names = [name for name in names if name not in OWNERS_DEEDS]  # nobody sums
        is_cut = conditions.fragments > 1 or conditions.strategy_name == "streaming"
        if conditions.kind == PAIR or is_cut:
            # There is no shared state, or it lies in several buffers.
            names = [name for name in names if name != FLIP]
        # They are not drawn with the others, so that worlds without them stay what they were.
        place = conditions.seed % _HOSTILE_EVERY
        hostile = [name for name in HOSTILE if name in names]
        drawn = HOSTILE[place] if place < len(HOSTILE) and HOSTILE[place] in names else ""
        self._hostile_kind = names[0] if names == hostile[:1] else drawn
        if self._hostile_kind != HOSTILE_OWNER and not self._may_be_hostile:
            self._hostile_kind = ""
        added = ADDED[conditions.seed // _HOSTILE_EVERY % len(ADDED)]
        self._added_kind = added if added in names and drawn == "" else ""
        names = [name for name in names if name not in (*HOSTILE, *ADDED)] or names
        # A world either knows a kind well or not at all.
        self._names = sorted(rng.sample(names, rng.randint(1, len(names))))
        self._weights = [rng.choice((1, 1, 3)) for _ in self._names]
        self._gap = rng.choice(_GAPS)
        self._lurks = rng.choice((0.0, 0.0, 0.2, 0.5))
        self._ambushes = rng.choice((0.0, 0.3, 0.7))
        is_paired = conditions.kind == PAIR
        self._ambushed: tuple[object, ...]
        self._ambushed = (*_AMBUSHED, FrameKind.AHEAD) if is_paired else _AMBUSHED
        if conditions.cells > 1:
            self._ambushed = (*_AMBUSHED, FrameKind.SUM, FrameKind.SUM, FrameKind.SUMS)
        self._left = 0
        self._plan_next()

    def strike(self) -> None:
        """Let something go wrong now, or when the next few messages of some kind were heard."""
        if self.awaited is None and self._draw.random() < self._ambushes:
            self.awaited = self._draw.choice(self._ambushed)
            self._left = self._draw.randint(1, _AMBUSH_MESSAGES)
            self.next_boundary = (
                self._scene.boundary + 2 * _AMBUSH_MESSAGES + self._gap // 2
            )  # should none come
            return
        self.awaited = None
        number = self._scene.boundary - 1
        self._plan_next()
        (kind,) = self._draw.choices(self._names, self._weights)
        if self._hostile_kind and self._may_lie():
            kind = self._hostile_kind
        elif (
            self._added_kind
            and self._draw.random() < 0.7
            and (self._added_kind != FORGERY or self._may_lie())
        ):
            kind = self._added_kind
        if self._beside and self._draw_beside.random() < _BESIDE_SHARE:
            kind = self._draw_beside.choice(self._beside)
        self._do(Strike(number, kind, self._draw.getrandbits(32)))

    def _may_lie(self) -> bool:
        """Return True if nobody does so yet, and there are others without whom a run is no run."""
        if self._scene.liar is not None or self._scene.deeds:
            return False
        synced = (peer for peer in self._swarm.survivors if peer.applied_op >= 0)
        return len([*islice(synced, 2)]) > 1

    def heard(self) -> None:
        """A message of the kind that was awaited was heard: before the next one it strikes."""
        self._left -= 1
        if self._left == 0:
            self.next_boundary = self._scene.boundary

    def logged(self, body: AnyBody) -> None:
        """Lie in wait for decisions."""
        if isinstance(body, _MOMENTS) and self._draw.random() < self._lurks:
            within = self._draw.choice((1, _LURK_MESSAGES))
            soon = self._scene.boundary + self._draw.randrange(within)
            self.next_boundary = min(self.next_boundary, soon)
        if isinstance(body, Rewind) and body.losses:
            self.counts[LEAP] += 1
            seed, delay_s = self._draw.getrandbits(32), self._draw.choice(_FALLS_S)
            if delay_s is not None:
                self._scene.clock.after(delay_s, partial(self._fall, seed))
        super().logged(body)

    def _fall(self, seed: int) -> None:
        """End the coordinator around a REWIND of the guard."""
        self._do(Strike(self._scene.boundary, CRASH, seed))

    def _plan_next(self) -> None:
        gap = 1 + int(self._draw.expovariate(1 / self._gap))
        self.next_boundary = self._scene.boundary + gap
