"""The disk of a keeper."""

from pathlib import Path

import pytest

from swarmtrain.foundation import atomic_file
from swarmtrain.peer.disk.shelf import DiskShelf, free_bytes
from swarmtrain_transport.blocks.shelf import MemoryShelf, Shelf, Shelved


@pytest.fixture(params=["disk", "memory"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    return DiskShelf(tmp_path) if request.param == "disk" else MemoryShelf()


def test_a_name_gives_the_bytes_or_some_of_them(shelf: Shelf) -> None:
    assert shelf.names() == [] and shelf.size("1/a.blob") is None
    assert shelf.put("1/b.blob", b"0123456789") and shelf.put("1/a.blob", memoryview(b"abc"))
    assert shelf.names() == ["1/a.blob", "1/b.blob"] and shelf.size("1/b.blob") == 10
    assert shelf.get("1/b.blob") == b"0123456789" and shelf.get("1/b.blob", 3, 4) == b"3456"
    shelved = Shelved(shelf, "1/b.blob", 10)
    assert shelved.read() == b"0123456789" and shelved.read(8, 2) == b"89"
    shelf.drop(["1/b.blob", "2/none.blob"])
    assert shelf.names() == ["1/a.blob"]


def test_it_outlives_the_process_and_passes_over_what_was_half_written(tmp_path: Path) -> None:
    DiskShelf(tmp_path).put("2/a.blob", b"abc")
    (tmp_path / "kept" / "2" / ".b.blob.17").write_bytes(b"half")
    again = DiskShelf(tmp_path)
    assert again.names() == ["2/a.blob"] and again.get("2/a.blob") == b"abc"


def test_a_disk_without_room_takes_nothing_and_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_file, "write", full)
    assert not DiskShelf(tmp_path).put("1/a.blob", b"abc")
    assert "no more is kept for others" in caplog.text


def test_room_is_that_of_the_disk_on_which_the_directory_will_be(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet") == free_bytes(tmp_path) > 0
