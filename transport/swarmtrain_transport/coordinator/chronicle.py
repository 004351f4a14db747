"""Chronicle of a run: bounded memory of what people ask about."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from swarmtrain_transport.collective.gauges import Gauges
from swarmtrain_transport.coordinator.status import Exclusion, RoundEvent, RoundTimes
from swarmtrain_transport.ledger.exclusion_rule import in_words
from swarmtrain_transport.ledger.fold import GroupView, OpDecision
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Evaluated, Gauged
from swarmtrain_transport.wire.records import Commit, Freeze, Reassign, Skip

_KEPT = 1000
"""Entries of each list that people may still ask for."""


_TIMES_KEPT = 30
"""Rounds of which it is remembered when each part was over."""

APART = "apart"
"""Event of a peer whose contributions have become unlike the others'."""

E = TypeVar("E", Exclusion, RoundEvent)


class Shared(Generic[E]):
    """The newest entries, at most _KEPT: whoever has caused most of them loses its own oldest, so
    that nobody pushes out what happened to others."""

    def __init__(self) -> None:
        self._entries: dict[int, E] = {}
        self._of: dict[str, deque[int]] = {}
        """Numbers of each peer's entries."""
        self._added = 0

    def __iter__(self) -> Iterator[E]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def newest_of(self, peer: str) -> E | None:
        """A peer's last entry, None if it has none any more."""
        numbers = self._of.get(peer)
        return self._entries[numbers[-1]] if numbers else None

    def change(self, entry: E) -> None:
        """Put this into the place of the same peer's newest entry."""
        self._entries[self._of[entry.peer][-1]] = entry

    def add(self, entry: E) -> None:
        """One more."""
        self._entries[self._added] = entry
        self._of.setdefault(entry.peer, deque()).append(self._added)
        self._added += 1
        if len(self._entries) > _KEPT:
            most, numbers = max(self._of.items(), key=lambda item: len(item[1]))
            del self._entries[numbers.popleft()]
            if not numbers:
                del self._of[most]


@dataclass(slots=True)
class Chronicle:
    """Bounded memory of what people ask about: losses, exclusions, comings and goings, when rounds
    were where, and what owners say of contributions."""

    losses: dict[int, float] = field(default_factory=dict)
    exclusions: Shared[Exclusion] = field(default_factory=Shared)
    events: Shared[RoundEvent] = field(default_factory=Shared)
    gauges: Gauges = field(default_factory=Gauges)
    times: dict[int, RoundTimes] = field(default_factory=dict)
    _begun_s: dict[int, float] = field(default_factory=dict)

    def gauged(self, owner: PeerId, told: Gauged, view: GroupView) -> None:
        """An owner has looked at contributions; people hear of those that go apart."""
        self.gauges.hear(owner, told, view)
        for peer, words in self.gauges.gone_apart().items():
            self.event(told.op, peer, APART, words)

    def rewound(self, op: int) -> None:
        """Later rounds come again, and lose what they lose then."""
        self.losses = {number: loss for number, loss in self.losses.items() if number <= op}

    def excluded(self, op: int, peer: PeerId, reason: str, by: Iterable[PeerId] = ()) -> None:
        """Remember an exclusion."""
        said = tuple(owner.hex() for owner in by)
        self.exclusions.add(Exclusion(op, peer.hex(), reason, said))

    def moved(self, body: Reassign, owners: Sequence[PeerId]) -> None:
        """Remember on whose word a slice was moved; `owners` are those before it."""
        said: dict[str, list[str]] = {}
        for peer, word in body.lacked.items():
            said.setdefault(word, []).append(peer.hex()[:8])
        told = "; ".join(in_words(word, ", ".join(peers)) for word, peers in said.items())
        if told:
            told = f"says that {told}; its slice went to {body.owner.hex()[:8]}"
            self.event(body.op, owners[body.slice_index], "at odds", told)

    def event(self, op: int, peer: PeerId, event: str, reason: str = "") -> None:
        """Remember what a peer did in round `op`; the same again is counted, not told again."""
        last = self.events.newest_of(peer.hex())
        if last is not None and (last.event, last.reason) == (event, reason):
            self.events.change(msgspec.structs.replace(last, times=last.times + 1))
        else:
            self.events.add(RoundEvent(op, peer.hex(), event, reason))

    def planned(
        self, op: int, begun_s: float, ready_s: Mapping[PeerId, float], now_s: float
    ) -> None:
        """A round was planned that began with the outcome before it, at `begun_s`."""
        since = {peer.hex(): max(0.0, at_s - begun_s) for peer, at_s in ready_s.items()}
        ready = {peer: round(seconds, 3) for peer, seconds in since.items()}
        self.times.pop(op, None)  # it was planned before a REWIND
        self.times[op] = RoundTimes(op, ready, round(now_s - begun_s, 3))
        self._begun_s[op] = begun_s
        if len(self.times) > _TIMES_KEPT:
            oldest = next(iter(self.times))
            del self.times[oldest], self._begun_s[oldest]

    def decided(self, body: OpDecision, now_s: float) -> None:
        """A planned round went on, or ended."""
        known = self.times.get(body.op)
        if known is None:
            return
        at_s = round(now_s - self._begun_s[body.op], 3)
        if isinstance(body, Freeze):
            self.times[body.op] = msgspec.structs.replace(known, frozen=at_s)
        elif isinstance(body, Commit | Skip):
            outcome = "merged" if isinstance(body, Commit) else "skipped"
            self.times[body.op] = msgspec.structs.replace(known, ended=at_s, outcome=outcome)

    def evaluated(self, view: GroupView, peer: PeerId, message: Evaluated) -> None:
        """Remember a validation loss, if PLAN named the peer for it; the first report stands."""
        op = view.commits.get(message.op)
        is_named = op.plan.evaluate_by == peer if op is not None else message.op == 0
        if not is_named or not abs(message.loss) < 1e9:
            return
        self.losses.setdefault(message.op, message.loss)
        if len(self.losses) > _KEPT:
            self.losses.pop(next(iter(self.losses)))
