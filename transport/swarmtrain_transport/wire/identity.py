"""A peer's identity: an Ed25519 key that signs, and an X25519 key that encrypts the data lane.

The Ed25519 public key is the peer's id, so nobody hands out names and nobody can take one. The
X25519 key is a second one, because CURVE proves possession only of such a key; the peer signs its
public half together with everything else that it says at the door. Both live in one file that only
its owner may read. Not here: letting peers in (the coordinator's admission decides that).
"""

import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from swarmtrain_transport.errors import IdentityDamaged, LocalFault

_KEY_BYTES = 32
_SIGNATURE_BYTES = 64
_FORMAT = "swarmtrain identity"
_VERSION = 1
_FILE_BYTES_MAX = 4096
_KNOCK_LABEL = b"swarmtrain knock 1"

_ADJECTIVES = (
    "able amber azure bold brave breezy bright brisk calm candid careful cheery clever cosy "
    "crisp curious dapper daring eager early earnest fair fleet fond frank fresh gentle glad "
    "golden grand handy happy hardy honest humble jolly keen kind lively loyal lucky mellow merry "
    "mild modest nimble noble patient placid plucky polite proud quick quiet ready rosy silver "
    "sincere snug sober steady sunny tidy witty"
)
_ANIMALS = (
    "alpaca badger bat beaver bee bison bobcat camel cheetah cod condor crab crane cricket crow "
    "deer dolphin dove duck eagle egret elk falcon ferret finch fox frog gecko goose hare hawk "
    "heron ibex ibis jackal jay koala lark lemur lion lizard llama lynx marten mole moose moth "
    "newt ocelot otter owl panda pelican puffin quail rabbit raven robin salmon seal stork swan "
    "tiger wombat"
)


@dataclass(frozen=True, slots=True)
class Identity:
    """A peer's two key pairs. Secrets are kept out of `repr`.

    Attributes:
        peer_id: Ed25519 public key, 32 bytes.
        curve_key: X25519 public key, 32 bytes.
        signing_secret: Ed25519 seed, 32 bytes.
        curve_secret: X25519 secret, 32 bytes.
    """

    peer_id: bytes
    curve_key: bytes
    signing_secret: bytes = field(repr=False)
    curve_secret: bytes = field(repr=False)

    @classmethod
    def create(cls, random_bytes: Callable[[int], bytes] = os.urandom) -> "Identity":
        """A new identity.

        Args:
            random_bytes: source of secret bytes; a simulator hands in a seeded one.
        """
        return cls.from_secrets(random_bytes(_KEY_BYTES), random_bytes(_KEY_BYTES))

    @classmethod
    def from_secrets(cls, signing_secret: bytes, curve_secret: bytes) -> "Identity":
        """The identity that these secrets make.

        Raises:
            LocalFault: a secret is not 32 bytes.
        """
        if len(signing_secret) != _KEY_BYTES or len(curve_secret) != _KEY_BYTES:
            raise LocalFault("an identity is made of two secrets of 32 bytes")
        signing = Ed25519PrivateKey.from_private_bytes(signing_secret)
        curve = X25519PrivateKey.from_private_bytes(curve_secret)
        return cls(
            peer_id=signing.public_key().public_bytes_raw(),
            curve_key=curve.public_key().public_bytes_raw(),
            signing_secret=signing_secret,
            curve_secret=curve_secret,
        )

    def sign(self, data: bytes) -> bytes:
        """Ed25519 signature over `data`, 64 bytes."""
        return Ed25519PrivateKey.from_private_bytes(self.signing_secret).sign(data)

    @staticmethod
    def verify(peer_id: bytes, signature: bytes, data: bytes) -> bool:
        """As the function `verify` of this module."""
        return verify(peer_id, signature, data)

    @property
    def fingerprint(self) -> str:
        """Short form for people, such as ``3F9A-22C1``."""
        return fingerprint(self.peer_id)

    @property
    def default_name(self) -> str:
        """Name of a peer that chose none, such as ``quiet-otter``."""
        return default_name(self.peer_id)

    def save(self, path: Path) -> None:
        """Write the secrets to `path`, readable by their owner only.

        The file is complete or not there: it is written aside, flushed to the disk and renamed.

        Raises:
            OSError: the directory cannot be written; a file of that name is as it was.
        """
        text = json.dumps(
            {
                "format": _FORMAT,
                "version": _VERSION,
                "peer_id": self.peer_id.hex(),
                "curve_key": self.curve_key.hex(),
                "signing_secret": self.signing_secret.hex(),
                "curve_secret": self.curve_secret.hex(),
            },
            indent=1,
        )
        aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            # O_EXCL with the mode at birth: there is no moment at which others could open it.
            handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="ascii") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
        _sync_directory(path.parent)

    @classmethod
    def load(cls, path: Path) -> "Identity":
        """The identity in `path`.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read.
            IdentityDamaged: it is not one of our files, or its keys do not match each other.
        """
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise IdentityDamaged(f"{path} is not a regular file, so it holds no identity")
            data = file.read(_FILE_BYTES_MAX + 1)
        fields = _read_fields(path, data)
        identity = cls.from_secrets(fields["signing_secret"], fields["curve_secret"])
        # A flipped bit in a secret still makes a valid key: another one. The public halves in
        # the file tell it, before this peer appears in the run as somebody else.
        if (identity.peer_id, identity.curve_key) != (fields["peer_id"], fields["curve_key"]):
            raise _damaged(path, "its keys do not belong together")
        return identity


def verify(peer_id: bytes, signature: bytes, data: bytes) -> bool:
    """Return True if `signature` is the peer's over `data`. Malformed keys and signatures are
    false."""
    if len(peer_id) != _KEY_BYTES or len(signature) != _SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(peer_id).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def knock_payload(nonce: bytes, cert_sha256: bytes, hello: bytes) -> bytes:
    """Return the bytes that a peer signs at the door (messages.Knock).

    The nonce makes it fresh. The certificate binds it to one coordinator, so a coordinator that a
    peer talks to cannot use the answer at another one's door. The nonce enters as its SHA-256,
    so that all parts but the last have a fixed length and no two triples give the same bytes.

    Args:
        nonce: the challenge's, of any length.
        cert_sha256: SHA-256 of the coordinator's certificate, 32 bytes.
        hello: the encoded Hello.

    Raises:
        LocalFault: `cert_sha256` is not 32 bytes.
    """
    if len(cert_sha256) != hashlib.sha256().digest_size:
        raise LocalFault(f"a certificate hash has 32 bytes, not {len(cert_sha256)}")
    return _KNOCK_LABEL + hashlib.sha256(nonce).digest() + cert_sha256 + hello


def fingerprint(peer_id: bytes) -> str:
    """Eight hex digits for people to compare, such as ``3F9A-22C1``. Not a proof of anything."""
    text = hashlib.sha256(peer_id).hexdigest()[:8].upper()
    return f"{text[:4]}-{text[4:]}"


def default_name(peer_id: bytes) -> str:
    """Adjective and animal, the same for the same key. Names collide: show the fingerprint too.

    >>> default_name(bytes(32))
    'humble-ferret'
    """
    digest = hashlib.sha256(b"name" + peer_id).digest()
    adjectives, animals = _ADJECTIVES.split(), _ANIMALS.split()
    adjective = adjectives[int.from_bytes(digest[:4], "big") % len(adjectives)]
    return f"{adjective}-{animals[int.from_bytes(digest[4:8], 'big') % len(animals)]}"


def _read_fields(path: Path, data: bytes) -> dict[str, bytes]:
    """The file's four keys as raw bytes, or IdentityDamaged with the first thing wrong."""
    if len(data) > _FILE_BYTES_MAX:
        raise _damaged(path, f"it is longer than {_FILE_BYTES_MAX} bytes")
    try:
        fields: Any = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise _damaged(path, "it is cut off or not a swarmtrain identity") from exc
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
        raise _damaged(path, "it is some other program's file")
    if fields.get("version") != _VERSION:
        raise _damaged(path, "its version is not 1, the only one that this swarmtrain reads")
    return {
        name: _read_key(path, name, fields.get(name))
        for name in ("peer_id", "curve_key", "signing_secret", "curve_secret")
    }


def _read_key(path: Path, name: str, text: Any) -> bytes:
    """One key; the text itself is never shown, it may be a secret."""
    key = b""
    if isinstance(text, str):
        with contextlib.suppress(ValueError):
            key = bytes.fromhex(text)
    if len(key) != _KEY_BYTES:
        raise _damaged(path, f"its {name} is not 32 bytes of hex")
    return key


def _damaged(path: Path, what: str) -> IdentityDamaged:
    return IdentityDamaged(
        f"{path} is not a usable identity: {what}. The file was left alone. Restore it from a"
        " copy, or move it away to become a new peer."
    )


def _sync_directory(path: Path) -> None:
    """Make a rename durable; Windows has no such call and needs none."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
