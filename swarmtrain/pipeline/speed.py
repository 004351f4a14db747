"""Speed of this machine, as it is told when it joins: before the run's model is known.

A measure of a moment is enough. It is compared with what others tell, and a run finds out as it
goes how fast its peers are.
"""

import time
from collections.abc import Callable

import torch

_TRIES = 8
_ROWS, _INNER, _COLUMNS = 512, 256, 1024
"""Size of a product as layers of small models make them."""


def flops_per_s(
    threads: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Operations per second of matrix products in float32, to two digits.

    Args:
        threads: number of threads that the peer will train with.
        device: device that it will train on.
        clock: clock in seconds.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    left = torch.ones(_ROWS, _INNER, device=device)
    right = torch.ones(_INNER, _COLUMNS, device=device)
    took_s = []
    for _ in range(_TRIES):
        began_s = clock()
        (left @ right)[0, 0].item()  # a card may not have begun before its answer is wanted
        took_s.append(clock() - began_s)
    torch.set_num_threads(before)
    flops = 2 * _ROWS * _INNER * _COLUMNS / max(min(took_s), 1e-9)
    return int(float(f"{flops:.1e}"))
