import hashlib
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from swarmtrain.coordinator.disk.certificate import (
    FRESH_KEY_FILE,
    RUN_KEY_FILE,
    TLS_FILE,
    KeyFiles,
    KeysDamaged,
    load_or_create,
    note_begun,
)
from swarmtrain_transport.credentials.identity import verify
from tests.coordinator.rig import WALL_S


def test_keys_are_made_once_and_stay_the_same(tmp_path: Path) -> None:
    first = load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S)
    again = load_or_create(KeyFiles(tmp_path), may_create=False, wall_s=WALL_S + 1e6)
    more = load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S + 1e6)
    for other in (again, more):
        assert other.cert_sha256 == first.cert_sha256
        assert other.run_key_public == first.run_key_public
        assert other.invite_secret(0) == first.invite_secret(0)
    assert first.invite_secret(0) != first.invite_secret(1)
    assert len(first.invite_secret(0)) == 16
    assert sorted(path.name for path in tmp_path.iterdir()) == [FRESH_KEY_FILE, TLS_FILE]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_the_hash_is_of_the_certificate_that_tls_shows(tmp_path: Path) -> None:
    keys = load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S)
    pem = (tmp_path / TLS_FILE).read_text()
    certificate = x509.load_pem_x509_certificate(pem.encode())
    der = ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERT") :])
    assert hashlib.sha256(der).digest() == keys.cert_sha256
    assert isinstance(certificate.public_key(), EllipticCurvePublicKey)
    years = (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days / 365
    assert 10 <= years < 10.1
    assert keys.server_context().minimum_version == ssl.TLSVersion.TLSv1_3


def test_two_runs_have_different_keys(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = (
        load_or_create(KeyFiles(tmp_path / name), may_create=True, wall_s=WALL_S)
        for name in ("a", "b")
    )
    assert one.cert_sha256 != two.cert_sha256 and one.run_key_public != two.run_key_public


def test_the_run_key_signs_what_peers_can_check(tmp_path: Path) -> None:
    keys = load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S)
    assert verify(keys.run_key_public, keys.sign(b"hash"), b"hash")
    assert not verify(keys.run_key_public, keys.sign(b"hash"), b"other")


@pytest.mark.parametrize("name", [TLS_FILE, RUN_KEY_FILE])
def test_keys_that_a_begun_run_lost_are_not_made_anew(tmp_path: Path, name: str) -> None:
    note_begun(load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S))
    (tmp_path / name).unlink()
    with pytest.raises(KeysDamaged, match=name) as caught:
        load_or_create(KeyFiles(tmp_path), may_create=False, wall_s=WALL_S)
    assert caught.value.exit_status == 65 and "copy" in caught.value.remedy
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", [TLS_FILE, RUN_KEY_FILE])
def test_keys_that_were_cut_off_are_named(tmp_path: Path, name: str) -> None:
    note_begun(load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S))
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:40])
    with pytest.raises(KeysDamaged):
        load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S)


def test_a_run_key_is_known_to_have_begun_a_run_only_once_that_was_noted(tmp_path: Path) -> None:
    """A crash before the first record leaves keys that may begin; one after it does not."""
    fresh = load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S)
    assert not fresh.have_begun
    (tmp_path / TLS_FILE).unlink()  # the crash came before the certificate
    again = load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S)
    assert again.run_key_public == fresh.run_key_public and not again.have_begun
    for _ in range(2):
        note_begun(again)
        again = load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S)
        assert again.have_begun and again.run_key_public == fresh.run_key_public
    assert sorted(path.name for path in tmp_path.iterdir()) == [RUN_KEY_FILE, TLS_FILE]
    # Keys of a version that knew no other name, too, have begun a run.
    load_or_create(KeyFiles(tmp_path), may_create=False, wall_s=WALL_S)


@pytest.mark.parametrize("name", [TLS_FILE, RUN_KEY_FILE])
def test_one_half_of_the_keys_alone_is_not_made_whole(tmp_path: Path, name: str) -> None:
    note_begun(load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S))
    (tmp_path / name).unlink()
    with pytest.raises(KeysDamaged, match=name) as caught:
        load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=WALL_S)
    assert "--new-run" in caught.value.remedy
