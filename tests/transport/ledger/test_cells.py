"""Cells of a mean: how members are dealt, what an owner sums, and what the fold refuses."""

import msgspec
import pytest

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.cells import Cells, dealt, places_of, summed_chunks
from swarmtrain_transport.ledger.fold import OpView, set_id
from swarmtrain_transport.ledger.plan_rules import check_plan
from swarmtrain_transport.ledger.transfers import transfers_of
from swarmtrain_transport.wire.records import (
    Freeze,
    Member,
    Plan,
    Reassign,
    SliceFreeze,
    SliceSpec,
    make_record,
)
from tests.transport.rig import plan_body

PEERS = [bytes([number + 1]) * 32 for number in range(12)]
SEED = b"s" * 40


def members(givers: int, receivers: int = 0) -> tuple[Member, ...]:
    return tuple(
        Member(bytes([number + 1]) * 32, b"boot", int(number < givers))
        for number in range(givers + receivers)
    )


def plan_in(cells: int, ranges: int = 2, givers: int = 12, piece: int = 6) -> Plan:
    named = members(givers)
    base = plan_body(cells=cells, members=named, chunk_values=2, block=2)
    of = Cells.in_plan(base)
    specs = []
    for index in range(ranges * cells):
        owners = [one.peer for one in named if of.cell_of(one.peer) == index % cells]
        specs.append(SliceSpec(index * piece, (index + 1) * piece, owners[index // cells]))
    return plan_body(cells=cells, members=named, chunk_values=2, block=2, slices=tuple(specs))


def view_in(cells: int) -> OpView:
    return OpView.of(plan_in(cells), b"h" * 32)


@pytest.mark.parametrize(("givers", "receivers", "count"), [(12, 0, 3), (13, 7, 4), (200, 31, 5)])
def test_cells_differ_by_one_member_and_by_one_contributor(
    givers: int, receivers: int, count: int
) -> None:
    named = members(givers, receivers)
    cells = dealt(named, count, SEED)
    for some in named, named[:givers]:
        sizes = [sum(cells.cell_of(one.peer) == c for one in some) for c in range(count)]
        assert max(sizes) - min(sizes) <= 1


def test_the_deal_follows_from_keys_and_seed_alone_and_is_another_for_each_op() -> None:
    named = members(40)
    assert dealt(named, 4, SEED).of == dealt(named[::-1], 4, SEED).of
    assert dealt(named, 4, SEED).of != dealt(named, 4, b"t" * 40).of


def test_one_cell_is_no_cell() -> None:
    cells = dealt(members(5), 1, SEED)
    assert cells.cell_of(PEERS[0]) == 0 and list(cells.pieces(3)) == [3]
    assert cells.among(PEERS, 2) == tuple(PEERS)
    assert summed_chunks(plan_in(1, ranges=3), 1) == ((1, 0), (1, 1), (1, 2))


def test_an_owner_sums_all_pieces_of_its_range_in_turns() -> None:
    plan = plan_in(3, piece=4)
    assert summed_chunks(plan, 4) == ((3, 0), (4, 0), (5, 0), (3, 1), (4, 1), (5, 1))
    assert list(places_of(plan, 1)) == [1, 4]


def test_only_its_cell_gives_to_an_owner() -> None:
    plan = plan_in(3)
    cells = Cells.in_plan(plan)
    for transfer in transfers_of(plan):
        assert {cells.cell_of(peer) for peer in transfer.givers} == {transfer.index % 3}
        assert len(transfer.takers) == 12
    met = cells.met_by(plan.slices[0].owner, [spec.owner for spec in plan.slices])
    assert met == {*cells.among(PEERS, 0), plan.slices[1].owner, plan.slices[2].owner}


def test_a_range_has_the_contributors_of_all_cells_once_each_is_decided() -> None:
    view = view_in(3)
    frozen = tuple(PEERS[1:])
    moved = next(peer for peer in view.givers(1) if peer != view.owners[1])
    assert view.result_set_id(0) == view.all_planned_id
    view.apply(Reassign(1, 1, 1, moved, "owner lost"))
    assert view.result_set_id(0) is None and view.result_set_id(3) == view.all_planned_id
    assert view.given_set_id(0) == set_id(view.givers(0)) and view.given_set_id(1) is None
    view.apply(Freeze(1, frozen, {PEERS[0]: "late"}))
    assert view.slice_sets[:3] == [None] * 3 and view.slice_sets[3:] == [frozen] * 3
    given = view.cells.among(frozen, 1)[1:]
    view.apply(SliceFreeze(1, 1, 1, given))
    rest = set(frozen) - set(view.cells.among(frozen, 1)) | set(given)
    assert view.slice_sets[:3] == [tuple(sorted(rest))] * 3


def test_a_slice_goes_to_nobody_of_another_cell_and_is_given_nothing_of_one() -> None:
    view = view_in(3)
    with pytest.raises(RemoteFault, match="another cell"):
        view.apply(Reassign(1, 0, 1, view.givers(1)[0], "owner lost"))
    view.apply(Reassign(1, 0, 1, view.givers(0)[-1], "owner lost"))
    view.apply(Freeze(1, tuple(PEERS), {}))
    with pytest.raises(RemoteFault, match="not a subset"):
        view.apply(SliceFreeze(1, 0, 1, view.givers(1)))


def test_the_window_is_for_the_weights_of_all_cells() -> None:
    plan = plan_in(3)  # 4 bits for 12 contributors, 15 for a product: 34 of 53 are left
    check_plan(msgspec.structs.replace(plan, e_min=-34), 36)
    with pytest.raises(RemoteFault, match="sums would not be exact"):
        check_plan(msgspec.structs.replace(plan, e_min=-35), 36)
    with pytest.raises(RemoteFault, match="window too narrow"):
        check_plan(msgspec.structs.replace(plan, e_min=-33), 36)


def test_each_piece_has_an_owner_of_its_own_cell() -> None:
    plan = plan_in(3)
    check_plan(plan, 36)
    first, second, *rest = plan.slices
    crossed = (
        msgspec.structs.replace(first, owner=second.owner),
        msgspec.structs.replace(second, owner=first.owner),
        *rest,
    )
    with pytest.raises(RemoteFault, match="an owner is not of its slice's cell"):
        check_plan(msgspec.structs.replace(plan, slices=crossed), 36)


def test_a_plan_of_one_cell_has_the_bytes_that_it_always_had() -> None:
    record = make_record(0, bytes(32), 1, plan_body(), lambda data: b"")
    assert b"cells" not in record.body
