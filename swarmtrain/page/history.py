"""The run's rounds, contributions and events, read from the ledger as it grows. Pure.

Nothing here is decided by, and nothing of it is told by peers: it is what the ledger says.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from swarmtrain.why.news import News
from swarmtrain.why.peer_history import NO_PARTNER, PeerHistories, PeerHistory
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import (
    AnyBody,
    BodyReader,
    Books,
    Commit,
    Freeze,
    Plan,
    Record,
    Rewind,
    Skip,
)

MERGED, SKIPPED = "merged", "skipped"

ROUNDS_MAX = 20_000
"""Rounds that are kept; beyond that every second one of the older half goes."""

EVENTS_MAX = 2_000
"""Events that are kept, the newest."""

NORMS_MAX = 20
"""Rounds of which each peer's norm is kept."""


@dataclass(slots=True)
class Round:
    """One round of the first group that has ended.

    Attributes:
        outcome: MERGED or SKIPPED.
        peers: peers whose work is in the result.
        left_out: peers that were planned for and left out.
        seconds: time of all rounds up to this one.
        tokens: tokens that are in all results up to this one.
        num_bytes: bytes that peers had sent by then, as far as that was seen; -1 if it was not.
        low, high: least and largest training loss of a peer, as far as that was seen.
    """

    number: int
    outcome: str
    peers: int
    left_out: int
    seconds: float
    tokens: int
    num_bytes: int = -1
    low: float | None = None
    high: float | None = None


class EventRow(msgspec.Struct, frozen=True):
    """An event; `index` is that of the ledger's record."""

    index: int
    round: int
    text: str


@dataclass(slots=True)
class History:
    """Folds records in order.

    Attributes:
        round_tokens: tokens that a peer trains on in a round.
        micro_tokens: tokens of a micro-batch, where the model is in stages and books count them; 0
            where each contributor brings a round's tokens.
        rounds_wanted: rounds after which the run is over.
        rounds: ended rounds, the oldest first.
        peers: history of each peer, in whichever group.
        plan: the newest PLAN of the first group.
        num_read: records that were read.
        up, down: bytes that peers have sent and received, as far as that was seen.
        norms: norms of each peer in its newest rounds, as far as they were seen, by its key in hex.
        books: the newest BOOKS, of a model in stages.
    """

    round_tokens: int
    rounds_wanted: int
    micro_tokens: int = 0
    rounds: list[Round] = field(default_factory=list)
    peers: PeerHistories = field(default_factory=PeerHistories)
    events: deque[EventRow] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    plan: Plan | None = None
    num_read: int = 0
    up: int = 0
    down: int = 0
    norms: dict[str, deque[float]] = field(default_factory=dict)
    books: Books | None = None
    _reader: BodyReader = field(default_factory=BodyReader)
    _news: News | None = None
    _left_out: dict[int, int] = field(default_factory=dict)
    _moved: dict[str, tuple[int, int]] = field(default_factory=dict)
    _tokens: int = 0
    _booked: int = 0

    def read(self, records: Iterable[Record]) -> None:
        """The next records."""
        news = self._news = self._news or News(self.rounds_wanted, None)
        for record in records:
            self.num_read, body = record.index + 1, self._reader.read(record)
            self._fold(body)
            for text in news.of_body(body):
                self.events.append(EventRow(record.index, self._newest, text))

    def begins(self, view: LedgerView, reader: BodyReader, index: int) -> None:
        """Begin with the fold of all records before this index, which are not here."""
        self._reader, self.num_read = reader, index
        self._news = News(self.rounds_wanted, None)
        self._news.knows(view.names, view.roster)
        for peer, name in view.names.items():
            self.peers.of[peer] = PeerHistory(name=name, is_in=peer in view.roster)

    def saw(
        self,
        moved: Mapping[str, tuple[int, int]],
        losses: Sequence[float],
        norms: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """By now each peer has sent and received so many bytes in its process's life; peers say
        these training losses, and owners that contributions have these norms."""
        for peer, (up, down) in moved.items():
            before = self._moved.get(peer, (0, 0))
            is_same = up >= before[0] and down >= before[1]  # else its process is another one
            self.up += up - before[0] if is_same else up
            self.down += down - before[1] if is_same else down
        self._moved.update(moved)
        if self.rounds and self.rounds[-1].num_bytes < 0:
            newest = self.rounds[-1]
            newest.num_bytes = self.up
            newest.low, newest.high = min(losses, default=None), max(losses, default=None)
            gone = self.norms.keys() - moved.keys()
            for peer in gone:
                del self.norms[peer]
            for peer, norm in norms.items():
                self.norms.setdefault(peer, deque(maxlen=NORMS_MAX)).append(round(norm, 3))

    @property
    def _newest(self) -> int:
        return self.rounds[-1].number if self.rounds else 0

    def _fold(self, body: AnyBody) -> None:
        self.peers.read(body)
        match body:
            case Freeze() if body.group == FIRST_GROUP:
                out = [reason for reason in body.excluded.values() if reason != NO_PARTNER]
                self._left_out[body.op] = len(out)
            case Books():
                self._booked, self.books = body.whole * self.micro_tokens, body
            case Plan() if body.group == FIRST_GROUP:
                self.plan = body
            case Commit():
                if not self.micro_tokens:
                    self._tokens += len(body.contributors) * self.round_tokens
                elif body.group == FIRST_GROUP:
                    self._tokens += self._booked
                self._ended(body, MERGED, len(body.contributors))
            case Skip():
                self._ended(body, SKIPPED, 0)
            case Rewind() if body.group == FIRST_GROUP:
                while self.rounds and self.rounds[-1].number > body.op:
                    self.rounds.pop()
                self._tokens = self.rounds[-1].tokens if self.rounds else 0

    def _ended(self, body: Commit | Skip, outcome: str, peers: int) -> None:
        if body.group != FIRST_GROUP:
            return
        last = self.rounds[-1] if self.rounds else Round(0, MERGED, 0, 0, 0.0, 0)
        seconds = last.seconds + body.took / 1000
        left_out = self._left_out.pop(body.op, 0)
        self.rounds.append(Round(body.op, outcome, peers, left_out, seconds, self._tokens))
        if len(self.rounds) > ROUNDS_MAX:
            self.rounds[: ROUNDS_MAX // 2] = self.rounds[: ROUNDS_MAX // 2 : 2]
