"""The data lane as this peer's link allows it: rates are measured, bulk waits its turn.

A link in front of the link. The arithmetic is that of `links.rate_meter` and `links.outbox`; here
TCP is asked what it has moved, and there is a timer. Small frames (credits, invitations, requests)
never wait; bulk is handed over as the link carries it, so that they need not wait below either.
"""

import asyncio
import math
import time
from collections.abc import Iterable
from pathlib import Path

from swarmtrain.config.caps import Caps
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.network.allowance import Allowance
from swarmtrain_transport import limits
from swarmtrain_transport.links.link import Address, LinkStats, PeerId
from swarmtrain_transport.links.outbox import Outbox, TokenBucket
from swarmtrain_transport.links.parallel_flows import ParallelFlows
from swarmtrain_transport.links.rate_meter import LinkRates
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire.frames import Frame, FrameKind

_BULK = frozenset(
    {
        FrameKind.PART, FrameKind.SUM, FrameKind.RESULT, FrameKind.BLOB, FrameKind.PIECE,
        FrameKind.AHEAD, FrameKind.FORWARD, FrameKind.GRADIENT,
    }
)  # fmt: skip

_SHUT_BYTES_PER_S = 1.0
"""Rate of a gate that is shut."""


class Bandwidth:
    """A link that keeps link.Link's contract, and the rates in a participant's stats.

    Args:
        link: the real one.
        loop: event loop of the link.
        caps: limits that the link's owner sets.
        directory: folder of today's traffic.
        gate: holds back what the link takes in.

    Raises:
        UserError: SWT-E405, today's allowance is used up already.
    """

    def __init__(
        self,
        link: ZmqLink,
        loop: asyncio.AbstractEventLoop,
        caps: Caps,
        directory: Path,
        gate: TokenBucket,
    ) -> None:
        self._link = link
        self._loop = loop
        self._rates = LinkRates(caps.up, caps.down)
        self._up, self._gate = TokenBucket(caps.up, loop.time()), gate
        self._outbox = Outbox(self._up)
        self._allowance = Allowance(directory, caps.daily, _today)
        self._allowance.check()
        self._timer: asyncio.TimerHandle | None = None
        self._read_s = self._heard_s = -math.inf
        self._plan_ids: frozenset[int] = frozenset()
        self._widths = ParallelFlows()
        link.redialled = self._begins_with_one

    @property
    def stats(self) -> LinkStats:
        """Counters of the real link."""
        return self._link.stats

    def allow(self, address: Address) -> None:
        """Do what the real link does."""
        self._begins_with_one(address.peer_id)
        self._link.allow(address)

    def warm(self, peers: Iterable[PeerId]) -> None:
        """Do what the real link does."""
        self._link.warm(peers)

    def revoke(self, peer: PeerId) -> None:
        """Do what the real link does."""
        self._outbox.forget(peer)
        self._begins_with_one(peer)
        self._link.revoke(peer)

    def _begins_with_one(self, peer: PeerId) -> None:
        """Know of one flow to a peer, as the real link has no more to a new address."""
        self._widths.forget(peer)
        self._outbox.widths.pop(peer, None)

    def send(self, peer: PeerId, frame: Frame) -> bool:
        """Send as the real link does, but bulk may wait here."""
        if frame.kind not in _BULK:
            return self._link.send(peer, frame)
        self._outbox.put(peer, frame)
        self._link.warm((peer,))
        self._flush_soon()
        return True

    def cap(self, caps: Caps) -> None:
        """Keep to other limits from now on."""
        now_s = self._loop.time()
        self._up.change(caps.up, now_s)
        self._gate.change(caps.down, now_s)
        self._rates.cap(caps.up, caps.down)
        self._allowance.daily = caps.daily
        self._link.gate_changed()
        if self._timer is not None:  # it waits as long as the old cap asked for
            self._timer.cancel()
            self._timer = None
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._timer is None:
            # After the whole batch: which frame goes first depends on all of them.
            self._timer = self._loop.call_later(0, self._flush)

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._allowance.save()

    def look(self, participant: Participant, bytes_moved: int, now_s: float) -> None:
        """Called at every event; reads the counters as often as a window of rates asks for.

        Args:
            participant: machine whose stats are kept up to date.
            bytes_moved: bytes of this process, both directions and lanes.
            now_s: the time.
        """
        plan_ids = participant.plan_ids
        if plan_ids != self._plan_ids:
            self._plan_ids = plan_ids
            self._outbox.keep_only(plan_ids)
            self._widen()
        self._allowance.count(bytes_moved)
        if now_s < self._read_s + limits.RATE_WINDOW_S / 2:
            return
        self._read_s = now_s
        moved = self._link.moved()
        if moved is not None:
            self._rates.counted(moved.up, moved.down, min(plan_ids, default=None), now_s)
        if plan_ids:
            self._widths.looked(self._link.paths(), now_s)
        stats = participant.stats
        stats.up_bytes_per_s = self._rates.up_bytes_per_s
        stats.down_bytes_per_s = self._rates.down_bytes_per_s
        stats.waiting = self._outbox.waiting(self._link.acknowledged(), now_s)
        self._link.pace(self._outbox.paces(stats.up_bytes_per_s, now_s))
        stats.is_leaving = self._is_leaving
        if not self._outbox.is_empty:  # a connection was made anew
            self._flush_soon()

    def _is_leaving(self, peer: PeerId) -> bool:
        """Return True if a piece of a state for this peer has not left yet. TCP is asked now and
        then: every event may ask here."""
        now_s = self._loop.time()
        if now_s >= self._heard_s + limits.OUT_LOOK_S:
            self._heard_s = now_s
            self._outbox.waiting(self._link.acknowledged(), now_s)
        return self._outbox.is_leaving(peer)

    def _widen(self) -> None:
        """Between exchanges: more flows to whom one cannot fill the way."""
        for peer, width in self._widths.ended().items():
            self._outbox.widths[peer] = width
            self._link.widen(peer, width)

    @property
    def today(self) -> int:
        """Bytes of this calendar day."""
        return self._allowance.used

    def check_allowance(self, *, is_exchanging: bool, lacks: int = 0) -> None:
        """Look whether today's allowance is enough, for a round more between two.

        Args:
            is_exchanging, lacks: see Allowance.

        Raises:
            UserError: SWT-E405, it is not. Nothing more is sent or taken in.
        """
        try:
            self._allowance.check(is_exchanging=is_exchanging, lacks=lacks)
        except UserError:
            self._gate.change(_SHUT_BYTES_PER_S, self._loop.time())
            raise

    def _flush(self) -> None:
        """Hand over what may go, and come back while there is more."""
        self._timer = None
        self._link.warm(
            self._outbox.receivers()
        )  # bulk may wait here for longer than a way is kept
        rate = self._rates.up_bytes_per_s
        acked, left = self._link.acknowledged(), self._allowance.left()
        for peer, frame in self._outbox.due(acked, rate, self._loop.time(), left):
            before = self._link.stats.bytes_sent
            self._link.send(peer, frame)
            self._outbox.sent(peer, frame, self._link.stats.bytes_sent - before)
        if not self._outbox.is_empty:
            self._timer = self._loop.call_at(self._outbox.next_wakeup_s, self._flush)


def _today() -> str:
    """The calendar day where this machine stands."""
    return time.strftime("%Y-%m-%d")
