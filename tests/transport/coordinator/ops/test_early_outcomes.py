"""Two ops of one group under way: the later one is decided early, and logged in its turn."""

from swarmtrain_transport.coordinator.ops.op_decider import OpDecider
from swarmtrain_transport.ledger.fold import num_chunks, set_id
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Commit, Freeze, Skip
from tests.transport.hall import Hall, root_of
from tests.transport.rig import LAYOUT, A, B, C, D, done_of, received, roots_of

PEERS = (A, B, C, D)
DEADLINE_S = 20.0


def overlapping() -> tuple[Hall, OpDecider, OpDecider]:
    """Ops 1 and 2, which move different values, are under way, each among four."""
    hall = Hall(start_peers=4, ops_at_once=2, deadline_cap_s=DEADLINE_S)
    hall.join(*PEERS)
    hall.say(A, m.Offer(root_of(0), 24, LAYOUT, (8, 16)))
    for peer in PEERS:
        hall.say(peer, m.Applied(0, root_of(0)))
        hall.ack(peer)
    for op in (1, 2):
        for peer in PEERS:
            hall.say(peer, m.Ready(op, 8, 0, root_of(0)))
    first, second = hall.machine.first.operations.values()
    return hall, first, second


def exchange(hall: Hall, operation: OpDecider, *holders: PeerId) -> None:
    """All give and publish, and these say that they hold all of it."""
    view, plan_id = operation.view, operation.view.plan_id
    for peer in PEERS:
        hall.say(peer, roots_of(view, peer))
    for index, owner in enumerate(view.owners):
        hall.say(owner, m.Got(plan_id, index, 0, received(index, PEERS)))
    for index, owner in enumerate(view.owners):
        hashes = tuple(bytes([index, n]) * 16 for n in range(num_chunks(view.plan, index)))
        hall.say(owner, done_of(view, index, PEERS, hashes))
        for peer in holders:
            hall.say(peer, m.Have(plan_id, index, 0, set_id(PEERS), (True,) * len(hashes)))


def test_a_result_that_nobody_lost_is_committed_in_its_turn_however_long_that_takes():
    hall, first, second = overlapping()
    exchange(hall, second, *PEERS)
    assert [body.op for body in hall.bodies(Freeze)] == [2] and not hall.bodies(Commit)
    hall.alive(2 * DEADLINE_S, *PEERS)
    outcomes = hall.bodies(Commit | Skip)
    assert [(type(body), body.op) for body in outcomes] == [(Skip, 1), (Commit, 2)]
    assert hall.bodies(Commit)[0].behind == ()
    assert first.view.outcome is not None


def test_a_result_whose_holders_have_died_meanwhile_is_not_committed():
    hall, first, second = overlapping()
    exchange(hall, second, *PEERS)
    for peer in (A, B, C):
        hall.machine.disconnected(peer, hall.now_s)
    hall.join(D, boot=b"another")
    hall.alive(2 * DEADLINE_S, D)
    assert [body.op for body in hall.bodies(Skip)] == [1, 2] and not hall.bodies(Commit)
    assert first.view.outcome is not None
