"""A hostile peer's values instead of its difference, as bytes that its codec can make.

It follows the protocol otherwise: it trains, it owns slices and sums them honestly, for wrong sums
are found by audits. Values beyond the codec's window are cut to it, since anything larger would be
refused at the door; NaN is refused there too, and nothing else comes of that attack.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from swarmtrain.compare.plan import Attack
from swarmtrain.peer.arithmetic import TensorContribution
from swarmtrain_optimizers.strategies.base import Values

SIGN_FLIP_FACTOR = -10.0
NOISE_FACTOR = 100.0

WINDOW_TOP = 1.9
"""Legal in every codec: the scale of a block is at most its largest value, and scales are below 2
at E_MAX = 0. Honest differences are a hundredth of it."""


def contribution_of(attack: Attack, seed: int) -> Callable[[Values], TensorContribution]:
    """The driver of a hostile peer: it replaces the peer's values.

    Args:
        attack: kind of attack.
        seed: seed of the noise; another one for each hostile peer.
    """
    generator = np.random.default_rng(seed)

    def make(values: Values) -> TensorContribution:
        return TensorContribution(
            _attacked(values[:], attack, generator).clamp(-WINDOW_TOP, WINDOW_TOP)
        )

    return make


def _attacked(values: Tensor, attack: Attack, generator: np.random.Generator) -> Tensor:
    if attack is Attack.SIGN_FLIP:
        return values * SIGN_FLIP_FACTOR
    if attack is Attack.NAN:
        return torch.full_like(values, float("nan"))
    noise = torch.from_numpy(generator.standard_normal(values.numel(), dtype=np.float32))
    size = values.square().mean().sqrt()
    return noise * (NOISE_FACTOR * size)
