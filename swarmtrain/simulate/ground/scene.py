"""The state that all of a simulated world shares: its time, its chance, and what goes on in it.

Every message that is delivered, on either lane, is a *boundary*: its number is counted before the
receiver hears it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from swarmtrain.simulate.ground.clock import SimClock
from swarmtrain.simulate.ground.conditions import Conditions
from swarmtrain.simulate.ground.misbehaviour import Deed
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import AnyBody

_END_S = 2000.0

Trace = Callable[[float, str, str], None]
"""Takes a line per event: the time, who, what."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold, and when."""

    invariant: str
    time_s: float
    boundary: int
    story: str


class Weather(Protocol):
    """Lets faults happen while a world runs.

    Attributes:
        next_boundary: boundary at which it strikes next.
        awaited: the kind of message that it wants to hear of: a frame's or a control message's.
    """

    next_boundary: int
    awaited: object

    def heard(self) -> None:
        """A message of that kind was heard."""

    def strike(self) -> None:
        """That boundary has come."""

    def logged(self, body: AnyBody) -> None:
        """The coordinator has decided something."""


class Scene:
    """Time, chance and the story of one world.

    Args:
        conditions: constants of the world.
        trace: takes a line per event.

    Attributes:
        boundary: number of the next message.
        end_s: latest time at which the world ends.
        is_abandoned: nothing more can be said of this world.
        violations: violations that were found.
        hostile: peers that may be found at fault.
        liar: peer whose sums are wrong.
        is_liar_silent: True if it answers no auditor.
        convicted: peers that were found out to sum wrongly, in whichever group.
        deeds: deeds of other hostile members.
        flipped: peers in whose memory a bit is another, and is still.
        numbers: numbers of peers, as they came.
    """

    def __init__(self, conditions: Conditions, trace: Trace | None = None) -> None:
        self.conditions = conditions
        self.clock = SimClock()
        self.rng = random.Random(conditions.seed)
        self.trace = trace
        self.boundary = 0
        self.end_s = _END_S
        self.is_abandoned = False
        self.violations: list[Violation] = []
        self.weather: Weather | None = None
        self.hostile: set[PeerId] = set()
        self.liar: PeerId | None = None
        self.is_liar_silent = False
        self.convicted: set[PeerId] = set()
        self.deeds: dict[PeerId, Deed] = {}
        self.flipped: set[PeerId] = set()
        self.numbers: dict[PeerId, int] = {}

    def deliver(self, kind: object, hear: Callable[..., None], *args: object) -> None:
        """One boundary: what is due at it strikes before the message is heard."""
        number = self.boundary
        self.boundary += 1
        weather = self.weather
        if weather is None:
            hear(*args)
            return
        if number >= weather.next_boundary:
            weather.strike()
        hear(*args)
        if weather.awaited is kind:
            weather.heard()

    def misbehave(self, peer: PeerId, deed: Deed) -> None:
        """From now on this peer does so, also in its later lives."""
        self.deeds[peer] = deed
        self.hostile.add(peer)

    def abandon(self) -> None:
        """Nothing more can be said of this world."""
        self.say("END", "nobody is left who could know better")
        self.is_abandoned = True

    def violation(self, invariant: str, story: str) -> None:
        """An invariant does not hold."""
        if self.trace is not None:
            self.say("VIOLATION", f"{invariant}: {story}")
        self.violations.append(Violation(invariant, self.clock.now_s, self.boundary, story))

    def say(self, who: str, what: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace(self.clock.now_s, who, what)

    def name_of(self, peer: PeerId) -> str:
        """A peer in stories."""
        number = self.numbers.get(peer)
        return f"peer {number}" if number is not None else f"stranger {peer.hex()[:8]}"

    def skew(self) -> tuple[float, float]:
        """Offset and speed of a new process's clock."""
        return self.conditions.skew(self.rng)
