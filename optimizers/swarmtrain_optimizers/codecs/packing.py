"""Small codes side by side in bytes, lowest bits first: code i of a byte is at bit i * bits.

Codes of 1, 2 or 4 bits, so a byte holds a whole number of them and no code crosses a byte. The
layout is defined on bytes alone, so a machine's own byte order plays no part. Not here: what a
code stands for; tables made by `level_table` say that, one row per byte.
"""

import numpy as np

from swarmtrain_optimizers.codecs.scales import Codes, Floats

_BYTE_VALUES = 256


def pack(codes: Codes, bits: int, out: Codes) -> None:
    """Fill bytes with codes.

    Args:
        codes: (num_codes,) uint8 below 2^bits; a multiple of 8 / bits, contiguous.
        bits: 1, 2 or 4.
        out: (num_codes * bits / 8,) uint8.
    """
    per_byte = 8 // bits
    # Read little-endian on every machine, code i of a byte lies at bit 8 i of its word; shifted
    # down by (8 - bits) i it lies at bit i * bits, and the truncation to a byte drops the rest.
    words = codes.view(f"<u{per_byte}")
    packed = words.copy()
    for index in range(1, per_byte):
        packed |= words >> words.dtype.type((8 - bits) * index)
    np.copyto(out, packed, casting="unsafe")


def unpacked(packed: Codes, bits: int) -> Codes:
    """The codes of these bytes, (8 / bits * num_bytes,) uint8."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes: Codes = (packed.reshape(-1, 1) >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(-1)


def level_table(levels: tuple[int, ...], bits: int) -> Floats:
    """Return the values that each byte stands for: (256, 8 / bits) float32.

    Args:
        levels: the value of each of the 2^bits codes.
        bits: 1, 2 or 4.
    """
    every_byte = np.arange(_BYTE_VALUES, dtype=np.uint8)
    values = np.array(levels, dtype=np.float32)[unpacked(every_byte, bits)]
    return values.reshape(_BYTE_VALUES, -1)


def looked_up(packed: Codes, table: Floats, out: Floats) -> None:
    """Write the values of these bytes.

    Args:
        packed: (num_bytes,) uint8.
        table: the codec's `level_table`.
        out: (num_bytes * per_byte,) contiguous float32.
    """
    # A byte is never out of the table's range; "clip" only saves a copy that "raise" would make.
    np.take(table, packed, axis=0, out=out.reshape(-1, table.shape[1]), mode="clip")
