"""Thrift of worlds with many peers: nothing here changes a bit of what happens.

A world is some million objects of which nearly all live, so to look for garbage among them again
and again took a quarter of its time. And whoever joins reads the ledger from its first record on,
which all the others have read: records stay at hand for more than the newest, as one process holds
the peers of a whole run.
"""

import contextlib
import gc
from collections.abc import Iterator
from functools import lru_cache

from swarmtrain_transport.wire import records

_OBJECTS = 100_000
"""New objects after which the young ones are looked through; 700 is usual."""

_RECORDS = 1 << 14
_READING = ("_hash_of", "_bytes_of", "_outline_from", "_body_from", "record_from_bytes")


@contextlib.contextmanager
def thrifty() -> Iterator[None]:
    """Look for garbage seldom, and read a record once for all, meanwhile."""
    thresholds = gc.get_threshold()
    usual = {name: getattr(records, name) for name in _READING}
    gc.set_threshold(_OBJECTS, *thresholds[1:])
    for name, read in usual.items():
        setattr(records, name, lru_cache(_RECORDS)(read.__wrapped__))
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        for name, read in usual.items():
            setattr(records, name, read)
