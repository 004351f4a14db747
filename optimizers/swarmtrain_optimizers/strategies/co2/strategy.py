"""CO2: the exchange of a round runs under the whole next one, and what is stale counts less.

Everything is as with `delayed`, but for the outer step. It goes from the anchor as it is now to the
mean of the weights that peers had a round ago, so that the way which the anchor went meanwhile is
not gone twice; a penalty that grows with the staleness gap, that way beside a round's, makes it
shorter; the momentum is the heavy ball's; and every value of it is clipped, so that one bad round
cannot swing all that follow. Nothing but the last exchange of a run is waited for.

The gap needs no state of its own. In the delayed pipeline the anchor makes exactly one step between
a round's begin and its mean's place, and that step is the learning rate times the momentum as it
lies there. Where an op was skipped its work goes with the next one, and the last step is still what
the anchor has gone since the oldest work in the mean was begun.

References:
    Sun et al., CO2: Efficient Distributed Training with Full Communication-Computation Overlap,
    arXiv 2401.16265, Alg. 1: the abstract, the public code and a review were read, no section. That
    the penalty is a ratio of norms is as others tell it; which one is written out here, after gap
    aware training (Barkai et al., ICLR 2020): 1 plus the distance in usual steps. In the public
    code the penalty is a constant and the clipped momentum is dropped; here both act.
"""

import math

import torch
from torch import Tensor

from swarmtrain_optimizers.outer import OuterTransform, State
from swarmtrain_optimizers.robust.rows import squared_norms
from swarmtrain_optimizers.strategies.base import Values
from swarmtrain_optimizers.strategies.delayed.strategy import Delayed


class CO2(Delayed):
    """With phi the anchor, m the momentum, zero in op 0, d the mean of the differences of the round
    before, eta the learning rate, mu the momentum's decay, p the weight of the gap, c the clip: the
    anchor has gone eta m since that round began, so d - eta m is its distance from the mean of the
    weights that d was made of. L = 1 + p |eta m| / |d|; m <- mu m + (d - eta m) / L, each value of
    it clipped to -c .. c; phi' = phi - eta m, with the new m.

    With p = 0, mu = eta and nothing clipped this is `Delayed` without momentum. For a constant d
    with eta = 1 a step tends to 0.56 d with mu = 0.5 and to 0.84 d with 0.9; with mu = 0 it swings
    for ever, as rounds of even and of odd number then hardly know of each other.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round, tau in the paper.
        lr: eta.
        momentum: mu.
        error_feedback: keep what compression lost for the next op.
        penalty: p; 0 for none.
        clip: c.
        dtype: float32; float64 for oracles.

    Raises:
        ValueError: `penalty` is negative, or `clip` not above 0.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        lr: float,
        momentum: float,
        error_feedback: bool,
        penalty: float = 1.0,
        clip: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not penalty >= 0 or not clip > 0:
            raise ValueError(f"penalty {penalty} is below 0, or clip {clip} not above 0")
        super().__init__(
            num_values,
            inner_steps=inner_steps,
            lr=lr,
            momentum=momentum,
            error_feedback=error_feedback,
            dtype=dtype,
        )
        self._lr, self._momentum, self._penalty, self._clip = lr, momentum, penalty, clip
        self._share = 1.0

    def staleness_penalty(self, mean: Tensor) -> float:
        """L for a mean difference, (num_values,), that is put in place now; at least 1.

        Sums are folded in a fixed order, so it is the same number on every machine.
        """
        (momentum,) = self._state
        given, gone = squared_norms([mean, momentum]).tolist()
        return 1.0 + self._penalty * self._lr * math.sqrt(gone / given) if given > 0 else 1.0

    def _outer_for(self, mean: Values, op: int) -> OuterTransform:
        self._share = 1.0 / self.staleness_penalty(mean[:])
        return OuterTransform(("momentum",), self._direction)

    def _direction(self, direction: Tensor, state: State, state_out: State) -> Tensor:
        (old,), (new,) = state, state_out
        direction.sub_(torch.mul(old, self._lr)).mul_(self._share)
        torch.mul(old, self._momentum, out=new)
        new.add_(direction).clamp_(-self._clip, self._clip)
        return direction.copy_(new).mul_(self._lr)
