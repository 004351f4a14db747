"""Files are whole or as they were, and nothing stays beside them."""

import os
import stat
from pathlib import Path

import pytest

from swarmtrain.foundation import atomic_file


def test_a_file_is_written_and_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"one", b"two"):
        atomic_file.write(path, data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    atomic_file.write(path, b"old")

    def disk_full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space") as caught:
        atomic_file.write(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_and_folder_are_flushed_in_this_order_around_the_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    flushed: list[tuple[bool, bool]] = []

    def note(handle: int) -> None:
        flushed.append((stat.S_ISDIR(os.fstat(handle).st_mode), path.exists()))

    monkeypatch.setattr(os, "fsync", note)
    atomic_file.write(path, b"data")
    assert flushed == [(False, False), (True, True)]
    atomic_file.write(path, b"data", sync=False)
    assert len(flushed) == 2


@pytest.mark.skipif(os.name == "nt", reason="Windows has no mode bits")
def test_a_secret_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        atomic_file.write(tmp_path / "secret", b"data", mode=0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_renamed_folder_keeps_its_contents(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_bytes(b"data")
    atomic_file.rename(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new" / "file").read_bytes() == b"data"
    assert not (tmp_path / "old").exists()
