"""The run's keys in a database that coordinators share: sealed by a secret that only these have.

Whoever reads the database, or a copy of it, gets no key. The secret is a passphrase or the bytes of
a file; scrypt (RFC 7914) makes a key of it, slowly, and AES-256-GCM seals what it is given.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from swarmtrain.coordinator.disk.register import Register
from swarmtrain.foundation import regular_file
from swarmtrain.foundation.errors import UserError, misuse

SECRET_BYTES_MIN, SECRET_BYTES_MAX = 12, 4096

_MAGIC = b"swarmtrain sealed key 1\n"
_SALT_BYTES, _NONCE_BYTES = 16, 12


def read_secret(path: Path) -> bytes:
    """Return a file's bytes as a secret, without space and line breaks at its ends.

    Raises:
        UserError: SWT-E403, it cannot be read; E610, it is too short or too long.
    """
    try:
        with regular_file.opened(path, SECRET_BYTES_MAX + 64) as file:
            data = file.read()
    except OSError as exc:
        raise UserError(
            "SWT-E403",
            f"The key file {path} cannot be read: {exc.strerror or exc}.",
            "It seals the run's keys in the database.",
            "Name another one with --key-file, or give this user the right to read it.",
        ) from exc
    return checked_secret(data.strip(), f"The key file {path}")


def checked_secret(secret: bytes, named: str) -> bytes:
    """Return the secret if it has a fitting length.

    Raises:
        UserError: SWT-E610.
    """
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise misuse(
            f"{named} has {len(secret)} bytes; {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} are taken.",
            "Whoever reads the database can try passphrases: take a long one, or a file made by "
            "openssl rand -hex 32.",
        )
    return secret


def seal(secret: bytes, name: str, data: bytes) -> bytes:
    """Seal a key; its name is part of what is sealed."""
    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
    sealed = AESGCM(_stretched(secret, salt)).encrypt(nonce, data, _MAGIC + name.encode())
    return _MAGIC + salt + nonce + sealed


def unseal(secret: bytes, name: str, sealed: bytes) -> bytes:
    """Return what was sealed.

    Raises:
        InvalidTag: another secret or name, or other bytes.
    """
    if not sealed.startswith(_MAGIC):
        raise InvalidTag
    rest = sealed[len(_MAGIC) :]
    salt, nonce = rest[:_SALT_BYTES], rest[_SALT_BYTES : _SALT_BYTES + _NONCE_BYTES]
    box = AESGCM(_stretched(secret, salt))
    try:
        return box.decrypt(nonce, rest[_SALT_BYTES + _NONCE_BYTES :], _MAGIC + name.encode())
    except ValueError as exc:  # too short for a nonce
        raise InvalidTag from exc


def _stretched(secret: bytes, salt: bytes) -> bytes:
    # 64 MiB and a few tenths of a second for each guess.
    return Scrypt(salt=salt, length=32, n=1 << 16, r=8, p=1).derive(secret)


@dataclass(frozen=True, slots=True)
class SealedKeys:
    """A `certificate.KeyPlace` in the store.

    Attributes:
        store: leads.
        secret: SECRET_BYTES_MIN to SECRET_BYTES_MAX bytes that all coordinators of the run have.
        opened: keys that were opened before, by their sealed bytes.
    """

    store: Register
    secret: bytes = field(repr=False)
    opened: dict[bytes, bytes] = field(default_factory=dict, repr=False)

    def named(self, name: str) -> str:
        """Return the key and its database."""
        return f"{name} in {self.store.name}"

    def read(self, name: str) -> bytes | None:
        """Return a key's PEM, None where there is none.

        Raises:
            UserError: SWT-E415, another secret has sealed it.
        """
        sealed = self.store.sealed_key(name)
        if sealed is None or sealed in self.opened:
            return None if sealed is None else self.opened[sealed]
        try:
            self.opened[sealed] = unseal(self.secret, name, sealed)
            return self.opened[sealed]
        except InvalidTag as exc:
            raise UserError(
                "SWT-E415",
                f"The run's keys in {self.store.name} do not open with this passphrase.",
                "All coordinators of a run seal its keys with the same one. Nothing was changed.",
                "Give the --key-file that the run began with; or begin another run with --new-run.",
            ) from exc

    def write(self, name: str, pem: bytes) -> None:
        """Seal and keep a new key."""
        self.store.keep_key(name, seal(self.secret, name, pem))

    def rename(self, name: str, new_name: str) -> None:
        """Give a key another name."""
        pem = self.read(name)
        if pem is not None:
            self.store.replace_key(name, new_name, seal(self.secret, new_name, pem))

    @contextlib.contextmanager
    def as_file(self, name: str) -> Iterator[Path]:
        """A key's PEM in a file that is gone afterwards: TLS reads files alone."""
        with tempfile.NamedTemporaryFile(prefix="swarmtrain-") as file:  # mode 0600
            file.write(self.read(name) or b"")
            file.flush()
            yield Path(file.name)
