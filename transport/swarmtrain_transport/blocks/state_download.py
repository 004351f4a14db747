"""Large chunks of known hash from many donors at once, piece by piece.

A chunk is what a hash vouches for; a piece is what is asked of one donor at a time, small enough
that a slow link shows progress and a donor can stop between two. Pieces of a donor that fell
silent go to others, and near the end also those of one that is merely slow. Chunks are
begun one or two per donor, so memory beyond whole chunks stays small.

A chunk whose hash is wrong is fetched again from one donor alone; if it is wrong then too, that
donor is not asked again. Pure: it hears what comes and says what to ask.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.blocks.fetch import MANY, Window
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.links.link import PeerId

_BEGUN_PER_DONOR = 2
_LATE_FACTOR = 2.0
"""A piece that takes so many times as long as another donor needs is asked of that one, too."""

_NEVER_HEARD_S = 3 * limits.FETCH_TIMEOUT_S
"""Patience with a donor whose pace is not known: a piece at 70 kbit/s."""

_HOPE_S = 2 * limits.EVICT_S
"""Time for which a chunk that all others lack may come from one that did not answer soon."""

_NEAR_ENOUGH = 2

_STRANGERS = limits.PIECE_WINDOW_MIN
"""Requests at a time to donors that have given nothing yet, but for those that wait for long. It is
one in FETCH_RETRY_S once MANY lack a chunk, or all who answer."""

Key = tuple[bytes, int]
"""A piece: its chunk's hash and its number."""


class Ask(NamedTuple):
    """One request: `length` bytes from `start` on of the chunk with this hash."""

    peer: PeerId
    digest: bytes
    start: int
    length: int


@dataclass(slots=True)
class _Chunk:
    num_bytes: int
    todo: list[int]
    data: bytearray = field(default_factory=bytearray)
    here: set[int] = field(default_factory=set)
    givers: set[PeerId] = field(default_factory=set)
    lacking: set[PeerId] = field(default_factory=set)  # said so since all were asked anew
    passed_over: set[PeerId] = field(default_factory=set)  # did not answer since then
    is_solo: bool = False
    not_before_s: float = 0.0
    hoped_until_s: float = 0.0

    @property
    def is_begun(self) -> bool:
        return bool(self.data)

    def suits(self, peer: PeerId) -> bool:
        """Return True if this donor may be asked for a piece of it."""
        return peer not in self.lacking and self.takes_from(peer)

    def takes_from(self, peer: PeerId) -> bool:
        """Return True if a piece that comes from this donor is taken."""
        return not (self.is_solo and self.givers - {peer})

    def restart(self) -> None:
        self.data = bytearray()
        self.todo = list(range(_num_pieces(self.num_bytes)))
        self.here.clear()
        self.givers.clear()


@dataclass(slots=True)
class _Donor:
    window: Window = field(
        default_factory=lambda: Window(limits.PIECE_WINDOW_MIN, limits.PIECE_WINDOW_MAX)
    )
    under_way: dict[Key, float] = field(default_factory=dict)
    given_up: set[Key] = field(default_factory=set)
    heard_s: float = -math.inf
    silent_until_s: float = -math.inf
    not_before_s: float = -math.inf

    @property
    def patience_s(self) -> float:
        """Seconds in which nothing may come of what it was asked for."""
        if not self.window.usual_s:
            return _NEVER_HEARD_S
        return max(limits.FETCH_TIMEOUT_S, 4 * self.window.usual_s)

    def due_s(self) -> float:
        """Return when it counts as silent; infinity if nothing is asked of it."""
        if not self.under_way:
            return math.inf
        return max(min(self.under_way.values()), self.heard_s) + self.patience_s

    @property
    def is_stranger(self) -> bool:
        """True if nothing was ever heard of it: it may be dead, and not yet out of the roster."""
        return self.heard_s == -math.inf

    def heard(self, now_s: float) -> None:
        self.heard_s = now_s
        self.silent_until_s = -math.inf


class Download:
    """Chunks that are wanted, and who is asked for which piece.

    Args:
        shuffle: orders equally good donors, so that joiners do not all ask the same one.

    Attributes:
        bytes_here: Bytes that have come of chunks, of this state and earlier ones.
        rounds: number of times that some chunk was lacking at every donor that answers.
        chunks: wanted chunks by hash.
        is_hasty: somebody waits for us: a donor that may be dead comes last, and costs little.
        relayed: donors that are heard by a relay. They leave to others what two of these may give:
            one alone would soon serve everybody.
    """

    def __init__(self, shuffle: Callable[[Sequence[PeerId]], list[PeerId]]) -> None:
        self.rounds = self.bytes_here = 0
        self.is_hasty = False
        self.relayed: AbstractSet[PeerId] = frozenset()
        self._shuffle = shuffle
        self._donors: dict[PeerId, _Donor] = {}
        self._givers: dict[PeerId, None] = {}  # of something, in the order of their first pieces
        self._liars: set[PeerId] = set()
        self.chunks: dict[bytes, _Chunk] = {}
        self._tags: dict[int, bytes] = {}
        self._near: list[PeerId] = []
        self._has_new = False
        self._room, self._room_s, self._hunted_s = _STRANGERS, 0.0, -math.inf
        self._has_asked_all = False
        self._lacking: set[PeerId] = set()  # a chunk, said so since all were asked anew
        self._now_s = 0.0

    def set_donors(self, donors: Iterable[PeerId]) -> None:
        """Name the peers that may hold what is wanted. Requests to others go to these instead."""
        kept = {peer: self._donors.get(peer) or _Donor() for peer in donors}
        for peer in set(self._donors) - set(kept):
            self._take_back(peer)
        self._donors = {peer: kept[peer] for peer in kept if peer not in self._liars}
        self._givers = {peer: None for peer in self._givers if peer in self._donors}

    def want(self, digest: bytes, num_bytes: int) -> None:
        """Ask for a chunk until it is here or cancelled. Wanting it twice changes nothing."""
        if digest not in self.chunks:
            self.chunks[digest] = _Chunk(num_bytes, list(range(_num_pieces(num_bytes))))
            self._tags[tag_of(digest)] = digest

    def cancel(self) -> None:
        """Want nothing any more."""
        for donor in self._donors.values():
            donor.under_way.clear()
            donor.given_up.clear()
        self.chunks.clear()
        self._tags.clear()
        self.rounds, self._has_asked_all = 0, False
        self._lacking.clear()

    # ---- what comes

    def piece(
        self, peer: PeerId, tag: int, start: int, data: Buffer, now_s: float
    ) -> tuple[bytes, bytes] | None:
        """A piece came; the hash and the bytes of a chunk that is whole with it.

        A piece that was not asked of this peer, or that is here already, is dropped.

        Raises:
            RemoteFault: reason ``length``; or ``hash``: this peer alone gave the whole chunk, and
                it is another one.
        """
        digest, donor = self._tags.get(tag), self._donors.get(peer)
        if digest is None or donor is None:
            return None
        key = (digest, start // limits.STATE_PIECE_BYTES)
        asked_s = donor.under_way.pop(key, None)
        if asked_s is not None:
            donor.window.answered(now_s - asked_s)
            self._givers[peer] = None
        elif key not in donor.given_up:
            return None
        donor.given_up.discard(key)
        donor.heard(now_s)
        chunk = self.chunks[digest]
        if start % limits.STATE_PIECE_BYTES or len(data) != _length(chunk.num_bytes, key[1]):
            self._put_back(key)
            raise RemoteFault("length", f"a piece of {len(data)} bytes at {start}")
        if key[1] in chunk.here or not chunk.takes_from(peer):
            return None
        chunk.lacking.discard(peer)
        self._lacking.discard(peer)
        chunk.passed_over.discard(peer)
        if not chunk.is_begun:
            chunk.data = bytearray(chunk.num_bytes)
        chunk.data[start : start + len(data)] = data
        chunk.here.add(key[1])
        self.bytes_here += len(data)
        chunk.givers.add(peer)
        if key[1] in chunk.todo:
            chunk.todo.remove(key[1])
        if len(chunk.here) < _num_pieces(chunk.num_bytes):
            return None
        return self._whole(digest, chunk)

    def missing(self, peer: PeerId, digest: bytes, now_s: float) -> None:
        """A donor says that it lacks the chunk."""
        donor, chunk = self._donors.get(peer), self.chunks.get(digest)
        if donor is None or chunk is None:
            return
        keys = [key for key in donor.under_way if key[0] == digest]
        if keys:
            donor.heard(now_s)
            # It holds whole states: whoever lacks one chunk will lack the next.
            donor.not_before_s = now_s + limits.FETCH_RETRY_S
            chunk.lacking.add(peer)
            self._lacking.add(peer)
        for key in keys:
            del donor.under_way[key]
            self._put_back(key)
        if keys and chunk.is_solo:
            chunk.restart()

    def unreached(self, peers: Iterable[PeerId], until_s: float) -> None:
        """Note that no connection to these can be made: until then others are asked."""
        for donor in (self._donors[peer] for peer in peers if peer in self._donors):
            donor.silent_until_s = max(donor.silent_until_s, until_s)

    def met(self, peer: PeerId, now_s: float) -> None:
        """Note that something else came from this peer: it is alive."""
        donor = self._donors.get(peer)
        if self.is_hasty and donor is not None and donor.is_stranger:
            donor.heard(now_s)

    # ---- what to ask

    def requests(self, now_s: float) -> list[Ask]:
        """Return the requests to make now. Donors that sent nothing for too long are given up."""
        self._now_s = now_s
        if not self.chunks:
            return []
        donors = self._donors
        for peer, donor in donors.items():
            if donor.under_way and now_s >= donor.due_s():
                for chunk in (self.chunks[digest] for digest, _ in donor.under_way):
                    chunk.passed_over.add(peer)
                    if not chunk.hoped_until_s:
                        chunk.hoped_until_s = now_s + _HOPE_S
                        self._has_asked_all |= bool(chunk.lacking)
                        chunk.lacking.clear()  # one of these may well hold it by now
                        self._lacking.clear()
                donor.silent_until_s = now_s + limits.EVICT_S
                donor.window.restart()
                self._take_back(peer)
        self._count_rounds(now_s)
        self._make_room(now_s)
        self._has_new = any(chunk.todo for chunk in self.chunks.values())
        if self.relayed:
            self._near = [peer for peer in self._free(donors, now_s) if peer not in self.relayed]
        # Few of hundreds have given anything: only these are put in order, if others are not asked.
        is_open = self._room > 0 and (self._has_new or self.is_hasty)
        free = self._shuffle(self._free(donors if is_open else self._givers, now_s))
        if self.is_hasty:
            free.sort(key=lambda peer: donors[peer].is_stranger)
        asks: list[Ask] = []
        while free:
            free = [peer for peer in free if self._ask_one(peer, now_s, asks)]
            self._has_new = any(chunk.todo for chunk in self.chunks.values())
        return asks

    def wakeups(self) -> list[float]:
        """List when requests() has something to do although nothing arrived."""
        if not self.chunks:
            return []
        times, pauses = [], [chunk.not_before_s for chunk in self.chunks.values()]
        for donor in self._donors.values():
            if donor.under_way:
                times.append(donor.due_s())
            pauses.append(donor.not_before_s)
        if self._room <= 0:
            pauses.append(self._room_s)
        times += [time_s for time_s in pauses if time_s > self._now_s]
        if len(self.chunks) <= _BEGUN_PER_DONOR * len(self._donors):
            times.append(self._now_s + limits.FETCH_RETRY_S)  # somebody may be slow at the end
        return [time_s for time_s in times if time_s < math.inf]

    def _free(self, peers: Iterable[PeerId], now_s: float) -> list[PeerId]:
        """Return those of these donors that may be asked: that answer, unless nobody does."""
        donors = self._donors
        is_silent = not any(now_s >= donor.silent_until_s for donor in donors.values())
        return [
            peer
            for peer in peers
            if (donor := donors[peer]).not_before_s <= now_s
            and (is_silent or donor.silent_until_s <= now_s)
        ]

    def _make_room(self, now_s: float) -> None:
        """Count how many requests may go to donors that have given nothing yet."""
        is_rare = len(self._lacking) >= MANY or (self._has_asked_all and bool(self._lacking))
        if is_rare and not self.is_hasty:
            self._room_s = self._hunted_s + limits.FETCH_RETRY_S
            self._room = int(now_s >= self._room_s)
            return
        recent = [
            asked_s
            for donor in self._donors.values()
            if donor.under_way and not donor.window.usual_s
            for asked_s in donor.under_way.values()
            if asked_s > now_s - limits.FIRST_ASK_S
        ]
        self._room_s = min(recent, default=now_s) + limits.FIRST_ASK_S
        self._room = _STRANGERS - len(recent)

    def _ask_one(self, peer: PeerId, now_s: float, asks: list[Ask]) -> bool:
        """Ask a donor for one more piece, if it has room and there is one for it."""
        donor = self._donors[peer]
        donor.window.is_full = len(donor.under_way) >= donor.window.size
        if donor.window.is_full or not (self._room > 0 or donor.window.usual_s):
            return False
        key = self._next(peer, now_s) if self._has_new else None
        key = key or self._late(peer, donor, now_s)
        if key is None:
            return False
        chunk = self.chunks[key[0]]
        if not chunk.is_begun:
            chunk.data = bytearray(chunk.num_bytes)
        chunk.givers.add(peer)
        donor.under_way[key] = now_s
        if not donor.window.usual_s:
            self._room -= 1
            self._hunted_s = now_s
            self._room_s = max(self._room_s, now_s + limits.FETCH_RETRY_S)
        start = key[1] * limits.STATE_PIECE_BYTES
        asks.append(Ask(peer, key[0], start, _length(chunk.num_bytes, key[1])))
        return True

    def _next(self, peer: PeerId, now_s: float) -> Key | None:
        """A piece that nobody was asked for: of a chunk of its own, a new one, then anybody's."""
        others: Key | None = None
        new: bytes | None = None
        for digest, chunk in self.chunks.items():
            if not chunk.todo or not chunk.suits(peer) or now_s < chunk.not_before_s:
                continue
            if peer in self.relayed and self._num_near(chunk) >= _NEAR_ENOUGH:
                continue
            if not chunk.is_begun:
                new = new or digest
            elif chunk.givers <= {peer}:
                return digest, chunk.todo.pop(0)
            elif others is None:
                others = digest, chunk.todo[0]
            if new is not None and others is not None:
                break
        if new is not None:
            num_begun = sum(chunk.is_begun for chunk in self.chunks.values())
            if num_begun < _BEGUN_PER_DONOR * len(self._donors):
                return new, self.chunks[new].todo.pop(0)
        if others is not None:
            self.chunks[others[0]].todo.remove(others[1])
        return others

    def _num_near(self, chunk: _Chunk) -> int:
        """Return how many near donors may give it, and were not silent when they were asked."""
        return sum(chunk.suits(peer) and peer not in chunk.passed_over for peer in self._near)

    def _late(self, peer: PeerId, donor: _Donor, now_s: float) -> Key | None:
        """A piece that another donor is slow with, the one asked for the longest time first. Donors
        that may be dead are passed over sooner, also by one that may be dead itself."""
        usual_s = donor.window.usual_s
        if not usual_s and not self.is_hasty:
            return None
        patience_s = max(_LATE_FACTOR * usual_s, limits.FETCH_RETRY_S)
        before_s = now_s - (patience_s if usual_s else limits.FIRST_ASK_S)
        late: dict[Key, float] = {}
        num_alive: Counter[Key] = Counter()
        fresh: set[Key] = set()
        for other in self._donors.values():
            for key, asked_s in other.under_way.items():
                if asked_s > before_s or other is donor:
                    fresh.add(key)
                else:
                    late[key] = asked_s
                    num_alive[key] += not (self.is_hasty and other.is_stranger)
        for key in sorted(late, key=lambda found: (late[found], found)):
            chunk = self.chunks[key[0]]
            if num_alive[key] <= 1 and chunk.suits(peer) and key not in fresh:
                return key
        return None

    # ---- parts

    def _whole(self, digest: bytes, chunk: _Chunk) -> tuple[bytes, bytes] | None:
        data = bytes(chunk.data)
        if content_hash(data) == digest:
            self._drop_keys(digest)
            del self.chunks[digest], self._tags[tag_of(digest)]
            return digest, data
        givers = set(chunk.givers)
        self._drop_keys(digest)
        chunk.restart()
        chunk.is_solo = True
        if len(givers) > 1:
            return None
        (liar,) = givers
        self._liars.add(liar)
        self._take_back(liar)
        del self._donors[liar]
        self._givers.pop(liar, None)
        raise RemoteFault("hash", "a chunk of the state that is another one than was asked for")

    def _drop_keys(self, digest: bytes) -> None:
        for donor in self._donors.values():
            for key in [key for key in donor.under_way if key[0] == digest]:
                del donor.under_way[key]
            donor.given_up = {key for key in donor.given_up if key[0] != digest}

    def _take_back(self, peer: PeerId) -> None:
        """Give its pieces to others; should they come all the same, they are welcome."""
        donor = self._donors[peer]
        keys, donor.under_way = list(donor.under_way), {}
        donor.given_up.update(keys)
        for key in keys:
            self._put_back(key)
        for chunk in self.chunks.values():
            if chunk.is_solo and chunk.givers == {peer}:
                chunk.restart()

    def _put_back(self, key: Key) -> None:
        """Ask nobody for this piece any more, unless a second one was asked."""
        chunk = self.chunks.get(key[0])
        if chunk is None or key[1] in chunk.here or key[1] in chunk.todo:
            return
        if not any(key in donor.under_way for donor in self._donors.values()):
            chunk.todo.insert(0, key[1])

    def _count_rounds(self, now_s: float) -> None:
        """When nobody is left who could be asked for a chunk, all are asked anew after a pause, as
        donors come to hold things. If those who answer lack it, it is lost in the end, but not
        while somebody who was asked for it may be slow, or serve others first."""
        for chunk in self.chunks.values():
            if not (chunk.lacking or chunk.passed_over):
                continue
            if any(
                peer not in chunk.lacking and peer not in chunk.passed_over
                for peer, donor in self._donors.items()
                if now_s >= donor.silent_until_s
            ):
                continue
            if chunk.lacking:
                is_hoped = now_s < chunk.hoped_until_s
                pause_s = limits.FETCH_TIMEOUT_S if is_hoped else limits.FETCH_RETRY_S
                chunk.not_before_s = now_s + pause_s
                self.rounds += not is_hoped
                self._has_asked_all = True
                self._lacking.clear()
            chunk.lacking.clear()
            chunk.passed_over.clear()


def tag_of(digest: bytes) -> int:
    """Names a chunk on the wire: the first 8 bytes of its hash."""
    return int.from_bytes(digest[:8], "little")


def _num_pieces(num_bytes: int) -> int:
    return max(1, -(-num_bytes // limits.STATE_PIECE_BYTES))


def _length(num_bytes: int, index: int) -> int:
    start = index * limits.STATE_PIECE_BYTES
    return min(limits.STATE_PIECE_BYTES, num_bytes - start)
