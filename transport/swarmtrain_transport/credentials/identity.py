"""A peer's identity: an Ed25519 key that signs, and an X25519 key that encrypts the data lane.

The Ed25519 public key is the peer's id, so nobody hands out names and nobody can take one. The
X25519 key is a second one, because CURVE proves possession only of such a key; the peer signs its
public half together with everything else that it says at the door. Not here: the file that keeps
both, and letting peers in (the coordinator's admission decides that).
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from swarmtrain_transport.errors import LocalFault

KEY_BYTES = 32
_SIGNATURE_BYTES = 64
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


@lru_cache(maxsize=8)
def _signing_key(secret: bytes) -> Ed25519PrivateKey:
    """The key of a seed: to make it costs as much as to sign, and a peer signs all the time."""
    return Ed25519PrivateKey.from_private_bytes(secret)


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
        return cls.from_secrets(random_bytes(KEY_BYTES), random_bytes(KEY_BYTES))

    @classmethod
    def from_secrets(cls, signing_secret: bytes, curve_secret: bytes) -> "Identity":
        """The identity that these secrets make.

        Raises:
            LocalFault: a secret is not 32 bytes.
        """
        if len(signing_secret) != KEY_BYTES or len(curve_secret) != KEY_BYTES:
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
        return _signing_key(self.signing_secret).sign(data)

    @property
    def fingerprint(self) -> str:
        """Short form for people, such as ``3f9a22c1``."""
        return fingerprint(self.peer_id)

    @property
    def default_name(self) -> str:
        """Name of a peer that chose none, such as ``quiet-otter``."""
        return default_name(self.peer_id)


def verify(peer_id: bytes, signature: bytes, data: bytes) -> bool:
    """Return True if `signature` is the peer's over `data`. Malformed keys and signatures are
    false."""
    if len(peer_id) != KEY_BYTES or len(signature) != _SIGNATURE_BYTES:
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
        nonce: nonce of the challenge, of any length.
        cert_sha256: SHA-256 of the coordinator's certificate, 32 bytes.
        hello: the encoded Hello.

    Raises:
        LocalFault: `cert_sha256` is not 32 bytes.
    """
    if len(cert_sha256) != hashlib.sha256().digest_size:
        raise LocalFault(f"a certificate hash has 32 bytes, not {len(cert_sha256)}")
    return _KNOCK_LABEL + hashlib.sha256(nonce).digest() + cert_sha256 + hello


def fingerprint(peer_id: bytes) -> str:
    """Beginning of the id, such as ``3f9a22c1``, for people to compare and to name the peer by. Not
    a proof of anything."""
    return peer_id.hex()[:8]


def default_name(peer_id: bytes) -> str:
    """Adjective and animal, the same for the same key. Names collide: show the fingerprint too.

    >>> default_name(bytes(32))
    'humble-ferret'
    """
    digest = hashlib.sha256(b"name" + peer_id).digest()
    adjectives, animals = _ADJECTIVES.split(), _ANIMALS.split()
    adjective = adjectives[int.from_bytes(digest[:4], "big") % len(adjectives)]
    return f"{adjective}-{animals[int.from_bytes(digest[4:8], 'big') % len(animals)]}"
