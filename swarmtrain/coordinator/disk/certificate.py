"""The run's own keys: a self-made TLS certificate and the Ed25519 key that signs the ledger.

Invites carry the certificate's SHA-256, so both are made once and live in the state directory:
a coordinator that restarts, or moves to another address, is still the one that its invites name.
No authority vouches for it and none is asked; peers pin the bytes.

The run key gets its own name once the ledger's first record is on the disk. So a run key without a
ledger says that the ledger was lost, and a crash between the two leaves a run that can begin.
"""

import datetime
import hashlib
import hmac
import ssl
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The coordinator's keys and certificate.

    Attributes:
        tls_path: PEM file of the private key and the certificate, mode 0600.
        cert_sha256: SHA-256 of the certificate's DER bytes, 32 bytes; part of every invite.
        run_key: signs ledger records.
        run_key_path: PEM file of the run key.
    """

    tls_path: Path
    cert_sha256: bytes
    run_key: Ed25519PrivateKey
    run_key_path: Path

    @property
    def have_begun(self) -> bool:
        """True if the run key, when it was loaded, had signed a ledger that was on the disk."""
        return self.run_key_path.name == RUN_KEY_FILE

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
        context.load_cert_chain(self.tls_path)
        return context


def load_or_create(directory: Path, *, may_create: bool, wall_s: float) -> RunKeys:
    """The keys of a state directory, made if they are not there yet.

    Args:
        directory: exists.
        may_create: False for a run with a history; its invites and ledger name the old keys.
        wall_s: seconds since 1970, for the certificate's dates.

    Raises:
        KeysDamaged: missing and not to be made, or unreadable.
        OSError: the directory cannot be written.
    """
    tls_path, run_path = directory / TLS_FILE, directory / RUN_KEY_FILE
    fresh_path = directory / FRESH_KEY_FILE
    if may_create and not run_path.exists():
        if not fresh_path.exists():
            if tls_path.exists():
                raise _damaged(f"{run_path} is missing, although its certificate is there")
            pem = Ed25519PrivateKey.generate().private_bytes(_PEM, _PKCS8, _PLAIN)
            atomic_file.write(fresh_path, pem, mode=0o600)
        if not tls_path.exists():
            atomic_file.write(tls_path, _new_certificate(wall_s), mode=0o600)
    if fresh_path.exists() and not run_path.exists():
        run_path = fresh_path
    try:
        certificate = x509.load_pem_x509_certificate(tls_path.read_bytes())
        run_key = serialization.load_pem_private_key(run_path.read_bytes(), password=None)
    except FileNotFoundError as exc:
        raise _damaged(f"{exc.filename} is missing, although the run has begun") from exc
    except ValueError as exc:
        raise _damaged(f"The keys in {directory} cannot be read") from exc
    if not isinstance(run_key, Ed25519PrivateKey):
        raise _damaged(f"{run_path} holds another kind of key")
    der = certificate.public_bytes(serialization.Encoding.DER)
    return RunKeys(tls_path, hashlib.sha256(der).digest(), run_key, run_path)


def note_begun(keys: RunKeys) -> None:
    """The ledger's first record is on the disk: from now on a missing ledger is a lost one.

    Raises:
        OSError: the directory cannot be written.
    """
    if not keys.have_begun:
        atomic_file.rename(keys.run_key_path, keys.run_key_path.with_name(RUN_KEY_FILE))


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
