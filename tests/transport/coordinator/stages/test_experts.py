"""Experts at the coordinator: who trains which, and who takes the place of nobody."""

from swarmtrain_transport import limits
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Gone, Group, Move, Run
from tests.transport.hall import Hall, held, root_of
from tests.transport.rig import LAYOUT, A, B, C, D


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


def with_a_round(one: Hall, *peers: bytes) -> None:
    """The first expert makes its first round."""
    one.say(peers[0], m.Offer(root_of(0), 24, LAYOUT))
    for peer in peers:
        one.say(peer, m.Applied(0, root_of(0)))
        one.ack(peer)
    one.run_op(1, peers[0])
    for peer in peers[1:]:
        one.say(peer, m.Applied(1, root_of(1)))
    assert one.machine.first.view.committed == 1


def test_who_brings_its_experts_state_keeps_it_where_another_has_nobody():
    one = hall()
    for peer in (A, B, C):
        one.join(peer)
    with_a_round(one, A, C)
    one.take(one.machine.disconnected(C, one.now_s))
    one.alive(limits.SUSPECT_S + limits.EVICT_S + 5.0, A, B)
    one.say(B, m.Leave("enough"))
    one.join(C, **held(1))
    assert trained(one) == {A: (0,), C: (0,)}


def test_an_expert_whose_only_peer_leaves_gets_one_of_another_while_it_is_here():
    one = hall()
    for peer in (A, B, C, D):
        one.join(peer)
    with_a_round(one, A, C)
    one.say(A, m.Leaving())
    one.say(C, m.Leaving())
    one.tick(one.now_s + 1.0)
    assert trained(one)[D] == (0,) and "leave" in one.bodies(Move)[-1].why
    released = [peer for peer in (A, C) if any(isinstance(x, m.Released) for x in one.sent[peer])]
    assert len(released) < 2  # somebody keeps its state until the newcomer has it


def test_who_alone_holds_its_experts_newest_state_takes_nobodys_place():
    one = hall()
    for peer in (A, B, C):
        one.join(peer)
    with_a_round(one, A, C)
    one.say(A, m.Leaving())
    one.say(B, m.Leave("enough"))
    one.alive(one.now_s + limits.STAGE_EMPTY_S + 5.0, A, C)
    assert trained(one)[C] == (0,)


def test_who_is_paused_takes_nobodys_place():
    one = hall()
    for peer in (A, B, C, D):
        one.join(peer)
    with_a_round(one, A, C)
    one.ack(D, phase=m.PAUSED)
    for peer in (A, C):
        one.say(peer, m.Leaving())
    assert trained(one)[D] == (1,)
