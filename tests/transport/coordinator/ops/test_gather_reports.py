"""Reports of a gather op that count, and what the ledger allows of one."""

import msgspec
import pytest

from swarmtrain_transport.coordinator.ops.reports import check_signed
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import slice_root
from swarmtrain_transport.peer.ledger_copy import LedgerCopy
from swarmtrain_transport.wire.messages import Got, Have
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Reassign,
    SignedRoot,
    SliceFreeze,
)
from tests.transport.coordinator.ops.gather_table import (
    SCATTER_S,
    GatherTable,
    gather_plan,
    gather_table,
    hashes_of,
    published_by,
)
from tests.transport.rig import BOOT, A, B, C, D, begun_chain, roots_of, verify

# ---- stale and hostile reports


def test_publishing_again_is_no_news_and_publishing_something_else_is_refused():
    op = gather_table()
    (first,) = op.publish(C)
    assert first is not None
    assert op.publish(C) == [None]
    with pytest.raises(RemoteFault, match="two contributions"):
        op.publish(C, version=1)
    assert op.op.reports.published[2, 0].chunk_hashes == hashes_of(op.view, C)


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": 1},
        {"set_id": 1},
        {"inputs": bytes(32)},
        {"chunk_hashes": (bytes(32),)},
        {"chunk_hashes": (b"short", b"short")},
        {"slice_index": 0},
        {"slice_index": 99},
        {"slice_index": -1},
    ],
)
def test_what_is_no_contribution_of_its_sender_is_not_news(changes):
    op = gather_table()
    assert op.op.reports.hear(C, published_by(op.view, C, **changes), 0.0) is None
    assert not op.op.reports.published


def test_nobody_publishes_for_another_and_the_signature_must_be_its_own():
    op = gather_table()
    done = published_by(op.view, C)
    assert op.op.reports.hear(B, done, 0.0) is None
    check_signed(op.view, C, done, verify)
    with pytest.raises(RemoteFault, match="not signed"):
        check_signed(op.view, B, done, verify)


def test_publishing_after_freeze_without_being_in_it_changes_nothing():
    op = gather_table()
    op.publish(A, B)
    assert isinstance(op.decide(SCATTER_S), Freeze)
    assert op.publish(C) == [None]
    for peer in (A, B):
        op.have(peer, A, B)
    op.have(C, A, B)
    assert op.committed() == (A, B)


def test_reports_that_belong_to_means_say_nothing_here():
    op = gather_table()
    assert op.op.reports.hear(A, Got(op.view.plan_id, 0, 0, {B: bytes(32)}), 0.0) is None
    assert op.op.reports.hear(A, roots_of(op.view, A), 0.0) is None
    assert not op.op.reports.got
    assert not op.op.reports.signed
    assert not op.op.reports.owes(A, {A, B, C})


def test_holding_what_is_not_published_or_does_not_exist_counts_for_nothing():
    op = gather_table()
    op.have(A, B)
    op.publish(B)
    for index in (-1, 99, 1):
        op.op.reports.hear(A, Have(op.view.plan_id, index, index, 7, (True,) * 5000), 0.0)
    assert {key: held for key, held in op.op.reports.holders.items() if A in held} == {}


def test_who_was_away_is_told_of_every_contribution_and_a_new_process_is_lost():
    op = gather_table()
    op.frozen()
    assert len(op.op.reports.returned(A, BOOT)) == 3
    assert op.op.reports.returned(B, b"another") == []
    assert op.op.reports.lost == {B}


# ---- what the ledger allows


def frozen_table() -> GatherTable:
    op = gather_table(min_contributors=2)
    op.frozen()
    for peer in (A, B, C):
        op.have(peer, A, B, C)
    return op


def test_a_commit_that_is_not_what_was_decided_is_refused():
    op = frozen_table()
    decision = op.op.decide(op.alive, 0.0)
    assert isinstance(decision, Commit)
    replace = msgspec.structs.replace
    swapped = (decision.slices[1], decision.slices[0], decision.slices[2])
    other_root = replace(decision.slices[0], root=bytes(32))
    for wrong in (
        replace(decision, contributors=(A, B)),
        replace(decision, contributors=(A,)),
        replace(decision, contributors=(B, A, C)),
        replace(decision, contributors=(A, B, C, D)),
        replace(decision, slices=swapped),
        replace(decision, slices=decision.slices[:2]),
        replace(decision, slices=(other_root, *decision.slices[1:])),
        replace(decision, plan_hash=bytes(32)),
    ):
        with pytest.raises(RemoteFault, match="not what was decided"):
            op.view.apply(wrong)
    op.view.apply(decision)


def test_a_contribution_has_no_other_owner_and_its_contributors_no_second_freeze():
    op = frozen_table()
    with pytest.raises(RemoteFault, match="no other owner"):
        op.view.apply(Reassign(1, 0, 1, B, "owner lost"))
    with pytest.raises(RemoteFault, match="out of order"):
        op.view.apply(SliceFreeze(1, 0, 0, (A,)))


def test_freeze_must_say_what_each_contributor_has_published():
    view = GatherTable(gather_plan()).view
    with pytest.raises(RemoteFault, match="does not say"):
        view.apply(Freeze(1, (A, B), {}, roots={A: SignedRoot(bytes(32), b"s")}))


def test_a_peer_refuses_a_freeze_that_names_what_nobody_has_signed():
    chain = begun_chain((A, B, C), 8)
    copy = LedgerCopy(verify, chain.records)
    plan = gather_plan(previous_outcome=chain.view.first.last_outcome)
    copy.take(chain.add(plan).to_bytes())
    view = chain.view.first.op
    assert view is not None
    done = {peer: published_by(view, peer) for peer in (A, B, C)}
    roots = {
        peer: SignedRoot(slice_root(one.chunk_hashes), one.signature) for peer, one in done.items()
    }
    made_up = {**roots, B: SignedRoot(slice_root(hashes_of(view, B, 1)), roots[B].signature)}
    for wrong in (made_up, {**roots, B: roots[C]}, {**roots, D: roots[C]}):
        named = tuple(sorted(wrong))
        with pytest.raises(RemoteFault):
            copy.take(chain.next_record(Freeze(1, named, {}, roots=wrong)).to_bytes())
    copy.take(chain.add(Freeze(1, (A, B, C), {}, roots=roots)).to_bytes())
