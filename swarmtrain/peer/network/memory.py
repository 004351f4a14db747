"""Freed memory of chunks is kept for the next chunks.

Every chunk is a quarter of a megabyte. The C library's allocator takes blocks of that size from the
system one by one and gives them back, so each chunk costs sixty-four page faults and as many
cleared pages, a sixth of the CPU time of an exchange. Not here: bounding memory, which the exchange
does itself.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 256 * 1024 * 1024
_LARGE_BYTES = 32 * 1024 * 1024
"""The largest value that glibc takes; larger blocks, such as models, still come and go."""


def give_back() -> None:
    """Give what is free between blocks in use back to the system, after much has come and gone.

    Elsewhere than with glibc nothing is done.
    """
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def keep_freed_chunks() -> None:
    """Ask glibc to reuse blocks of up to 32 MiB, and to keep up to 256 MiB that are free.

    Elsewhere nothing is asked: other allocators do so by themselves.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
