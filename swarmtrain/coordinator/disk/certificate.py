"""The run's own keys: a self-made TLS certificate and the Ed25519 key that signs the ledger.

Invites carry the certificate's SHA-256, so both are made once and live in the state directory, or
sealed in the database that coordinators share (`sealed_keys`): a coordinator that restarts, or
moves to another address, is still the one that its invites name. No authority vouches for it and
none is asked; peers pin the bytes.

The run key gets its own name once the ledger's first record is on the disk. So a run key without a
ledger says that the ledger was lost, and a crash between the two leaves a run that can begin.
"""

import contextlib
import datetime
import hashlib
import hmac
import ssl
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from swarmtrain.foundation import atomic_file
from swarmtrain.foundation.errors import UserError

TLS_FILE = "tls.pem"
RUN_KEY_FILE = "run-key.pem"
FRESH_KEY_FILE = "run-key.fresh.pem"
"""The run key before it has signed anything that anybody heard of."""

LIFE_DAYS = 3650
"""Peers pin the bytes and ignore the dates; ten years keeps other tools from complaining."""

SECRET_BYTES = 16
"""128 bits of an invite's secret: guessing is hopeless even without the door's limit."""

_PEM = serialization.Encoding.PEM
_PKCS8 = serialization.PrivateFormat.PKCS8
_PLAIN = serialization.NoEncryption()


class KeysDamaged(UserError):
    """The state directory's keys are missing or unreadable although the run needs them."""


class KeyPlace(Protocol):
    """A place for keys by their names. OSError, or an error of the store: it cannot be used."""

    def named(self, name: str) -> str:
        """Return the name of a key in messages."""

    def read(self, name: str) -> bytes | None:
        """Return a key's PEM, None where there is none."""

    def write(self, name: str, pem: bytes) -> None:
        """Keep a new key, durably."""

    def rename(self, name: str, new_name: str) -> None:
        """Give a key another name, durably."""

    def as_file(self, name: str) -> AbstractContextManager[Path]:
        """A key's PEM as a file, for as long as it lasts."""


class KeyFiles:
    """Keys in files of a directory that exists, mode 0600."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def named(self, name: str) -> str:
        """Return the file."""
        return str(self._directory / name)

    def read(self, name: str) -> bytes | None:
        """Return the file's bytes, None where it is missing."""
        with contextlib.suppress(FileNotFoundError):
            return (self._directory / name).read_bytes()
        return None

    def write(self, name: str, pem: bytes) -> None:
        """Keep a new key."""
        atomic_file.write(self._directory / name, pem, mode=0o600)

    def rename(self, name: str, new_name: str) -> None:
        """Give the file another name."""
        atomic_file.rename(self._directory / name, self._directory / new_name)

    @contextlib.contextmanager
    def as_file(self, name: str) -> Iterator[Path]:
        """The file itself."""
        yield self._directory / name


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The coordinator's keys and certificate.

    Attributes:
        place: files or store that they lie in.
        cert_sha256: SHA-256 of the certificate's DER bytes, 32 bytes; part of every invite.
        run_key: signs ledger records.
        run_key_name: name of the run key in its place.
    """

    place: KeyPlace
    cert_sha256: bytes
    run_key: Ed25519PrivateKey
    run_key_name: str

    @property
    def have_begun(self) -> bool:
        """True if the run key, when it was loaded, had signed a ledger that was on the disk."""
        return self.run_key_name == RUN_KEY_FILE

    @property
    def run_key_public(self) -> bytes:
        """The key that peers check records with, 32 bytes."""
        return self.run_key.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        """Ed25519 signature of the run, 64 bytes."""
        return self.run_key.sign(data)

    def invite_secret(self, number: int) -> bytes:
        """The secret of the run's own invite `number`, 16 bytes.

        Derived from the run key, so that a restart can print the same invite although the store
        keeps only its hash.
        """
        return self._secret(b"swarmtrain invite secret 1:%d" % number)

    def viewing_secret(self, number: int) -> bytes:
        """The secret of the run's own viewing link `number`, 16 bytes."""
        return self._secret(b"swarmtrain viewing secret 1:%d" % number)

    def _secret(self, label: bytes) -> bytes:
        return hmac.digest(self.run_key.private_bytes_raw(), label, "sha256")[:SECRET_BYTES]

    def server_context(self) -> ssl.SSLContext:
        """TLS 1.3 only: both ends are this program."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # no peer resumes a session, and each ticket is kept and sent
        with self.place.as_file(TLS_FILE) as path:
            context.load_cert_chain(path)
        return context


def load_or_create(place: KeyPlace, *, may_create: bool, wall_s: float) -> RunKeys:
    """The keys of a place, made if they are not there yet.

    Args:
        may_create: False for a run with a history; its invites and ledger name the old keys.
        wall_s: seconds since 1970, for the certificate's dates.

    Raises:
        KeysDamaged: missing and not to be made, or unreadable.
        OSError: the place cannot be written.
    """
    tls, run, fresh = (place.read(name) for name in (TLS_FILE, RUN_KEY_FILE, FRESH_KEY_FILE))
    if may_create and run is None:
        if fresh is None:
            if tls is not None:
                missing = place.named(RUN_KEY_FILE)
                raise _damaged(f"{missing} is missing, although its certificate is there")
            fresh = Ed25519PrivateKey.generate().private_bytes(_PEM, _PKCS8, _PLAIN)
            place.write(FRESH_KEY_FILE, fresh)
        if tls is None:
            tls = _new_certificate(wall_s)
            place.write(TLS_FILE, tls)
    name, pem = (RUN_KEY_FILE, run) if run is not None else (FRESH_KEY_FILE, fresh)
    for one, found in ((TLS_FILE, tls), (RUN_KEY_FILE, pem)):
        if found is None:
            raise _damaged(f"{place.named(one)} is missing, although the run has begun")
    assert tls is not None and pem is not None
    try:
        certificate = x509.load_pem_x509_certificate(tls)
        run_key = serialization.load_pem_private_key(pem, password=None)
    except ValueError as exc:
        raise _damaged(f"{place.named(TLS_FILE)} or the run key cannot be read") from exc
    if not isinstance(run_key, Ed25519PrivateKey):
        raise _damaged(f"{place.named(name)} holds another kind of key")
    der = certificate.public_bytes(serialization.Encoding.DER)
    return RunKeys(place, hashlib.sha256(der).digest(), run_key, name)


def note_begun(keys: RunKeys) -> None:
    """The ledger's first record is on the disk: from now on a missing ledger is a lost one.

    Raises:
        OSError: the place cannot be written.
    """
    if not keys.have_begun:
        keys.place.rename(keys.run_key_name, RUN_KEY_FILE)


def _damaged(what: str) -> KeysDamaged:
    return KeysDamaged(
        "SWT-E805",
        f"{what}.",
        "The run's invites and its ledger name these keys; others would make it another run.",
        "Bring back the file from a copy, or start a new run with --new-run: it has a new invite.",
    )


def _new_certificate(wall_s: float) -> bytes:
    """Key and certificate in one PEM, so that one rename creates both or none."""
    # P-256 and not Ed25519: proxies and older TLS stacks on the way know it.
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "swarmtrain coordinator")])
    now = datetime.datetime.fromtimestamp(wall_s, datetime.UTC).replace(microsecond=0)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=LIFE_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(_PEM, _PKCS8, _PLAIN) + certificate.public_bytes(_PEM)
