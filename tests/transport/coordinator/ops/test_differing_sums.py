"""T6 in cells: what one owner says of a sum, another one says too, or neither is believed."""

import hashlib
from collections.abc import Mapping

import msgspec
import pytest

from swarmtrain_transport.coordinator.ops.op_decider import OpDecider
from swarmtrain_transport.coordinator.ops.reports import check_signed
from swarmtrain_transport.coordinator.ops.sheets import sheets_for
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.audit import draw
from swarmtrain_transport.ledger.cell_sums import differences, named_twice, num_named
from swarmtrain_transport.ledger.exclusion_rule import DIFFERS, SUM
from swarmtrain_transport.ledger.fold import OpDecision, num_chunks, slice_root
from swarmtrain_transport.ledger.signed_roots import (
    contribution_payload,
    inputs_of,
    made_of,
    result_payload,
    root_over,
)
from swarmtrain_transport.ledger.standing import Standing
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Got, Have, Roots, SliceDone
from swarmtrain_transport.wire.records import Commit, Freeze, Reassign, Skip, SliceFreeze
from tests.transport.cells_rig import peers_of, plan_in_cells
from tests.transport.rig import sign_as, slice_root_of, verify, view_of

PEERS = peers_of(12)
Named = Mapping[tuple[int, int], bytes]
"""Roots that are said in the place of others, by slice and place."""


class Table:
    """An op of three cells in which owners say what they are told to."""

    def __init__(self) -> None:
        self.view = view_of(plan_in_cells(PEERS, 3))
        self.op = OpDecider(self.view, 0.0)
        self.count = 3
        self.log: list[OpDecision] = []
        for peer in PEERS:
            ranges = range(len(self.view.owners) // self.count)
            roots = tuple(slice_root_of(peer, one) for one in ranges)
            payload = contribution_payload(self.view.plan_hash, root_over(roots))
            said = Roots(self.view.plan_id, roots, sign_as(peer)(payload))
            self.op.reports.hear(peer, said, 0.0)
        for index in range(len(self.view.owners)):
            self.got(index)

    def given(self, index: int) -> dict[PeerId, bytes]:
        row = self.view.cells.range_of(index)
        return {peer: slice_root_of(peer, row) for peer in self.view.givers(index)}

    def got(self, index: int) -> None:
        said = Got(self.view.plan_id, index, self.view.attempts[index], self.given(index))
        self.op.reports.hear(self.view.owners[index], said, 0.0)

    def decide(self, now_s: float = 1.0) -> OpDecision | None:
        decision = self.op.decide(set(PEERS), now_s)
        if decision is not None:
            self.view.apply(decision)
            self.log.append(decision)
        return decision

    def done(self, index: int, other: Named | None = None) -> SliceDone:
        """What the owner of a slice says that it has published."""
        count, at = self.count, index % self.count
        sums = [b""] * num_named(count)
        for piece in range(count):
            for cell in range(count):
                digest = hashlib.sha256(bytes([index // count, piece, cell])).digest()
                for owner, place in named_twice(piece, cell, count):
                    if owner == at:
                        sums[place] = (other or {}).get((index, place), digest)
        own = self.view.owners[index]
        inputs = inputs_of({p: root for p, root in self.given(index).items() if p != own})
        hashes = (bytes([index]) * 32,) * num_chunks(self.view.plan, index)
        attempt = self.view.attempts[index]
        made = made_of(inputs, sums)
        root = slice_root(hashes)
        signature = sign_as(own)(result_payload(self.view.plan_hash, index, attempt, root, made))
        name = self.view.result_set_id(index)
        assert name is not None
        said = (self.view.plan_id, index, attempt, name, hashes, inputs, signature)
        return SliceDone(*said, tuple(sums))

    def publish(self, other: Named | None = None) -> None:
        """All owners publish what they have not, and everybody has it."""
        for index, owner in enumerate(self.view.owners):
            if self.op.reports.current(index) is None:
                done = self.done(index, other)
                check_signed(self.view, owner, done, verify)
                assert self.op.reports.hear(owner, done, 1.0) is not None
            name = self.view.result_set_id(index)
            assert name is not None
            whole = (True,) * num_chunks(self.view.plan, index)
            have = Have(self.view.plan_id, index, self.view.attempts[index], name, whole)
            for peer in PEERS:
                self.op.reports.hear(peer, have, 1.0)

    def repair(self) -> SliceFreeze:
        """The slice that has another owner gets the same contributors."""
        (index,) = [i for i, given in enumerate(self.view.given_sets) if given is None]
        self.got(index)
        decision = self.decide()
        assert isinstance(decision, SliceFreeze)
        return decision


def frozen() -> Table:
    table = Table()
    assert isinstance(table.decide(), Freeze)
    return table


@pytest.mark.parametrize("count", range(2, 9))
def test_each_sum_is_named_by_two_owners_and_each_place_names_one(count: int) -> None:
    named = [named_twice(piece, cell, count) for piece in range(count) for cell in range(count)]
    places = [place for both in named for place in both]
    assert sorted(places) == [(p, at) for p in range(count) for at in range(2 * count)]
    assert all(one[0] != other[0] for one, other in named)
    assert differences([None] * count) == []
    assert num_named(1) == 0


def test_where_all_name_the_same_the_op_is_committed() -> None:
    table = frozen()
    table.publish()
    assert isinstance(table.decide(), Commit)


@pytest.mark.parametrize("place", range(6))
def test_who_differs_alone_goes_and_what_is_then_the_same_is_committed(place: int) -> None:
    """A single sum: first the mean is made elsewhere. If that was the liar, it is enough."""
    table = frozen()
    table.publish({(4, place): bytes(32)})
    moved = table.decide()
    assert isinstance(moved, Reassign) and moved.reason == DIFFERS
    assert moved.slice_index in table.view.cells.pieces(4)
    table.repair()
    lies_again = {(4, place): bytes(32)} if moved.slice_index != 4 else None
    table.publish(lies_again)
    if lies_again:
        again = table.decide()
        assert isinstance(again, Reassign) and again.slice_index == 4
        table.repair()
        table.publish()
    assert isinstance(table.decide(), Commit)
    assert max(table.view.attempts) == 1


def test_a_difference_counts_against_both_whichever_slice_is_made_again() -> None:
    """Or one could differ from each first owner, and agree with the second."""
    table = frozen()
    table.publish({(4, 2): bytes(32)})
    moved = table.decide()
    assert isinstance(moved, Reassign)
    user, giver = (table.view.plan.slices[index].owner for index in (4, 5))
    assert moved.slice_index == 4 and moved.lacked == {giver: SUM}
    table.repair()
    table.publish()
    commit = table.decide()
    assert isinstance(commit, Commit)
    standing = Standing()
    standing.ended(table.view.plan, table.view.words, commit)
    assert standing.owners.keys() == {user, giver}
    assert not standing.contributors and not standing.pairs


def test_who_differs_from_most_goes_first() -> None:
    table = frozen()
    table.publish({(3, place): bytes(32) for place in range(6)})
    moved = table.decide()
    assert isinstance(moved, Reassign) and moved.slice_index == 3
    assert moved.owner != table.view.plan.slices[3].owner


def test_nothing_is_compared_that_does_not_stand() -> None:
    """Before FREEZE nobody goes; and of what was published of an earlier attempt nothing counts."""
    table = Table()
    table.publish({(0, 1): bytes(32)})
    assert isinstance(table.decide(), Freeze)
    moved = table.decide()
    assert isinstance(moved, Reassign) and moved.slice_index == 0
    assert table.decide() is None and not table.op.reports.differences(0)


def test_as_long_as_two_differ_there_is_no_commit() -> None:
    table = frozen()
    lie = {(0, 1): bytes(32), (1, 4): bytes(31) + b"x"}
    for _ in range(40):
        table.publish(lie)
        decision = table.decide()
        if not isinstance(decision, Reassign):
            break
        table.repair()
    assert decision is None and max(table.view.attempts) >= 2
    assert isinstance(table.decide(1e4), Skip)


def test_roots_of_another_number_or_size_are_refused_and_named() -> None:
    table = frozen()
    done = table.done(0)
    for sums in (
        (),
        done.sums[:-1],
        (*done.sums, bytes(32)),
        (b"", *done.sums[1:]),
        done.sums * 99,
    ):
        with pytest.raises(RemoteFault) as caught:
            wrong = msgspec.structs.replace(done, sums=sums)
            check_signed(table.view, table.view.owners[0], wrong, verify)
        assert caught.value.reason == "sums"
    other = msgspec.structs.replace(done, sums=done.sums[::-1])
    with pytest.raises(RemoteFault) as caught:
        check_signed(table.view, table.view.owners[0], other, verify)
    assert caught.value.reason == "signature"


def test_the_drawn_auditor_alone_is_told_what_the_owner_has_named() -> None:
    table = frozen()
    table.publish()
    commit = table.decide()
    assert isinstance(commit, Commit)
    for number in range(8):
        table.view.outcome_hash = hashlib.sha256(bytes([number])).digest()
        drawn = draw(table.view)
        assert drawn is not None
        told = {peer: sheet.made for peer, sheet in sheets_for(table.op.reports, commit)}
        done = table.done(drawn.place)
        assert told.pop(drawn.auditor) == (done.inputs, *done.sums)
        assert set(told.values()) == {()}
