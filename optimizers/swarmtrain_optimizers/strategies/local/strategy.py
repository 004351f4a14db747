"""Every peer trains alone from the same first weights; with a last merge their mean ends the run.

Without one it is the floor of every comparison: the shared state is op 0 and stays it, so it is the
trainer's weights that are evaluated, never the anchor. With one an op puts the mean of all peers'
weights in the place of each. Not here: in which rounds an op is due, which a `budget` says.

References:
    On the Surprising Effectiveness of a Single Global Merging in Decentralized Learning, ICLR 2026:
    replicas that are poor alone have a good mean. The abstract was read, no section.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn
from swarmtrain_optimizers.outer import sgd
from swarmtrain_optimizers.strategies.anchored import Anchored
from swarmtrain_optimizers.strategies.synchronous import Synchronous


class Local(Anchored):
    """Never due; an op that was made all the same is one that this peer only watches.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps between two evaluations; nothing else happens then.
        dtype: float32; float64 for oracles.
    """

    def __init__(
        self, num_values: int, *, inner_steps: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(num_values, inner_steps=inner_steps, outer=sgd(0.0), dtype=dtype)

    def is_due(self, steps_since_outer: int) -> bool:
        """False."""
        return False

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """Zero: there is nothing to give.

        Raises:
            ValueError: `weights` is not (num_values,).
        """
        self._check(weights, "weights")
        return torch.zeros_like(self._anchor)

    def apply(
        self,
        mean: Tensor,
        included: Sequence[tuple[int, int, bool]],
        weights_now: Tensor,
        decoded_own: DecodeOwn | None = None,
        *,
        op: int = 1,
        own_share: float | None = None,
    ) -> Tensor:
        """The weights as they are; the state stays op 0's."""
        self._check(mean, "mean")
        self._check(weights_now, "weights_now")
        return weights_now.detach().clone()

    def skip(self) -> None:
        """Do nothing: no op was under way."""


class Merged(Synchronous):
    """With phi the common anchor and theta_i the weights, phi' = phi - mean of (phi - theta_i), and
    theta_i <- phi': the mean of all weights, rounded like every outer step.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps of a round.
        dtype: float32; float64 for oracles.
    """

    def __init__(
        self, num_values: int, *, inner_steps: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(
            num_values, inner_steps=inner_steps, outer=sgd(1.0), feedback_beta=None, dtype=dtype
        )


def alone(num_values: int, *, inner_steps: int, last_merge: bool = False) -> Local | Merged:
    """Peers that train alone, to the end or until a merge; see `Local` and `Merged`."""
    return (Merged if last_merge else Local)(num_values, inner_steps=inner_steps)
