"""Estimate of what the table costs, before it is made.

A run costs its inner steps, one judgement per point of its curve, and a beginning. ddp exchanges
after every step, which is a part of a step more. Then the sum is multiplied by what finished runs
on this machine took beyond that, so the estimate becomes better as the table goes on.
"""

from collections.abc import Iterable, Sequence

from swarmtrain.compare.plan import SIZES, Plan
from swarmtrain_optimizers.strategies.registry import facts_named

START_S = 0.25
DDP_FACTOR = 1.25
"""Sum, codec and state root of every step."""

PIPELINE_FACTOR = 2.5
"""Forward passes made twice, and micro-batches that are smaller than a batch, hop by hop."""

FORWARD_SHARE = 1 / 3
"""Share of an inner step: judging needs no gradients."""

CROWD = 1.5
"""Two processes at once share caches and memory; until runs of this machine say otherwise."""


def seconds_of(plan: Plan) -> float:
    """Estimate one run in one process on one thread."""
    size = SIZES[plan.size]
    steps_s = plan.peers * plan.steps * size.step_s
    if facts_named(plan.strategy).takes_gradients:
        steps_s *= DDP_FACTOR
    if plan.pipeline is not None:
        steps_s *= PIPELINE_FACTOR
    judgement_s = plan.windows / size.batch * size.step_s * FORWARD_SHARE
    return START_S + steps_s + judgement_s * (plan.points + 1)


def factor(costs: Sequence[tuple[float, float]]) -> float:
    """Return how many times longer this machine takes than `seconds_of` says.

    Args:
        costs: of finished runs, the seconds that they took and those that were estimated.
    """
    if not costs:
        return CROWD
    return sum(taken for taken, _ in costs) / sum(estimated for _, estimated in costs)


def total_s(plans: Iterable[Plan], processes: int, slower: float) -> float:
    """Until all are done, side by side in so many processes."""
    return sum(seconds_of(plan) for plan in plans) * slower / processes
