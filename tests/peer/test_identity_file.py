"""A peer's keys on disk: a file that is whole, private, or refused."""

import json
import os
import random
import stat
from pathlib import Path

import pytest

from swarmtrain.peer.disk import identity_file
from swarmtrain.peer.disk.identity_file import IdentityDamaged
from swarmtrain_transport.credentials.identity import Identity


def seeded(seed: int = 1) -> Identity:
    return Identity.create(random.Random(seed).randbytes)


def test_what_was_saved_is_what_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    identity_file.save(seeded(), path)
    assert identity_file.load(path) == seeded()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no mode bits")
def test_the_file_is_readable_by_its_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    before = os.umask(0)
    try:
        identity_file.save(seeded(), path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_saving_again_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    identity_file.save(seeded(1), path)
    identity_file.save(seeded(2), path)
    assert identity_file.load(path) == seeded(2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["identity.json"]


def test_a_failed_save_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "identity.json"
    identity_file.save(seeded(1), path)

    def disk_full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space"):
        identity_file.save(seeded(2), path)
    assert identity_file.load(path) == seeded(1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["identity.json"]


def test_a_missing_file_is_told_as_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        identity_file.load(tmp_path / "identity.json")


def saved(tmp_path: Path) -> tuple[Path, dict[str, object]]:
    path = tmp_path / "identity.json"
    identity_file.save(seeded(), path)
    return path, json.loads(path.read_text())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut off"),
        (b"{", "cut off"),
        (b"\xff\xfe", "cut off"),
        (b"[" * 4000, "cut off"),
        (b"[]", "other program"),
        (b"{}", "other program"),
        (b"null", "other program"),
        (b'{"format": "ssh"}', "other program"),
        (b'{"format": "swarmtrain identity", "version": 2}', "version"),
        (b'{"format": "swarmtrain identity", "version": 1}', "peer_id"),
        (b" " * 5000, "longer"),
    ],
)
def test_a_foreign_or_damaged_file_is_told_and_left_alone(
    tmp_path: Path, data: bytes, words: str
) -> None:
    path = tmp_path / "identity.json"
    path.write_bytes(data)
    with pytest.raises(IdentityDamaged, match=words) as caught:
        identity_file.load(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == data


@pytest.mark.parametrize("name", ["peer_id", "curve_key", "signing_secret", "curve_secret"])
@pytest.mark.parametrize("value", [None, 7, "", "zz" * 32, "00" * 31, ["00"], "\u00e9" * 64])
def test_a_key_that_is_no_key_is_named_and_not_shown(
    tmp_path: Path, name: str, value: object
) -> None:
    path, fields = saved(tmp_path)
    path.write_text(json.dumps(fields | {name: value}))
    with pytest.raises(IdentityDamaged, match=name) as caught:
        identity_file.load(path)
    if isinstance(value, str) and value:
        assert value not in str(caught.value)


@pytest.mark.parametrize("name", ["peer_id", "curve_key", "signing_secret", "curve_secret"])
def test_one_flipped_bit_in_any_key_is_found(tmp_path: Path, name: str) -> None:
    path, fields = saved(tmp_path)
    key = bytearray.fromhex(str(fields[name]))
    key[5] ^= 4
    path.write_text(json.dumps(fields | {name: key.hex()}))
    with pytest.raises(IdentityDamaged, match="belong together"):
        identity_file.load(path)


def test_a_cut_anywhere_in_the_file_is_damage(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    data = path.read_bytes().rstrip()
    for length in range(0, len(data), 5):
        path.write_bytes(data[:length])
        with pytest.raises(IdentityDamaged):
            identity_file.load(path)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
def test_something_that_is_no_file_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, Path("/dev/zero")):
        with pytest.raises(IdentityDamaged, match="no regular file"):
            identity_file.load(place)
