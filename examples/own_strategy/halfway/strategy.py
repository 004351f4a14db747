"""Halfway: two peers meet in each round and draw their weights together. Inherits from nothing.

    pip install ./examples/own_strategy
    swarmtrain compare --strategies noloco,halfway,halfway:share=0.25 --peers 4 --steps 200

and in a run file, which every peer of the run must have the package for:

    [outer]
    strategy = "halfway"
    inner_steps = 20

    [strategy.halfway]
    share = 0.25

With phi a peer's anchor, which are its weights after its last op, theta its weights now and s the
share: it gives phi - theta and phi; of its partner's it makes theta' = phi' - (phi' - theta'), and
then phi <- theta + s (theta' - theta), theta <- phi. Both compute with what was decoded, their own
half too, so the mean of the two stays where it was (Boyd et al., Randomized Gossip Algorithms,
IEEE Transactions on Information Theory, 2006).

Everything that a driver relies on is in `swarmtrain_optimizers.strategies.base.Strategy`.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn
from swarmtrain_optimizers.strategies.base import Exchange, OpKind


class Halfway:
    takes_gradients = False

    def __init__(self, num_values: int, *, inner_steps: int, share: float) -> None:
        self.num_values = num_values
        self.inner_steps = inner_steps
        self._share = share
        self._anchor = torch.zeros(num_values)
        self._weights = self._anchor  # (num_values,) theta when the op under way began
        self._given: Tensor | None = None  # (2 num_values,) what that op was given

    def exchange(self, op: int) -> Exchange:
        return Exchange(OpKind.PAIR, ((0, self.num_values),), vectors=2)

    def is_due(self, steps_since_outer: int) -> bool:
        return steps_since_outer >= self.inner_steps

    # ---- state: a peer's own, and what a newcomer begins with

    def set_initial(self, weights: Tensor) -> None:
        self.load_state({"anchor": weights})

    def state_arrays(self) -> list[tuple[str, Tensor]]:
        return [("anchor", self._anchor)]

    def load_state(self, arrays: Mapping[str, Tensor]) -> None:
        if set(arrays) != {"anchor"} or arrays["anchor"].shape != (self.num_values,):
            raise ValueError(f"arrays are {sorted(arrays)}, wanted an anchor of {self.num_values}")
        self._anchor = arrays["anchor"].detach().clone()
        self._given = None

    def local_arrays(self) -> list[tuple[str, Tensor]]:
        return []

    def load_local(self, arrays: Mapping[str, Tensor]) -> None:
        if arrays:
            raise ValueError(f"arrays are {sorted(arrays)}, wanted none")

    # ---- one op

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        self._weights = weights.detach().clone()
        self._given = torch.cat((self._anchor - self._weights, self._anchor))
        return self._given

    def weights_under_way(self) -> Tensor | None:
        return None

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
        if self._given is None:
            return weights_now.detach().clone()
        own, partner = self._given.clone(), self._given.clone()
        for start, stop, both in included:
            if both:
                partner[start:stop] = mean[start:stop]
                if decoded_own is not None:
                    own[start:stop] = decoded_own(start, stop)
        return self._landed(self._trained(own), self._trained(partner), weights_now)

    def solo(self, weights_now: Tensor) -> Tensor:
        """End an op that had no partner: the anchor goes where the weights were."""
        assert self._given is not None, "no op is under way"
        return self._landed(self._weights, self._weights, weights_now)

    def skip(self) -> None:
        self._given = None

    def _trained(self, half: Tensor) -> Tensor:
        """The weights that a half tells of: its anchor without its difference."""
        return half[self.num_values :] - half[: self.num_values]

    def _landed(self, own: Tensor, partner: Tensor, now: Tensor) -> Tensor:
        self._anchor = own + (partner - own) * self._share
        self._given = None
        return self._anchor + (now - self._weights)  # steps made while the op was under way
