"""The state directory: what is kept, for how long, and what a half-written file means."""

import contextlib
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import msgpack
import msgspec
import pytest

from swarmtrain.config.file import canonical
from swarmtrain.config.settings import RunConfig, RunSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.disk import ledger_file
from swarmtrain.peer.disk.group_storage import (
    GroupStorage,
    packed,
    read_result,
    result_path,
    result_paths,
)
from swarmtrain.peer.disk.ledger_file import LedgerLog
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.blocks.manifest import ArraySpec, describe_state
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.result import OpResult, SliceResult
from swarmtrain_transport.wire.records import Record


def result(op: int) -> OpResult:
    piece = SliceResult(0, 16, (b"a" * 32,), (b"one%d" % op, b"two"))
    return OpResult(op, Window("int8", 16, -24, 0), 16, 16, (piece,), b"", b"", False)


def record(index: int) -> Record:
    before = record(index - 1).hash if index else bytes(32)
    return Record(index, before, 1, b"body" * index, b"s" * 64)


def test_records_survive_and_a_torn_tail_is_cut_off(tmp_path: Path) -> None:
    storage = PeerStorage(tmp_path)
    storage.append_records([record(0), record(1)])
    storage.append_records([record(2)])
    storage.close()
    path = tmp_path / ledger_file.FILE_NAME
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    again = PeerStorage(tmp_path)
    assert list(again.records) == [record(0), record(1)]
    again.append_records([record(2)])
    again.close()
    assert path.read_bytes() == whole


def test_records_are_read_from_any_index_on_without_the_whole_file(tmp_path: Path) -> None:
    chain = [Record(index, bytes(32), 1, b"x" * 9, b"s" * 64) for index in range(2000)]
    for index in range(1, len(chain)):
        chain[index] = msgspec.structs.replace(chain[index], prev_hash=chain[index - 1].hash)
    path = tmp_path / ledger_file.FILE_NAME
    for begin in (0, 1000):
        log = LedgerLog(path)
        for start in range(begin, begin + 1000, 5):
            log.append(chain[start : start + 5])
        end = begin + 1000
        for first, stop in ((0, 3), (3, 8), (254, 520), (end - 10, end + 10), (end, end + 1)):
            assert log.read(first, stop) == chain[first : min(stop, end)]
        assert log.num_records == end
        log.close()


def test_copies_of_a_program_have_places_of_their_own_and_find_them_again(tmp_path: Path) -> None:
    places = [tmp_path / "peers" / name for name in ("hook", "hook-2", "hook-3")]
    first, second = PeerStorage.first_free(places), PeerStorage.first_free(places)
    keys = [storage.identity().peer_id for storage in (first, second)]
    assert [storage.directory for storage in (first, second)] == places[:2]
    assert keys[0] != keys[1]
    assert not places[2].exists()
    first.close()
    again = PeerStorage.first_free(places)
    assert again.identity().peer_id == keys[0], "the same peer after a restart"
    third = PeerStorage.first_free(places)
    with pytest.raises(UserError) as caught:
        PeerStorage.first_free(places)
    assert caught.value.code == "SWT-E404"
    for storage in (again, second, third):
        storage.close()


FORKS = """
import os, sys
from pathlib import Path
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.disk.storage import PeerStorage

owner = PeerStorage(Path(sys.argv[1]))
hold, held = os.pipe()
child = os.fork()
if child == 0:  # as a DataLoader's, which outlives what it was started beside
    os.close(held)
    os.read(hold, 1)
    os._exit(0)
os.close(hold)
try:
    PeerStorage(Path(sys.argv[1]))
except UserError as error:
    print(error.code)
owner.close()
PeerStorage(Path(sys.argv[1])).close()
os.close(held)
print(os.waitpid(child, 0)[1])
"""


def test_a_process_that_was_forked_off_keeps_nothing_locked(tmp_path: Path) -> None:
    words = [sys.executable, "-c", FORKS, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.stdout.split(), done.returncode) == (["SWT-E404", "0"], 0), done.stderr


def test_a_place_that_was_named_is_not_exchanged_for_another(tmp_path: Path) -> None:
    owner = PeerStorage.first_free([tmp_path / "ada"])
    with pytest.raises(UserError, match="--name, in Python name=") as caught:
        PeerStorage.first_free([tmp_path / "ada"])
    assert caught.value.code == "SWT-E404"
    owner.close()


def test_looking_at_a_torn_ledger_says_where_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.bin"
    first = ledger_file.segment_of([record(0)])
    path.write_bytes(first + b"torn")
    kept = ledger_file.read(path)
    assert kept == ledger_file.LedgerFile([record(0)], len(first), len(first) + 4)
    assert path.read_bytes() == first + b"torn"


@pytest.mark.parametrize("place", range(0, 4000, 7))
def test_a_flipped_bit_in_the_ledger_is_found_and_all_from_there_on_cut(place: int) -> None:
    segments = [
        ledger_file.segment_of([record(0), record(1)]),
        ledger_file.segment_of([record(2)]),
        ledger_file.segment_of([record(3), record(4)]),
    ]
    data = bytearray(b"".join(segments))
    place %= 8 * len(data)
    data[place // 8] ^= 1 << place % 8
    whole = ledger_file.parse(bytes(data))
    ends = [sum(map(len, segments[:count])) for count in range(4)]
    count = sum(end <= place // 8 for end in ends[1:])
    assert whole.whole_bytes == ends[count]
    assert whole.records == [record(index) for index in range((0, 2, 3)[count])]


def test_a_ledger_of_an_earlier_version_is_named_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / ledger_file.FILE_NAME
    packed = ledger_file.segment_of([record(0)])[12:]
    old = struct.pack("<III", len(packed), len(packed), zlib.crc32(packed)) + packed
    path.write_bytes(old)
    for look in (lambda: PeerStorage(tmp_path), lambda: ledger_file.read(path)):
        with pytest.raises(UserError) as caught:
            look()
        assert caught.value.code == "SWT-E810"
    assert path.read_bytes() == old
    for rubbish in (b"", b"torn", bytes(12), bytes(100)):
        assert ledger_file.parse(rubbish).records == []
        path.write_bytes(rubbish)
        assert ledger_file.read(path).whole_bytes == 0


def test_segments_that_do_not_follow_each_other_are_cut() -> None:
    first, second = ledger_file.segment_of([record(0)]), ledger_file.segment_of([record(1)])
    third = ledger_file.segment_of([record(2)])
    assert ledger_file.parse(first + third).records == [record(0)]
    assert ledger_file.parse(second + third).records == []
    assert ledger_file.parse(first + second + second).records == [record(0), record(1)]


def test_results_of_a_cancelled_past_are_taken_from_the_disk(tmp_path: Path) -> None:
    storage = PeerStorage(tmp_path)
    for op in range(1, 6):
        storage.of(0).keep_result(result(op))
    storage.of(0).forget_results_after(2)
    assert list(storage.of(0).results()) == [1, 2]
    storage.close()


def test_results_come_back_and_their_number_is_bounded(tmp_path: Path) -> None:
    storage = PeerStorage(tmp_path)
    for op in range(1, 3 * limits.RESULT_KEEP_OPS):
        storage.of(0).keep_result(result(op))
    kept = [int(path.stem) for path in result_paths(tmp_path)]
    last = 3 * limits.RESULT_KEEP_OPS - 1
    assert kept == list(range(last - 2 * limits.RESULT_KEEP_OPS + 1, last + 1))
    served = storage.of(0).results()
    assert list(served) == kept[-limits.RESULT_KEEP_OPS :]
    assert served[last] == [[b"one%d" % last, b"two"]]
    storage.of(0).forget_results(last - 2)
    assert list(storage.of(0).results()) == [last - 1, last]
    storage.close()


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x93", b"\x91\x91\xa1x", b"\x91" * 5000, b"\x81\x90\x00", b"\x91\x01"]
)
def test_a_file_that_is_no_result_is_left_out(tmp_path: Path, data: bytes) -> None:
    storage = PeerStorage(tmp_path)
    storage.of(0).keep_result(result(1))
    result_path(tmp_path, 2).write_bytes(data)
    assert read_result(result_path(tmp_path, 2)) is None
    assert list(storage.of(0).results()) == [1]
    storage.close()


def test_a_download_is_found_again_and_another_states_chunks_go(tmp_path: Path) -> None:
    storage = PeerStorage(tmp_path)
    assert storage.of(0).download() is None
    size = limits.STATE_CHUNK_BYTES
    states = [
        describe_state(bytes(32), (ArraySpec("a", 2 * size // 4),), bytes(size) + last * size)
        for last in (b"1", b"2")
    ]
    (first, chunks), (second, _) = states
    storage.of(0).begin_download(first)
    for chunk in chunks:
        storage.of(0).keep_chunk(content_hash(chunk), bytes(chunk))
    storage.close()
    again = PeerStorage(tmp_path)
    found = again.of(0).download()
    assert found is not None and found[0] == first.to_bytes()
    assert sorted(found[1]) == sorted(bytes(chunk) for chunk in chunks)
    again.of(0).begin_download(second)
    shared = again.of(0).download()
    assert shared == (second.to_bytes(), [bytes(size)])
    again.of(0).end_download()
    assert again.of(0).download() is None
    again.of(0).end_download()
    again.close()


SMALL, _ = describe_state(bytes(32), (ArraySpec("a", 1),), bytes(4))
FILES: list[tuple[str, Callable[[GroupStorage], object]]] = [
    ("", lambda part: None),
    ("1", lambda part: None),
    ("1/results", lambda part: None),
    ("1/proofs", lambda part: part.keep_proof(1, b"proof")),
    ("1/download", lambda part: part.begin_download(SMALL)),
    ("1/download", lambda part: part.download()),
]
FOLDERS: list[tuple[str, Callable[[GroupStorage], object]]] = [
    ("1/download/manifest.bin", lambda part: part.download()),
    ("1/download/00.chunk", lambda part: part.begin_download(SMALL)),
    ("1/run.msgpack", lambda part: part.keep_run(b"run")),
    ("1/own.safetensors", lambda part: part.own()),
    ("1/own.safetensors", lambda part: part.keep_own([b"own"])),
    ("1/results/00000001.bin", lambda part: part.results()),
    ("1/results/00000001.bin", lambda part: part.keep_result(result(1))),
    ("1/results/00000001.bin", lambda part: part.forget_results(1)),
    ("1/results/00000001.link", lambda part: part.forget_results_after(0)),
]


@pytest.mark.parametrize(
    ("name", "act", "is_folder"),
    [(*one, False) for one in FILES] + [(*one, True) for one in FOLDERS],
)
def test_a_file_in_the_place_of_a_folder_or_the_reverse_is_named(
    tmp_path: Path, name: str, act: Callable[[GroupStorage], object], is_folder: bool
) -> None:
    place = tmp_path / "groups" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if is_folder:
        place.mkdir()
    else:
        place.write_bytes(b"somebody's")
    with (
        contextlib.closing(PeerStorage(tmp_path)) as storage,
        pytest.raises(UserError) as caught,
    ):
        act(storage.of(1))
    assert caught.value.code == "SWT-E403"
    assert caught.value.what.startswith(f"{place} is a {'folder' if is_folder else 'file'}, ")
    assert place.exists(), "it is left alone"


def test_a_directory_belongs_to_one_process(tmp_path: Path) -> None:
    storage = PeerStorage(tmp_path)
    with pytest.raises(UserError) as caught:
        PeerStorage(tmp_path)
    assert caught.value.code == "SWT-E404"
    storage.close()
    PeerStorage(tmp_path).close()


def test_a_run_is_over_with_the_last_round_of_its_run_file(tmp_path: Path) -> None:
    with contextlib.closing(PeerStorage(tmp_path)) as storage:
        assert not storage.is_over(5, 0)
        storage.of(0).keep_run(canonical(RunConfig(run=RunSection(name="run", rounds=5))))
        assert [storage.is_over(committed, 0) for committed in (4, 5)] == [False, True]
        assert [storage.is_over(committed, 7) for committed in (5, 7)] == [False, True]
        storage.of(0).keep_run(b"damaged")
        assert not storage.is_over(5, 0)


def test_a_result_is_written_piece_by_piece_as_msgpack_packs_it():
    chunks = (b"", b"a" * 255, memoryview(b"b" * 256), bytearray(b"c" * 65_536))
    pieces = tuple(SliceResult(0, 1, (), chunks[:count]) for count in (4, 0, 1))
    window = Window("int8", 1, 0, 0)
    result = OpResult(1, window, 1, 1, pieces, b"", b"", replayed=False)
    whole = [[bytes(chunk) for chunk in piece.chunks] for piece in pieces]
    assert b"".join(map(bytes, packed(result))) == msgpack.packb(whole)
