"""msgpack of somebody unproven: what it would become is counted before any of it is made.

One byte of msgpack can be a Python object of sixty, and five bytes can claim four billion of them.
A short message cannot do harm; of a longer one every head is read first, which makes nothing. That
takes a quarter of a microsecond for each value, and it ends at the first value too many.
"""

from typing import Any

import msgpack

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import RemoteFault

_FIXED = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1,
    0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""Bytes that follow the head of a value of fixed length."""

_TOLD = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, -1), 0xC8: (2, -1), 0xC9: (4, -1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0), 0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2),
    0xDF: (4, 2),
}  # fmt: skip
"""Bytes after the head that tell a length, and of what: of values in an array (1) or of pairs in a
map (2), else of bytes, to which an extension (-1) adds one."""


def _row(head: int) -> tuple[int, int]:
    """Bytes that follow a head, and values that it holds; (-1, 0) where the length comes first."""
    if head < 0x80 or head >= 0xE0:
        return 0, 0
    if head < 0xA0:
        return 0, (head & 15) * (2 if head < 0x90 else 1)
    return (head & 31, 0) if head < 0xC0 else (_FIXED.get(head, -1), 0)


_ROWS = tuple(map(_row, range(256)))


def num_values_in(data: Buffer, most: int) -> int:
    """Count the values of a msgpack message, the containers among them.

    Args:
        data: the message.
        most: values that it may have.

    Raises:
        RemoteFault: reason ``length``: it has more, or they lie within each other deeper than
            NESTING_MAX; ``msgpack``: it does not end where the bytes do.
    """
    position, found = 0, 0
    owed = 1  # values that are still to come here
    outer: list[int] = []  # and in all that this lies in
    while owed or outer:
        if not owed:
            owed = outer.pop()
            continue
        owed, found = owed - 1, found + 1
        if position >= len(data):
            raise RemoteFault("msgpack", "the message is cut off")
        skipped, held = _ROWS[data[position]]
        if skipped < 0:
            skipped, held = _told(data, position)
        position += 1 + skipped
        if found + owed + held > most or len(outer) > limits.NESTING_MAX:
            raise RemoteFault("length", f"a message of more than {most} values, or of many levels")
        if held:
            outer.append(owed)
            owed = held
    if position != len(data):
        raise RemoteFault("msgpack", "the message does not end where its bytes do")
    return found


def _told(data: Buffer, position: int) -> tuple[int, int]:
    """Bytes that follow a head, and values that it holds, as the length after it says."""
    if data[position] not in _TOLD:
        raise RemoteFault("msgpack", "a byte that begins nothing")
    width, kind = _TOLD[data[position]]
    length = int.from_bytes(data[position + 1 : position + 1 + width], "big")
    return (width, kind * length) if kind > 0 else (width + length - kind, 0)


def check_values(data: Buffer, most: int = limits.VALUES_MAX) -> int:
    """Count the values as `num_values_in` does where the message is long enough to matter; its
    length where it is not, as no message has more values than bytes."""
    return num_values_in(data, most) if len(data) > limits.UNCOUNTED_BYTES else len(data)


def unpack_limited(
    data: Buffer, *, bytes_max: int = limits.CONTROL_BYTES_MAX, ext_bytes_max: int = 0
) -> Any:
    """Untyped msgpack of at most `bytes_max` bytes, and as many values as they hold hashes, with
    extensions of at most `ext_bytes_max` bytes.

    Raises:
        RemoteFault: reason ``length`` or ``msgpack``.
    """
    if len(data) > bytes_max:
        raise RemoteFault("length", f"message of {len(data)} bytes")
    check_values(data, bytes_max // limits.HASH_BYTES)
    return unpack_weighed(data, ext_bytes_max=ext_bytes_max)


def unpack_weighed(data: Buffer, *, ext_bytes_max: int = 0) -> Any:
    """Untyped msgpack of which the caller has bounded bytes and values.

    Raises:
        RemoteFault: reason ``msgpack``.
    """
    size = len(data)
    try:
        return msgpack.unpackb(
            data, raw=False, use_list=True, strict_map_key=False,
            max_str_len=size, max_bin_len=size, max_array_len=size, max_map_len=size,
            max_ext_len=ext_bytes_max,
        )  # fmt: skip
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as exc:
        # TypeError: a map whose key is a list, which no dict can hold.
        raise RemoteFault("msgpack", "the message does not decode") from exc
