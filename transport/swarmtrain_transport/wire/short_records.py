"""Records of ops in cells as they travel: short, and the same bytes again at the other end.

PLAN of an op of hundreds says mostly what the PLAN before it has said: the keys of its members. So
it is deflated with that one as a dictionary, which both ends have. A deflate window is 32 KiB; a
longer PLAN goes in parts, each with the stretch of the PLAN before where its members stood. The
other records of such an op are deflated by themselves. In the ledger, on disks and under signatures
all of them stay as they are, and each can be read alone; no rule depends on how well they shrink.
"""

import zlib
from typing import NamedTuple

import msgpack

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.unpacking import unpack_limited

_SHORT = b"\xc1"
"""Begins a short record: a byte that begins nothing in MessagePack."""

_PART_BYTES = 16 << 10
_REACH_BYTES = 7 << 10
"""Bytes of a part, and by how many bytes members may have shifted since the PLAN before: together
with these on both sides, they fit into a window."""


class Before(NamedTuple):
    """A PLAN that both ends know: its group and op, and its body; op -1 for none."""

    group: int = 0
    op: int = -1
    body: bytes = b""


NONE = Before()


class Short(NamedTuple):
    """A record in short: its number, group and op of the PLAN that it needs (op -1 for none), and
    its deflated parts."""

    number: int
    group: int
    op: int
    parts: list[bytes]

    def lengthened(self, plan: bytes) -> bytes:
        """Write it out again.

        Args:
            plan: body of the PLAN that it needs, b"" if that is not known.

        Raises:
            RemoteFault: reason ``record``: that is not here, or it does not inflate.
        """
        if (self.op >= 0) != bool(plan):
            raise RemoteFault("record", f"it is short by the PLAN of op {self.op}, unknown here")
        near = (_near(plan, number * _PART_BYTES) for number in range(len(self.parts)))
        return b"".join(map(_inflated, self.parts, near))


def shortened(record: bytes, index: int, before: Before = NONE) -> bytes:
    """Write a record in short, with a PLAN before it, which whoever reads it must have."""
    starts = range(0, len(record), _PART_BYTES)
    parts = [_deflated(record[at : at + _PART_BYTES], _near(before.body, at)) for at in starts]
    return _SHORT + bytes(msgpack.packb([index, before.group, before.op, parts]))


def is_short(data: bytes) -> bool:
    """Return True if it is a record in short."""
    return data[:1] == _SHORT


def short_from_bytes(data: bytes) -> Short:
    """Raises RemoteFault with reason ``length``, ``msgpack`` or ``record``."""
    raw = unpack_limited(data[len(_SHORT) :])
    if not isinstance(raw, list) or len(raw) != len(Short._fields):
        raise RemoteFault("record", "a short record of another shape")
    index, group, op, parts = raw
    if any(type(number) is not int for number in raw[:-1]) or not isinstance(parts, list):
        raise RemoteFault("record", "a short record of another shape")
    if len(parts) > limits.CONTROL_BYTES_MAX // _PART_BYTES:
        raise RemoteFault("record", f"a short record of {len(parts)} parts")
    if not all(isinstance(part, bytes) for part in parts):
        raise RemoteFault("record", "a short record of another shape")
    return Short(index, group, op, parts)


def _near(plan: bytes, at: int) -> bytes:
    """The stretch of a PLAN around a place."""
    return plan[max(0, at - _REACH_BYTES) : at + _PART_BYTES + _REACH_BYTES]


def _deflated(data: bytes, words: bytes) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=words)
    return deflate.compress(data) + deflate.flush()


def _inflated(data: bytes, words: bytes) -> bytes:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=words)
    try:
        found = inflate.decompress(data, _PART_BYTES + 1)
    except zlib.error as exc:
        raise RemoteFault("record", "a short record that does not inflate") from exc
    if len(found) > _PART_BYTES or not inflate.eof or inflate.unused_data:
        raise RemoteFault("record", "a part of a short record that is too long, or cut")
    return found
