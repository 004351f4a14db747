"""Narrow worlds: windows and memories are so small there that a few ops fill them."""

import contextlib
from collections.abc import Iterator

from swarmtrain_transport import limits

CHUNK_VALUES = 64
"""Values of int8 in a chunk: three such chunks fit into the window."""

_BOUNDS = {
    "CREDIT_WINDOW_BYTES": 4 * CHUNK_VALUES,
    "RECORDS_WINDOW_BYTES": 3000,
    "RECORDS_BATCH_BYTES": 2000,
    "LEDGER_MEMORY_BYTES": 1000,
    "SNAPSHOT_EVERY_BYTES": 6000,
}


@contextlib.contextmanager
def narrowed(*, is_narrow: bool) -> Iterator[None]:
    """Let the transport have a narrow world's bounds until the end of the block."""
    known = {name: getattr(limits, name) for name in _BOUNDS} if is_narrow else {}
    for name in known:
        setattr(limits, name, _BOUNDS[name])
    try:
        yield
    finally:
        for name, value in known.items():
            setattr(limits, name, value)
