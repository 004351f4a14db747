"""The roster as the coordinator lives it: who is connected, synced, ready.

The ledger says who is in; this says what each of them is doing. Everything here is volatile: after
a restart it is rebuilt from HELLO and from the messages that peers re-send.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.collective.gauges import Gauges
from swarmtrain_transport.coordinator.failure_detector import LifeLine
from swarmtrain_transport.ledger.exclusion_rule import in_words
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Evaluated, Hello, Progress
from swarmtrain_transport.wire.records import Reassign

_KEPT = 1000
"""Entries of each list that people may still ask for."""


@dataclass(slots=True)
class PeerLine:
    """One peer's line in this term.

    Attributes:
        hello: newest HELLO.
        life: evidence for the failure detector.
        connected: whether its control connection is open.
        sent_index: newest ledger record that was sent on this connection.
        acked_index: newest ledger record that the peer says it has consumed.
        dismissed: it was told that the run is finished.
        progress: its newest PROGRESS, for people.
        older_stop: records before this one were sent on this connection because it asked for them.
    """

    hello: Hello
    life: LifeLine
    connected: bool = True
    sent_index: int = -1
    acked_index: int = -1
    dismissed: bool = False
    progress: Progress | None = None
    older_stop: int = 0
    _awaited_index: int = -1
    _under_way: deque[tuple[int, int]] = field(default_factory=deque)
    _under_way_bytes: int = 0

    @property
    def has_room(self) -> bool:
        """True if the peer may be sent records beyond those that it has not acknowledged."""
        return self._under_way_bytes < limits.RECORDS_WINDOW_BYTES

    def sent(self, index: int, now_s: float, num_bytes: int) -> None:
        """Records up to this one are on their way; they are to be acknowledged in time."""
        self.sent_index = index
        self._under_way.append((index, num_bytes))
        self._under_way_bytes += num_bytes
        if self.life.awaited_s is None and self.acked_index < index:
            self.life.awaited_s, self._awaited_index = now_s, index

    def acknowledged(self, index: int, now_s: float) -> None:
        """The peer holds the ledger up to this record."""
        self.acked_index = max(self.acked_index, index)
        while self._under_way and self._under_way[0][0] <= index:
            self._under_way_bytes -= self._under_way.popleft()[1]
        if self.acked_index >= self.sent_index:
            self.life.awaited_s = None
        elif self.acked_index >= self._awaited_index:
            self.life.awaited_s, self._awaited_index = now_s, self.sent_index


class PeerStatus(msgspec.Struct, frozen=True):
    """One peer as `status` shows it. Bytes count both lanes, all protocol overhead included;
    `rests` is what it sits out for its faults, and until which round. `norm` is the length of what
    it gave lately by the median contributor's and `cosine` its likeness to what the others gave, as
    owners say (`gauges`), None where nothing is known; `left_out` how often it was, and
    `accused_by` on whose word how often."""

    peer: str
    name: str
    state: str
    round: int
    step: int
    loss: float
    tokens_per_s: float
    tokens: int
    bytes_up: int
    bytes_down: int
    replayed_ops: int
    state_root: str
    silent_s: float
    chain: str = ""
    rests: str = ""
    norm: float | None = None
    cosine: float | None = None
    left_out: int = 0
    accused_by: dict[str, int] = {}


class Exclusion(msgspec.Struct, frozen=True):
    """Somebody was left out of a round, and why; `by` are the owners on whose word it was."""

    round: int
    peer: str
    reason: str
    by: tuple[str, ...] = ()


class RoundEvent(msgspec.Struct, frozen=True):
    """A peer joined, left or was lost while this round was in progress, or did what people should
    know of; `times` in a row, the first of them in this round."""

    round: int
    peer: str
    event: str
    reason: str = ""
    times: int = 1


class GroupStatus(msgspec.Struct, frozen=True):
    """One group beside the first."""

    group: int
    round: int
    committed: int
    rounds: int
    wanted_root: str
    num_values: int
    peers: tuple[str, ...]
    ops_under_way: tuple[int, ...]


class CoordinatorStatus(msgspec.Struct, frozen=True):
    """The coordinator's knowledge, for `status --json`.

    `round` is the newest op with an outcome, `wanted_root` the state root that a returning peer
    must hold ("" where states are each peer's own), `losses` the validation loss per op in nats,
    `door` tells if newcomers are let in ("open", "closed", "" where that is not known).
    `waiting_for` keeps the run from going on, `waiting_seen_s` is how many seconds ago somebody was
    here who had it, if that is known. `result` is the outcome of a finished run.
    `groups` are those beside the first, of which all else is told; left out where there are none.
    """

    run: str
    term: int
    round: int
    committed: int
    rounds: int
    phase: str
    wanted_root: str
    num_values: int
    peers: tuple[PeerStatus, ...]
    losses: dict[str, float]
    exclusions: tuple[Exclusion, ...]
    events: tuple[RoundEvent, ...]
    checkpoint_op: int
    waiting_for: str = ""
    door: str = ""
    waiting_seen_s: float | None = None
    result: str = ""
    groups: tuple[GroupStatus, ...] | msgspec.UnsetType = msgspec.UNSET


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
