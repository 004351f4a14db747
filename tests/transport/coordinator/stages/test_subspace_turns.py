"""The coordinator turns a run's subspace: when, by whose proposal, and from which round on."""

from typing import Any

import pytest
from test_stage_rounds import StagedHall, begun, run_alone

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.wire.records import Books, Plan, Plane, Turn
from tests.transport.rig import A, B, C

TERMS: dict[str, Any] = {"turn_rounds": 1, "rank": 4, "width": 6, "most_units": 40}
PLANES = (Plane(0, 5, 40), Plane(3, 4, -7))


def round_of(hall: StagedHall, op: int, *planes: Plane) -> tuple[list[int], Books, set[int]]:
    """A round from its first micro-batch to the outcome of its ops: the turns of its BEGIN, its
    books, and the turns of its PLANs."""
    begins = [one for one in hall.told(C) if isinstance(one, orders.Begin)]
    hall.drain(A, B, round=op - 1)
    begins += [one for one in hall.told(C) if isinstance(one, orders.Begin)]
    if planes:
        hall.report(C, orders.Proposed(planes))
    hall.settle(round=op - 1, a={1, 2}, c={1})
    for group, peer in ((0, A), (1, C)):
        hall.ready_in(group, op, peer)
        run_alone(hall, group, peer)
    turns = {plan.turns for plan in hall.bodies(Plan) if plan.op == op}
    return [one.pace.turns for one in begins], hall.bodies(Books)[-1], turns


def test_a_turn_that_is_due_is_in_the_books_then_in_plans_and_in_the_pace_of_later_rounds() -> None:
    hall = begun(**TERMS)
    begins, books, plans = round_of(hall, 1, *PLANES)
    assert (set(begins), books.turn, plans) == ({0}, None, {0})  # none before the first op
    begins, books, plans = round_of(hall, 2, *PLANES)
    assert (set(begins), books.turn, plans) == ({0}, Turn(2, PLANES), {1})
    begins, books, plans = round_of(hall, 3)  # nobody proposes
    assert (set(begins), books.turn, plans) == ({1}, None, {1})
    assert hall.machine.view.turns == (Turn(2, PLANES),)


def test_what_is_proposed_before_a_turn_is_due_is_void() -> None:
    hall = begun(**{**TERMS, "turn_rounds": 2})
    assert [round_of(hall, op, *planes)[1].turn for op, planes in ((1, ()), (2, PLANES))] == [
        None, None
    ]  # fmt: skip
    assert round_of(hall, 3)[1].turn is None
    assert round_of(hall, 4, *PLANES[:1])[1].turn == Turn(4, PLANES[:1])


@pytest.mark.parametrize(
    ("peer", "planes", "terms"),
    [
        (A, PLANES, TERMS),
        (C, (Plane(4, 5, 1),), TERMS),
        (C, (Plane(0, 5, 41),), TERMS),
        (C, (), TERMS),
        (C, PLANES, {}),
    ],
)
def test_a_proposal_that_cannot_be_is_refused_and_harms_nobody(peer, planes, terms) -> None:
    hall = begun(**terms)
    with pytest.raises(RemoteFault, match="turn"):
        hall.report(peer, orders.Proposed(planes))
    assert round_of(hall, 1)[1].turn is None
