"""Fetching blobs by hash from whoever holds them. One machine for results, replay and state.

A want names possible holders; at most FETCH_WINDOW requests are under way to one of them. A
holder that says MISSING or stays silent is passed over; when all were, the round begins again
after a pause, because holders come to hold things. A silent one comes last for other wants too,
or a dead owner would cost its time-out again for every few chunks. Bytes count only if their hash
is wanted.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.link import PeerId


@dataclass(slots=True)
class _Want:
    sources: tuple[PeerId, ...]
    spread: bool
    asked: PeerId | None = None
    asked_s: float = 0.0
    passed_over: set[PeerId] = field(default_factory=set)
    not_before_s: float = 0.0
    rounds: int = 0


class Fetcher:
    """Which blob to ask of whom, and when.

    Args:
        shuffle: orders equally good holders, so that peers do not all ask the same one.
    """

    def __init__(self, shuffle: Callable[[Sequence[PeerId]], list[PeerId]]) -> None:
        self._shuffle = shuffle
        self._wants: dict[bytes, _Want] = {}
        self._outstanding: dict[PeerId, int] = {}
        self._silent_until_s: dict[PeerId, float] = {}
        self._now_s = 0.0

    def want(self, digest: bytes, sources: Iterable[PeerId], *, spread: bool) -> None:
        """Ask for a blob until it arrives or is cancelled.

        Args:
            digest: its SHA-256.
            sources: possible holders, the likeliest first.
            spread: whether any of them may be asked first (state), or only in order (results).
        """
        known = self._wants.get(digest)
        if known is None:
            self._wants[digest] = _Want(tuple(dict.fromkeys(sources)), spread)
        else:
            known.sources = tuple(dict.fromkeys((*sources, *known.sources)))

    def cancel(self, digests: Iterable[bytes]) -> None:
        """These blobs are no longer wanted."""
        for digest in digests:
            want = self._wants.pop(digest, None)
            if want is not None:
                self._release(want)

    def is_wanted(self, digest: bytes) -> bool:
        """Whether anybody still waits for this blob."""
        return digest in self._wants

    def rounds(self, digest: bytes) -> int:
        """How often every known holder was passed over for this blob."""
        want = self._wants.get(digest)
        return want.rounds if want is not None else 0

    def arrived(self, digest: bytes) -> bool:
        """A blob came in; whether it was wanted (if not, it is to be dropped)."""
        want = self._wants.pop(digest, None)
        if want is None:
            return False
        if want.asked is not None:
            self._silent_until_s.pop(want.asked, None)
        self._release(want)
        return True

    def missing(self, peer: PeerId, digest: bytes) -> None:
        """A holder says that it lacks the blob."""
        want = self._wants.get(digest)
        if want is not None and want.asked == peer:
            self._silent_until_s.pop(peer, None)
            self._pass_over(want)

    def requests(self, now_s: float) -> list[tuple[PeerId, bytes]]:
        """What to ask now, as (peer, hash). Also gives up on requests that took too long."""
        self._now_s = now_s
        asks = []
        for digest, want in self._wants.items():
            if want.asked is not None and now_s >= want.asked_s + limits.FETCH_TIMEOUT_S:
                self._silent_until_s[want.asked] = now_s + limits.EVICT_S
                self._pass_over(want)
            if want.asked is None and now_s >= want.not_before_s:
                peer = self._choose(want, now_s)
                if peer is not None:
                    want.asked, want.asked_s = peer, now_s
                    self._outstanding[peer] = self._outstanding.get(peer, 0) + 1
                    asks.append((peer, digest))
        return asks

    def wakeups(self) -> list[float]:
        """When requests() has something to do although nothing arrived."""
        times = set()
        for want in self._wants.values():
            if want.asked is not None:
                times.add(want.asked_s + limits.FETCH_TIMEOUT_S)
            elif want.not_before_s > self._now_s:
                times.add(want.not_before_s)
        return sorted(times)[:2]

    def _choose(self, want: _Want, now_s: float) -> PeerId | None:
        left = [peer for peer in want.sources if peer not in want.passed_over]
        if not left:
            want.passed_over.clear()
            want.rounds += bool(want.sources)
            want.not_before_s = now_s + limits.FETCH_RETRY_S
            return None
        if want.spread:
            left = sorted(self._shuffle(left), key=lambda peer: self._outstanding.get(peer, 0))
        best = min(left, key=lambda peer: now_s < self._silent_until_s.get(peer, now_s))
        return best if self._outstanding.get(best, 0) < limits.FETCH_WINDOW else None

    def _pass_over(self, want: _Want) -> None:
        assert want.asked is not None
        want.passed_over.add(want.asked)
        self._release(want)

    def _release(self, want: _Want) -> None:
        if want.asked is not None:
            self._outstanding[want.asked] -= 1
            want.asked = None
