"""Hashes of what every strategy makes of the same few ops, for kernels.py.

A strategy's shared state makes the state root, so its bits must be the same on every CPU and with
any number of threads; local parts are hashed too, as nothing in them is allowed to differ either.
"""

from collections.abc import Callable, Sequence

import every_strategy
import torch
from window import part_of

from swarmtrain_optimizers.codecs.base import ScaleWindow
from swarmtrain_optimizers.codecs.int8 import Int8
from swarmtrain_optimizers.strategies.base import Probing

NUM_OPS = 3


def hash_strategies(
    num_values: int,
    window: ScaleWindow,
    values: Callable[..., torch.Tensor],
    sha256: Callable[..., str],
) -> dict[str, str]:
    """One hash for each array of each strategy, under "strategy NAME: ARRAY"."""
    moves = [values(f"inner {op}", -36) for op in range(1, NUM_OPS + 1)]
    return {
        f"strategy {name}: {array}": sha256(tensor)
        for name in sorted(every_strategy.MAKERS)
        for array, tensor in _lived(name, num_values, window, values("weights"), moves).items()
    }


def _lived(
    name: str,
    num_values: int,
    window: ScaleWindow,
    weights: torch.Tensor,
    moves: Sequence[torch.Tensor],
) -> dict[str, torch.Tensor]:
    """All arrays of a peer and its weights, by name, after `NUM_OPS` ops, the second in part
    without it."""
    codec = Int8()
    strategy = every_strategy.make(name, num_values, window.block)
    strategy.set_initial(weights)
    for op, move in enumerate(moves, start=1):
        for number in range(1, strategy.inner_steps if isinstance(strategy, Probing) else 0):
            strategy.heard(number / 64, -op / 8)
        part = strategy.pseudo_gradient(weights + move, op)
        moved = strategy.weights_under_way()
        weights = weights if moved is None else moved
        size = part.numel()
        own = codec.decode(codec.encode(part, window), size, window)
        included = [(0, window.block * 50, op != 2), (window.block * 50, size, True)]
        weights = strategy.apply(own, included, weights, part_of(own), op=op, own_share=0.25)
    arrays = (*strategy.state_arrays(), *strategy.local_arrays())
    return {**dict(arrays), "weights": weights}
