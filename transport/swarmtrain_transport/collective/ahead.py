"""Contributions that travel to the next op's partner before that op is planned.

Part of a peer's contribution to a pair op may be known when the round begins, an anchor for
instance, and so is the expected partner (`pairing`). Then the inner steps are long enough to send
it. The taker keeps it by its hash. It counts only when HASHES of the op names it, after the same
checks as if it had been pushed then. If another partner is planned, or other bytes are published,
it was sent for nothing, and is forgotten with the op.

Bounds: one contribution's length is kept, of the expected partner alone; and no more is handed to
the link than it can send soon.
"""

from swarmtrain_transport import limits
from swarmtrain_transport.actions import SendFrame
from swarmtrain_transport.arithmetic import Contribution, ContributionRefused
from swarmtrain_transport.blocks.retention import Kept, Retention
from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import GroupView, OpView, window_of
from swarmtrain_transport.ledger.pairing import expected_partner
from swarmtrain_transport.ledger.plan_rules import values_of, vectors_in
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.records import Plan


class Ahead:
    """One peer's part of the next op that is under way already.

    Args:
        me: own id.
        boot: names this very process.
        view: the ledger's fold.
        retention: keeps what comes.
        local: facts of our link, with a counter of useless frames.
    """

    def __init__(
        self, me: PeerId, boot: bytes, view: GroupView, retention: Retention, local: LocalStats
    ) -> None:
        self._me, self._boot = me, boot
        self._view = view
        self._retention = retention
        self._local = local
        self._op = -1
        self._partner: PeerId | None = None
        self._contribution: Contribution | None = None
        self._next_start = 0
        self._sent: set[bytes] = set()
        self._kept_op = -1
        self._kept_of: PeerId | None = None
        self._kept: dict[bytes, Kept] = {}
        self._chunks: set[int] = set()
        self._now_s = 0.0

    # ---- what we give

    def give(self, op: int, contribution: Contribution, start: int) -> None:
        """Values from `start` on of what we will give to the next op.

        Args:
            op: number of the op; any other than the next is not looked at.
            contribution: encodes values of that part by their places in the whole.
            start: first value that is known.
        """
        self.stop()
        plan = self._newest
        if plan is None or op != self._view.last_op + 1 or plan.op >= op:
            return
        self._partner = expected_partner(self._view.tag, op, plan, self._me)
        if self._partner is None:
            return
        self._op, self._contribution, self._sent = op, contribution, set()
        self._next_start = -(-start // plan.chunk_values) * plan.chunk_values

    def due(self, run_tag: int, now_s: float) -> list[SendFrame]:
        """A few more chunks, if the link can take them."""
        self._now_s = now_s
        plan, contribution, partner = self._newest, self._contribution, self._partner
        if plan is None or contribution is None or partner is None:
            return []
        stop = self._num_values(plan)
        if plan.op >= self._op or self._next_start >= stop or not self._is_there(partner):
            self._contribution = None
            return []
        frames: list[SendFrame] = []
        waiting = self._local.waiting.get(partner, 0)
        while len(frames) < limits.PUMP_CHUNKS and waiting < limits.AHEAD_BYTES:
            start = self._next_start
            if start >= stop:
                break
            try:
                data = contribution.encode(
                    start, min(start + plan.chunk_values, stop), window_of(plan)
                )
            except ContributionRefused:
                self._contribution = None  # the op itself will say so
                break
            digest = content_hash(data)
            chunk = start // plan.chunk_values
            frame = Frame(
                FrameKind.AHEAD, run_tag, slice_index=self._view.group, chunk=chunk,
                set_id=self._op, body=data, digest=digest,
            )  # fmt: skip
            frames.append(SendFrame(partner, frame))
            self._sent.add(digest)
            self._next_start, waiting = start + plan.chunk_values, waiting + len(data)
        return frames

    def stop(self) -> None:
        """Give nothing more."""
        self._contribution, self._sent = None, set()

    @property
    def is_giving(self) -> bool:
        """True if `due` may have more."""
        return self._contribution is not None

    @property
    def next_wakeup_s(self) -> float:
        """Time at which to ask `due` again."""
        if self._partner is not None and self._local.waiting.get(self._partner, 0):
            return self._now_s + limits.AHEAD_PAUSE_S
        return self._now_s

    # ---- what we get

    def heard(self, peer: PeerId, frame: Frame) -> None:
        """A chunk of what the expected partner will give to the op after the newest plan.

        Raises:
            RemoteFault: reason ``length``: it is no chunk of such an op.
        """
        plan, op = self._newest, frame.set_id
        tag = self._view.tag
        # Of a later op somebody else would be drawn, and displace what the partner has given.
        is_next = plan is not None and op == plan.op + 1
        if plan is None or not is_next or peer != expected_partner(tag, op, plan, self._me):
            self._local.ignored["stale"] += 1
            return
        if (op, peer) != (self._kept_op, self._kept_of):
            self._forget()
            self._kept_op, self._kept_of = op, peer
        check_chunk(plan, self._num_values(plan), frame)
        digest = frame.digest or content_hash(frame.body)
        if frame.chunk not in self._chunks and digest not in self._kept:
            self._kept[digest] = self._retention.keep(frame.body)
        self._chunks.add(frame.chunk)

    # ---- the op itself

    def taken(self, view: OpView, partner: PeerId | None) -> tuple[dict[bytes, Kept], set[bytes]]:
        """The op has been planned: return this partner's bytes that are here, by hash, and the
        hashes of the bytes that were sent to it. Everything for others, or for another op, is
        forgotten.

        The caller releases the bytes.
        """
        op, sent = view.plan.op, self._sent
        if partner is None or (op, partner) != (self._op, self._partner):
            sent = set()
        if partner is None or (op, partner) != (self._kept_op, self._kept_of):
            self._forget()
        here, self._kept = self._kept, {}
        self.stop()
        self._forget()
        return here, sent

    # ---- parts

    @property
    def _newest(self) -> Plan | None:
        return self._view.op.plan if self._view.op is not None else None

    def _num_values(self, plan: Plan) -> int:
        genesis = self._view.genesis
        op = self._view.last_op + 1
        return values_of(genesis, op, plan.block, vectors_in(plan)) if genesis is not None else 0

    def _is_there(self, peer: PeerId) -> bool:
        """Return True if a peer is still the process that was planned, and so are we: only these
        know each other, and are expected to be ready soon."""
        boot, op = self._view.members.get(peer), self._view.op
        if boot is None or op is None or op.boots.get(self._me) != self._boot:
            return False
        return boot == op.boots.get(peer)

    def _forget(self) -> None:
        for kept in self._kept.values():
            kept.release()
        self._kept, self._chunks, self._kept_of = {}, set(), None


def check_chunk(plan: Plan, num_values: int, frame: Frame) -> None:
    """Check that a frame may be a chunk of so many values.

    Raises:
        RemoteFault: reason ``length``.
    """
    num_chunks = -(-num_values // plan.chunk_values)
    longest = limits.RESULT_VALUE_BYTES * (plan.chunk_values + plan.block)
    if frame.chunk >= num_chunks or len(frame.body) > longest:
        raise RemoteFault("length", f"chunk {frame.chunk} of {len(frame.body)} bytes, ahead")
