"""The coordinator's side of one op, of whatever kind."""

from swarmtrain_transport.coordinator.gather_operation import GatherOperation
from swarmtrain_transport.coordinator.operation import Operation
from swarmtrain_transport.coordinator.pair_operation import PairOperation
from swarmtrain_transport.kinds import GATHER, PAIR
from swarmtrain_transport.ledger.fold import OpView

AnyOperation = Operation | GatherOperation
"""A pair op's is a gather op's with other decisions."""


def operation_of(view: OpView, now_s: float) -> AnyOperation:
    """The coordinator's side of an op of whatever kind.

    Args:
        view: the ledger's view of the op.
        now_s: start of the op, or of this term's part of it.
    """
    if view.plan.kind == PAIR:
        return PairOperation(view, now_s)
    return (GatherOperation if view.plan.kind == GATHER else Operation)(view, now_s)
