"""A peer's own copy of the ledger: verified record by record, folded as it grows."""

from collections.abc import Iterable, Sequence

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.kinds import WHOLE
from swarmtrain_transport.ledger.chain import Archive, Ledger
from swarmtrain_transport.ledger.fold import GroupView, LedgerView, OpView
from swarmtrain_transport.ledger.pairing import check_drawn
from swarmtrain_transport.ledger.plan_rules import check_centre, check_plan, values_of
from swarmtrain_transport.ledger.signed_roots import is_signature, result_payload
from swarmtrain_transport.ledger.snapshots import Snapshots, become, from_image
from swarmtrain_transport.ledger.transfers import NOTHING_SUMMED
from swarmtrain_transport.wire.records import (
    AnyBody,
    BodyReader,
    Freeze,
    Plan,
    Record,
    Run,
    Snapshot,
    Verify,
    record_from_bytes,
)


class LedgerCopy:
    """Chain and fold together.

    Args:
        verify: signature check.
        records: the copy of an earlier life.
        archive: where older records are, None to keep all in memory.

    Attributes:
        older: the records before the SNAPSHOT that this copy began with, as far as they have come
            since, and their own fold; None once all are here.

    Raises:
        RemoteFault: the records are not a legal chain.
    """

    def __init__(
        self, verify: Verify, records: Iterable[Record], archive: Archive | None = None
    ) -> None:
        self._verify, self._archive = verify, archive
        self.ledger = Ledger(verify, archive)
        self.view = LedgerView()
        self._snapshots = Snapshots(self.ledger, self.view)
        self.older: LedgerCopy | None = None
        self._base_hash = b""
        for record in records:
            self.ledger.append(record, self._snapshots.apply)
            self.ledger.trim()

    def trim(self) -> None:
        """Let go of records that are on the disk by now."""
        (self if self.older is None else self.older).ledger.trim()

    def take(self, raw: bytes) -> tuple[Record, AnyBody] | None:
        """The next record, or None for one that is here already.

        Raises:
            RemoteFault: it is not the next link, contradicts the ledger, or plans what is illegal.
        """
        record = record_from_bytes(raw)
        if record.index <= self.ledger.head_index:
            return None
        return record, self.ledger.append(record, self._judge)

    def begin_with(self, raw: Sequence[bytes], image: bytes) -> None:
        """Begin with a SNAPSHOT instead of the first record.

        Args:
            raw: record 0 and the SNAPSHOT.
            image: what it names.

        Raises:
            RemoteFault: they are not signed, or do not belong together; nothing is kept then.
        """
        if len(raw) != len(("RUN", "SNAPSHOT")):
            raise RemoteFault("snapshot", f"{len(raw)} records beside an image")
        run, snapshot = map(record_from_bytes, raw)

        def judge(first: Run, named: Snapshot) -> BodyReader:
            if named != Snapshot(content_hash(image), len(image)):
                raise RemoteFault("snapshot", "the image is not the one that SNAPSHOT names")
            view, reader = from_image(image)
            if view.run != first or view.run_tag != int.from_bytes(run.hash[:8], "little"):
                raise RemoteFault("snapshot", "the image is of another run")
            become(self.view, view)
            return reader

        self.ledger.begin_at(run, snapshot, judge)
        self.older, self._base_hash = LedgerCopy(self._verify, (), self._archive), snapshot.hash

    def take_older(self, raw: bytes) -> Record | None:
        """The next of the records before that SNAPSHOT, checked and folded like any other; None
        for one that is here already. The SNAPSHOT itself is the last of them.

        Raises:
            RemoteFault: as `take`; reason ``snapshot``: they do not lead to what it names.
        """
        taken = self.older.take(raw) if self.older is not None else None
        if taken is None:
            return None
        record, _ = taken
        if record.index == self.ledger.base:
            if record.hash != self._base_hash:
                raise RemoteFault("snapshot", "the records before the SNAPSHOT are of another run")
            self.older = None
            self.ledger.whole()
        return record

    def _judge(self, record: Record, body: AnyBody) -> None:
        """Fold a legal link. A record that is refused is not kept, so it is refused again."""
        if isinstance(body, Plan):
            self._check_plan(self.view.group_of(body), body)
        if isinstance(body, Freeze):
            for op in self.view.group_of(body).ops.values():
                if op.plan.op == body.op:
                    check_given(op, body, self._verify)
        self._snapshots.apply(record, body)

    @staticmethod
    def _check_plan(group: GroupView, plan: Plan) -> None:
        if group.genesis is None:
            return
        if not {member.peer for member in plan.members} <= group.members.keys():
            raise RemoteFault("plan", f"op {plan.op}: a member is not in the group")
        check_plan(plan, values_of(group.genesis, plan.op, max(1, plan.block), plan.kind))
        before = group.op.plan if group.op is not None else None
        check_drawn(group.tag, before, plan, group.standing.apart(plan.op))
        check_centre(group, plan)


def check_given(view: OpView, freeze: Freeze, verify: Verify) -> None:
    """Check that FREEZE of contributions that stay whole names signed roots: a coordinator cannot
    make one up. (Of a mean op the auditor and its proof look at that.)

    Raises:
        RemoteFault: reason ``signature``.
    """
    if view.plan.kind not in WHOLE:
        return
    for peer, given in freeze.roots.items():
        index = view.owners.index(peer) if peer in view.owners else -1
        payload = result_payload(view.plan_hash, max(0, index), 0, given.root, NOTHING_SUMMED)
        is_signed = is_signature(given.signature) and verify(peer, given.signature, payload)
        if index < 0 or not is_signed:
            raise RemoteFault("signature", "FREEZE names what its contributor has not signed")
