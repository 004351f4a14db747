"""Bandwidth-weighted slices: who reduces how much (reference: direct exchange, H.5).

In a direct exchange of V bytes among N peers, a peer that owns the share w sends and receives
V (1 + (N - 2) w) bytes each way. Time is shortest when everybody ends together, so
w_i = max(0, (t c_i / V - 1) / (N - 2)) with c_i = min(up, down) and t such that the shares add
up to one. Shares become integer bounds on block multiples.
"""

from collections.abc import Sequence
from itertools import pairwise


def shares(rates: Sequence[float]) -> list[float]:
    """Share of the vector per peer, from min(up, down) rates in any one unit.

    Rates that are all zero (not measured yet) give equal shares; with two peers the formula has
    no solution (a share does not change the load), so shares follow the rates. Peers name their
    own rates: one below zero counts as zero.
    """
    rates = [max(0.0, rate) for rate in rates]
    count = len(rates)
    top = max(rates, default=0.0)
    if count == 0 or top <= 0:
        return [1 / count] * count if count else []
    if count <= 2:
        return [rate / sum(rates) for rate in rates]
    # In units of the fastest: the smallest rates of all would overflow otherwise.
    rates = [rate / top for rate in rates]
    low, high = 0.0, float(count * count)
    for _ in range(200):
        time = (low + high) / 2
        total = sum(max(0.0, (time * rate - 1) / (count - 2)) for rate in rates)
        low, high = (time, high) if total < 1 else (low, time)
    raw = [max(0.0, (high * rate - 1) / (count - 2)) for rate in rates]
    return [share / sum(raw) for share in raw]


def slowest_s(rates: Sequence[float], shares: Sequence[float]) -> float:
    """Seconds per unit of the vector's bytes until the last peer has sent and received its load;
    0 if no rate is known."""
    count = len(rates)
    loads = (
        (1 + max(0, count - 2) * share, rate) for rate, share in zip(rates, shares, strict=True)
    )
    return max((load / rate for load, rate in loads if rate > 0), default=0.0)


def cut(num_values: int, block: int, weights: Sequence[float]) -> list[tuple[int, int]]:
    """Contiguous [start, stop) ranges on block multiples, in order, covering all values.

    `num_values` is a multiple of `block`. A share too small for one block gives an empty range.
    """
    num_blocks = num_values // block
    bounds = [0]
    passed = 0.0
    for weight in weights:
        passed += weight
        bounds.append(round(passed * num_blocks))
    bounds[-1] = num_blocks
    return [(low * block, high * block) for low, high in pairwise(bounds)]
