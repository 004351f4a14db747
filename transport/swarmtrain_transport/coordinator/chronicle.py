"""Chronicle of a run: bounded memory of what people ask about."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from swarmtrain_transport.collective.gauges import Gauges
from swarmtrain_transport.coordinator.status import Exclusion, RoundEvent
from swarmtrain_transport.ledger.exclusion_rule import in_words
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Evaluated
from swarmtrain_transport.wire.records import Reassign

_KEPT = 1000
"""Entries of each list that people may still ask for."""


E = TypeVar("E", Exclusion, RoundEvent)


class Shared(Generic[E]):
    """The newest entries, at most _KEPT: whoever has caused most of them loses its own oldest, so
    that nobody pushes out what happened to others."""

    def __init__(self) -> None:
        self._entries: dict[int, E] = {}
        self._newest: dict[str, int] = {}
        self._numbers: Counter[str] = Counter()
        self._added = 0

    def __iter__(self) -> Iterator[E]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def newest_of(self, peer: str) -> E | None:
        """A peer's last entry, None if it has none any more."""
        return self._entries.get(self._newest.get(peer, -1))

    def change(self, entry: E) -> None:
        """Put this into the place of the same peer's newest entry."""
        self._entries[self._newest[entry.peer]] = entry

    def add(self, entry: E) -> None:
        """One more."""
        self._entries[self._added] = entry
        self._newest[entry.peer] = self._added
        self._numbers[entry.peer] += 1
        self._added += 1
        if len(self._entries) > _KEPT:
            most = max(self._numbers, key=self._numbers.__getitem__)
            oldest = next(key for key, one in self._entries.items() if one.peer == most)
            del self._entries[oldest]
            self._numbers[most] -= 1
            if not self._numbers[most]:
                del self._numbers[most], self._newest[most]


@dataclass(slots=True)
class Chronicle:
    """Bounded memory of what people ask about: losses, exclusions, comings and goings, and what
    owners say of contributions."""

    losses: dict[int, float] = field(default_factory=dict)
    exclusions: Shared[Exclusion] = field(default_factory=Shared)
    events: Shared[RoundEvent] = field(default_factory=Shared)
    gauges: Gauges = field(default_factory=Gauges)

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

    def evaluated(self, view: GroupView, peer: PeerId, message: Evaluated) -> None:
        """Remember a validation loss, if PLAN named the peer for it; the first report stands."""
        op = view.commits.get(message.op)
        is_named = op.plan.evaluate_by == peer if op is not None else message.op == 0
        if not is_named or not abs(message.loss) < 1e9:
            return
        self.losses.setdefault(message.op, message.loss)
        if len(self.losses) > _KEPT:
            self.losses.pop(next(iter(self.losses)))
