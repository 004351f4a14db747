"""Rehearsal of a death: a link that stops in the middle of sending, on an event, not on a clock.

In the round that is asked for it lets half of the parts pass and holds the rest back. Owners who
miss parts repeat their RANGES; once one of those shows that a part arrived, the world has seen a
contribution begin and not end, and whoever asked is told. What follows (being killed) is the
asker's affair. The machine behind it is the production one and knows nothing of this.
"""

from collections.abc import Callable

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.frames import Frame, FrameKind, Ranges
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
        self._passed = 0
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
        total = self._chunks_total()
        if frame.kind is FrameKind.PART and total > 1:
            if self._is_frozen or self._passed >= max(1, total // 2):
                return True
            self._passed += 1
        return self._link.send(peer, frame)

    def heard(self, frame: Frame) -> None:
        """A frame came in; RANGES with a chunk in it proves that an owner has added a part."""
        if frame.kind is not FrameKind.RANGES or self._is_frozen or not self._passed:
            return
        total = self._chunks_total()
        try:
            arrived = total > 1 and any(Ranges.unpack(frame.body).chunks)
        except RemoteFault:
            return  # the machine says so
        if arrived:
            self._is_frozen = True
            self._on_frozen(self._passed, total)

    def _chunks_total(self) -> int:
        """Chunks that go to other owners in the round of the rehearsal, 0 in other rounds."""
        exchange = self._participant.exchange
        if exchange is None or exchange.view.plan.op != self._op or exchange.scatter is None:
            return 0
        return exchange.scatter.chunks_total
