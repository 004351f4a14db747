"""Phases of an op and its slices: which records may follow, whatever a policy would say."""

import pytest

from swarmtrain_transport.coordinator.ops.op_decider import Phase
from swarmtrain_transport.coordinator.ops.policies import POLICIES
from swarmtrain_transport.kinds import KINDS
from swarmtrain_transport.wire.records import Commit, Freeze, Reassign, Skip, SliceFreeze
from tests.transport.coordinator.ops.gather_table import gather_table
from tests.transport.coordinator.ops.pair_table import pair_table
from tests.transport.coordinator.ops.table import Table, table
from tests.transport.rig import A, B, C, D

SCATTER, GATHER, ENDED = Phase.SCATTER, Phase.GATHER, Phase.ENDED


def insist(op: Table, decision: object) -> None:
    """Make the policy say this, whatever the moment."""
    op.op._policy = op.op._policy._replace(skip=lambda at: decision)


def test_every_kind_of_op_has_a_policy():
    assert POLICIES.keys() == KINDS


def test_a_mean_goes_through_its_phases_and_a_slice_goes_back_when_it_is_reassigned():
    op = table(A, B, C, D)
    assert (op.op.phase, op.op.phase_of(0)) == (SCATTER, SCATTER)
    op.freeze()
    assert (op.op.phase, op.op.phase_of(0)) == (GATHER, GATHER)
    op.lose(A)
    assert isinstance(op.decide(), Reassign)
    assert [op.op.phase_of(index) for index in (0, 1)] == [SCATTER, GATHER]
    op.got(0, B, C, D)
    assert isinstance(op.decide(), SliceFreeze)
    assert op.op.phase_of(0) is GATHER
    op.publish(B, C, D)
    assert isinstance(op.decide(), Commit)
    assert (op.op.phase, op.op.phase_of(0)) == (ENDED, ENDED)


@pytest.mark.parametrize("op", [gather_table(A, B), pair_table(A, B)], ids=["gather", "pair"])
def test_other_kinds_go_through_the_same_phases(op):
    assert op.op.phase is SCATTER
    op.frozen()
    assert op.op.phase is GATHER
    op.have(A, B)
    op.have(B, A)
    assert isinstance(op.decide(), Commit)
    assert op.op.phase is ENDED and op.decide() is None


def test_before_freeze_nothing_is_committed_and_no_slice_frozen_and_after_it_there_is_no_other():
    freeze = Freeze(1, (A, B, C), {})
    for decision in (Commit(1, bytes(32), (A, B, C), (), b""), SliceFreeze(1, 0, 0, (A, B, C))):
        op = table()
        insist(op, decision)
        with pytest.raises(AssertionError, match="SCATTER"):
            op.decide()
    op = table()
    op.freeze()
    insist(op, freeze)
    with pytest.raises(AssertionError, match="GATHER"):
        op.decide()


def test_a_slice_is_frozen_once_and_by_enough_of_those_that_freeze_named():
    op = table(A, B, C, D, min_contributors=2)
    op.freeze()
    insist(op, SliceFreeze(1, 0, 0, (A, B)))
    with pytest.raises(AssertionError, match="SliceFreeze"):
        op.decide()
    for named in ((A, bytes(32)), (A,)):
        op = table(A, B, C, D, min_contributors=2)
        op.freeze()
        op.lose(A)
        assert isinstance(op.decide(), Reassign)
        insist(op, SliceFreeze(1, 0, 1, named))
        with pytest.raises(AssertionError):
            op.decide()


def test_nothing_is_committed_while_a_slice_waits_for_its_contributors():
    op = table(A, B, C, D)
    op.freeze()
    op.lose(A)
    assert isinstance(op.decide(), Reassign)
    insist(op, Commit(1, bytes(32), (A, B, C, D), (), b""))
    with pytest.raises(AssertionError):
        op.decide()


def test_an_op_that_has_ended_is_asked_in_vain():
    op = table()
    insist(op, Skip(1, "deadline"))
    assert isinstance(op.decide(), Skip)
    assert op.decide() is None
