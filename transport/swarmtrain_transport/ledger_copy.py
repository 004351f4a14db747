"""A peer's own copy of the ledger: verified record by record, folded as it grows."""

from collections.abc import Iterable

from swarmtrain_transport.fold import LedgerView
from swarmtrain_transport.fragments import values_of
from swarmtrain_transport.ledger import AnyBody, Ledger, Plan, Record, Verify, record_from_bytes
from swarmtrain_transport.planning import check_plan


class LedgerCopy:
    """Chain and fold together.

    Args:
        verify: signature check.
        records: the copy of an earlier life.

    Raises:
        RemoteFault: the records are not a legal chain.
    """

    def __init__(self, verify: Verify, records: Iterable[Record]) -> None:
        self.ledger = Ledger(verify)
        self.view = LedgerView()
        for record in records:
            self.ledger.append(record, self.view.apply)

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
        genesis = self.view.genesis
        if isinstance(body, Plan) and genesis is not None:
            check_plan(body, values_of(genesis, body.op, max(1, body.block)))
        self.view.apply(record, body)
