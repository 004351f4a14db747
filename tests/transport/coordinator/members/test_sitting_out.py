"""Peers that give nothing, or own nothing, in the next op for what they did in earlier ones."""

from typing import Any

from swarmtrain_transport.coordinator.members.group_peers import GroupPeer
from swarmtrain_transport.ledger.standing import Score
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Attest, Freeze, Reassign, Skip, SliceFreeze
from tests.transport.coordinator.ops.test_planning import (
    ROOT,
    line_of,
    plan_now,
    ready_line,
    weights,
)
from tests.transport.hall import opened
from tests.transport.rig import A, B, C, Chain, begun_chain, received, roots_of


def at_fault(chain: Chain, peer: PeerId, rounds: int = 3) -> None:
    """Rounds that a peer was left out of by its own fault."""
    others = [one for one in chain.view.roster if one != peer]
    for _ in range(rounds):
        chain.add(chain.plan(tuple(chain.view.roster), num_values=24))
        chain.add(Freeze(chain.view.first.last_op + 1, tuple(others), {peer: "late"}))
        chain.commit()


def at_op(chain: Chain, *peers: PeerId, **changes: Any) -> dict[PeerId, GroupPeer]:
    op = chain.view.first.last_op
    return {peer: ready_line(peer, op + 1, applied_op=op, **changes) for peer in peers}


def test_who_was_at_fault_three_times_is_a_receiver_and_nobody_waits_for_it() -> None:
    chain = begun_chain()
    at_fault(chain, C)
    chain.add(Attest(3, ROOT))
    lines = at_op(chain, A, B) | {C: line_of(C, applied_op=3)}
    plan = plan_now(chain, lines)
    assert weights(plan) == {A: 255, B: 255, C: 0}
    chain.add(Skip(4, "test"))
    plan = plan_now(chain, at_op(chain, A, B, C, state_root=ROOT))
    assert weights(plan) == {A: 255, B: 255, C: 255}, "after one round it may give again"


def test_who_should_sit_out_is_planned_with_if_the_others_are_too_few() -> None:
    chain = begun_chain()
    at_fault(chain, C)
    chain.add(Attest(3, ROOT))
    two = at_op(chain, A, B)
    waits = two | {C: line_of(C, applied_op=3)}
    assert plan_now(chain, waits, min_contributors=3) is None
    plan = plan_now(chain, at_op(chain, A, B, C), min_contributors=3)
    assert weights(plan) == {A: 255, B: 255, C: 255}


def test_an_unfit_owner_owns_nothing_as_long_as_half_of_all_own_something() -> None:
    chain = begun_chain()
    for _ in range(2):
        chain.add(chain.plan())
        op = chain.view.first.last_op + 1
        chain.add(Reassign(op, 0, 1, B, "at odds", {C: "absent"}))
        chain.add(Freeze(op, (A, B, C), {}))
        chain.add(SliceFreeze(op, 0, 1, (A, B, C)))
        chain.commit()
    chain.add(Attest(2, ROOT))
    plan = plan_now(chain, at_op(chain, A, B, C))
    assert weights(plan) == {A: 255, B: 255, C: 255}
    assert plan is not None and {spec.owner for spec in plan.slices} == {B, C}
    assert chain.view.first.op is not None and set(chain.view.first.op.unfit) == {A, C}


def test_status_names_who_said_it_and_who_sits_out() -> None:
    hall = opened(A, B, C)
    hall.ready(1, A, B, C)
    operation = hall.machine.first.operation
    assert operation is not None
    for peer in (A, B, C):
        hall.say(peer, roots_of(operation.view, peer))
    for index, owner in enumerate(operation.view.owners):
        refused = {C: "scale"} if index == 0 else {}
        whole = received(index, {A, B, C} - refused.keys())
        hall.say(owner, m.Got(operation.view.plan_id, index, 0, whole, refused))
    status = hall.machine.status(hall.now_s)
    (told,) = [event for event in status.events if event.event == "at odds"]
    assert told.peer == A.hex()
    said = "says that the part of 03030303 was illegal (scale)"
    assert told.reason == f"{said}; its slice went to 02020202"
    standing = hall.machine.view.first.standing
    for _ in range(3):
        standing.contributors.setdefault(C, Score()).fault(1)
        standing.owners.setdefault(B, Score()).fault(1)
    rests = {line.peer: line.rests for line in hall.machine.status(hall.now_s).peers}
    assert rests[C.hex()].startswith("gives nothing up to round 2")
    assert rests[B.hex()].startswith("owns nothing up to round 2")
    assert rests[A.hex()] == ""
