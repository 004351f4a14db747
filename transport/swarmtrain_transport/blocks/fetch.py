"""Fetching blobs by hash from whoever holds them. One machine for results, replay and state.

A want names possible holders. The number of requests under way to one of them follows its rate
times its delay, and it has time as long as something comes from it. A holder that says MISSING or
stays silent is passed over; when all were, the round begins again after a pause, because holders
come to hold things. A silent one comes last for other wants too, and while others answer it is
asked only every few rounds, or a dead holder would cost its time-out again and again. Where one was
silent more may have died, each for a time-out of its own: so those who were heard of meanwhile are
asked next, as they come, then who was heard of last. One of whom nothing was ever heard comes after
those who were, and has less time, for a peer in haste. Bytes count only if their hash is wanted.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId

_QUEUED_FEW = 1.5
_QUEUED_MANY = 4.0

_HURRIES_MAX = 2
"""Times that a want is asked of another holder because the one before may be dead: two may be."""

MANY = limits.CELL_PEERS_MAX
"""Number of peers that must lack a part of a state before the rest are asked one by one, every
FETCH_RETRY_S: of hundreds most may lack it, and to ask all at once would fill thin lines."""


class Window:
    """Window of requests under way to one holder: its rate times its delay, and a few more.

    A request's time is compared with the shortest one seen. The rest of it was spent waiting in a
    queue; so of `size` requests under way, size * (1 - shortest / took) were waiting. With few of
    them the window grows, with many it shrinks (the idea of Brakmo and Peterson, TCP Vegas, 1995).
    A fast holder far away is thus asked for much at once, and nobody's link is filled with requests
    that only wait there.

    Args:
        smallest: initial window, and the least.
        largest: never more.

    Attributes:
        usual_s: duration of a request lately, 0 before the first answer.
        is_full: True if more would have been asked with more room; set by the owner.
    """

    def __init__(self, smallest: int, largest: int) -> None:
        self.usual_s = 0.0
        self.is_full = False
        self._smallest = smallest
        self._largest = largest
        self._size = smallest
        self._shortest_s = math.inf

    @property
    def size(self) -> int:
        """Requests that may be under way."""
        return self._size

    def answered(self, took_s: float) -> None:
        """A request was answered after so many seconds."""
        took_s = max(took_s, 1e-6)
        self._shortest_s = min(self._shortest_s, took_s)
        self.usual_s = 0.75 * self.usual_s + 0.25 * took_s if self.usual_s else took_s
        queued = self._size * (1 - self._shortest_s / took_s)
        if queued < _QUEUED_FEW and self.is_full:
            self._size = min(self._size + 1, self._largest)
        elif queued > _QUEUED_MANY:
            self._size = max(self._size - 1, self._smallest)

    def restart(self) -> None:
        """Begin again with few requests: nothing came for too long."""
        self._size = self._smallest


@dataclass(slots=True)
class _Want:
    sources: tuple[PeerId, ...]
    spread: bool
    asked: PeerId | None = None
    asked_s: float = 0.0
    passed_over: set[PeerId] = field(default_factory=set)
    not_before_s: float = 0.0
    rounds: int = 0
    hurries: int = 0


@dataclass(slots=True)
class _Holder:
    window: Window = field(
        default_factory=lambda: Window(limits.FETCH_WINDOW, limits.FETCH_WINDOW_MAX)
    )
    under_way: int = 0
    heard_s: float = -math.inf
    met_s: float = -math.inf
    silent_until_s: float = -math.inf


class Fetcher:
    """Decides which blob is asked of whom, and when.

    Args:
        shuffle: orders equally good holders, so that peers do not all ask the same one.

    Attributes:
        wants: wanted blobs by hash.
        is_hasty: somebody waits for us: holders that may be dead come last and have less time, at
            the price of blobs that come twice.
        relayed: holders that are heard by a relay: they come last, too.
    """

    def __init__(self, shuffle: Callable[[Sequence[PeerId]], list[PeerId]]) -> None:
        self.is_hasty = False
        self.relayed: AbstractSet[PeerId] = frozenset()
        self._shuffle = shuffle
        self.wants: dict[bytes, _Want] = {}
        self._holders: defaultdict[PeerId, _Holder] = defaultdict(_Holder)
        self._now_s = 0.0

    def want(self, digest: bytes, sources: Iterable[PeerId], *, spread: bool) -> None:
        """Ask for a blob until it arrives or is cancelled.

        Args:
            digest: content hash of the blob.
            sources: possible holders, the likeliest first.
            spread: True if any of them may be asked first (state), False if in order (results).
        """
        known, first = self.wants.get(digest), tuple(sources)
        if known is None:
            self.wants[digest] = _Want(tuple(dict.fromkeys(first)), spread)
        elif known.sources[: len(first)] != first:  # told after every blob, of hundreds
            known.sources = tuple(dict.fromkeys((*first, *known.sources)))

    def cancel(self, digests: Iterable[bytes]) -> None:
        """These blobs are no longer wanted."""
        for digest in digests:
            want = self.wants.pop(digest, None)
            if want is not None:
                self._release(want)

    def forget(self, peer: PeerId) -> None:
        """This holder is gone; what it was asked for goes to others."""
        for want in self.wants.values():
            want.sources = tuple(source for source in want.sources if source != peer)
            if want.asked == peer:
                self._release(want)

    def is_wanted(self, digest: bytes) -> bool:
        """Return True if anybody still waits for this blob."""
        return digest in self.wants

    def rounds(self, digest: bytes) -> int:
        """Count how often every known holder was passed over for this blob."""
        want = self.wants.get(digest)
        return want.rounds if want is not None else 0

    def arrived(self, peer: PeerId, digest: bytes, now_s: float) -> bool:
        """A blob came in; whether it was wanted (if not, it is to be dropped)."""
        want = self.wants.pop(digest, None)
        if want is None:
            return False
        if peer in want.sources:
            self.heard(peer, now_s)
        if want.asked == peer:
            self._holders[peer].window.answered(now_s - want.asked_s)
        self._release(want)
        return True

    def missing(self, peer: PeerId, digest: bytes, now_s: float) -> None:
        """A holder says that it lacks the blob."""
        want = self.wants.get(digest)
        self._holders[peer].met_s = now_s
        if want is not None and want.asked == peer:
            # It is here, but these few bytes overtake bulk: whether anything else of it still
            # comes they do not say, or an answer that was lost would be waited for without end.
            self._holders[peer].silent_until_s = -math.inf
            self._pass_over(want)
            if want.spread and len(want.passed_over) >= MANY:
                want.not_before_s = now_s + limits.FETCH_RETRY_S

    def heard(self, peer: PeerId, now_s: float) -> None:
        """Note that something came from this peer: its link to us is busy, an answer may be behind
        it."""
        holder = self._holders[peer]
        holder.heard_s = holder.met_s = now_s
        holder.silent_until_s = -math.inf

    def unreached(self, peers: Iterable[PeerId], until_s: float) -> None:
        """Note that no connection to these can be made: until then they are asked last."""
        for peer in peers:
            self._holders[peer].silent_until_s = max(self._holders[peer].silent_until_s, until_s)

    def met(self, peer: PeerId, now_s: float) -> None:
        """Note that something else came from this peer: it is alive. However often that comes, it
        prolongs the wait once only."""
        self._holders[peer].met_s = now_s
        if self._is_stranger(peer):
            self.heard(peer, now_s)

    def requests(self, now_s: float) -> list[tuple[PeerId, bytes]]:
        """Return the requests to make now, as (peer, hash). Requests that took too long are given
        up."""
        self._now_s = now_s
        asks: list[tuple[PeerId, bytes]] = []
        # What nobody had so far comes last, or it would fill the windows for all else.
        for digest, want in sorted(self.wants.items(), key=lambda one: one[1].rounds):
            if want.asked is not None and now_s >= self._due_s(want):
                holder = self._holders[want.asked]
                want.hurries += self._may_hurry(want)
                holder.silent_until_s = now_s + limits.EVICT_S
                holder.window.restart()
                self._pass_over(want)
                if not want.spread:
                    want.sources = tuple(sorted(want.sources, key=partial(self._lateness, want)))
            if want.asked is None and now_s >= want.not_before_s:
                peer = self._choose(want, now_s)
                if peer is not None:
                    want.asked, want.asked_s = peer, now_s
                    self._holders[peer].under_way += 1
                    asks.append((peer, digest))
        return asks

    def wakeups(self) -> list[float]:
        """List when requests() has something to do although nothing arrived."""
        if not self.wants:
            return []
        times = set()
        for want in self.wants.values():
            if want.asked is not None:
                times.add(self._due_s(want))
            elif want.not_before_s > self._now_s:
                times.add(want.not_before_s)
        return sorted(times)[:2]

    def _choose(self, want: _Want, now_s: float) -> PeerId | None:
        holders, sources = self._holders, want.sources

        def is_silent(peer: PeerId) -> bool:
            return now_s < holders[peer].silent_until_s

        left: Sequence[PeerId] = sources
        if want.passed_over:  # of hundreds; asked for each want after every event
            left = [peer for peer in sources if peer not in want.passed_over]
        is_turn_of_silent = want.rounds % limits.LOST_ROUNDS == 0
        if not is_turn_of_silent and all(map(is_silent, left)) and not all(map(is_silent, sources)):
            left = []  # all that answer were passed over
        if not left:
            want.passed_over.clear()
            want.rounds += 1  # with nobody to ask, too: then nobody has it
            want.not_before_s = now_s + limits.FETCH_RETRY_S
            return None
        if want.spread:
            left = self._shuffle(left)

        def drawback(peer: PeerId) -> tuple[bool, bool, bool, int]:
            busy = holders[peer].under_way if want.spread else 0
            return is_silent(peer), self._is_stranger(peer), peer in self.relayed, busy

        # Of thousands hardly more than the first is looked at.
        best = next((peer for peer in left if not any(drawback(peer))), None)
        best = best or min(left, key=drawback)
        holder = holders[best]
        holder.window.is_full = holder.under_way >= holder.window.size
        return None if holder.window.is_full else best

    def _due_s(self, want: _Want) -> float:
        """Return when the request is given up. An answer to another one shows that the holder is at
        work."""
        assert want.asked is not None
        if self._may_hurry(want):
            return want.asked_s + limits.FIRST_ASK_S
        return max(want.asked_s, self._holders[want.asked].heard_s) + limits.FETCH_TIMEOUT_S

    def _may_hurry(self, want: _Want) -> bool:
        """Return True if the one who is asked may be dead and somebody else is left. An answer that
        comes after all is welcome; but a slow link is not to carry the same from everybody."""
        assert want.asked is not None
        if not self._is_stranger(want.asked) or want.hurries >= _HURRIES_MAX:
            return False
        return bool(set(want.sources) - want.passed_over - {want.asked})

    def _is_stranger(self, peer: PeerId) -> bool:
        """Return True if nothing was ever heard of a holder, which matters in haste alone."""
        return self.is_hasty and self._holders[peer].heard_s == -math.inf

    def _lateness(self, want: _Want, peer: PeerId) -> float:
        """Return a key that sorts holders by when something last came from them, the newest first.
        Those from whom something came since the last one was asked are equal."""
        return -min(self._holders[peer].met_s, want.asked_s)

    def _pass_over(self, want: _Want) -> None:
        assert want.asked is not None
        want.passed_over.add(want.asked)
        self._release(want)

    def _release(self, want: _Want) -> None:
        if want.asked is not None:
            self._holders[want.asked].under_way -= 1
            want.asked = None
