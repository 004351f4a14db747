"""Clipping by a norm that no peer knows alone: pure arithmetic, without tensors.

A gradient is clipped by the norm of all of it, and each stage has a part. Where steps are flushed
the stages' squared norms are added before anybody steps. Where they are free nobody waits for that,
and each stage has a limit of its own: its usual share of the whole norm.
"""

import math
from collections.abc import Sequence

_EPS = 1e-6
"""Keeps a gradient of zero at zero, as `torch.nn.utils.clip_grad_norm_` has it."""


def global_norm(squares: Sequence[float]) -> float:
    """The norm of a gradient from the squared norms of its parts, added in their order.

    >>> global_norm([9.0, 16.0])
    5.0
    """
    total = 0.0
    for square in squares:  # in this order: sum() may have another last bit
        total += square
    return math.sqrt(total)


def clip_factor(norm: float, limit: float) -> float:
    """Factor at most 1 that brings a gradient of this norm to the limit; a limit of 0 is none.

    >>> [clip_factor(0.5, 1.0), round(clip_factor(4.0, 1.0), 3), clip_factor(4.0, 0.0)]
    [1.0, 0.25, 1.0]
    """
    return min(1.0, limit / (norm + _EPS)) if limit > 0 else 1.0


def stage_limits(limit: float, norms: Sequence[float]) -> tuple[float, ...]:
    """The limit of each stage where it clips alone: its share of that of the whole.

    Args:
        limit: of the whole gradient.
        norms: of each stage: the median of the last round; before the first one the square root of
            its number of parameters, as if all had gradients of one size.

    Returns:
        Limits whose squares add up to that of `limit`.

    >>> stage_limits(1.0, [3.0, 4.0])
    (0.6, 0.8)
    """
    whole = global_norm([norm * norm for norm in norms])
    if not 0 < whole < math.inf:  # a stage without a norm cannot tell anybody's share
        return (limit / math.sqrt(len(norms)),) * len(norms)
    return tuple(limit * norm / whole for norm in norms)
