"""Rehearsal of a death: a link that stops in the middle of sending, on an event, not on a clock.

In the round that is asked for, or the first one after it that this peer gives to, it lets the first
half of what this peer gives pass and holds the rest back: of every slice's parts, or of the one
contribution that a gather op pushes to everybody.
Of what a pair op pushes to the partner it is the first quarter: the second half may have gone ahead
in the round before. Peers that miss the rest ask for it: owners repeat their RANGES, and peers who
gather say GET. Once that shows that the first half arrived, the world has seen a contribution begin
and not end, and whoever asked is told. The death itself is up to whoever asked. The machine behind
it is the production one and knows nothing of this. One chunk has no half: where all is so small,
nothing is sent and nobody is told. Nor is anybody where the peer owns every slice and so has
nothing to send: a run that rehearses deaths cuts its slices alike.
"""

from collections.abc import Callable, Iterable

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.kinds import GATHER, PAIR
from swarmtrain_transport.ledger.fold import num_chunks
from swarmtrain_transport.links.link import Address, Link, LinkStats, PeerId
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire.frames import Frame, FrameKind, Ranges, Wanted
from swarmtrain_transport.wire.records import Plan

_PUSHED = frozenset({GATHER, PAIR})
"""Kinds of op whose contributions go as they are, in RESULT frames."""


def _passing(plan: Plan, slice_index: int) -> int:
    """Return how many chunks of a slice pass: the first ones."""
    count = num_chunks(plan, slice_index)
    return min(-(-count // 4), count - 1) if plan.kind == PAIR else count // 2


class FreezingLink:
    """A link that keeps link.Link's contract until the round comes.

    Args:
        link: the real one.
        participant: asked which op is in progress and how many chunks it sends.
        op: the round to stop in; where it begins without this peer, the next one.
        on_frozen: called once with (round, chunks sent, chunks in all), 0 < sent < all.
    """

    def __init__(
        self,
        link: Link,
        participant: Participant,
        op: int,
        on_frozen: Callable[[int, int, int], None],
    ) -> None:
        self._link = link
        self._participant = participant
        self._op = op
        self._on_frozen = on_frozen
        self._passed: set[tuple[int, int]] = set()
        self._held: set[bytes] = set()
        self._is_frozen = False

    @property
    def stats(self) -> LinkStats:
        """Counters of the real link."""
        return self._link.stats

    def allow(self, address: Address) -> None:
        """Do what the real link does."""
        self._link.allow(address)

    def warm(self, peers: Iterable[PeerId]) -> None:
        """Do what the real link does."""
        self._link.warm(peers)

    def revoke(self, peer: PeerId) -> None:
        """Do what the real link does."""
        self._link.revoke(peer)

    def send(self, peer: PeerId, frame: Frame) -> bool:
        """Send as the real link does, but only the first half in the rehearsal's round."""
        plan = self._plan()
        given = FrameKind.RESULT if plan is not None and plan.kind in _PUSHED else FrameKind.PART
        if plan is not None and frame.kind is given:  # some of this peer's own contribution
            # Half of every slice, not of them all: an owner that has its part repeats no RANGES.
            if self._is_frozen or frame.chunk >= _passing(plan, frame.slice_index):
                if plan.kind in _PUSHED:
                    self._held.add(content_hash(frame.body))
                return True
            self._passed.add((frame.slice_index, frame.chunk))
        elif self._held and frame.kind is FrameKind.BLOB and content_hash(frame.body) in self._held:
            return True
        return self._link.send(peer, frame)

    def heard(self, frame: Frame) -> None:
        """A frame came in: does it prove that some of what was sent has arrived, and some not?"""
        exchange = self._participant.first.exchange
        plan = self._plan()
        if self._is_frozen or not self._passed or plan is None or exchange is None:
            return
        try:
            if plan.kind in _PUSHED:
                total = num_chunks(plan, 0)
                # A receiver asks for what was held back after all that was pushed.
                is_proof = (
                    frame.kind is FrameKind.GET and Wanted.unpack(frame.body).digest in self._held
                )
            else:
                total = exchange.sender.chunks_total if exchange.sender is not None else 0
                is_proof = frame.kind is FrameKind.RANGES and any(Ranges.unpack(frame.body).chunks)
        except RemoteFault:
            return  # the machine says so
        if is_proof and total:
            self._is_frozen = True
            self._on_frozen(self._op, len(self._passed), total)

    def _plan(self) -> Plan | None:
        """The plan of the rehearsal's round while that round is under way."""
        exchange = self._participant.first.exchange
        if exchange is None or exchange.view.plan.op < self._op:
            return None
        plan, me = exchange.view.plan, self._participant.card.peer_id
        if plan.op > self._op and not self._passed and me in exchange.view.weights:
            self._op = plan.op
        return plan if plan.op == self._op else None
