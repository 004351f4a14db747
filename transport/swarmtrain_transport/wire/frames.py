"""Data-lane frames: a fixed 48-byte header, then raw bytes.

A header is checked field by field before the body is looked at, so hostile input costs one
struct.unpack. Frames are fenced by (run, plan, slice, attempt, chunk); membership never fences
data (protocol.md part 2, IDS).

The checksum is the beginning of the body's content hash. Most bodies are named by that hash anyway,
so that each is hashed once on each side, and CURVE already guards against everything but a mistake
of our own.
"""

import enum
import struct
from dataclasses import dataclass, field

import lz4.block

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.hashing import content_hash

_HEADER = struct.Struct("<2sBBQQHHII4sBBHQ")
_CHECKSUM_BYTES = 4
_MAGIC = b"SW"
_FLAG_LZ4 = 1
_PROBE_BYTES = 65_536
_COUNTERS = struct.Struct("<QQI")
_RANGE = struct.Struct("<II")

assert _HEADER.size == limits.HEADER_BYTES


class FrameKind(enum.IntEnum):
    """Purpose of a frame."""

    PART = 1
    """One encoded chunk of a contribution, contributor to owner."""
    CREDIT = 2
    """Cumulative bytes that the receiver may send to us under this plan."""
    RANGES = 3
    """Owner to contributor: these chunks of (slice, attempt) are here; send the others."""
    GET = 4
    """Ask for the blob with this hash, or for a part of it, which comes as PIECE."""
    BLOB = 5
    """The bytes of a blob; the receiver finds by their hash what they are."""
    MISSING = 6
    """The blob asked for is not here."""
    PIECE = 7
    """Part of a blob: `set_id` is the first 8 bytes of its hash, `chunk` where the part starts."""
    RESULT = 8
    """One encoded chunk of a slice's mean over the set that `set_id` names, owner to members."""
    PROVE = 9
    """Auditor to contributor: show this chunk of what you have signed."""
    EVIDENCE = 10
    """The chunk with the hashes that lead to the signed root (audit.Shown)."""
    AHEAD = 11
    """A chunk of what a peer will give to its partner in the op that `set_id` numbers, of the
    group that `slice_index` does."""
    HOP = 12
    """A small message between two peers of a pipeline (`pipeline.wire.encoding`)."""
    FORWARD = 13
    """Such a message with a stage's input."""
    GRADIENT = 14
    """Such a message with the gradient of a stage's input."""
    SUM = 15
    """One chunk of a cell's sum over the set that `set_id` names (`ledger.cell_sums`), from the
    owner in that cell to the owner of the slice; of its own slice to who keeps it."""
    SUMS = 16
    """Wish for a cell's sum, to its owner: these chunks of it, over the set that `set_id` names,
    are here; send the others."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message on the data lane. Fields that a kind does not use are zero."""

    kind: FrameKind
    run_tag: int
    plan_id: int = 0
    slice_index: int = 0
    attempt: int = 0
    chunk: int = 0
    set_id: int = 0
    body: Buffer = b""
    digest: bytes = field(default=b"", compare=False)
    """Content hash of the body if it has been taken: who needs it next need not take it again."""


class Packer:
    """`pack` that remembers its last frame: a chunk pushed to many is probed and hashed once."""

    def __init__(self) -> None:
        self._last: tuple[Frame, tuple[bytes, Buffer]] | None = None

    def pack(self, frame: Frame) -> tuple[bytes, Buffer]:
        """See `pack`."""
        if self._last is None or self._last[0] is not frame:
            self._last = (frame, pack(frame)) if frame.kind is FrameKind.RESULT else None
        return pack(frame) if self._last is None else self._last[1]


def pack(frame: Frame) -> tuple[bytes, Buffer]:
    """Header and body as they go on the wire. Sparse bodies are compressed, dense ones are not.

    Raises:
        LocalFault: the body is larger than the limit.
    """
    if len(frame.body) > limits.FRAME_BYTES_MAX:
        raise LocalFault(f"frame body of {len(frame.body)} bytes is over the limit")
    body, flags = _maybe_compress(frame.body)
    digest = frame.digest if frame.digest and not flags else content_hash(body)
    header = _HEADER.pack(
        _MAGIC, limits.FRAME_VERSION, frame.kind, frame.run_tag, frame.plan_id,
        frame.slice_index, frame.attempt, frame.chunk, len(body), digest[:_CHECKSUM_BYTES],
        flags, 0, 0, frame.set_id,
    )  # fmt: skip
    return header, body


def unpack(header: Buffer, body: Buffer) -> Frame:
    """The frame, after every check that needs no knowledge of the op.

    Raises:
        RemoteFault: reason ``frame``, ``version``, ``length`` or ``checksum``.
    """
    if len(header) != limits.HEADER_BYTES:
        raise RemoteFault("frame", f"header of {len(header)} bytes, expected 48")
    (magic, version, kind, run_tag, plan_id, slice_index, attempt, chunk, num_bytes, checksum,
     flags, spare_byte, spare_short, set_id) = _HEADER.unpack(header)  # fmt: skip
    if magic != _MAGIC or spare_byte or spare_short or flags & ~_FLAG_LZ4:
        raise RemoteFault("frame", "not a frame of this protocol")
    if version != limits.FRAME_VERSION:
        raise RemoteFault("version", f"frame version {version}, ours is {limits.FRAME_VERSION}")
    if kind not in FrameKind._value2member_map_:
        raise RemoteFault("frame", f"unknown frame kind {kind}")
    if num_bytes != len(body) or num_bytes > limits.FRAME_BYTES_MAX:
        raise RemoteFault("length", f"body of {len(body)} bytes, header says {num_bytes}")
    digest = content_hash(body)
    if digest[:_CHECKSUM_BYTES] != checksum:
        raise RemoteFault("checksum", f"checksum of chunk {chunk} does not match")
    if flags & _FLAG_LZ4:
        body, digest = _decompress(body), b""
    return Frame(
        FrameKind(kind), run_tag, plan_id, slice_index, attempt, chunk, set_id, body, digest
    )


def _maybe_compress(body: Buffer) -> tuple[Buffer, int]:
    """Probe the first 64 KiB; compress only if the probe shrinks by an eighth.

    Dense int8 does not compress (ratio 1.000); sparse payloads and zeros do, up to 18x.
    """
    if len(body) < 1024:
        return body, 0
    probe = memoryview(body)[:_PROBE_BYTES]
    if len(lz4.block.compress(probe, store_size=False)) > len(probe) * 7 // 8:
        return body, 0
    packed = lz4.block.compress(body, store_size=True)
    return (packed, _FLAG_LZ4) if len(packed) < len(body) else (body, 0)


def _decompress(body: Buffer) -> bytes:
    """The size is read and checked before a byte is decoded, so memory stays bounded."""
    if len(body) < 4:
        raise RemoteFault("length", "compressed body without a size")
    size = int.from_bytes(bytes(body[:4]), "little")
    if size > limits.FRAME_BYTES_MAX:
        raise RemoteFault("length", f"compressed body claims {size} bytes")
    try:
        data: bytes = lz4.block.decompress(body[4:], uncompressed_size=size)
    except lz4.block.LZ4BlockError as exc:
        raise RemoteFault("frame", "compressed body does not decode") from exc
    if len(data) != size:
        raise RemoteFault("length", f"compressed body claims {size} bytes, holds {len(data)}")
    return data


@dataclass(frozen=True, slots=True)
class Ranges:
    """Body of RANGES: what an owner holds of one contributor's slice.

    Attributes:
        credit_bytes: cumulative bytes that the contributor may send under this plan.
        received_bytes: cumulative bytes that arrived from it under this plan.
        chunks: one flag per chunk of the slice, true where it is here.
    """

    credit_bytes: int
    received_bytes: int
    chunks: tuple[bool, ...]

    def pack(self) -> bytes:
        """Counters, then the flags as a little-endian bitmap."""
        bitmap = bytearray((len(self.chunks) + 7) // 8)
        for index, here in enumerate(self.chunks):
            bitmap[index >> 3] |= here << (index & 7)
        head = _COUNTERS.pack(self.credit_bytes, self.received_bytes, len(self.chunks))
        return head + bitmap

    @staticmethod
    def num_bytes(num_chunks: int) -> int:
        """Length of the body for a slice of so many chunks, to be checked before `unpack`."""
        return _COUNTERS.size + (num_chunks + 7) // 8

    @classmethod
    def unpack(cls, body: Buffer) -> "Ranges":
        """Raises RemoteFault with reason ``length`` if the body is not exactly a bitmap."""
        if len(body) < _COUNTERS.size:
            raise RemoteFault("length", "RANGES is too short")
        credit, received, count = _COUNTERS.unpack(body[: _COUNTERS.size])
        bitmap = bytes(body[_COUNTERS.size :])
        if len(bitmap) != (count + 7) // 8:
            raise RemoteFault("length", f"RANGES says {count} chunks in {len(bitmap)} bytes")
        flags = tuple(bool(bitmap[index >> 3] >> (index & 7) & 1) for index in range(count))
        return cls(credit, received, flags)


def pack_flags(flags: tuple[bool, ...]) -> bytes:
    """Body of SUMS: one bit per chunk, true where it is here."""
    return Ranges(0, 0, flags).pack()


def unpack_flags(body: Buffer, num_chunks: int) -> tuple[bool, ...]:
    """Raises RemoteFault with reason ``length`` if it is not of so many chunks."""
    if len(body) != Ranges.num_bytes(num_chunks):
        raise RemoteFault("length", f"SUMS of {len(body)} bytes for {num_chunks} chunks")
    return Ranges.unpack(body).chunks[:num_chunks]


def pack_credit(credit_bytes: int) -> bytes:
    """Body of CREDIT."""
    return credit_bytes.to_bytes(8, "little")


def unpack_credit(body: Buffer) -> int:
    """Raises RemoteFault with reason ``length``."""
    if len(body) != 8:
        raise RemoteFault("length", f"CREDIT of {len(body)} bytes")
    return int.from_bytes(bytes(body), "little")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Body of GET.

    Attributes:
        digest: content hash of the blob.
        start: first byte that is wanted.
        length: number of bytes wanted, 0 for the whole blob.
    """

    digest: bytes
    start: int = 0
    length: int = 0

    def pack(self) -> bytes:
        """The hash, and the range if it is not the whole blob."""
        return self.digest + (_RANGE.pack(self.start, self.length) if self.length else b"")

    @classmethod
    def unpack(cls, body: Buffer) -> "Wanted":
        """Raises RemoteFault with reason ``length``: it does not name a hash, or no piece."""
        if len(body) == limits.HASH_BYTES:
            return cls(bytes(body))
        if len(body) != limits.HASH_BYTES + _RANGE.size:
            raise RemoteFault("length", f"GET of {len(body)} bytes")
        start, length = _RANGE.unpack(body[limits.HASH_BYTES :])
        if not 0 < length <= limits.STATE_PIECE_BYTES:
            raise RemoteFault("length", f"GET of a piece of {length} bytes")
        return cls(bytes(body[: limits.HASH_BYTES]), start, length)
