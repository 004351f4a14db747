"""Fragments: parts of the vector by layers, cut at whole blocks.

The vector keeps the model's order and a fragment is a few ranges of it, so nothing is permuted and
no codec is asked anything new. Where two fragments meet inside a block, the boundary moves to the
nearest whole block: fewer than half a block of one layer then travels with its neighbour, which
costs nothing, as every value is still in exactly one fragment.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

Ranges = tuple[tuple[int, int], ...]
"""(start, stop) parts of the padded vector on whole blocks, in order, apart."""

_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
"""The first number between dots is the layer, as in ``blocks.3.attention.weight``."""


def fragments_of(
    parameters: Sequence[tuple[str, int]],
    num_fragments: int,
    *,
    block: int,
    num_values: int,
) -> tuple[Ranges, ...]:
    """Split the padded vector into fragments of layers (arXiv 2501.18512).

    Parameters of no layer (embeddings, last norm, head) are the first fragment, where there is any
    and more than one fragment is wanted; the layers go to the others in turn.

    Args:
        parameters: (name, values) in the vector's order.
        num_fragments: P, how many fragments.
        block: values that share one scale.
        num_values: length of the padded vector.

    Returns:
        The ranges of each fragment; together they cover [0, num_values) once.

    Raises:
        ValueError: the sizes do not fit, or there are more fragments than layers or blocks.

    >>> fragments_of([("embed", 8), ("h.0.w", 8), ("h.1.w", 8)], 2, block=8, num_values=24)
    (((0, 8),), ((8, 24),))
    """
    total = sum(size for _, size in parameters)
    if num_values % block or not num_values - block < total <= num_values:
        raise ValueError(f"{total} values padded to blocks of {block} are not {num_values}")
    owners = _owners([name for name, _ in parameters], num_fragments)
    found: list[list[tuple[int, int]]] = [[] for _ in range(num_fragments)]
    for owner, start, stop in _runs(owners, [size for _, size in parameters], block, num_values):
        ranges = found[owner]
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], stop)
        else:
            ranges.append((start, stop))
    if empty := [index for index, ranges in enumerate(found) if not ranges]:
        raise ValueError(
            f"of {num_fragments} fragments {empty} hold no whole block of {block} values: "
            "take fewer fragments or a smaller block"
        )
    return tuple(tuple(ranges) for ranges in found)


def check_fragments(fragments: Sequence[Ranges], num_values: int) -> None:
    """Refuse fragments that do not cover [0, num_values) once, each in order.

    Raises:
        ValueError: they do not.
    """
    if any(list(ranges) != sorted(ranges) or not ranges for ranges in fragments):
        raise ValueError("a fragment is empty, or its ranges are not in order")
    parts = sorted(part for ranges in fragments for part in ranges)
    gaps = any(left[1] != right[0] for left, right in pairwise(parts))
    empty = any(start >= stop for start, stop in parts)
    if not parts or gaps or empty or parts[0][0] != 0 or parts[-1][1] != num_values:
        raise ValueError(f"fragments {parts} do not cover [0, {num_values}) once")


def _owners(names: Sequence[str], num_fragments: int) -> list[int]:
    """The fragment of each parameter."""
    found = [_LAYER.search(name) for name in names]
    layers = sorted({int(match[1]) for match in found if match})
    rest = 1 if num_fragments > 1 and None in found else 0
    shares = num_fragments - rest
    if num_fragments < 1 or len(layers) < shares > 1:
        raise ValueError(f"{len(layers)} layers cannot be {shares} fragments")
    ranks = {layer: rank for rank, layer in enumerate(layers)}
    return [0 if match is None else rest + ranks[int(match[1])] % shares for match in found]


def _runs(
    owners: Sequence[int], sizes: Sequence[int], block: int, num_values: int
) -> list[tuple[int, int, int]]:
    """(owner, start, stop) with boundaries on whole blocks; what became empty is left out."""
    runs = []
    start = position = 0
    for index, (owner, size) in enumerate(zip(owners, sizes, strict=True)):
        position += size
        if index + 1 == len(owners):
            stop = num_values
        elif owners[index + 1] == owner:
            continue
        else:
            stop = min((position + block // 2) // block * block, num_values)
        if stop > start:
            runs.append((owner, start, stop))
        start = max(start, stop)
    return runs
