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

_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Bytes that say how long bytes or a text are, by their head."""

_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_COUNTS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Bytes that say how many values an array, or pairs a map, has."""

_MAPS = (0xDE, 0xDF)
_NUMBERS = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1,
    0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""Bytes that follow the head of a value of fixed length."""


def _rows() -> tuple[tuple[int, int], ...]:
    """Bytes that follow each head, and values that it holds if it is a small array or map; (-1, 0)
    where the length is told after it."""
    rows = [(-1, 0)] * 256
    for head in range(256):
        if head < 0x80 or head >= 0xE0:
            rows[head] = (0, 0)
        elif head < 0x90:
            rows[head] = (0, 2 * (head & 15))
        elif head < 0xA0:
            rows[head] = (0, head & 15)
        elif head < 0xC0:
            rows[head] = (head & 31, 0)
        elif head in _NUMBERS:
            rows[head] = (_NUMBERS[head], 0)
    return tuple(rows)


_ROWS = _rows()


def num_values_in(data: Buffer, most: int) -> int:
    """Count the values of a msgpack message, the containers among them.

    Args:
        data: the message.
        most: values that it may have.

    Raises:
        RemoteFault: reason ``length``: it has more, or they lie within each other deeper than
            NESTING_MAX; ``msgpack``: it does not end where the bytes do.
    """
    position, size, found = 0, len(data), 0
    owed = 1  # values that are still to come here
    outer: list[int] = []  # and in all that this lies in
    try:
        while True:
            while not owed:
                if not outer:
                    if position != size:
                        raise RemoteFault("msgpack", "the message does not end where its bytes do")
                    return found
                owed = outer.pop()
            owed -= 1
            found += 1
            if found > most:
                raise RemoteFault("length", f"a message of more than {most} values")
            head = data[position]
            skipped, held = _ROWS[head]
            position += 1
            if skipped < 0:
                skipped, held, position = _told(data, head, position)
            position += skipped
            if held:
                if len(outer) >= limits.NESTING_MAX:
                    raise RemoteFault("length", "a message of too many levels")
                if found + owed + held > most:
                    raise RemoteFault("length", f"a message of more than {most} values")
                outer.append(owed)
                owed = held
    except IndexError as exc:
        raise RemoteFault("msgpack", "the message is cut off") from exc


def _told(data: Buffer, head: int, position: int) -> tuple[int, int, int]:
    """Bytes and values of what has its length after its head, and where they begin."""
    if head in _COUNTS:
        width = _COUNTS[head]
        count = int.from_bytes(data[position : position + width], "big")
        return 0, 2 * count if head in _MAPS else count, position + width
    if head in _LENGTHS:
        width = _LENGTHS[head]
        return int.from_bytes(data[position : position + width], "big"), 0, position + width
    if head in _EXTENSIONS:
        width = _EXTENSIONS[head]
        return 1 + int.from_bytes(data[position : position + width], "big"), 0, position + width
    raise RemoteFault("msgpack", "a byte that begins nothing")


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
