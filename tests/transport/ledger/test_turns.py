"""Turns of a subspace in the ledger: what may be one, and which op lies in which."""

import msgpack
import msgspec
import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.ledger.snapshots import from_image, image_of
from swarmtrain_transport.ledger.turns import UNITS, are_legal, drawn, most_units
from swarmtrain_transport.wire.records import Books, Freeze, Plane, Turn
from tests.transport.rig import A, B, Chain, begun_chain, commit_of, plan_body

PLANES = (Plane(0, 5, 40), Plane(3, 4, -7))


def books(round: int, *planes: Plane, op: int = 1) -> Books:
    turn = Turn(op, planes) if planes else None
    return Books(round, 0, 0, (0, 0), (), 0, b"d" * 32, turn=turn)


def plan(chain: Chain, turns: int) -> None:
    first = chain.view.first
    chain.add(plan_body((A, B), op=first.next_op, previous_outcome=first.last_outcome, turns=turns))


def test_an_op_lies_in_all_turns_before_its_plan_also_after_a_snapshot() -> None:
    chain = begun_chain()
    chain.add(books(0))
    plan(chain, 0)
    chain.add(Freeze(1, (A, B), {}))
    chain.add(commit_of(chain.view.first.op))
    chain.add(books(1, *PLANES, op=2))
    plan(chain, 1)
    for view in (chain.view, from_image(image_of(chain.view, chain.ledger.reader))[0]):
        assert view.turns == (Turn(2, PLANES),) and view.books.turn == view.turns[0]
        assert view.first.commits[1].turns == () and view.first.op.turns == view.turns


@pytest.mark.parametrize("turns", [0, 2])
def test_a_plan_that_knows_of_other_turns_is_refused(turns: int) -> None:
    chain = begun_chain()
    chain.add(books(0, *PLANES))
    with pytest.raises(RemoteFault, match="turns"):
        plan(chain, turns)


@pytest.mark.parametrize(
    "planes",
    [
        (Plane(0, 5, 1), Plane(0, 4, 1)),
        (Plane(0, 5, 1), Plane(1, 5, 1)),
        (Plane(4, 5, 1), Plane(0, 4, 1)),
        (Plane(-1, 5, 1),),
        (Plane(0, 5, 0),),
        (Plane(0, 5, UNITS + 1),),
        tuple(Plane(n, 1000 + n, 1) for n in range(limits.TURN_PLANES_MAX + 1)),
    ],
)
def test_planes_that_are_none_of_a_turn_are_refused_by_whoever_reads_them(planes) -> None:
    assert not are_legal(planes, 4, 2000, UNITS)
    with pytest.raises(RemoteFault, match="illegal turn"):
        begun_chain().add(books(0, *planes))


def test_a_turn_stands_where_it_says_and_there_are_no_more_than_a_run_may_have() -> None:
    with pytest.raises(RemoteFault, match="illegal turn"):
        begun_chain().add(books(0, *PLANES, op=3))
    chain = begun_chain()
    for round in range(limits.TURNS_MAX):
        chain.add(books(round, *PLANES))
    with pytest.raises(RemoteFault, match="illegal turn"):
        chain.add(books(limits.TURNS_MAX, *PLANES))


def test_a_turn_is_of_this_run_s_channels_and_angle() -> None:
    assert are_legal(PLANES, 4, 6, 40)
    for rank, width, most in ((3, 6, 40), (5, 6, 40), (4, 5, 40), (4, 6, 39)):
        assert not are_legal(PLANES, rank, width, most)
    assert [most_units(angle) for angle in (0.01, 0.1, 1.5)] == [5, 51, 768]


def test_nobody_knows_whose_proposal_is_drawn_before_the_newest_record() -> None:
    told = {A: PLANES[:1], B: PLANES[1:]}
    assert {drawn(told, bytes([head])) for head in range(32)} == set(told.values())
    assert drawn(told, b"one head") == drawn(dict(reversed(told.items())), b"one head")


def test_a_run_that_never_turns_has_the_records_and_images_that_it_always_had() -> None:
    assert b"turn" not in msgspec.msgpack.encode(books(0))
    empty = LedgerView()
    raw = msgpack.unpackb(image_of(empty, begun_chain().ledger.reader), strict_map_key=False)
    assert len(raw[1]) == 11
