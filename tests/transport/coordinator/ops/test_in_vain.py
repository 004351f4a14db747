"""Ops that are skipped again and again for want of the same peer: the ledger blames it, and others
take its place."""

from itertools import pairwise

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Commit, Plan, Reassign, Skip
from tests.transport.coordinator.ops.gather_table import DEADLINE_S, GatherTable, gather_table
from tests.transport.coordinator.ops.pair_table import pair_table
from tests.transport.coordinator.ops.table import SCATTER_S, table
from tests.transport.hall import Hall, opened, root_of
from tests.transport.rig import A, B, C, D, E, received, roots_of

HONEST = (A, B, C)
SLOW_S = 10.0
"""Seconds after the last outcome until a slow peer is ready."""


def refused(hall: Hall, liar: PeerId) -> None:
    """All do their part of the op in progress, and what one of them gives is legal nowhere."""
    operation = hall.machine.first.operation
    assert operation is not None
    view = operation.view
    for peer in view.weights:
        hall.say(peer, roots_of(view, peer))
    for index, owner in enumerate(view.owners):
        bad = {liar} - {owner}
        came = received(index, view.weights.keys() - bad)
        hall.say(owner, m.Got(view.plan_id, index, 0, came, dict.fromkeys(bad, "scale")))


def ready(hall: Hall, op: int, *peers: PeerId) -> None:
    """All ops before were skipped: the state is still the first one."""
    for peer in peers:
        hall.say(peer, m.Applied(op - 1, root_of(0)), m.Ready(op, 8, op - 1, root_of(0)))


def plan_of(hall: Hall, op: int) -> set[PeerId] | None:
    """Contributors of an op, None before its PLAN."""
    plan = hall.plan() if hall.bodies(Plan) else None
    if plan is None or plan.op < op:
        return None
    return {member.peer for member in plan.members if member.weight}


def next_gives(hall: Hall, op: int) -> set[PeerId]:
    """Let the time pass until the next PLAN, for which a slow one is ready last."""
    begun_s = hall.now_s
    ready(hall, op, *HONEST, D)
    while (gives := plan_of(hall, op)) is None:
        hall.alive(hall.now_s + 1.0, *HONEST, D, E)
        if begun_s + SLOW_S <= hall.now_s < begun_s + SLOW_S + 1.0 and plan_of(hall, op) is None:
            ready(hall, op, E)
        assert hall.now_s < begun_s + 200.0, "no op is planned"
    return gives


def in_vain() -> tuple[Hall, int]:
    """A run of four who are needed all, of whom one gives nothing legal; a slow fifth is in time as
    soon as the others do not begin the next op at once. Return it at the PLAN that has it."""
    hall = opened(*HONEST, D, E, start_peers=4, min_contributors=4, wait_ready_s=2.0)
    for op in range(1, 30):
        gives = next_gives(hall, op)
        if gives != {*HONEST, D}:
            assert gives == {*HONEST, E}
            return hall, op
        refused(hall, D)
        (skip,) = [body for body in hall.bodies(Skip) if body.op == op]
        assert skip.excluded == {D: "refused:scale"}
        assert set(skip.accusers[D]) <= {*HONEST}
        for peer in (*HONEST, D, E):
            hall.say(peer, m.Applied(op, root_of(0)))
    raise AssertionError("ops were skipped for want of the same peer, one after the other")


def test_whoever_all_others_refuse_is_blamed_for_skips_and_another_takes_its_place() -> None:
    hall, op = in_vain()
    assert op <= 10
    hall.exchange(*sorted({*HONEST, E}))
    assert [body.op for body in hall.bodies(Commit)] == [op]
    assert hall.machine.view.first.standing.barred(op + 1, {*HONEST, D, E}) == {D}


def test_ops_in_vain_come_ever_more_rarely() -> None:
    hall = opened(*HONEST, D, start_peers=4, min_contributors=4)
    begun_s = []
    for op in range(1, 14):
        ready(hall, op, *HONEST, D)
        while plan_of(hall, op) is None:
            hall.alive(hall.now_s + 0.5, *HONEST, D)
        begun_s.append(hall.now_s)
        refused(hall, D)
    pauses = [late - early for early, late in pairwise(begun_s)]
    assert pauses[: limits.VAIN_OPS - 1] == [0.0] * (limits.VAIN_OPS - 1)
    assert pauses[limits.VAIN_OPS - 1 :][:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert set(pauses[-3:]) == {limits.VAIN_PAUSE_MAX_S}


def test_a_restarted_coordinator_goes_on_with_the_pause() -> None:
    hall, _ = in_vain()
    again = Hall(tuple(hall.records), term=2, start_peers=4, min_contributors=4)
    known = again.machine.view.first.standing
    assert known == hall.machine.view.first.standing
    assert known.vain_ops >= limits.VAIN_OPS
    assert known.pause_s({D}) > 0.0 == known.pause_s({A, E})


# ---- who is named


def test_a_skip_for_want_of_contributors_names_who_gave_nothing() -> None:
    one = table(min_contributors=3)
    one.op.reports.signed.pop(C)
    for index in one.indexes:
        one.got(index, A, B)
    skip = one.decide(SCATTER_S)
    assert isinstance(skip, Skip)
    assert (skip.excluded, skip.accusers) == ({C: "late"}, {})


def test_who_withdraws_or_dies_where_all_are_needed_is_named_too() -> None:
    one = table(min_contributors=3)
    one.op.reports.hear(B, m.Withdraw(one.view.plan_id, "nonfinite"), 0.0)
    one.lose(C)
    skip = one.decide()
    assert isinstance(skip, Skip)
    assert skip.excluded == {B: "withdrew:nonfinite", C: "lost"}


def test_who_dies_after_freeze_and_is_missing_at_a_new_owner_is_named_too() -> None:
    one = table(min_contributors=3)
    one.freeze()
    one.lose(C)
    moved = one.decide()
    assert isinstance(moved, Reassign)
    one.got(moved.slice_index, A, B)
    skip = one.decide()
    assert isinstance(skip, Skip)
    assert skip.reason.startswith("too few contributors of slice")
    assert (skip.excluded, skip.accusers) == ({C: "lost"}, {})


@pytest.mark.parametrize("one", [gather_table(A, B, min_contributors=2), pair_table(A, B)])
def test_a_gather_or_a_pair_that_is_skipped_for_want_of_somebody_names_it(one: GatherTable) -> None:
    one.publish(A)
    skip = one.decide(SCATTER_S)
    assert isinstance(skip, Skip)
    assert (skip.excluded, skip.accusers) == ({B: "late"}, {})


def test_who_publishes_and_gives_it_to_nobody_is_named_on_the_words_of_those_who_lack_it() -> None:
    one = gather_table(A, B, C, D, min_contributors=4)
    one.frozen()
    for taker in (A, B, C, D):
        one.have(taker, *{A, B, C, D} - {taker, D})
    skip = one.decide(DEADLINE_S)
    assert isinstance(skip, Skip)
    assert skip.reason == "deadline"
    assert (skip.excluded, skip.accusers) == ({D: "late"}, {D: (A, B, C)})


def test_of_two_partners_either_may_be_the_one_that_drags() -> None:
    one = pair_table(A, B)
    one.frozen()
    one.have(A, B)
    skip = one.decide(DEADLINE_S)
    assert isinstance(skip, Skip)
    assert (skip.excluded, skip.accusers) == ({A: "late"}, {A: (B,)})
    assert one.view.words.at_fault == {}
    assert one.view.words.lacked == {A: {B: "late"}}


def test_the_odd_one_of_pairs_is_not_missing_where_too_few_publish() -> None:
    one = pair_table(A, B, C, D, E, min_contributors=4)
    one.publish(A, B, C)
    skip = one.decide(SCATTER_S)
    assert isinstance(skip, Skip)
    assert skip.excluded == {D: "late"}
