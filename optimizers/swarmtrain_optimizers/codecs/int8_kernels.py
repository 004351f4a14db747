"""The int8 codec's loops in a form that numba compiles: one pass over memory, the same bits.

numpy makes a pass per operation, and between passes values go through memory, which is what costs.
Compiled, a block stays in registers and the first cache from the first operation to the last.
Numba's strict mode neither reorders nor contracts floating-point operations, so each value sees
exactly the operations of `int8` and protocol.md rule 4 (`tests/optimizers/test_int8_kernels.py`
compares every bit). These functions are plain Python as well, only slow.

Scales come and go as float32 or as their sixteen bits in a uint32; values as int8.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from swarmtrain_optimizers.codecs.int8_loops import Loops
from swarmtrain_optimizers.codecs.scales import Bytes, Doubles, Floats, Words

_MAGNITUDE = 0x7FFFFFFF
_INFINITE = 0x7F800000
_ROUND_UP = 0xFFFF


def encode(values: Floats, block: int, lowest: int, highest: int, bits: Words, out: Bytes) -> bool:
    """s = bfloat16 above absmax / 127, q = round(x / s); False if a value is not finite or a
    block lies above the window.

    Args:
        values: (num_values,) float32.
        block: values per scale.
        lowest: bits of the smallest legal scale; below it a block is zero.
        highest: bits of the largest legal scale.
        bits: (num_values / block,) uint32 for the scales' bits.
        out: (num_values,) int8 for the values.
    """
    words = values.view(np.int32)
    one = np.empty(1, np.uint32)
    scale = one.view(np.float32)
    for row in range(bits.size):
        start = row * block
        mine = words[start : start + block]
        largest = np.int32(0)
        for i in range(mine.size):
            largest = max(largest, mine[i] & np.int32(_MAGNITUDE))
        if largest >= np.int32(_INFINITE):
            return False
        one[0] = np.uint32(largest)
        scale[0] = scale[0] / np.float32(127)
        raised = (one[0] + np.uint32(_ROUND_UP)) >> np.uint32(16)
        if raised > np.uint32(highest):
            return False
        blocks, places = values[start : start + block], out[start : start + block]
        if raised < np.uint32(lowest):
            bits[row] = np.uint32(0)
            for i in range(places.size):
                places[i] = np.int8(0)
            continue
        bits[row] = raised
        one[0] = raised << np.uint32(16)
        divisor = scale[0]
        for i in range(places.size):
            places[i] = np.int8(np.int32(np.rint(blocks[i] / divisor)))
    return True


def add(scales: Floats, values: Bytes, factor: np.float32, sums: Doubles) -> None:
    """sums += factor * scale * value; the product is exact in float32, the sum in float64.

    Args:
        scales: (num_blocks,) float32.
        values: (num_values,) int8.
        factor: the weight with its sign.
        sums: (num_values,) float64, changed in place.
    """
    block = values.size // scales.size
    for row in range(scales.size):
        start = row * block
        mine, places = values[start : start + block], sums[start : start + block]
        scale = np.float64(scales[row] * factor)
        for i in range(places.size):
            places[i] += np.float64(mine[i]) * scale


def finish(
    sums: Doubles, weight: float, means: Floats, lowest: int, highest: int, bits: Words, out: Bytes
) -> None:
    """Encode float32(sums / weight), scales held inside the window (protocol.md rule 6).

    Args:
        sums: (num_values,) float64.
        weight: divisor of the sums.
        means: (block,) float32, scratch.
        lowest: bits of the smallest legal scale.
        highest: bits of the largest legal scale.
        bits: (num_values / block,) uint32 for the scales' bits.
        out: (num_values,) int8 for the values.
    """
    block = means.size
    one = np.empty(1, np.uint32)
    scale = one.view(np.float32)
    words = means.view(np.int32)
    for row in range(bits.size):
        start = row * block
        mine, places = sums[start : start + block], out[start : start + block]
        for i in range(means.size):
            means[i] = np.float32(mine[i] / weight)
        largest = np.int32(0)
        for i in range(words.size):
            largest = max(largest, words[i] & np.int32(_MAGNITUDE))
        one[0] = np.uint32(largest)
        scale[0] = scale[0] / np.float32(127)
        raised = min((one[0] + np.uint32(_ROUND_UP)) >> np.uint32(16), np.uint32(highest))
        if raised < np.uint32(lowest):
            bits[row] = np.uint32(0)
            for i in range(places.size):
                places[i] = np.int8(0)
            continue
        bits[row] = raised
        one[0] = raised << np.uint32(16)
        divisor = scale[0]
        for i in range(places.size):
            rounded = np.rint(means[i] / divisor)
            rounded = min(max(rounded, np.float32(-127)), np.float32(127))
            places[i] = np.int8(np.int32(rounded))


def decode(scales: Floats, values: Bytes, out: Floats) -> None:
    """out = scale * value, exact in float32.

    Args:
        scales: (num_blocks,) float32.
        values: (num_values,) int8.
        out: (num_values,) float32.
    """
    block = values.size // scales.size
    for row in range(scales.size):
        start = row * block
        mine, places = values[start : start + block], out[start : start + block]
        scale = scales[row]
        for i in range(places.size):
            places[i] = np.float32(mine[i]) * scale


def compiled() -> Loops:
    """The functions compiled for this CPU; seconds the first time, then read from a cache.

    Raises:
        ImportError: numba is not installed, or does not know this Python or numpy.
    """
    import numba  # here: it takes half a second and a hundred megabytes
    from numba import types

    def listed(dtype: Any, *, readonly: bool = False) -> Any:
        return types.Array(dtype, 1, "C", readonly=readonly)

    def built(function: Callable[..., Any], result: Any, *arguments: Any) -> Any:
        # No fastmath: its freedom to reorder and contract would change bits.
        compiler = numba.njit(result(*arguments), nogil=True, cache=True, error_model="numpy")
        return compiler(function)

    word, whole = types.uint32, types.int64
    scales, values = listed(types.float32, readonly=True), listed(types.int8, readonly=True)
    bits, out, sums = listed(word), listed(types.int8), listed(types.float64)
    reals = listed(types.float32)
    return Loops(
        built(encode, types.boolean, listed(types.float32, readonly=True), whole, whole, whole,
              bits, out),
        built(add, types.void, scales, values, types.float32, sums),
        built(finish, types.void, sums, types.float64, reals, whole, whole, bits, out),
        built(decode, types.void, scales, values, reals),
    )  # fmt: skip
