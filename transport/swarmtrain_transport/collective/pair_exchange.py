"""A peer's side of one pair op: it publishes its contribution, and gets its partner's.

As in a gather op the contribution is encoded, kept, signed and named by its hashes, but it is
pushed to the partner alone, and only the partner's counts here. Who has no partner in this op, and
who contributes nothing, does nothing at all: there is nothing to hold for others.
"""

from collections import Counter

from swarmtrain_transport.actions import PeerAction
from swarmtrain_transport.arithmetic import Arithmetic, Contribution
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.ahead import Ahead, check_chunk
from swarmtrain_transport.collective.gather_exchange import GatherExchange
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import OpView
from swarmtrain_transport.ledger.pairing import contributors_of, partner_in
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Hashes
from swarmtrain_transport.wire.records import Sign


class PairExchange(GatherExchange):
    """One peer in one pair op; the arguments are those of `GatherExchange`, and `ahead`, what has
    come and gone before the op.

    Attributes:
        partner: who gets our contribution and gives us its own, None for nobody.
    """

    def __init__(
        self,
        me: PeerId,
        view: OpView,
        run_tag: int,
        arithmetic: Arithmetic,
        contribution: Contribution | None,
        blobs: Blobs,
        fetcher: Fetcher,
        now_s: float,
        sign: Sign,
        ignored: Counter[str],
        ahead: Ahead | None = None,
    ) -> None:
        self.partner = partner_in(contributors_of(view.plan), me)
        given = contribution if self.partner is not None else None
        super().__init__(me, view, run_tag, arithmetic, given, blobs, fetcher, now_s, sign, ignored)
        self._others = [] if self.partner is None else [self.partner]
        both = (me, *self._others)
        here, self._sent_ahead = ahead.taken(view, self.partner) if ahead else ({}, set())
        self._gather.early.update(here)
        self._chunks_ahead: set[int] = set()
        self._ours = {i for i, owner in enumerate(view.owners) if self._others and owner in both}

    def is_early(self, frame: Frame) -> bool:
        """Whether a frame is of another plan, or of another op's."""
        if frame.kind is FrameKind.AHEAD:
            return frame.set_id != self.view.plan.op
        return super().is_early(frame)

    def frame(self, peer: PeerId, frame: Frame, now_s: float) -> list[PeerAction]:
        """A RESULT of our partner, or an AHEAD that was overtaken by PLAN; whatever else comes is
        of no use.

        Raises:
            RemoteFault: the partner broke the protocol; what it sent is not used.
        """
        if frame.kind is FrameKind.AHEAD and peer == self.partner:
            return self._on_ahead(peer, frame)
        if peer != self.partner or frame.slice_index not in self._ours:
            self._ignored["stale"] += 1
            return []
        return super().frame(peer, frame, now_s)

    def _on_ahead(self, partner: PeerId, frame: Frame) -> list[PeerAction]:
        check_chunk(self.view.plan, self.view.plan.slices[0].stop, frame)
        if frame.chunk in self._chunks_ahead:
            self._ignored["repeated"] += 1
            return []
        self._chunks_ahead.add(frame.chunk)
        digest = frame.digest or content_hash(frame.body)
        index = self.view.owners.index(partner)
        return self._told(self._gather.ahead(index, frame.body, digest))

    def hashes(self, message: Hashes, now_s: float) -> list[PeerAction]:
        """We have published, or our partner has; what others have is not ours to hold."""
        return super().hashes(message, now_s) if message.slice_index in self._ours else []

    @property
    def _is_in(self) -> bool:
        """Whether we are still in, and our partner is: else it needs nothing of us."""
        view, partner = self.view, self.partner
        is_there = partner is not None and view.slice_sets[view.owners.index(partner)] != ()
        return is_there and super()._is_in

    def _unsent(self) -> list[int]:
        """What went ahead of the op is not pushed again; what got lost of it is asked for."""
        return [
            chunk for chunk in super()._unsent() if self._digests[chunk] not in self._sent_ahead
        ]
