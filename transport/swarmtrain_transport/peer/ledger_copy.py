"""A peer's own copy of the ledger: verified record by record, folded as it grows."""

from collections.abc import Iterable

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import WHOLE
from swarmtrain_transport.ledger.chain import Archive, Ledger
from swarmtrain_transport.ledger.fold import GroupView, LedgerView, OpView
from swarmtrain_transport.ledger.fragments import values_of
from swarmtrain_transport.ledger.gathered import NOTHING_SUMMED
from swarmtrain_transport.ledger.pairing import check_drawn
from swarmtrain_transport.ledger.plan_rules import check_centre, check_plan
from swarmtrain_transport.ledger.signed import is_signature, result_payload
from swarmtrain_transport.wire.records import (
    AnyBody,
    Freeze,
    Plan,
    Record,
    Verify,
    record_from_bytes,
)


class LedgerCopy:
    """Chain and fold together.

    Args:
        verify: signature check.
        records: the copy of an earlier life.
        archive: where older records are, None to keep all in memory.

    Raises:
        RemoteFault: the records are not a legal chain.
    """

    def __init__(
        self, verify: Verify, records: Iterable[Record], archive: Archive | None = None
    ) -> None:
        self._verify = verify
        self.ledger = Ledger(verify, archive)
        self.view = LedgerView()
        for record in records:
            self.ledger.append(record, self.view.apply)
            self.ledger.trim()

    def take(self, raw: bytes) -> tuple[Record, AnyBody] | None:
        """The next record, or None for one that is here already.

        Raises:
            RemoteFault: it is not the next link, contradicts the ledger, or plans what is illegal.
        """
        record = record_from_bytes(raw)
        if record.index <= self.ledger.head_index:
            return None
        return record, self.ledger.append(record, self._judge)

    def _judge(self, record: Record, body: AnyBody) -> None:
        """Fold a legal link. A record that is refused is not kept, so it is refused again."""
        if isinstance(body, Plan):
            self._check_plan(self.view.group_of(body), body)
        if isinstance(body, Freeze):
            for op in self.view.group_of(body).ops.values():
                if op.plan.op == body.op:
                    check_given(op, body, self._verify)
        self.view.apply(record, body)

    @staticmethod
    def _check_plan(group: GroupView, plan: Plan) -> None:
        if group.genesis is None:
            return
        check_plan(plan, values_of(group.genesis, plan.op, max(1, plan.block), plan.kind))
        before = group.op.plan if group.op is not None else None
        check_drawn(group.tag, before, plan, group.standing.apart(plan.op))
        check_centre(group, plan)


def check_given(view: OpView, freeze: Freeze, verify: Verify) -> None:
    """Whether FREEZE of contributions that stay whole names what was signed: a coordinator cannot
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
