"""Delayed Nesterov, for peers of different speed: arrivals move the anchor, momentum comes later.

Fed with one difference after the other, Nesterov's momentum is renewed with every arrival and
magnifies what is stale. Here the anchor takes a plain step with each arrival and the momentum
changes once in N of them. An arrival is the result of a committed op, from one peer or the mean
of those who were ready; a skipped op is none, and where the N-th was skipped the momentum waits
for the next N-th, with all that came meanwhile.

The other half are dynamic local updates: a slow peer makes fewer inner steps (`steps_for`), so
that all are done at about the same time and nobody waits. Not here: measuring speeds, and weights
by samples, which are PLAN's.

References:
    Liu et al., Asynchronous Local-SGD Training for Language Modeling, arXiv 2401.09135, Alg. 3
    (delayed Nesterov) and dynamic local updates.
"""

import torch
from torch import Tensor

from swarmtrain_optimizers.outer import OuterTransform, State, chain, scale
from swarmtrain_optimizers.strategies.synchronous import Synchronous, steps_for


class DelayedNesterov(Synchronous):
    """With phi the anchor, m the momentum, S a buffer, epsilon the rate, beta the momentum's
    decay, N arrivals per renewal and g an arrival: S <- S + g; where N divides the op's number,
    m <- beta m + S / N, phi' = phi - epsilon ((1 - c N + c) beta m + g / N), S <- 0; else
    phi' = phi - epsilon (c beta m + g / N).

    With c = 0, N arrivals of one g are one step of DiLoCo with that g, and with N = 1 this is
    DiLoCo.

    Args:
        num_values: length of the padded vector.
        inner_steps: H, inner steps per round of the fastest peer, and of all until `keep_pace`.
        lr: epsilon.
        momentum: beta.
        arrivals: N, about the number of groups that arrive apart.
        spread: c, how much of the momentum every arrival takes, 0..1/N.
        error_feedback: keep what compression lost, or an exclusion held back, for the next op.
        dtype: float32; float64 for oracles.

    Raises:
        ValueError: `arrivals` or `spread` is out of its range.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        lr: float,
        momentum: float,
        arrivals: int,
        spread: float = 0.0,
        error_feedback: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if arrivals < 1 or not 0 <= spread <= 1 / arrivals:
            raise ValueError(f"arrivals {arrivals} is below 1, or spread {spread} not in 0..1/N")
        super().__init__(
            num_values,
            inner_steps=inner_steps,
            outer=chain(_between(momentum, arrivals, spread), scale(lr)),
            feedback_beta=1.0 if error_feedback else None,
            dtype=dtype,
        )
        self._arrivals = arrivals
        self._renewing = chain(_renewing(momentum, arrivals, spread), scale(lr))

    def keep_pace(self, own_steps_per_s: float, wanted_steps_per_s: float) -> None:
        """Make so many inner steps a round from now on that the fastest peer needs not wait.

        Raises:
            ValueError: a speed is not positive, or the own one above the fastest.
        """
        self._own_steps = steps_for(own_steps_per_s, wanted_steps_per_s, self._inner_steps)

    def _outer_of(self, op: int) -> OuterTransform:
        return self._outer if op % self._arrivals else self._renewing


def arrivals_step(op: int, *, lr: float, momentum: float, arrivals: int) -> OuterTransform:
    """Return the outer optimizer of an op where all momentum comes with each N-th arrival.

    Args:
        op: number of the op.
        lr: epsilon.
        momentum: beta.
        arrivals: N.

    Raises:
        ValueError: `arrivals` is below 1.
    """
    if arrivals < 1:
        raise ValueError(f"arrivals is {arrivals}; momentum is renewed once in at least one")
    step = _between if op % arrivals else _renewing
    return chain(step(momentum, arrivals, 0.0), scale(lr))


def _between(momentum: float, arrivals: int, spread: float) -> OuterTransform:
    """An arrival that leaves the momentum as it is."""

    def update(direction: Tensor, state: State, state_out: State) -> Tensor:
        (old, waiting), (kept, waiting_out) = state, state_out
        torch.add(waiting, direction, out=waiting_out)
        kept.copy_(old)
        direction.div_(arrivals)
        return direction.add_(torch.mul(kept, momentum).mul_(spread)) if spread else direction

    return OuterTransform(("momentum", "waiting"), update)


def _renewing(momentum: float, arrivals: int, spread: float) -> OuterTransform:
    """The arrival with which all that waited goes into the momentum."""
    factor = 1 - spread * arrivals + spread

    def update(direction: Tensor, state: State, state_out: State) -> Tensor:
        (old, waiting), (new, waiting_out) = state, state_out
        torch.add(waiting, direction, out=waiting_out)
        torch.mul(old, momentum, out=new)
        new.add_(waiting_out.div_(arrivals))
        waiting_out.zero_()
        looked_ahead = torch.mul(new, momentum)
        if spread:
            looked_ahead.mul_(factor)
        return looked_ahead.add_(direction.div_(arrivals))

    return OuterTransform(("momentum", "waiting"), update)
