"""Bytes per second of the hashes that the exchange could name its chunks by.

python benchmarks/hashing.py
"""

import hashlib
import statistics
import time
from collections.abc import Callable

from swarmtrain_transport.hashing import content_hash

CHUNK_BYTES = 256 * 1024
CHUNKS = 64
REPEATS = 7


def bytes_per_s(digest: Callable[[bytes], object]) -> float:
    chunk = bytes(CHUNK_BYTES)
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(CHUNKS):
            digest(chunk)
        times.append(time.perf_counter() - began)
    return CHUNKS * CHUNK_BYTES / statistics.median(times)


def main() -> None:
    candidates: dict[str, Callable[[bytes], object]] = {
        "BLAKE3 (content_hash)": content_hash,
        "SHA-256": lambda data: hashlib.sha256(data).digest(),
        "BLAKE2b-256": lambda data: hashlib.blake2b(data, digest_size=32).digest(),
    }
    for name, digest in candidates.items():
        print(f"{name:24} {bytes_per_s(digest) / 1e9:6.2f} GB/s, one core")


if __name__ == "__main__":
    main()
