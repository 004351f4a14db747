"""Random numbers for rounding, computed from a seed and a value's position alone.

A value is rounded up with a probability equal to its distance from the level below, so what is sent
is right on average. The numbers come from no generator with a state: number i of a seed is a pure
function of both, in integers. So the same vector gives the same bytes however it is cut into
chunks, on every machine, and again when a part is encoded a second time for error feedback.

Number i is half i % 2 of output i // 2 of SplitMix64 (Steele, Lea and Flood, Fast splittable
pseudorandom number generators, OOPSLA 2014), whose state after n outputs is start + n * step; the
start is itself an output of the seed, so that seeds near each other have nothing in common.
"""

import numpy as np

from swarmtrain_optimizers.codecs.scales import Floats, Words

_STEP = 0x9E37_79B9_7F4A_7C15
_ALL = 0xFFFF_FFFF_FFFF_FFFF


def outputs(start: int, first: int, count: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    """Outputs [first, first + count) of SplitMix64 from this state, (count,) uint64."""
    state = np.arange(1, count + 1, dtype=np.uint64)
    state *= np.uint64(_STEP)
    state += np.uint64((start + first * _STEP) & _ALL)
    for shift, factor in ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state


def random_words(seed: int, first_index: int, count: int) -> Words:
    """Numbers [first_index, first_index + count) of a seed, (count,) uint32, uniform.

    Args:
        seed: 0 to 2^64 - 1; another one for every op and every peer.
        first_index: place of the first value in the whole vector.
        count: number of words.

    Raises:
        ValueError: the seed is out of range, or the index negative.
    """
    if not 0 <= seed <= _ALL or first_index < 0:
        raise ValueError(f"seed {seed} or first index {first_index} is out of range")
    start = int(outputs(seed, 0, 1)[0])
    skipped = first_index % 2
    pairs = outputs(start, first_index // 2, (skipped + count + 1) // 2)
    words = np.empty((pairs.size, 2), dtype=np.uint32)
    words[:, 0] = pairs & np.uint64(0xFFFF_FFFF)
    words[:, 1] = pairs >> np.uint64(32)
    return words.reshape(-1)[skipped : skipped + count]


def fractions(words: Words) -> Floats:
    """Uniform in [0, 1), multiples of 2^-24: what a float32 holds exactly."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def round_dithered(values: Floats, words: Words) -> None:
    """Replace each value by one of the two integers around it, right on average.

    Args:
        values: any shape, float32 below 2^23 in magnitude, changed in place.
        words: numbers of `random_words`, one per value.
    """
    below = np.floor(values)
    # The difference is exact, so the chances are those of the value itself to 24 bits.
    above = fractions(words).reshape(values.shape) < values - below
    np.add(below, above, out=values)
