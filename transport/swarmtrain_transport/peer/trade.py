"""Asking others for what is named by hash, and giving what they ask for: GET and its answers.

Results that an op is waiting for, results of the past and pieces of a state go the same way. What
audits ask and show goes beside it.
"""

from swarmtrain_transport.actions import PeerAction, SendFrame
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.blocks.serving import Serving
from swarmtrain_transport.collective.ahead import Ahead
from swarmtrain_transport.collective.auditing import AUDIT_FRAMES, Auditing
from swarmtrain_transport.collective.exchange import Exchange
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.state_finder import StateFinder
from swarmtrain_transport.wire.frames import Frame, FrameKind

TRADED = frozenset({FrameKind.GET, FrameKind.PIECE, FrameKind.MISSING}) | AUDIT_FRAMES
"""Frames that `Trade.heard` takes."""


class Trade:
    """One peer's requests and answers.

    Args:
        fetcher: asks for what is small.
        states: asks for pieces of a state.
        serving: what others have asked of us.
        audits: asks for parts, and shows them.
        blobs: where results are kept.
        ahead: gives the next op's partner what is known already.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        states: StateFinder,
        serving: Serving,
        audits: Auditing,
        blobs: Blobs,
        ahead: Ahead,
    ) -> None:
        self._blobs = blobs
        self._fetcher = fetcher
        self._states = states
        self._serving = serving
        self._audits = audits
        self._ahead = ahead

    def heard(self, peer: PeerId, frame: Frame, now_s: float) -> list[PeerAction]:
        """A frame of TRADED.

        Raises:
            RemoteFault: reason ``length``, ``hash`` or ``evidence``.
        """
        if frame.kind in AUDIT_FRAMES:
            return self._audits.heard(peer, frame, now_s)
        if frame.kind is FrameKind.GET:
            answer = self._serving.asked(peer, frame.body, frame.run_tag, now_s)
            return [SendFrame(peer, answer)] if answer is not None else []
        if frame.kind is FrameKind.PIECE:
            self._states.piece(peer, frame, now_s)
        else:
            self._fetcher.missing(peer, bytes(frame.body), now_s)
            self._states.missing(peer, bytes(frame.body), now_s)
        return []

    def arrived(
        self, body: Buffer, exchange: Exchange | None, next_op: int, now_s: float
    ) -> list[PeerAction]:
        """A BLOB: to whoever wants it, and what nobody wants is dropped.

        Args:
            body: its bytes; their hash says what they are.
            exchange: our part of the op in progress.
            next_op: whose results are caught up with while there is none.
            now_s: the time.

        Raises:
            RemoteFault: reason ``proof``: an accusation without one.
        """
        digest = content_hash(body)
        if not self._fetcher.arrived(digest, now_s) or self._states.accept(digest, body):
            return []
        found = self._audits.judged(digest, body)
        if found is not None:
            return found
        if exchange is not None:
            return exchange.blob_arrived(digest, body, now_s)
        self._blobs.keep_result(next_op, body, digest)
        return []

    def due(
        self, run_tag: int, uplink_bytes_per_s: int, *, in_op: bool, now_s: float
    ) -> list[PeerAction]:
        """What to ask, and what to give to joiners, now. Arguments as `Serving.due`."""
        if self.is_idle:
            return []
        actions: list[PeerAction] = [
            SendFrame(peer, Frame(FrameKind.GET, run_tag, body=digest))
            for peer, digest in self._fetcher.requests(now_s)
        ]
        actions += self._states.requests(run_tag, now_s)
        pieces = self._serving.due(run_tag, uplink_bytes_per_s, in_op=in_op, now_s=now_s)
        actions += [SendFrame(peer, frame) for peer, frame in pieces]
        actions += self._ahead.due(run_tag, now_s)
        return actions + self._audits.due(run_tag, in_op=in_op, now_s=now_s)

    def wakeups(self) -> list[float]:
        """When `due` has something although nothing came."""
        if self.is_idle:
            return []
        times = [*self._fetcher.wakeups(), *self._states.wakeups()]
        if self._ahead.is_giving:
            times.append(self._ahead.next_wakeup_s)
        return times + self._serving.wakeups() + self._audits.wakeups()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is wanted of anybody. Asked after every event, so it calls nothing."""
        serving = self._serving
        is_asking = self._fetcher.wants or self._states.download.chunks
        is_giving = serving.queues or serving.owed_bytes > 0 or self._ahead.is_giving
        return not (is_asking or is_giving) and self._audits.is_idle

    def forget(self, peer: PeerId) -> None:
        """This peer is gone."""
        self._serving.forget(peer)
        self._fetcher.forget(peer)
