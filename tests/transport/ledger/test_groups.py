"""Groups in the ledger: each has its own ops, outcomes and states; a run of one never says so."""

from dataclasses import fields

import msgpack
import pytest

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.ledger.snapshots import from_image, image_of
from swarmtrain_transport.peer.ledger_copy import LedgerCopy
from swarmtrain_transport.wire.records import (
    Attest,
    Freeze,
    Gone,
    Group,
    Move,
    Rewind,
    Skip,
    Unban,
    body_of,
)
from tests.transport.rig import (
    LAYOUT,
    A,
    B,
    C,
    Chain,
    D,
    begun_chain,
    commit_of,
    join_body,
    plan_body,
    verify,
)

SETTINGS = b"s" * 32
ROOT = b"G" * 32


def grouped_chain(fragments: tuple[int, ...] = ()) -> Chain:
    """A, B and C; B and C are in group 1, which has begun too."""
    chain = begun_chain()
    chain.add(Group(1, SETTINGS))
    chain.add(Move(B, (0, 1)))
    chain.add(Move(C, (1,)))
    chain.add(Attest(0, ROOT, 16, LAYOUT, fragments, group=1))
    return chain


def plan_of_group_1(chain: Chain, width: int = 16) -> None:
    view = chain.view.groups[1]
    chain.add(
        plan_body(
            (B, C), width, op=view.next_op, previous_outcome=view.last_outcome, group=1,
        )
    )  # fmt: skip


def commit_group_1(chain: Chain) -> None:
    op = chain.view.groups[1].in_progress
    assert op is not None
    chain.add(Freeze(op.plan.op, (B, C), {}, group=1))
    chain.add(commit_of(op))


def test_a_run_of_one_group_never_names_it() -> None:
    chain = begun_chain()
    chain.add(chain.plan())
    chain.commit(A, B, C)
    chain.add(Rewind(0, "lost"))
    chain.add(Gone(C, False, "left"))
    assert all(b"group" not in record.body for record in chain.records)
    assert chain.view.groups_of(A) == (0,) and chain.view.groups_of(C) == ()


def test_the_image_of_a_run_in_which_nobody_was_placed_does_not_tell_of_places() -> None:
    told = []
    for chain in (begun_chain(), grouped_chain()):
        image = image_of(chain.view, chain.ledger.reader)
        assert from_image(image)[0] == chain.view
        told.append(len(msgpack.unpackb(image, strict_map_key=False)[1]))
    names = [one.name for one in fields(LedgerView)]
    assert told == [names.index("placed"), names.index("placed") + 1]


def test_who_is_moved_is_in_these_groups_also_when_it_comes_back() -> None:
    chain = grouped_chain()
    groups = chain.view.groups
    assert list(groups[0].members) == [A, B] and list(groups[1].members) == [B, C]
    chain.add(join_body(B, b"newer"))
    assert groups[0].members[B] == groups[1].members[B] == b"newer"
    chain.add(Gone(B, False, "left"))
    assert chain.view.groups_of(B) == ()
    restored, _ = from_image(image_of(chain.view, chain.ledger.reader))
    assert restored == chain.view and restored.groups_at_join(B) == (0, 1)
    restored.apply(chain.add(join_body(B)), join_body(B))
    assert restored == chain.view and chain.view.groups_of(B) == (0, 1)
    chain.add(Move(B, (0,)))
    chain.add(Gone(B, True, "banned"))
    chain.add(Unban(B))
    chain.add(join_body(B))
    assert chain.view.groups_of(B) == (0,)  # where it was placed last
    assert chain.view.groups_at_join(D) == (0,)  # who is placed nowhere begins with group 0


@pytest.mark.parametrize(
    "body",
    [Group(1, SETTINGS), Group(3, SETTINGS), Move(b"?" * 32, (0,)), Move(A, ()), Move(A, (1, 0)),
     Move(A, (0, 0)), Move(A, (2,)), Attest(0, ROOT, 16, LAYOUT, group=2), Rewind(-2, "", group=1)],
)  # fmt: skip
def test_a_record_of_a_group_or_a_place_that_there_is_not_is_refused(body) -> None:
    chain = grouped_chain()
    with pytest.raises(RemoteFault, match="order"):
        chain.add(body)


def test_ops_of_two_groups_are_under_way_at_once_and_end_as_they_like() -> None:
    chain = grouped_chain()
    first, second = chain.view.groups[0], chain.view.groups[1]
    chain.add(chain.plan((A, B)))
    plan_of_group_1(chain)
    commit_group_1(chain)
    plan_of_group_1(chain)
    assert (first.last_op, second.last_op) == (0, 1) and first.ops and second.ops
    chain.commit(A, B)
    chain.add(Skip(2, "deadline", group=1))
    assert (first.committed, second.committed, list(second.skips)) == (1, 1, [2])
    chain.add(Rewind(0, "lost", group=1))
    assert (first.last_op, second.last_op, first.rewinds, second.rewinds) == (1, 0, 0, 1)
    again = Chain()
    for record in chain.records:
        again.view.apply(record, again.ledger.append(record))
    assert again.view == chain.view
    assert body_of(chain.records[-1]) == Rewind(0, "lost", group=1)


def test_ops_of_one_group_overlap_as_long_as_they_move_other_fragments() -> None:
    chain = grouped_chain(fragments=(8, 4, 4))
    view = chain.view.groups[1]
    for width in (8, 4, 4):
        plan_of_group_1(chain, width)
    assert [op.plan.op for op in view.ops.values()] == [1, 2, 3]
    with pytest.raises(RemoteFault, match="PLAN of op 4"):
        plan_of_group_1(chain, 8)
    with pytest.raises(RemoteFault, match="outcome of op 2"):
        chain.add(Skip(2, "early", group=1))
    with pytest.raises(RemoteFault, match="REWIND"):
        chain.add(Rewind(-1, "lost", group=1))
    commit_group_1(chain)
    chain.add(Skip(2, "deadline", group=1))
    plan_of_group_1(chain, 8)
    assert [op.plan.op for op in view.ops.values()] == [3, 4] and view.last_op == 2


def test_a_peer_refuses_a_plan_that_names_who_is_not_in_the_group() -> None:
    chain = grouped_chain()
    outcome = chain.view.groups[1].last_outcome
    for peers in ((B, C), (A, B)):
        copy = LedgerCopy(verify, chain.records)
        plan = plan_body(peers, 16, previous_outcome=outcome, group=1)
        raw = chain.next_record(plan).to_bytes()
        if A not in peers:
            assert copy.take(raw) is not None
        else:
            with pytest.raises(RemoteFault, match="a member is not in the group"):
                copy.take(raw)
