"""Rehearsal of a death: a link that stops in the middle of sending, on an event, not on a clock.

In the round that is asked for it lets the first half of every slice's parts pass and holds the rest
back. Owners who miss parts repeat their RANGES; once one of those shows that a part arrived, the
world has seen a contribution begin and not end, and whoever asked is told. What follows (being
killed) is the asker's affair. The machine behind it is the production one and knows nothing of
this. A slice of one chunk has no half: where all are so small, nothing is sent and nobody is told.
"""

from collections.abc import Callable

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.fold import num_chunks
from swarmtrain_transport.frames import Frame, FrameKind, Ranges
from swarmtrain_transport.ledger import Plan
from swarmtrain_transport.link import Address, Link, LinkStats, PeerId
from swarmtrain_transport.participant import Participant


class FreezingLink:
    """A link that keeps link.Link's contract until the round comes.

    Args:
        link: the real one.
        participant: asked which op is in progress and how many chunks it sends.
        op: the round to stop in.
        on_frozen: called once with (chunks sent, chunks in all), 0 < sent < all.
    """

    def __init__(
        self,
        link: Link,
        participant: Participant,
        op: int,
        on_frozen: Callable[[int, int], None],
    ) -> None:
        self._link = link
        self._participant = participant
        self._op = op
        self._on_frozen = on_frozen
        self._passed: set[tuple[int, int]] = set()
        self._is_frozen = False

    @property
    def stats(self) -> LinkStats:
        """Counters of the real link."""
        return self._link.stats

    def allow(self, address: Address) -> None:
        """As the real link."""
        self._link.allow(address)

    def revoke(self, peer: PeerId) -> None:
        """As the real link."""
        self._link.revoke(peer)

    def send(self, peer: PeerId, frame: Frame) -> bool:
        """As the real link, but for parts beyond the first half in the round of the rehearsal."""
        plan = self._plan()
        if frame.kind is FrameKind.PART and plan is not None:
            # Half of every slice, not of them all: an owner that has its part repeats no RANGES.
            if self._is_frozen or frame.chunk >= num_chunks(plan, frame.slice_index) // 2:
                return True
            self._passed.add((frame.slice_index, frame.chunk))
        return self._link.send(peer, frame)

    def heard(self, frame: Frame) -> None:
        """A frame came in; RANGES with a chunk in it proves that an owner has added a part."""
        if frame.kind is not FrameKind.RANGES or self._is_frozen or not self._passed:
            return
        exchange = self._participant.exchange
        if self._plan() is None or exchange is None or exchange.scatter is None:
            return
        try:
            arrived = any(Ranges.unpack(frame.body).chunks)
        except RemoteFault:
            return  # the machine says so
        if arrived:
            self._is_frozen = True
            self._on_frozen(len(self._passed), exchange.scatter.chunks_total)

    def _plan(self) -> Plan | None:
        """The plan of the rehearsal's round while that round is under way."""
        exchange = self._participant.exchange
        if exchange is None or exchange.view.plan.op != self._op:
            return None
        return exchange.view.plan
