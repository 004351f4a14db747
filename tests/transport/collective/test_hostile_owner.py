"""Owners that publish what nobody could decode: it is never reported, so it is never committed."""

import pytest

from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.taker import Taker
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.transfers import transfers_of
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Hashes, SliceDone
from tests.transport.collective.bench import TAG, Bench
from tests.transport.plain_arithmetic import PlainArithmetic
from tests.transport.rig import A, B, C, plan_body

PEERS = (A, B, C)


def published() -> tuple[Bench, list[list[bytes]]]:
    """An op whose slices end with a shorter chunk, and every slice's honest chunks."""
    bench = Bench(plan_body(PEERS, num_values=18)).begin()
    bench.deliver_all()
    chunks = []
    for peer in PEERS:
        (done,) = bench.said(peer, SliceDone)
        found = [bench.blobs[peer].get(digest) for digest in done.chunk_hashes]
        chunks.append([bytes(chunk) for chunk in found if chunk is not None])
    assert all(len(long) > len(short) for long, short in chunks)
    return bench, chunks


def taker(bench: Bench, blobs: Blobs) -> Taker:
    return Taker(
        A, bench.view, transfers_of(bench.plan), blobs, Fetcher(list), PlainArithmetic(), 0.0
    )


def named(bench: Bench, index: int, *digests: bytes) -> Hashes:
    return Hashes(bench.view.plan_id, index, 0, bench.view.all_planned_id, digests)


def pushed(bench: Bench, index: int, chunk: int, body: bytes) -> Frame:
    name = bench.view.all_planned_id
    return Frame(FrameKind.RESULT, TAG, bench.view.plan_id, index, 0, chunk, name, body)


def test_what_is_here_for_another_reason_is_no_chunk_of_a_result() -> None:
    """Any blob that everybody holds can be named; the round would be committed at once."""
    bench, chunks = published()
    blobs = Blobs()
    of_all = blobs.keep_result(0, b"the hashes of an earlier result")
    taking = taker(bench, blobs)
    taking.pushed(B, pushed(bench, 1, 0, chunks[1][0]), 0.0)
    assert not taking.hashes(named(bench, 1, content_hash(chunks[1][0]), of_all), 0.0)
    assert [(fault.peer, fault.reason) for fault in taking.take_faults()] == [(B, "length")]
    assert [have.chunks for have in taking.reports(again=True)] == [(True, False)]


@pytest.mark.parametrize("way", ["before", "after", "pulled"])
@pytest.mark.parametrize("which", [0, 1])
def test_one_hash_for_chunks_of_two_lengths_is_not_reported(way: str, which: int) -> None:
    bench, chunks = published()
    body = chunks[2][which]
    digest = content_hash(body)
    taking = taker(bench, Blobs())
    if way == "before":
        taking.pushed(C, pushed(bench, 2, which, body), 0.0)
    assert not taking.hashes(named(bench, 2, digest, digest), 0.0)
    if way == "after":
        assert not taking.pushed(C, pushed(bench, 2, which, body), 0.0)
    elif way == "pulled":
        assert not taking.arrived(digest, body)
    assert [fault.peer for fault in taking.take_faults()] == [C]
    assert not any(all(have.chunks) for have in taking.reports(again=True))


@pytest.mark.parametrize("way", ["pushed", "pulled"])
def test_an_owner_cannot_spoil_the_chunk_of_another_by_naming_it(way: str) -> None:
    bench, chunks = published()
    honest = [content_hash(chunk) for chunk in chunks[1]]
    taking = taker(bench, Blobs())
    taking.hashes(named(bench, 2, honest[1], content_hash(chunks[2][1])), 0.0)
    taking.hashes(named(bench, 1, *honest), 0.0)
    found = []
    for chunk, body in enumerate(chunks[1]):
        if way == "pushed":
            found += taking.pushed(B, pushed(bench, 1, chunk, body), 0.0)
        else:
            found += taking.arrived(honest[chunk], body)
    assert [(have.slice_index, have.chunks) for have in found] == [(1, (True, True))]


def test_what_a_result_shares_with_an_earlier_one_is_kept_with_it() -> None:
    """Or it would be forgotten with the earlier one, although its holders were counted."""
    bench, chunks = published()
    blobs = Blobs()
    for chunk in chunks[1]:
        blobs.keep_result(-20, chunk)
    taking = taker(bench, blobs)
    (have,) = taking.hashes(named(bench, 1, *map(content_hash, chunks[1])), 0.0)
    assert have.chunks == (True, True)
    blobs.forget(-20)
    assert all(blobs.get(content_hash(chunk)) is not None for chunk in chunks[1])
