"""Stand-ins for Ed25519, which would be a tenth of the run time and proves nothing here."""

import hashlib

RUN_KEY = bytes(32)


def quick_sign(key: bytes, data: bytes) -> bytes:
    """Sign data; of another key or other data the signature is another."""
    return key + (data if len(data) == len(key) else hashlib.sha256(data).digest())


def quick_verify(key: bytes, signature: bytes, data: bytes) -> bool:
    """Counterpart of quick_sign."""
    return signature == quick_sign(key, data)
