"""Retention: bytes are in memory up to the bound, in the file beyond it, and nowhere when
released."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain.simulate.processes.memory import SimFile
from swarmtrain_transport import limits
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.retention import Kept, Retention
from swarmtrain_transport.blocks.serving import Serving
from swarmtrain_transport.wire.frames import FrameKind, Wanted
from tests.transport.rig import A


def data_of(number: int, size: int = 10) -> bytes:
    return bytes([number]) * size


def test_nothing_goes_to_the_file_under_the_bound():
    file = SimFile()
    retention = Retention(file, 100)
    kept = [retention.keep(data_of(n)) for n in range(10)]
    assert file.given == {} and (retention.memory_bytes, retention.spilled_bytes) == (100, 0)
    assert [one.read() for one in kept] == [data_of(n) for n in range(10)]


def test_cold_ones_go_first_and_of_either_kind_the_oldest():
    file = SimFile()
    retention = Retention(file, 40)
    kept = [retention.keep(data_of(n)) for n in range(4)]
    kept[2].cool()
    kept[1].cool()
    kept += [retention.keep(data_of(n)) for n in range(4, 7)]
    assert list(file.given.values()) == [data_of(n) for n in (2, 1, 0)]
    assert [one.read() for one in kept] == [data_of(n) for n in range(7)]
    assert (retention.memory_bytes, retention.spilled_bytes) == (40, 30)


def test_pieces_are_read_wherever_the_whole_is():
    whole = bytes(range(20))
    for memory_max in (0, 100):
        kept = Retention(SimFile(), memory_max).keep(whole)
        assert bytes(kept.read(5, 4)) == whole[5:9]
        assert bytes(kept.read(15)) == whole[15:]
        assert bytes(kept.read()) == whole and kept.num_bytes == 20


def test_what_the_file_has_no_room_for_stays_in_memory_and_goes_when_there_is_some():
    file = SimFile(refused_every=1)
    retention = Retention(file, 15)
    kept = [retention.keep(data_of(n)) for n in range(3)]
    assert retention.memory_bytes == 30 and file.has_refused
    file._refused_every = 0
    kept.append(retention.keep(data_of(3)))
    assert retention.memory_bytes <= 15
    assert [one.read() for one in kept] == [data_of(n) for n in range(4)]


def test_what_somebody_else_keeps_is_neither_counted_nor_moved():
    retention = Retention(SimFile(), 0)
    kept = Kept(b"elsewhere")
    kept.cool()
    kept.release()
    assert kept.read() == b"elsewhere"
    assert (retention.memory_bytes, retention.spilled_bytes) == (0, 0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("krcg"), st.integers(0, 9), st.integers(1, 30))))
def test_whatever_happens_bytes_stay_what_they_were_and_the_counts_hold(steps):
    file = SimFile(refused_every=4)
    retention = Retention(file, 50)
    held: dict[int, tuple[Kept, bytes]] = {}
    for way, number, size in steps:
        if way == "k" and number not in held:
            data = data_of(number, size)
            held[number] = retention.keep(data), data
        elif number in held and way == "r":
            kept, _ = held.pop(number)
            kept.release()
            kept.release()
        elif number in held and way == "c":
            held[number][0].cool()
        elif number in held and way == "g":
            assert held[number][0].read() == held[number][1]
        total = sum(len(data) for _, data in held.values())
        assert retention.memory_bytes + retention.spilled_bytes == total
        assert sum(map(len, file.given.values())) == retention.spilled_bytes
        assert retention.memory_bytes <= 50 or file.has_refused
    for kept, data in held.values():
        assert kept.read() == data
        kept.release()
    assert file.given == {} and retention.memory_bytes == 0


# ---- results by hash


def test_results_of_past_ops_are_served_from_the_file():
    file = SimFile()
    blobs = Blobs(Retention(file, 64))
    digests = {op: blobs.keep_result(op, data_of(op, 40)) for op in range(4)}
    assert len(file.given) == 3 and blobs.retention.memory_bytes == 40
    for op, digest in digests.items():
        assert digest in blobs and blobs.is_result(digest)
        assert (blobs.get(digest), blobs.size(digest)) == (data_of(op, 40), 40)
        answer = Serving([blobs]).asked(A, Wanted(digest).pack(), 1, 0.0)
        assert answer is not None and answer.kind is FrameKind.BLOB
        assert answer.body == data_of(op, 40)


@pytest.mark.parametrize("memory_max", [0, 1 << 20])
def test_forgotten_results_leave_nothing_behind(memory_max: int):
    file = SimFile()
    blobs = Blobs(Retention(file, memory_max))
    for op in range(2 * limits.RESULT_KEEP_OPS):
        blobs.keep_result(op, data_of(op))
        blobs.keep_result(op, data_of(op))
        blobs.keep_result(op, b"the same in every op")
    kept_bytes = limits.RESULT_KEEP_OPS * (10 + 20)
    assert blobs.retention.memory_bytes + blobs.retention.spilled_bytes == kept_bytes
    blobs.forget(2 * limits.RESULT_KEEP_OPS - 1)
    blobs.rewound(-1)
    assert blobs.retention.memory_bytes + blobs.retention.spilled_bytes == 0
    assert file.given == {}
