"""DeMo: each step a peer sends the largest waves of its momentum, and all step by their sign.

Momentum is each peer's own and differs from peer to peer. What was sent of it is taken out, so it
is the error feedback too. It is kept as waves (`cosines`): the transform is linear, so gradients
are added and what was sent is subtracted there, and the codec's choice of the largest values of a
block is the choice of waves in a tile. The mean of what all sent is made values again, and the sign
of these is the step, so neither the mean's size nor who sent how much matters. With overlap the
exchange of a step runs under the next one, as in Psyche.

A gradient is in the momentum from when it was made, and what an op did not take stays there; it
fades by the decay alone, so exclusions in a row drop nothing. What is made of common bytes enters
the state root, so the way back from waves is made of reproducible operations. The way there is so,
too: the same table, the other way round.

References:
    Peng, Quesnelle and Kingma, DeMo: Decoupled Momentum Optimization, arXiv 2411.19870: the
    abstract and the public code were read, no section. That code tiles each parameter; here a tile
    is a block of the flat vector. It takes the mean of a wave over those peers alone that sent it;
    here it is over all contributors. It puts the learning rate into the momentum; here gradients
    count alike. One bit per wave, as in Psyche's code, would save one of 14, so the codec's two
    stay.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn, ErrorFeedback, check_cover
from swarmtrain_optimizers.outer import OuterTransform, State
from swarmtrain_optimizers.strategies.base import Exchange, OpKind
from swarmtrain_optimizers.strategies.checks import is_finite
from swarmtrain_optimizers.strategies.ddp.strategy import DDP
from swarmtrain_optimizers.strategies.decoupled_momentum.cosines import Cosines


@dataclass(frozen=True, slots=True)
class SignStep:
    """With theta the weights, u a direction and lr the step's learning rate: theta <- theta -
    lr wd theta - lr sign(u).

    Attributes:
        weight_decay: wd.
    """

    weight_decay: float

    def transform(self, step: int, lr: float) -> OuterTransform:
        """The update of a step without the decay; `step` changes nothing."""

        def update(direction: Tensor, state: State, state_out: State) -> Tensor:
            return direction.sign_().mul_(lr)

        return OuterTransform((), update)


class DecoupledMomentum(DDP):
    """With phi the weights, g a peer's gradient, m its momentum in waves, zero at the beginning,
    beta its decay, W the waves of values and V the values of waves: a = beta m + W(g); c = the
    largest waves of each tile of a; m <- a - c; u = V(mean of the included c);
    phi <- phi - lr wd phi - lr sign(u).

    Args:
        num_values: length of the padded vector.
        block: values of a tile.
        weight_decay: wd.
        schedule: learning rate of a step, counted from 0; the same bits on every peer. A third to
            a tenth of AdamW's fits, as every value moves by all of it.
        by_samples: True if `schedule` counts samples of the whole swarm instead of steps.
        decay: beta.
        overlap: True if an op's result has its place one step later.
        dtype: float32; float64 for oracles.
    """

    def __init__(
        self,
        num_values: int,
        *,
        block: int,
        weight_decay: float,
        schedule: Callable[[int], float],
        by_samples: bool = False,
        decay: float = 0.999,
        overlap: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(
            num_values,
            optimizer=SignStep(weight_decay),
            schedule=schedule,
            by_samples=by_samples,
            dtype=dtype,
        )
        self._cosines = Cosines(block, dtype=dtype)
        self._momentum = ErrorFeedback(num_values, beta=decay, dtype=dtype)
        self._delay_steps = int(overlap)
        self._pending: Tensor | None = None  # (num_values,) a, of the op under way

    def exchange(self, op: int) -> Exchange:
        """Every contribution to everybody."""
        return Exchange(OpKind.GATHER, ((0, self._num_values),), self._delay_steps)

    def local_arrays(self) -> list[tuple[str, Tensor]]:
        """[("own_momentum", m)], with what the op under way was given."""
        held = self._momentum.residual if self._pending is None else self._pending
        return [("own_momentum", held)]

    def load_local(self, arrays: Mapping[str, Tensor]) -> None:
        """Take back m.

        Raises:
            ValueError: names or shapes differ; nothing changed.
        """
        super().load_local(arrays)
        self._momentum.residual = arrays["own_momentum"].detach().clone()

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """The momentum with this gradient in it, as waves.

        Raises:
            RuntimeError: the last op was ended by neither `apply` nor `skip`.
            ValueError: the gradient is not (num_values,).
        """
        gradient = super().pseudo_gradient(weights, op)
        self._pending = self._momentum.correct_(self._cosines.waves(gradient))
        return self._pending

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
        """One step by the sign; what was sent leaves the momentum.

        Raises:
            ValueError: shapes or ranges do not fit, or nobody says what was decoded of our part;
                nothing changed.
        """
        settled = None
        if self._pending is not None:
            check_cover(included, self._num_values)
            settled = self._momentum.settled(self._pending, included, decoded_own)
        weights = super().apply(mean, included, weights_now, op=op)
        if settled is not None:
            self._momentum.residual = settled
        self._pending = None
        return weights

    def skip(self) -> None:
        """The weights stay, and the gradient stays in the momentum."""
        super().skip()
        if self._pending is not None:
            self._momentum.residual = self._pending
        self._pending = None

    def drop_broken(self, weights: Tensor) -> Tensor:
        """See `Anchored.drop_broken`; momentum that is not finite becomes 0."""
        if not is_finite(self._momentum.residual):
            self._momentum.drop()
        return super().drop_broken(weights)

    def _forget(self) -> None:
        super()._forget()
        self._pending = None
        self._momentum.drop()

    def _step(self, mean: Tensor, op: int) -> None:
        super()._step(self._cosines.values(mean), op)
