"""The strategy that a run file names."""

from swarmtrain.config import RunConfig
from swarmtrain_optimizers.strategies.base import Strategy
from swarmtrain_optimizers.strategies.diloco import DiLoCo


def strategy_of(config: RunConfig, num_values: int) -> Strategy:
    """A fresh one, for a vector of this length, padded to whole blocks."""
    outer = config.outer
    return DiLoCo(
        num_values,
        inner_steps=outer.inner_steps,
        lr=outer.lr,
        momentum=outer.momentum,
        error_feedback=outer.error_feedback,
    )
