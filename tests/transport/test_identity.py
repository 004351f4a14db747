"""A peer's keys: what they prove, and a file that is whole, private, or refused."""

import json
import os
import random
import stat
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from swarmtrain_transport.errors import IdentityDamaged, LocalFault
from swarmtrain_transport.wire.identity import (
    Identity,
    default_name,
    fingerprint,
    knock_payload,
    verify,
)


def seeded(seed: int = 1) -> Identity:
    return Identity.create(random.Random(seed).randbytes)


def test_the_same_random_bytes_make_the_same_identity_and_others_another() -> None:
    assert seeded(1) == seeded(1)
    assert seeded(1).peer_id != seeded(2).peer_id
    assert Identity.create().peer_id != Identity.create().peer_id


def test_the_signing_key_is_that_of_rfc_8032() -> None:
    # Section 7.1, test 1.
    secret = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
    identity = Identity.from_secrets(bytes.fromhex(secret), bytes(32))
    assert identity.peer_id.hex() == (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    )
    assert identity.sign(b"").hex().startswith("e5564300c360ac729086e2cc806e828a")


def test_libzmq_agrees_on_the_public_half_of_the_curve_key() -> None:
    identity = seeded()
    assert z85.decode(zmq.curve_public(z85.encode(identity.curve_secret))) == identity.curve_key


def test_secrets_of_another_length_are_refused() -> None:
    with pytest.raises(LocalFault):
        Identity.from_secrets(bytes(31), bytes(32))
    with pytest.raises(LocalFault):
        Identity.from_secrets(bytes(32), bytes(33))


def test_a_signature_holds_for_its_key_and_its_data_only() -> None:
    one, other = seeded(1), seeded(2)
    signature = one.sign(b"data")
    assert verify(one.peer_id, signature, b"data")
    assert Identity.verify(one.peer_id, signature, b"data")
    assert not verify(other.peer_id, signature, b"data")
    assert not verify(one.peer_id, signature, b"date")
    assert not verify(one.peer_id, signature[:-1] + bytes([signature[-1] ^ 1]), b"data")


@given(peer_id=st.binary(max_size=80), signature=st.binary(max_size=80), data=st.binary())
def test_malformed_keys_and_signatures_are_false_and_never_an_exception(
    peer_id: bytes, signature: bytes, data: bytes
) -> None:
    assert verify(peer_id, signature, data) is False


@given(peer_id=st.binary(min_size=32, max_size=32), signature=st.binary(min_size=64, max_size=64))
def test_random_keys_of_the_right_length_verify_nothing(peer_id: bytes, signature: bytes) -> None:
    assert verify(peer_id, signature, b"swarmtrain") is False


def test_secrets_do_not_appear_where_objects_are_printed() -> None:
    identity = seeded()
    shown = repr(identity) + str(identity)
    for secret in (identity.signing_secret, identity.curve_secret):
        assert secret.hex() not in shown and repr(secret) not in shown


def test_people_see_a_short_fingerprint_and_a_name_that_stay_the_same() -> None:
    identity = seeded()
    assert identity.fingerprint == fingerprint(identity.peer_id)
    assert identity.default_name == default_name(identity.peer_id)
    assert fingerprint(bytes(32)) == "6668-7AAD"
    assert default_name(bytes(32)) == "humble-ferret"


@given(peer_id=st.binary(min_size=32, max_size=32))
def test_every_key_has_a_plain_name(peer_id: bytes) -> None:
    adjective, animal = default_name(peer_id).split("-")
    assert adjective.isascii() and adjective.isalpha() and animal.isascii() and animal.isalpha()


# ---- at the door

PARTS = st.binary(max_size=70)


@given(first=st.tuples(PARTS, PARTS), second=st.tuples(PARTS, PARTS))
def test_two_different_knocks_never_sign_the_same_bytes(
    first: tuple[bytes, bytes], second: tuple[bytes, bytes]
) -> None:
    certificate = bytes(32)
    same = knock_payload(first[0], certificate, first[1]) == knock_payload(
        second[0], certificate, second[1]
    )
    assert same == (first == second)


def test_a_longer_nonce_cannot_swallow_the_certificate() -> None:
    # A coordinator that chooses the nonce must not get a signature that fits another one's door.
    nonce, certificate, hello = b"n" * 16, b"c" * 32, b"hello"
    theirs = knock_payload(nonce + certificate, b"m" * 32, hello)
    assert theirs != knock_payload(nonce, certificate, b"m" * 32 + hello)


def test_a_certificate_hash_of_another_length_is_a_bug_of_ours() -> None:
    with pytest.raises(LocalFault):
        knock_payload(b"nonce", bytes(31), b"")


# ---- the file


def test_what_was_saved_is_what_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    seeded().save(path)
    assert Identity.load(path) == seeded()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no mode bits")
def test_the_file_is_readable_by_its_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    before = os.umask(0)
    try:
        seeded().save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_saving_again_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    seeded(1).save(path)
    seeded(2).save(path)
    assert Identity.load(path) == seeded(2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["identity.json"]


def test_a_failed_save_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "identity.json"
    seeded(1).save(path)

    def disk_full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space"):
        seeded(2).save(path)
    assert Identity.load(path) == seeded(1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["identity.json"]


def test_a_missing_file_is_told_as_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Identity.load(tmp_path / "identity.json")


def saved(tmp_path: Path) -> tuple[Path, dict[str, object]]:
    path = tmp_path / "identity.json"
    seeded().save(path)
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
        Identity.load(path)
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
        Identity.load(path)
    if isinstance(value, str) and value:
        assert value not in str(caught.value)


@pytest.mark.parametrize("name", ["peer_id", "curve_key", "signing_secret", "curve_secret"])
def test_one_flipped_bit_in_any_key_is_found(tmp_path: Path, name: str) -> None:
    path, fields = saved(tmp_path)
    key = bytearray.fromhex(str(fields[name]))
    key[5] ^= 4
    path.write_text(json.dumps(fields | {name: key.hex()}))
    with pytest.raises(IdentityDamaged, match="belong together"):
        Identity.load(path)


def test_a_cut_anywhere_in_the_file_is_damage(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    data = path.read_bytes().rstrip()
    for length in range(0, len(data), 5):
        path.write_bytes(data[:length])
        with pytest.raises(IdentityDamaged):
            Identity.load(path)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
def test_something_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        Identity.load(tmp_path)
    with pytest.raises(IdentityDamaged, match="regular"):
        Identity.load(Path("/dev/zero"))
