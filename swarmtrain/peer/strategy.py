"""The strategy that a run file names."""

from collections.abc import Callable

from swarmtrain.config import RunConfig
from swarmtrain.errors import UserError
from swarmtrain.tensors import Layout
from swarmtrain_optimizers.strategies.base import Strategy
from swarmtrain_optimizers.strategies.delayed import Delayed
from swarmtrain_optimizers.strategies.diloco import DiLoCo
from swarmtrain_optimizers.strategies.eager import Eager
from swarmtrain_optimizers.strategies.fragments import Ranges, fragments_of
from swarmtrain_optimizers.strategies.streaming import Streaming

_WHOLE: dict[str, Callable[..., Strategy]] = {"diloco": DiLoCo, "delayed": Delayed, "eager": Eager}
"""Those that move the whole vector in every op."""


def strategy_of(config: RunConfig, layout: Layout) -> Strategy:
    """A fresh one, for a model of this layout.

    Raises:
        UserError: SWT-E605, the model has not so many layers or blocks as the run file wants
            fragments.
    """
    outer = config.outer
    if outer.strategy != "streaming":
        return _WHOLE[outer.strategy](
            layout.padded,
            inner_steps=outer.inner_steps,
            lr=outer.lr,
            momentum=outer.momentum,
            error_feedback=outer.error_feedback,
        )
    return Streaming(
        layout.padded,
        fragments=_fragments(config, layout),
        inner_steps=outer.inner_steps,
        delay_steps=outer.delay_steps,
        alpha=outer.mixing,
        lr=outer.lr,
        momentum=outer.momentum,
        error_feedback=outer.error_feedback,
    )


def _fragments(config: RunConfig, layout: Layout) -> tuple[Ranges, ...]:
    parameters = [(spec.name, spec.num_values) for spec in layout.parameters]
    wanted, block = config.outer.fragments, config.exchange.block
    try:
        return fragments_of(parameters, wanted, block=block, num_values=layout.padded)
    except ValueError as error:
        raise UserError(
            "SWT-E605",
            f"outer.fragments is {wanted}, and this model cannot be cut so: {error}.",
            "Fragments are made of whole layers, and cut between blocks.",
            "Have the organiser set fewer outer.fragments or a smaller exchange.block.",
        ) from error
