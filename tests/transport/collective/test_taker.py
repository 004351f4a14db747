"""Chunks that owners push before FREEZE: what counts, what is void, what is asked for (T3)."""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.taker import Taker
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import slice_root
from swarmtrain_transport.ledger.transfers import transfers_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Hashes, Have, SliceDone
from swarmtrain_transport.wire.records import Freeze, Reassign
from tests.transport.cells_rig import peers_of, plan_in_cells
from tests.transport.collective.bench import TAG, Bench, on_paper
from tests.transport.plain_arithmetic import PlainArithmetic
from tests.transport.rig import CHUNK, A, B, C, plan_body, view_of


def haves(bench: Bench, peer: PeerId) -> list[int]:
    return sorted(have.slice_index for have in bench.said(peer, Have))


def result(bench: Bench, index: int, chunk: int, body: bytes) -> Frame:
    name = bench.view.all_planned_id
    return Frame(FrameKind.RESULT, TAG, bench.view.plan_id, index, 0, chunk, name, body)


def test_everything_is_here_before_freeze_and_nothing_is_asked_for() -> None:
    bench = Bench().begin()
    bench.deliver_all()
    for index in range(3):
        assert bench.result_of(index) == on_paper(index, (A, B, C))
    bench.relay()
    assert haves(bench, A) == [0, 1, 2]
    bench.decide(Freeze(1, (A, B, C), {}))
    bench.tick(20.0)
    assert all(not fetcher.requests(20.0) for fetcher in bench.fetchers.values())
    assert [len(bench.said(peer, SliceDone)) for peer in (A, B, C)] == [1, 1, 1]


def test_what_is_here_before_its_name_is_told_by_its_root_and_served_at_once() -> None:
    bench = Bench().begin()
    bench.deliver_all()
    told = {have.slice_index: have for have in bench.said(A, Have)}
    assert sorted(told) == [1, 2]
    for index, owner in ((1, B), (2, C)):
        done = bench.said(owner, SliceDone)[-1]
        assert told[index].root == slice_root(done.chunk_hashes)
        assert all(bench.peers[A]._blobs.get(digest) for digest in done.chunk_hashes)
        assert bench.peers[A]._blobs.get(told[index].root) == b"".join(done.chunk_hashes)
    bench.relay()
    assert haves(bench, A) == [0, 1, 2]  # said once


def test_what_an_owner_publishes_counts_not_what_it_has_pushed() -> None:
    bench = Bench().begin()
    bench.deliver_all()
    done = bench.said(B, SliceDone)[-1]
    other = (bytes(32), *done.chunk_hashes[1:])
    place = done.plan_id, done.slice_index, done.attempt, done.set_id
    assert bench.peers[A].hashes(Hashes(*place, other), 0.0) == []
    assert bench.peers[A].wants(bytes(32))


def test_what_cannot_be_decoded_is_told_to_nobody_before_its_name() -> None:
    bench = Bench().begin()
    for frames in bench.wires.values():
        frames[:] = [frame for frame in frames if frame.kind is not FrameKind.RESULT]
    for chunk in range(2):
        bench.take(A, bench.peers[A].frame(B, result(bench, 1, chunk, b"rubbish"), 0.0))
    assert haves(bench, A) == []


def test_hashes_may_come_before_the_chunks() -> None:
    bench = Bench().begin()
    pushed: list[tuple[tuple[PeerId, PeerId], Frame]] = []
    while any(bench.wires.values()):
        for wire, frames in bench.wires.items():
            if frames and frames[0].kind is FrameKind.RESULT:
                pushed.append((wire, frames.pop(0)))
            elif frames:
                bench.deliver(*wire)
    bench.relay()
    assert haves(bench, A) == [0]
    assert not bench.fetchers[A].requests(0.0)
    for wire, frame in pushed:
        bench.wires[wire].append(frame)
    bench.deliver_all()
    assert haves(bench, A) == [0, 1, 2]


def test_another_set_makes_what_was_pushed_void() -> None:
    bench = Bench().begin()
    bench.deliver_all()
    bench.relay()
    foreseen = [bench.said(peer, SliceDone)[0] for peer in (A, B, C)]
    bench.decide(Freeze(1, (A, B), {C: "lost"}))
    bench.decide(Reassign(1, 2, 1, A, "owner lost"))
    for index, owner in ((0, A), (1, B)):
        assert bench.result_of(index) == on_paper(index, (A, B))
        said = bench.said(owner, SliceDone)
        assert len(said) == 2 and said[1].set_id != foreseen[index].set_id
    bench.told[B].clear()
    bench.take(B, bench.peers[B].resend(1.0))
    assert not bench.said(B, Have)


def without_pushes_of_b_to_a() -> Bench:
    bench = Bench()
    bench.begin()
    lost = 0
    while any(bench.wires.values()):
        for wire, frames in bench.wires.items():
            if frames and frames[0].kind is FrameKind.RESULT and wire == (B, A):
                frames.pop(0)
                lost += 1
            elif frames:
                bench.deliver(*wire)
    assert lost == 2
    bench.relay()
    return bench


def test_a_lost_chunk_is_asked_for_once_nothing_comes_any_more() -> None:
    bench = without_pushes_of_b_to_a()
    bench.tick(limits.PUSH_QUIET_S / 2)
    assert not bench.fetchers[A].requests(bench.now_s)
    assert bench.peers[A].next_wakeup_s <= limits.PUSH_QUIET_S
    bench.tick(limits.PUSH_QUIET_S)
    asked = bench.fetchers[A].requests(bench.now_s)
    assert [peer for peer, _ in asked] == [B, B]


def test_a_lost_chunk_is_asked_of_whoever_has_it_where_its_owner_does_not() -> None:
    bench = without_pushes_of_b_to_a()
    bench.tick(limits.PUSH_QUIET_S)
    for owner, digest in bench.fetchers[A].requests(bench.now_s):
        bench.fetchers[A].missing(owner, digest, bench.now_s)
    assert [peer for peer, _ in bench.fetchers[A].requests(bench.now_s + 1.0)] == [C, C]


def asked_in_cells(peer: PeerId, index: int, peers: list[PeerId], cells: int) -> list[PeerId]:
    """Say whom a member asks for a slice that is published, while nobody has it."""
    bench = Bench(plan_in_cells(peers, cells))
    name = bench.view.all_planned_id
    news = Hashes(bench.view.plan_id, index, 0, name, (bytes(32), bytes(32)))
    bench.take(peer, bench.peers[peer].hashes(news, bench.now_s))
    bench.tick(limits.PUSH_QUIET_S)
    fetcher, asked = bench.fetchers[peer], list[PeerId]()
    while now := fetcher.requests(bench.now_s):
        for one, digest in now:
            asked.append(one)
            fetcher.missing(one, digest, bench.now_s)
    return asked


@pytest.mark.parametrize("cell", (0, 2))
def test_what_a_dead_owner_has_left_in_another_cell_is_found_there(cell: int) -> None:
    peers, index = peers_of(12), 1
    view = view_of(plan_in_cells(peers, 3))
    cells, owners = view.cells, view.owners
    near, begun = cells.among(peers, cell), set[PeerId]()
    for me in near:
        asked = asked_in_cells(me, index, peers, 3)
        assert sorted(asked) == sorted({*peers} - {me}), "each of them once"
        before = [peer for peer in (owners[cell], owners[index]) if peer != me]
        assert asked[: len(before)] == before
        its = [cells.cell_of(peer) for peer in asked[len(before) :]]
        assert {*its[:3]} == {*its[-7:-4]} == {cell, index}, "in turns"
        assert its[-4:] == [2 - cell] * 4, "where it is least likely comes last"
        begun.add(next(peer for peer in asked[len(before) :] if cells.cell_of(peer) == index))
    assert len(begun) > 1, "not all begin with the same one"


def test_only_the_owner_pushes_its_slice_and_only_what_it_published() -> None:
    bench = Bench()
    bench.lost.add(FrameKind.RESULT)
    bench.begin().deliver_all()
    forged = bytes(40)
    assert bench.peers[A].frame(C, result(bench, 1, 0, forged), 0.0) == []
    assert bench.peers[A].frame(B, result(bench, 1, 0, forged), 0.0) == []
    bench.relay()
    assert haves(bench, A) == [0]
    with pytest.raises(RemoteFault) as caught:
        bench.peers[A].frame(B, result(bench, 1, 1, forged), 0.0)
    assert caught.value.reason == "hash"


@pytest.mark.parametrize(
    ("index", "chunk", "body"), [(3, 0, b""), (1, 2, b""), (1, 0, bytes(1000))]
)
def test_what_cannot_be_a_chunk_of_the_op_is_refused(index: int, chunk: int, body: bytes) -> None:
    bench = Bench().begin()
    with pytest.raises(RemoteFault):
        bench.peers[A].frame(B, result(bench, index, chunk, body), 0.0)


def test_a_published_chunk_that_cannot_be_decoded_is_not_kept_and_not_reported() -> None:
    """The same holds if it comes before its hash, after it, or from somebody who passed it on."""
    for way in ("before", "after", "pulled"):
        bench = Bench().begin()
        bench.deliver_all()
        bench.told[A].clear()
        body = bytes(8 * CHUNK + 8)  # nobody's weight is in it
        good = peer_chunks(bench)
        hashes = Hashes(
            bench.view.plan_id, 1, 0, bench.view.all_planned_id,
            (content_hash(body), content_hash(good[1])),
        )  # fmt: skip
        fresh = Taker(
            A, bench.view, transfers_of(bench.plan), Blobs(), Fetcher(list), PlainArithmetic(), 0.0
        )
        if way == "before":
            fresh.pushed(B, result(bench, 1, 0, body), 0.0)
        assert not fresh.hashes(hashes, 0.0)
        if way == "after":
            assert not fresh.pushed(B, result(bench, 1, 0, body), 0.0)
        elif way == "pulled":
            assert not fresh.arrived(content_hash(body), body)
        assert [(fault.peer, fault.reason) for fault in fresh.take_faults()] == [(B, "scale")]
        assert not fresh.pushed(B, result(bench, 1, 0, body), 1.0) and not fresh.take_faults()
        assert not fresh.pushed(B, result(bench, 1, 1, good[1]), 1.0)
        (have,) = fresh.reports(again=True)
        assert have.chunks == (False, True)


@pytest.mark.parametrize("has_it", [True, False])
def test_a_chunk_that_another_op_shares_is_found_although_that_one_gives_it_up(has_it) -> None:
    """Weights that do not move make the same chunks in every op, and several may be under way."""
    bench = Bench().begin()
    bench.deliver_all()
    blobs, fetcher = Blobs(), Fetcher(list)
    views = bench.view, view_of(plan_body(op=2))
    one, other = (
        Taker(A, view, transfers_of(view.plan), blobs, fetcher, PlainArithmetic(), 0.0)
        for view in views
    )
    chunks = peer_chunks(bench)
    digests = tuple(content_hash(chunk) for chunk in chunks)
    for view, taker in zip(views, (one, other), strict=True):
        taker.hashes(Hashes(view.plan_id, 1, 0, view.all_planned_id, digests), 0.0)
        taker.tick(limits.PUSH_QUIET_S)
    if has_it:
        for chunk, body in enumerate(chunks):
            one.pushed(B, result(bench, 1, chunk, body), 1.0)
    one.close()
    assert not any(fetcher.is_wanted(digest) for digest in digests)
    haves = other.ask_again()
    assert [have.chunks for have in haves] == ([(True, True)] if has_it else [])
    assert all(fetcher.is_wanted(digest) is not has_it for digest in digests)


def peer_chunks(bench: Bench) -> tuple[bytes, ...]:
    """The chunks of slice 1 as its owner makes them: the sums of A, B and C."""
    digests = bench.said(B, SliceDone)[0].chunk_hashes
    chunks = [bench.blobs[B].get(digest) for digest in digests]
    return tuple(bytes(chunk) for chunk in chunks if chunk is not None)
