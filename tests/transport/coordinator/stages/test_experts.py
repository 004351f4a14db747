"""Experts at the coordinator: who trains which, and who takes the place of nobody."""

from swarmtrain_transport import limits
from swarmtrain_transport.wire.records import Gone, Group, Move, Run
from tests.transport.hall import Hall
from tests.transport.rig import A, B, C, D


def hall(count: int = 2) -> Hall:
    return Hall(experts=count)


def trained(one: Hall) -> dict[bytes, tuple[int, ...]]:
    return {peer: one.machine.view.groups_of(peer) for peer in one.machine.view.roster}


def test_run_says_how_many_experts_there_are_and_each_is_a_group():
    one = hall(3)
    (run,) = one.bodies(Run)
    one.join(A)
    assert run.experts == 3 and [body.group for body in one.bodies(Group)] == [1, 2]


def test_each_peer_trains_the_expert_with_the_fewest():
    one = hall()
    for peer in (A, B, C):
        one.join(peer)
    assert trained(one) == {A: (0,), B: (1,), C: (0,)}


def test_an_expert_that_lost_its_only_peer_gets_one_of_another():
    one = hall()
    for peer in (A, B, C):
        one.join(peer)
    one.alive(limits.SUSPECT_S + limits.EVICT_S + limits.STAGE_EMPTY_S + 5.0, A, C)
    assert B in {body.peer for body in one.bodies(Gone)}
    assert trained(one)[C] == (1,)
    assert "nobody" in one.bodies(Move)[-1].why


def test_the_last_peer_of_an_expert_stays_where_another_has_nobody():
    one = hall()
    one.join(A)
    one.alive(limits.STAGE_EMPTY_S + 5.0, A)
    assert trained(one) == {A: (0,)}


def test_who_was_in_before_keeps_its_expert_unless_another_has_nobody():
    one = hall()
    for peer in (A, B, C, D):
        one.join(peer)
    assert trained(one)[D] == (1,)
    one.take(one.machine.disconnected(D, one.now_s))
    one.alive(limits.SUSPECT_S + limits.EVICT_S + 5.0, A, B, C)
    one.join(D)
    assert trained(one)[D] == (1,)
