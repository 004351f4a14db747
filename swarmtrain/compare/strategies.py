"""The strategies that can be compared, made from a plan as a peer makes them from its run file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from swarmtrain.compare.plan import Plan
from swarmtrain.tensors import Layout
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_optimizers.strategies.base import Strategy
from swarmtrain_optimizers.strategies.ddp import DDP, AdamW
from swarmtrain_optimizers.strategies.delayed import Delayed
from swarmtrain_optimizers.strategies.delayed_nesterov import DelayedNesterov
from swarmtrain_optimizers.strategies.diloco import DiLoCo
from swarmtrain_optimizers.strategies.eager import Eager
from swarmtrain_optimizers.strategies.fragments import fragments_of
from swarmtrain_optimizers.strategies.local import Local
from swarmtrain_optimizers.strategies.noloco import NoLoCo
from swarmtrain_optimizers.strategies.sparseloco import SparseLoCo
from swarmtrain_optimizers.strategies.streaming import Streaming


def make_strategy(plan: Plan, layout: Layout) -> Strategy:
    """A fresh one for a peer of this plan.

    Raises:
        ValueError: the plan's settings do not fit together or the model.
    """
    return _MAKERS[plan.strategy](plan, layout)


def _ddp(plan: Plan, layout: Layout) -> Strategy:
    """The inner optimizer of the others, made on the mean gradient by everybody."""
    config = plan.run_config()
    inner = config.inner

    def schedule(step: int) -> float:
        return warmup_cosine(
            step,
            peak=inner.lr,
            warmup_steps=inner.warmup_steps,
            total_steps=config.run.rounds * config.outer.inner_steps,
            end_fraction=inner.lr_end_fraction,
        )

    optimizer = AdamW(beta1=inner.beta1, beta2=inner.beta2, weight_decay=inner.weight_decay)
    return DDP(layout.padded, optimizer=optimizer, schedule=schedule)


def _local(plan: Plan, layout: Layout) -> Strategy:
    return Local(layout.padded, inner_steps=plan.inner_steps)


def _diloco(plan: Plan, layout: Layout) -> Strategy:
    return DiLoCo(
        layout.padded,
        inner_steps=plan.inner_steps,
        lr=plan.outer_lr,
        momentum=plan.outer_momentum,
        error_feedback=plan.error_feedback,
    )


def _streaming(plan: Plan, layout: Layout) -> Strategy:
    fragments = fragments_of(
        [(spec.name, spec.num_values) for spec in layout.parameters],
        plan.fragments,
        block=plan.block,
        num_values=layout.padded,
    )
    return Streaming(
        layout.padded,
        fragments=fragments,
        inner_steps=plan.inner_steps,
        delay_steps=plan.delay_steps,
        alpha=plan.alpha,
        lr=plan.outer_lr,
        momentum=plan.outer_momentum,
        error_feedback=plan.error_feedback,
    )


def _delayed(plan: Plan, layout: Layout) -> Strategy:
    return Delayed(
        layout.padded,
        inner_steps=plan.inner_steps,
        lr=plan.outer_lr,
        momentum=plan.outer_momentum,
        error_feedback=plan.error_feedback,
    )


def _eager(plan: Plan, layout: Layout) -> Strategy:
    return Eager(
        layout.padded,
        inner_steps=plan.inner_steps,
        lr=plan.outer_lr,
        momentum=plan.outer_momentum,
        error_feedback=plan.error_feedback,
    )


def _delayed_nesterov(plan: Plan, layout: Layout) -> Strategy:
    return DelayedNesterov(
        layout.padded,
        inner_steps=plan.inner_steps,
        lr=plan.outer_lr,
        momentum=plan.outer_momentum,
        arrivals=plan.arrivals or len(set(plan.relative_speeds())),
        error_feedback=plan.error_feedback,
    )


def _noloco(plan: Plan, layout: Layout) -> Strategy:
    return NoLoCo(
        layout.padded,
        inner_steps=plan.inner_steps,
        momentum=plan.outer_momentum,
        lr=plan.outer_lr,
        pull=plan.pull,
    )


def _sparseloco(plan: Plan, layout: Layout) -> Strategy:
    return SparseLoCo(layout.padded, inner_steps=plan.inner_steps, lr=plan.outer_lr, beta=plan.beta)


_MAKERS: Mapping[str, Callable[[Plan, Layout], Strategy]] = MappingProxyType(
    {
        "ddp": _ddp,
        "local": _local,
        "diloco": _diloco,
        "streaming": _streaming,
        "delayed": _delayed,
        "eager": _eager,
        "delayed_nesterov": _delayed_nesterov,
        "noloco": _noloco,
        "sparseloco": _sparseloco,
    }
)
"""By the names of `plan.PRESETS`."""
