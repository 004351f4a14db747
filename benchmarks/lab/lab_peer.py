"""Parts that every peer script shares: a barrier outside the emulated wire, byte and CPU counters,
the timing loop.

A peer script builds its system and calls `measure(run_round)`. bench.py passes in the environment:
RANK, WORLD, NUMEL, MODE, REPS, WARM, IFACE, IP (this peer's address), IP0 (rank 0's), BARRIER (a
unix socket) and RUN_DIR (an empty folder that the peers of one run share).
"""

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

RANK, WORLD, NUMEL = int(os.environ["RANK"]), int(os.environ["WORLD"]), int(os.environ["NUMEL"])
MODE, REPS, WARM = os.environ["MODE"], int(os.environ["REPS"]), int(os.environ["WARM"])
IFACE, IP, IP0 = os.environ["IFACE"], os.environ["IP"], os.environ["IP0"]
RUN_DIR = Path(os.environ["RUN_DIR"])

SETTLE_S = 0.02
"""Late acknowledgements settle in this time."""

FRESH_ROUNDS = True
"""No two of 16 rounds in a row have the same bytes, for a system that keeps results by hash."""

_driver: Any = None


def barrier(message: dict[str, Any]) -> Any:
    """Send one JSON line to bench.py and wait until every peer has sent one."""
    global _driver
    if _driver is None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ["BARRIER"])
        _driver = connection.makefile("rw")
    _driver.write(json.dumps({"rank": RANK, **message}) + "\n")
    _driver.flush()
    return json.loads(_driver.readline())


def wire_bytes() -> tuple[int, int]:
    """Bytes sent and received on the emulated wire, with all headers."""
    folder = Path("/sys/class/net") / IFACE / "statistics"
    sent, heard = (int((folder / name).read_text()) for name in ("tx_bytes", "rx_bytes"))
    return sent, heard


def cpu_seconds() -> float:
    """CPU time of this process and its children."""
    me, total = psutil.Process(), 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # a child that has just ended
        total += times.user + times.system
    return total


def measure(
    run_round: Callable[[np.ndarray], np.ndarray], extra: Callable[[], dict[str, Any]] = dict
) -> None:
    """Time run_round(x): x is this peer's (NUMEL,) float32, the answer the mean over the peers.

    Peer r's vector is (r + 1) times one normal vector, times a power of two that differs from round
    to round, so the true mean is known; the relative L2 error is reported with the time.
    """
    base = np.random.default_rng(7).standard_normal(NUMEL, dtype=np.float32)
    base *= np.float32(0.01)  # like weights' differences, and inside every codec's window
    mean = base * np.float32((WORLD + 1) / 2)
    norm = float(np.linalg.norm(mean))
    rounds = []
    for index in range(WARM + REPS):
        scale = np.float32(2.0 ** -(index % 16))
        x = base * np.float32((RANK + 1) * scale)
        barrier({"at": f"start{index}"})
        sent, cpu, start = wire_bytes()[0], cpu_seconds(), time.perf_counter()
        y = run_round(x)
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
        barrier({"at": f"end{index}"})
        time.sleep(SETTLE_S)
        error = float(np.linalg.norm(y / scale - mean)) / norm
        if index >= WARM:
            tx = wire_bytes()[0] - sent
            rounds.append({"t": seconds, "cpu": cpu, "tx": tx, "err": error, **extra()})
    barrier({"at": "done", "rounds": rounds})
