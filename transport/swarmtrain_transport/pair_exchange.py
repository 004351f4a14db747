"""A peer's side of one pair op: it publishes its contribution, and gets its partner's.

As in a gather op the contribution is encoded, kept, signed and named by its hashes, but it is
pushed to the partner alone, and only the partner's counts here. Who has no partner in this op, and
who contributes nothing, does nothing at all: there is nothing to hold for others.
"""

from collections import Counter

from swarmtrain_transport.actions import PeerAction
from swarmtrain_transport.arithmetic import Arithmetic, Contribution
from swarmtrain_transport.blobs import Blobs
from swarmtrain_transport.fetch import Fetcher
from swarmtrain_transport.fold import OpView
from swarmtrain_transport.frames import Frame
from swarmtrain_transport.gather_exchange import GatherExchange
from swarmtrain_transport.ledger import Sign
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.messages import Hashes
from swarmtrain_transport.pairing import contributors_of, partner_in


class PairExchange(GatherExchange):
    """One peer in one pair op; the arguments are those of `GatherExchange`.

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
    ) -> None:
        self.partner = partner_in(contributors_of(view.plan), me)
        given = contribution if self.partner is not None else None
        super().__init__(me, view, run_tag, arithmetic, given, blobs, fetcher, now_s, sign, ignored)
        self._others = [] if self.partner is None else [self.partner]
        both = (me, *self._others)
        self._ours = {i for i, owner in enumerate(view.owners) if self._others and owner in both}

    def frame(self, peer: PeerId, frame: Frame, now_s: float) -> list[PeerAction]:
        """A RESULT of our partner; whatever else comes is of no use.

        Raises:
            RemoteFault: the partner broke the protocol; what it sent is not used.
        """
        if peer != self.partner or frame.slice_index not in self._ours:
            self._ignored["stale"] += 1
            return []
        return super().frame(peer, frame, now_s)

    def hashes(self, message: Hashes, now_s: float) -> list[PeerAction]:
        """We have published, or our partner has; what others have is not ours to hold."""
        return super().hashes(message, now_s) if message.slice_index in self._ours else []
