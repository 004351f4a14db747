"""The file behind a peer's memory: bytes come back, room is used again, a full disk is no loss."""

import errno
import itertools
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain.peer.disk.spill_file import SpillFile
from swarmtrain_transport.blocks.retention import Retention

STEP = st.tuples(st.booleans(), st.integers(1, 50), st.integers(0, 1000))
"""Step of a test: put something or not, of which size, or else which one goes."""


@pytest.fixture
def file(tmp_path):
    made = SpillFile(tmp_path)
    yield made
    made.close()


def test_bytes_come_back_whole_and_in_pieces_and_the_file_has_no_name(file, tmp_path):
    places = [file.put(bytes([n]) * (1000 + n)) for n in range(5)]
    assert list(tmp_path.iterdir()) == []
    for n, place in enumerate(places):
        assert file.get(place, 1000 + n) == bytes([n]) * (1000 + n)
        assert file.get(place + 10, 7) == bytes([n]) * 7


def test_nothing_is_opened_before_it_is_needed(tmp_path):
    file = SpillFile(tmp_path / "nowhere")
    assert Retention(file, 100).keep(b"little").read() == b"little"
    file.close()


def test_a_file_of_an_earlier_life_is_overwritten(file, tmp_path):
    (tmp_path / "spill.bin").write_bytes(b"old" * 100)
    place = file.put(b"new")
    assert (place, file.get(place, 3)) == (0, b"new")
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 50), st.integers(0, 1000)), max_size=60)
)
def test_room_is_used_again_and_nobody_gets_somebody_elses(tmp_path_factory, steps):
    file = SpillFile(tmp_path_factory.mktemp("spill"))
    held: list[tuple[int, bytes]] = []
    for number, (is_put, size, pick) in enumerate(steps):
        if is_put or not held:
            data = bytes([number % 251]) * size
            held.append((file.put(data), data))
        else:
            place, data = held.pop(pick % len(held))
            file.free(place, len(data))
        spans = sorted((place, place + len(data)) for place, data in held)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
        assert file.num_bytes == max((stop for _, stop in spans), default=0)
        for place, data in held:
            assert file.get(place, len(data)) == data
    for place, data in held:
        file.free(place, len(data))
    assert file.num_bytes == 0
    file.close()


def test_a_disk_that_refuses_leaves_all_in_memory_and_says_so_once(file, monkeypatch, caplog):
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", refuse)
        retention = Retention(file, 10)
        kept = [retention.keep(bytes([n]) * 8) for n in range(4)]
        assert (retention.memory_bytes, retention.spilled_bytes, file.num_bytes) == (32, 0, 0)
    assert len(caplog.records) == 1 and "stay in memory" in caplog.text
    kept.append(retention.keep(bytes([4]) * 8))
    assert retention.memory_bytes <= 10
    assert [one.read() for one in kept] == [bytes([n]) * 8 for n in range(5)]


FULL_IN_THE_MIDDLE = """
import resource, sys
from pathlib import Path
from swarmtrain.peer.disk.spill_file import SpillFile
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
file = SpillFile(Path(sys.argv[1]))
assert file.put(b"a" * 1000) == 0
assert file.put(b"b" * 1000) is None
assert file.get(0, 1000) == b"a" * 1000 and file.num_bytes == 1000
assert file.put(b"c" * 400) == 1000
assert file.get(1000, 400) == b"c" * 400
"""


def test_a_write_that_the_disk_takes_half_of_is_taken_back(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", FULL_IN_THE_MIDDLE, str(tmp_path)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def test_a_file_that_was_cut_short_is_an_error_and_no_endless_loop(file):
    place = file.put(b"x" * 100)
    os.ftruncate(file._file, 50)
    with pytest.raises(OSError, match="ends before"):
        file.get(place, 100)
