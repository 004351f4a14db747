"""Shared state as a manifest of hashes: what a joiner downloads and everybody's root.

The state root is the SHA-256 of the manifest's canonical bytes, so a root that the ledger attests
is all that a joiner must trust: it fetches the manifest by that hash, then each chunk by its own.
"""

import hashlib

import msgpack
import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import RemoteFault


class ArraySpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One flat float32 array of the shared state, little-endian on the wire."""

    name: str
    num_values: int


class StateManifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state's arrays, concatenated in this order and cut into chunks of STATE_CHUNK_BYTES.

    Attributes:
        layout: SHA-256 of the model's parameter names and shapes, so that two models that
            differ are told apart before a byte is loaded.
        arrays: names and lengths.
        chunk_hashes: SHA-256 of each chunk.
    """

    layout: bytes
    arrays: tuple[ArraySpec, ...]
    chunk_hashes: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Canonical msgpack."""
        data: bytes = msgpack.packb(msgspec.to_builtins(self, builtin_types=(bytes,)))
        return data

    @property
    def root(self) -> bytes:
        """The state root, 32 bytes."""
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def total_bytes(self) -> int:
        """Bytes of all arrays together."""
        return 4 * sum(array.num_values for array in self.arrays)


def manifest_from_bytes(data: Buffer) -> StateManifest:
    """The manifest, checked for sense (the caller has checked its hash).

    Raises:
        RemoteFault: reason ``manifest``.
    """
    try:
        raw = msgpack.unpackb(bytes(data), max_ext_len=0)
        manifest = msgspec.convert(raw, type=StateManifest, builtin_types=(bytes,))
    except (ValueError, TypeError, msgspec.ValidationError, msgpack.UnpackException) as exc:
        raise RemoteFault("manifest", "state manifest does not decode") from exc
    num_chunks = -(-manifest.total_bytes // limits.STATE_CHUNK_BYTES)
    lengths = {len(chunk_hash) for chunk_hash in manifest.chunk_hashes} or {limits.HASH_BYTES}
    if len(manifest.chunk_hashes) != num_chunks or lengths != {limits.HASH_BYTES}:
        raise RemoteFault("manifest", "state manifest does not fit its own arrays")
    if any(array.num_values < 0 for array in manifest.arrays):
        raise RemoteFault("manifest", "negative array length")
    return manifest


def describe_state(
    layout: bytes, arrays: tuple[ArraySpec, ...], data: Buffer
) -> tuple[StateManifest, tuple[Buffer, ...]]:
    """The manifest of a state and its chunks as views into `data` (no copy)."""
    view = memoryview(data)
    step = limits.STATE_CHUNK_BYTES
    chunks = tuple(view[start : start + step] for start in range(0, len(view), step))
    hashes = tuple(hashlib.sha256(chunk).digest() for chunk in chunks)
    return StateManifest(layout, arrays, hashes), chunks
