"""Learning rates of the inner optimizer as pure functions of the step number.

The step is the run's cumulative inner step, the same for a founder and a joiner, so warm-up never
starts again in the middle of a run (DiLoCo, arXiv 2311.08105, table of hyper-parameters: one
cosine over the total number of inner steps). With ddp everybody makes the same step at this rate,
so it has the same bits everywhere: + - * / of float64 alone (protocol.md rule 4).
"""

import math

_COSINE_TERMS = 11
"""Terms of the series below; the next one is less than 2^-60 up to a quarter of a turn."""


def warmup_cosine(
    step: int, *, peak: float, warmup_steps: int, total_steps: int, end_fraction: float
) -> float:
    """The learning rate of inner step `step`.

    Args:
        step: cumulative inner steps made before this one, from 0.
        peak: the highest learning rate.
        warmup_steps: steps of a linear rise; the last of them runs at `peak`.
        total_steps: steps of the whole run; from there on the end value stays.
        end_fraction: end value as a fraction of `peak`, 0..1.

    >>> warmup_cosine(0, peak=1.0, warmup_steps=4, total_steps=100, end_fraction=0.1)
    0.25
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    falling_steps = max(1, total_steps - warmup_steps)
    progress = min(1.0, (step - warmup_steps) / falling_steps)
    fraction = end_fraction + (1 - end_fraction) * 0.5 * (1 + half_turn_cosine(progress))
    return peak * fraction


def half_turn_cosine(progress: float) -> float:
    """cos(pi progress) within 2^-51, for 0..1: that of libm has another last bit on another system.

    With y the squared angle: 1 - y/(1 2) (1 - y/(3 4) (1 - y/(5 6) (...))), from the inside out.

    >>> [round(half_turn_cosine(share), 15) for share in (0.0, 1 / 3, 0.5, 1.0)]
    [1.0, 0.5, 0.0, -1.0]
    """
    if progress > 0.5:
        return -half_turn_cosine(1.0 - progress)
    square = (math.pi * progress) * (math.pi * progress)
    cosine = 1.0
    for term in range(_COSINE_TERMS, 0, -1):
        cosine = 1.0 - square / ((2 * term - 1) * (2 * term)) * cosine
    return cosine


def fresh_optimizer_ramp(steps_since_fresh: int, *, ramp_steps: int) -> float:
    """Factor on the learning rate while an optimizer's moments are new, as a joiner's are.

    Adam's first steps have full size whatever the gradient; in the middle of a run that is a
    jump away from the shared anchor. After `ramp_steps` the factor is 1.

    >>> [fresh_optimizer_ramp(step, ramp_steps=2) for step in range(3)]
    [0.5, 1.0, 1.0]
    """
    return min(1.0, (steps_since_fresh + 1) / max(1, ramp_steps))
