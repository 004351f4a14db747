"""A peer's keys, and what they prove."""

import random

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from swarmtrain_transport.credentials.identity import (
    Identity,
    default_name,
    fingerprint,
    knock_payload,
    verify,
)
from swarmtrain_transport.errors import LocalFault


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
    assert fingerprint(bytes(32)) == "00000000"
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
