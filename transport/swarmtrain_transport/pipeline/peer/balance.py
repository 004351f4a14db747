"""The next hop of a sender: interleaved weighted round robin on measured seconds.

A peer that gets a micro-batch is charged the time that one takes it, and the next micro-batch goes
to the peer that is charged least. So shares are inverse to times, and a fast peer's turns lie
between the others' instead of in a row (SWARM Parallelism, arXiv 2301.11913, section 3). Three
things are otherwise here. Nobody saves up turns: a peer that was passed over is charged as much as
the one that was taken, and so is one that has just come. A peer's time counts within a bound around
the middle one. A new peer's share is bounded, however fast it seems.

Pure. Ties are drawn by a hash, so the same calls in the same order give the same routes.
"""

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median_low

from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.links.link import PeerId


class MovingAverage:
    """An exponential moving average that is right from its first value on: the sum is divided by
    the weight that it has (Kingma and Ba, Adam, arXiv 1412.6980, section 3)."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._weight = 0.0

    def add(self, value: float) -> None:
        """One more measurement."""
        self._sum += (value - self._sum) * limits.ROUTE_NEWEST
        self._weight += (1.0 - self._weight) * limits.ROUTE_NEWEST

    @property
    def value(self) -> float | None:
        """The average; None before the first measurement."""
        return self._sum / self._weight if self._weight else None


@dataclass(slots=True)
class _Hop:
    """One peer that may be sent to.

    Attributes:
        charged: charge for what it was sent, in micro-batches of the middle peer.
        taken: micro-batches that it was sent in this round.
        rounds_seen: rounds in which its speed was measured.
        seen_in: the last of them.
    """

    forward: MovingAverage = field(default_factory=MovingAverage)
    backward: MovingAverage = field(default_factory=MovingAverage)
    charged: float = 0.0
    taken: int = 0
    rounds_seen: int = 0
    seen_in: int = -1

    @property
    def seconds(self) -> float | None:
        """Seconds of a micro-batch there and back; None until both are known."""
        there, back = self.forward.value, self.backward.value
        return None if there is None or back is None else there + back


class Balance:
    """The shares of one sender's next hops.

    Args:
        draw: name of the sender in its run; another sender draws other ties.

    Attributes:
        suspect: a peer that gets the least share, however fast it is.
    """

    def __init__(self, draw: bytes) -> None:
        self.suspect: PeerId | None = None
        self._draw = draw
        self._hops: dict[PeerId, _Hop] = {}
        self._head = 0.0
        self._round = 0
        self._choices = 0

    def begin_round(self, peers: Collection[PeerId]) -> None:
        """A round begins, in which these are members of the next stage; others are forgotten."""
        self._round += 1
        self._choices = 0
        self._hops = {peer: hop for peer, hop in self._hops.items() if peer in peers}
        for hop in self._hops.values():
            hop.charged = max(0.0, hop.charged - self._head)
            hop.taken = 0
        self._head = 0.0

    def measured(
        self, peer: PeerId, *, forward_s: float | None = None, backward_s: float | None = None
    ) -> None:
        """A pass at this peer took so long, from its handing over to the receipt.

        Both moments are the sender's own: a peer's word on its speed would draw work to it.

        Args:
            peer: peer that made the pass.
            forward_s: seconds of a forward pass; None if none was measured.
            backward_s: seconds of a backward pass, likewise.

        Raises:
            LocalFault: a time is negative or not finite.
        """
        hop = self._hops.setdefault(peer, _Hop())
        for average, seconds in ((hop.forward, forward_s), (hop.backward, backward_s)):
            if seconds is None:
                continue
            if not 0.0 <= seconds < math.inf:
                raise LocalFault(f"a pass of {seconds} s")
            average.add(seconds)
        if hop.seconds is not None and hop.seen_in != self._round:
            hop.rounds_seen += 1
            hop.seen_in = self._round

    def is_new(self, peer: PeerId) -> bool:
        """Return True if its speed was not yet seen in enough rounds."""
        hop = self._hops.get(peer)
        return hop is None or hop.rounds_seen < limits.ROUTE_ROUNDS_NEW

    def is_long(self, seconds: float) -> bool:
        """Return True if that is far longer than a micro-batch takes at the middle peer."""
        return seconds > max(limits.HELD_LONG_S, limits.HELD_LONG * self._middle)

    @property
    def _middle(self) -> float:
        """Seconds of a micro-batch at the middle one of all peers, not of those who are free at the
        moment; 0 until one was measured."""
        known = [other.seconds for other in self._hops.values() if other.seconds is not None]
        return median_low(known) if known else 0.0

    def ranked(self, peers: Collection[PeerId], excluded: Collection[PeerId] = ()) -> list[PeerId]:
        """The peers that the next micro-batch may go to, best first; the sender takes the first of
        them that has room, and waits if none has.

        New peers that have had their share of the round are left out while others are there, even
        if these have no room now: somebody who swallows micro-batches always has. So is a suspect.

        Args:
            peers: the living members of the next stage, each once.
            excluded: peers that this micro-batch has failed at: left out too, unless that is all.
        """
        fresh = [peer for peer in peers if peer not in excluded] or peers
        equal = (self._choices + 1) / max(1, len(peers))
        draw = self._draw + self._round.to_bytes(8, "big") + self._choices.to_bytes(8, "big")
        unknown = _Hop()

        def may_take_more(peer: PeerId) -> bool:
            hop = self._hops.get(peer, unknown)
            if peer == self.suspect:
                return hop.taken < math.ceil(equal / limits.ROUTE_SPREAD)
            return not self.is_new(peer) or hop.taken < math.ceil(limits.ROUTE_SHARE_NEW * equal)

        def place(peer: PeerId) -> tuple[float, bytes]:
            charged = max(self._hops.get(peer, unknown).charged, self._head)
            return charged, hashlib.sha256(draw + peer).digest()

        return sorted(filter(may_take_more, fresh), key=place) or sorted(fresh, key=place)

    def chosen(self, peer: PeerId) -> None:
        """A micro-batch goes to this peer."""
        hop = self._hops.setdefault(peer, _Hop())
        self._head = max(hop.charged, self._head)
        hop.charged = self._head + self._cost(hop)
        hop.taken += 1
        self._choices += 1

    def passed_on(self, meant: PeerId, peer: PeerId) -> None:
        """A micro-batch that was to go to one peer goes to another, which had room earlier."""
        hop = self._hops.get(meant)
        if hop is not None and hop.taken:
            hop.charged = max(self._head, hop.charged - self._cost(hop))
            hop.taken -= 1
            self._choices -= 1
        self.chosen(peer)

    def _cost(self, hop: _Hop) -> float:
        """A micro-batch's time there, where it takes the middle peer 1. As the middle one's, until
        it was measured."""
        middle = self._middle
        if hop.seconds is None or not middle:
            return 1.0
        return min(max(hop.seconds / middle, 1 / limits.ROUTE_SPREAD), limits.ROUTE_SPREAD)
