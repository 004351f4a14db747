"""Who makes the others wait is waited for no longer: what counts, for how long, what follows.

Times are seconds at the coordinator; nobody's word on another counts alone (protocol.md T19).
"""

import msgspec
import pytest

from swarmtrain.why.story import story_of
from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.snapshots import from_image, image_of
from swarmtrain_transport.ledger.standing import Lateness
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Commit, Freeze, Plan, Reassign
from tests.transport.coordinator.ops.table import GATHER_S, Table, table
from tests.transport.coordinator.ops.test_planning import line_of, plan_now, ready_line, weights
from tests.transport.hall import Hall, opened, root_of
from tests.transport.rig import A, B, C, Chain, D, begun_chain, commit_of, plan_body

FOUR = {A, B, C, D}
LEAST_MS = int(1000 * limits.LATE_LEAST_S)


def waits(op: Table) -> dict[bytes, float]:
    return {p: round(s, 3) for p, s in op.op.waits(op.alive, op.now_s).items()}


def late_before(chain: Chain, waited: dict[bytes, int], took: int = 1000) -> None:
    """A round that has waited for some."""
    chain.add(chain.plan())
    op = chain.view.first.in_progress
    assert op is not None
    chain.add(Freeze(op.plan.op, (A, B, C), {}))
    chain.add(msgspec.structs.replace(commit_of(op), waited=waited, took=took))


# ---- the fold


def test_seconds_of_waiting_are_added_up_and_an_hour_later_they_count_half() -> None:
    lateness = Lateness()
    lateness.passed(10_000, {A: 3000})
    lateness.passed(10_000, {A: 2000, B: 1})
    assert lateness.seconds(A) == pytest.approx(5.0, rel=0.01) and lateness.seconds(C) == 0.0
    lateness.passed(3_600_000, {})
    assert lateness.seconds(A) == pytest.approx(2.5, rel=0.01)
    assert B not in lateness.of, "what is left of nothing is nothing"


def test_nobody_waits_for_who_has_cost_a_tenth_of_the_time_but_not_for_a_slow_beginning() -> None:
    lateness = Lateness()
    lateness.passed(60_000, {A: LEAST_MS, B: 100})
    assert lateness.unawaited(FOUR) == set()
    lateness.passed(1_000, {A: 1000})
    assert lateness.unawaited(FOUR) == {A}
    lateness.passed(600_000, {})
    assert lateness.unawaited(FOUR) == set(), "in time again for long, and so it is waited for"


def test_of_those_who_are_late_only_the_worst_are_not_waited_for_so_that_most_remain() -> None:
    lateness = Lateness()
    lateness.passed(1000, {A: 3 * LEAST_MS, B: 2 * LEAST_MS, C: 4 * LEAST_MS})
    assert lateness.unawaited({A, B}) == {A}
    assert lateness.unawaited({A, B, C}) == lateness.unawaited(FOUR) == {C}
    assert lateness.unawaited({A, B, C, D, b"5"}) == {A, C}


def test_a_record_that_leaves_out_somebody_who_was_on_time_contradicts_the_ledger() -> None:
    chain = begun_chain()
    late_before(chain, {C: LEAST_MS + 1})
    with pytest.raises(RemoteFault, match="who was on time"):
        chain.add(chain.plan(unawaited=(B,)))
    chain.add(chain.plan(unawaited=(C,)))


# ---- what an op counts


def test_a_contribution_is_late_as_long_as_enough_owners_lack_it() -> None:
    op = table(A, B, C, D)
    op.now_s = 2.0
    for index in op.indexes:
        op.got(index, A, B, C)
    op.now_s = 5.0
    op.got(0, D)
    op.got(1, D)
    op.now_s = 6.0
    op.got_all()
    assert isinstance(op.decide(), Freeze)
    assert waits(op) == {D: 3.0}, "the last owner may have been slow to say so"


def test_who_has_not_signed_is_late_by_its_own_silence_also_of_two() -> None:
    op = Table(plan_body((A, B)), unsigned={B})
    op.now_s = 2.0
    op.got_all()
    op.decide(50.0)
    assert waits(op) == {B: 50.0}


def test_one_word_against_another_counts_against_nobody_and_of_enough_against_the_owner() -> None:
    op = table(A, B, C, D)
    op.now_s = 1.0
    for index in (1, 2, 3):
        op.got(index, A, B, C, D)
    op.got(0, A, B, C)
    op.now_s = 9.0
    op.got(0, D)
    assert isinstance(op.decide(), Freeze)
    assert waits(op) == {}
    op = table(A, B, C, D)
    op.now_s = 1.0
    for index in (1, 2, 3):
        op.got(index, A, B, C, D)
    op.now_s = 9.0
    op.got(0, A, B, C, D)
    assert isinstance(op.decide(), Freeze)
    assert waits(op) == {A: 8.0}


def test_a_slice_is_late_until_it_has_come_through_or_has_moved() -> None:
    op = table(A, B, C, D)
    op.freeze()
    op.now_s = 1.0
    for index in (0, 1, 2):
        op.done(index)
        op.have(index, A, B, C, D)
    op.now_s = 7.0
    op.done(3)
    op.have(3, A, B, C)
    assert waits(op) == {D: 6.0}
    silent = table(A, B, C, D)
    silent.freeze()
    silent.now_s = 1.0
    for index in (0, 1, 2):
        silent.done(index)
        silent.have(index, A, B, C, D)
    assert isinstance(silent.decide(GATHER_S), Reassign)
    silent.now_s += 20.0
    assert waits(silent) == {D: GATHER_S - 1.0}, "the new owner is not to blame"


def test_who_holds_a_result_later_than_most_is_late() -> None:
    op = table(A, B, C, D)
    op.freeze()
    op.now_s = 1.0
    op.publish(A, B, C)
    op.now_s = 12.0
    op.publish(D)
    assert isinstance(op.decide(), Commit)
    assert waits(op) == {D: 11.0}


# ---- what follows for an op


def test_a_contribution_that_nobody_waits_for_has_half_as_long_again_as_the_others_needed() -> None:
    op = table(A, B, C, D, unawaited=(D,))
    op.now_s = 4.0
    for index in op.indexes:
        op.got(index, A, B, C)
    assert op.decide() is None and min(t for t in op.op.wakeups() if t > 4.0) == 6.0
    assert op.decide(5.9) is None
    assert op.decide(6.0) == Freeze(1, (A, B, C), {D: "late"})
    assert waits(op) == {D: 2.0}
    op = table(A, B, C, D, unawaited=(D,))
    op.now_s = 4.0
    for index in op.indexes:
        op.got(index, A, B, C)
    op.now_s = 5.0
    op.got_all()
    assert op.decide() == Freeze(1, (A, B, C, D), {}), "in time is in"


def test_without_those_whom_nobody_waits_for_there_must_be_enough() -> None:
    op = table(A, B, C, D, unawaited=(D,), min_contributors=4)
    for index in op.indexes:
        op.got(index, A, B, C)
    assert op.decide(40.0) is None


def test_a_result_is_committed_without_the_word_of_whom_nobody_waits_for() -> None:
    op = table(A, B, C, D, unawaited=(D,))
    op.freeze()
    op.publish(A, B, C)
    decision = op.decide(3.0)
    assert isinstance(decision, Commit) and not decision.behind


# ---- what follows for the next


def test_a_plan_does_not_wait_for_their_ready_names_them_and_gives_them_no_slice() -> None:
    chain = begun_chain()
    late_before(chain, {C: LEAST_MS + 1})
    two = {A: ready_line(A, 2, applied_op=1), B: ready_line(B, 2, applied_op=1)}
    plan = plan_now(chain, two | {C: line_of(C, applied_op=1)})
    assert weights(plan) == {A: 255, B: 255, C: 0}
    assert plan is not None and plan.unawaited == (C,)
    chain = begun_chain()
    late_before(chain, {C: LEAST_MS + 1})
    plan = plan_now(chain, two | {C: ready_line(C, 2, applied_op=1)})
    assert weights(plan) == {A: 255, B: 255, C: 255}
    assert plan is not None and {spec.owner for spec in plan.slices} == {A, B}


def test_a_plan_waits_for_them_if_the_others_are_too_few() -> None:
    chain = begun_chain()
    late_before(chain, {C: LEAST_MS + 1})
    lines = {peer: ready_line(peer, 2, applied_op=1) for peer in (A, B)}
    lines[C] = line_of(C, applied_op=1)
    assert plan_now(chain, lines, min_contributors=3) is None
    lines[C] = ready_line(C, 2, applied_op=1)
    plan = plan_now(chain, lines, min_contributors=3)
    assert plan is not None and plan.unawaited == ()


def late_round(hall: Hall, op: int, late_s: float) -> None:
    """A round in which C says READY late, if it is waited for, and else takes the result."""
    hall.ready(op, A, B)
    hall.alive(hall.now_s + late_s, A, B, C)
    if hall.machine.first.operation is None:
        hall.ready(op, C)
    operation = hall.machine.first.operation
    assert operation is not None
    hall.exchange(*sorted(operation.view.weights))
    for peer in (A, B, C):
        hall.say(peer, m.Applied(op, root_of(op)))


def test_ready_in_the_last_moment_is_waited_for_a_few_times_and_no_restart_forgets() -> None:
    hall = opened(A, B, C, wait_ready_s=10.0)
    for op in range(1, 7):
        late_round(hall, op, 8.0)
    plans = hall.bodies(Plan)
    assert [plan.unawaited for plan in plans] == [()] * 4 + [(C,)] * 2
    assert [weights(plan)[C] > 0 for plan in plans] == [True] * 4 + [False] * 2
    counted = [commit.waited for commit in hall.bodies(Commit)]
    assert counted == [{}] + [{C: 8000}] * 3 + [{}] * 2, "a newcomer is not waited for at first"
    line = next(one for one in hall.machine.status(hall.now_s).peers if one.peer == C.hex())
    words = "the others have waited 24 s for it within the last hour, 49 % of their time"
    assert line.waited_s == 23.8 and line.rests == f"is not waited for: {words}"
    again = Hall(tuple(hall.records), term=2, wait_ready_s=10.0)
    assert again.machine.view == hall.machine.view
    told = story_of(hall.records, 3).lines
    assert "The others waited 8.0 s for otter (03030303)." in told
    begins = "Nobody waited for otter (03030303): the others have waited 24 s"
    assert any(line.startswith(begins) for line in story_of(hall.records, 5).lines)


def test_the_image_of_a_fold_holds_who_was_waited_for() -> None:
    chain = begun_chain()
    assert chain.view.first.standing.lateness == Lateness()
    late_before(chain, {C: 1234})
    view, _ = from_image(image_of(chain.view, chain.ledger.reader))
    assert view.first.standing.lateness == chain.view.first.standing.lateness != Lateness()
