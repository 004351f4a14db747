"""Bounds of worlds that have their own.

In narrow worlds windows and memories are so small that a few ops fill them. Where peers are behind
routers they stay after the end, until all have met.
"""

import contextlib
from collections.abc import Iterator

from swarmtrain_transport import limits

CHUNK_VALUES = 64
"""Values of int8 in a chunk: three such chunks fit into the window."""

_BOUNDS = {
    "CREDIT_WINDOW_BYTES": 4 * CHUNK_VALUES,
    "UNINVITED_BYTES": 4 * CHUNK_VALUES,
    "EARLY_BYTES": 8 * CHUNK_VALUES,
    "EARLY_FRAME_BYTES": 1,
    "RECORDS_WINDOW_BYTES": 3000,
    "RECORDS_BATCH_BYTES": 2000,
    "LEDGER_MEMORY_BYTES": 1000,
    "SNAPSHOT_EVERY_BYTES": 12_000,
}


_STAYING = {"FINISH_S": 800.0}


@contextlib.contextmanager
def narrowed(*, is_narrow: bool, stays: bool = False) -> Iterator[None]:
    """Let the transport have a world's bounds until the end of the block.

    Args:
        is_narrow: bounds are those of a narrow world.
        stays: peers stay for long after the end of the run.
    """
    bounds = (_BOUNDS if is_narrow else {}) | (_STAYING if stays else {})
    known = {name: getattr(limits, name) for name in bounds}
    for name, value in bounds.items():
        setattr(limits, name, value)
    try:
        yield
    finally:
        for name, value in known.items():
            setattr(limits, name, value)
