"""A contribution is what its contributor has signed, or it is not in the op."""

import msgspec
import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.actions import SendControl
from swarmtrain_transport.coordinator.ops.reports import check_signed
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.fold import set_id
from swarmtrain_transport.ledger.signed_roots import root_over
from swarmtrain_transport.wire.messages import Got, Roots, SliceDone
from swarmtrain_transport.wire.records import Commit, Freeze, Reassign
from tests.transport.collective.bench import Bench
from tests.transport.coordinator.ops.table import SCATTER_S, Table
from tests.transport.hall import opened
from tests.transport.rig import (
    A,
    B,
    C,
    done_of,
    plan_body,
    received,
    roots_of,
    verify,
    view_of,
)

OTHER = b"?" * 32


def unsigned(*peers: bytes) -> Table:
    return Table(plan_body((A, B, C)), unsigned=set(peers))


# ---- at the coordinator


def test_nobody_is_frozen_in_before_its_signed_roots_are_here() -> None:
    op = unsigned(B)
    op.got_all()
    assert op.decide(1.0) is None
    op.op.reports.hear(B, roots_of(op.view, B), 2.0)
    assert op.decide(2.0) == Freeze(1, (A, B, C), {})
    assert op.roots[B].root == root_over(roots_of(op.view, B).slice_roots)
    assert set(op.roots) == {A, B, C}


def test_who_has_signed_nothing_is_left_out_for_that_reason() -> None:
    op = unsigned(B)
    op.got_all()
    assert op.decide(SCATTER_S) == Freeze(1, (A, C), {B: "roots"})
    assert set(op.roots) == {A, C}


def test_who_sends_several_owners_other_bytes_than_it_signed_is_left_out_at_once() -> None:
    op = unsigned()
    for index in op.indexes:
        whole = received(index, (A, B, C)) | ({B: OTHER} if index != 1 else {})
        op.op.reports.hear(op.view.owners[index], Got(op.view.plan_id, index, 0, whole), 0.0)
    assert op.decide(1.0) == Freeze(1, (A, C), {B: "roots"})
    assert op.accusers == {B: (A, C)}


def test_one_owner_that_says_so_loses_its_slice_at_once() -> None:
    op = unsigned()
    for index in op.indexes:
        whole = received(index, (A, B, C)) | ({B: OTHER} if index == 2 else {})
        op.op.reports.hear(op.view.owners[index], Got(op.view.plan_id, index, 0, whole), 0.0)
    assert op.decide(1.0) == Reassign(1, 2, 1, A, "at odds")
    assert op.lacked == {B: "roots"}
    assert op.decide() == Freeze(1, (A, B, C), {})


def test_an_owners_first_word_on_what_came_stands() -> None:
    op = unsigned()
    op.op.reports.hear(A, Got(op.view.plan_id, 0, 0, {B: OTHER}), 0.0)
    op.got(0, B)
    assert op.op.reports.got[0, 0] == set()


def test_without_a_slice_that_stays_the_unsigned_are_still_left_out() -> None:
    op = unsigned(B)
    for index in op.indexes:
        op.view.apply(Reassign(1, index, 1, C if index != 2 else A, "owner lost"))
        op.got(index, A, B, C)
    assert op.decide(1.0) is None
    assert op.decide(SCATTER_S) == Freeze(1, (A, C), {B: "roots"})


def test_two_signed_contributions_to_one_op_are_refused() -> None:
    op = unsigned()
    op.op.reports.hear(B, roots_of(op.view, B), 0.0)
    with pytest.raises(RemoteFault, match="two contributions"):
        op.op.reports.hear(B, Roots(op.view.plan_id, (OTHER,) * 3, b"s"), 0.0)


def test_an_owner_that_names_other_inputs_than_were_signed_has_published_nothing() -> None:
    op = unsigned()
    op.freeze()
    done = done_of(op.view, 0, (A, B, C), op.hashes(0))
    assert op.op.reports.hear(A, msgspec.structs.replace(done, inputs=OTHER), 0.0) is None
    assert op.op.reports.hear(A, done, 0.0) is not None


def test_what_was_published_early_over_other_inputs_does_not_count_once_the_roots_come() -> None:
    op = unsigned(B)
    early = msgspec.structs.replace(done_of(op.view, 0, (A, B, C), op.hashes(0)), inputs=OTHER)
    assert op.op.reports.hear(A, early, 0.0) is not None
    op.got_all()
    op.op.reports.hear(B, roots_of(op.view, B), 0.0)
    assert op.decide() == Freeze(1, (A, B, C), {})
    for index in (1, 2):
        op.done(index)
        op.have(index, A, B, C)
    op.have(0, A, B, C)
    assert op.decide() is None
    assert op.done(0) is not None
    op.have(0, A, B, C)
    assert isinstance(op.decide(), Commit)


def test_commit_keeps_the_owners_signatures() -> None:
    op = unsigned()
    op.freeze()
    op.publish(A, B, C)
    commit = op.decide()
    assert isinstance(commit, Commit)
    signed = [done_of(op.view, index, (A, B, C), op.hashes(index)) for index in op.indexes]
    assert commit.signatures == tuple(done.signature for done in signed)


@pytest.mark.parametrize("signature", [b"", b"s" * 32, b"s" * 10_000])
def test_false_signatures_are_refused(signature: bytes) -> None:
    view = view_of(plan_body((A, B, C)))
    hashes = (OTHER, OTHER)
    for message in (roots_of(view, A), done_of(view, 0, (A, B, C), hashes)):
        check_signed(view, A, message, verify)
        with pytest.raises(RemoteFault, match="not signed"):
            check_signed(view, B, message, verify)
        with pytest.raises(RemoteFault, match="not signed"):
            false = msgspec.structs.replace(message, signature=signature)
            check_signed(view, A, false, verify)


def test_a_signature_holds_for_one_plan_slice_attempt_and_result_only() -> None:
    view, other = view_of(plan_body((A, B, C))), view_of(plan_body((A, B, C), op=2))
    done = done_of(view, 0, (A, B, C), (OTHER, OTHER))
    altered = [
        (other, done),
        (view, msgspec.structs.replace(done, slice_index=1)),
        (view, msgspec.structs.replace(done, attempt=1)),
        (view, msgspec.structs.replace(done, chunk_hashes=(OTHER, bytes(32)))),
        (view, msgspec.structs.replace(done, inputs=OTHER)),
        (other, roots_of(view, A)),
    ]
    for seen, message in altered:
        with pytest.raises(RemoteFault, match="not signed"):
            check_signed(seen, A, message, verify)
    for index in (-1, 1 << 40):
        with pytest.raises(RemoteFault, match="no slice"):
            check_signed(view, A, msgspec.structs.replace(done, slice_index=index), verify)


@pytest.mark.parametrize("slice_roots", [(), (OTHER,) * 2, (OTHER,) * 4, (OTHER, OTHER, b"short")])
def test_roots_that_are_not_one_hash_per_slice_are_refused(slice_roots: tuple[bytes, ...]) -> None:
    view = view_of(plan_body((A, B, C)))
    with pytest.raises(RemoteFault, match="slice roots"):
        check_signed(view, A, Roots(view.plan_id, slice_roots, b"s"), verify)


def test_the_coordinator_closes_the_line_of_who_signs_falsely() -> None:
    hall = opened(A, B, C)
    hall.ready(1, A, B, C)
    operation = hall.machine.first.operation
    assert operation is not None
    false = msgspec.structs.replace(roots_of(operation.view, A), signature=b"false")
    with pytest.raises(RemoteFault, match="not signed"):
        hall.say(A, false)
    assert not hall.bodies(Freeze)


# ---- at the peers


def test_a_contributor_signs_once_beside_its_last_part_and_again_after_hello(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "UNINVITED_BYTES", 0)
    bench = Bench().begin()
    assert bench.said(A, Roots) == []
    bench.deliver_all()
    (roots,) = bench.said(A, Roots)
    check_signed(bench.view, A, roots, verify)
    again = [a.message for a in bench.peers[A].resend(1.0) if isinstance(a, SendControl)]
    assert roots in again


def test_what_owners_report_is_what_contributors_have_signed() -> None:
    bench = Bench().begin()
    bench.deliver_all()
    signed = {peer: bench.said(peer, Roots)[0].slice_roots for peer in (A, B, C)}
    for index, owner in enumerate((A, B, C)):
        got = bench.said(owner, Got)[-1]
        assert got.complete == {peer: signed[peer][index] for peer in (A, B, C)}
        done = bench.said(owner, SliceDone)[-1]
        assert done.set_id == set_id((A, B, C))
        check_signed(bench.view, owner, done, verify)


def test_a_dead_owner_does_not_keep_a_contributor_from_signing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "UNINVITED_BYTES", 0)
    bench = Bench()
    del bench.peers[C]
    bench.begin()
    bench.deliver_all()
    assert bench.said(A, Roots) == []
    bench.tick(limits.NUDGE_S + 0.1)
    (roots,) = bench.said(A, Roots)
    check_signed(bench.view, A, roots, verify)
