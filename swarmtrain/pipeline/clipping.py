"""Clipping by a norm that no peer knows alone: pure arithmetic, without tensors.

A gradient is clipped by the norm of all of it, and each stage has a part. Where steps are flushed
the coordinator adds the stages' squared norms before anybody steps (`rounds.whole_norm`). Where
they are free a stage is clipped by its own norm, to its share of the limit: at first as if all
values had gradients of one size, then by what the members tell of the last rounds.
"""

from swarmtrain_transport import limits

_EPS = 1e-6
"""Keeps a gradient of zero at zero, as `torch.nn.utils.clip_grad_norm_` has it."""


def clip_factor(norm: float, limit: float) -> float:
    """Factor at most 1 that brings a gradient of this norm to the limit; a limit of 0 is none.

    >>> [clip_factor(0.5, 1.0), round(clip_factor(4.0, 1.0), 3), clip_factor(4.0, 0.0)]
    [1.0, 0.25, 1.0]
    """
    return min(1.0, limit / (norm + _EPS)) if limit > 0 else 1.0


def norm_share(first: float, told: float | None) -> float:
    """A stage's share of the whole gradient's norm.

    Args:
        first: first share, by its number of values.
        told: shares by members' words; believed within a bound around the first.

    >>> [norm_share(0.5, None), norm_share(0.5, 0.25), norm_share(0.5, 1.0), norm_share(0.5, 0.0)]
    [0.5, 0.25, 1.0, 0.0625]
    """
    if told is None:
        return first
    return min(max(told, first / limits.NORM_SPREAD), first * limits.NORM_SPREAD)
