"""Copies of a state on the disk."""

import errno
import gc
import os
from pathlib import Path

import pytest

from swarmtrain.peer.disk import image_file
from swarmtrain.peer.disk.image_file import put_in
from swarmtrain_transport.blocks.retention import bytes_of

PARTS = [memoryview(b"abcde"), memoryview(b""), memoryview(b"fgh")]


def test_pieces_hold_the_parts_one_after_the_other_and_take_no_name(tmp_path: Path) -> None:
    pieces = put_in(tmp_path)(PARTS, 3)
    assert pieces is not None and [bytes_of(one) for one in pieces] == [b"abc", b"def", b"gh"]
    assert [one.num_bytes for one in pieces] == [3, 3, 2] and not list(tmp_path.iterdir())
    assert bytes(pieces[1].read(1, 2)) == b"ef"


def test_a_file_ends_with_its_last_piece(tmp_path: Path) -> None:
    pieces = put_in(tmp_path)(PARTS, 3)
    assert pieces is not None
    number = pieces[0]._file.number  # type: ignore[attr-defined]
    last = pieces[-1]
    del pieces
    gc.collect()
    assert bytes_of(last) == b"gh"
    del last
    with pytest.raises(OSError):
        os.fstat(number)


def test_where_the_disk_is_full_the_copy_is_left_to_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(number: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(image_file.os, "write", full)
    assert put_in(tmp_path)(PARTS, 3) is None
    assert "stays in memory" in caplog.text
