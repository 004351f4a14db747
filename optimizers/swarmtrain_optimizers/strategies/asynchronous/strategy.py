"""Asynchronous local SGD: an op begins as soon as a few peers have given, and nobody waits.

A round belongs to one peer. It begins at the newest anchor and ends after the peer's own inner
steps, however many ops have moved the anchor meanwhile. The difference is taken from the anchor at
which the round began, and counts less the more ops have gone by: PLAN's weights say so, here it is
one contribution like any other. Momentum follows delayed Nesterov, as momentum that is renewed with
every arrival magnifies what is stale.

Memory: the anchor that all peers have, and the weights with which the own round began.

What an op did not take (left out, or skipped) is held and goes with the next one, with or without
error feedback. Not here: the moment at which an op begins (the coordinator's plan), and weights.

References:
    Liu et al., Asynchronous Local-SGD Training for Language Modeling, arXiv 2401.09135, Alg. 3
    (delayed Nesterov) and section 5 (dynamic local updates). Nguyen et al., Federated Learning with
    Buffered Asynchronous Aggregation (FedBuff), arXiv 2106.06639, Alg. 1: a buffer of K differences
    before a step, each weighted by its staleness. Li et al., FedCompass, arXiv 2309.14675: groups
    of peers that arrive together, each with as many steps as its speed allows.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn
from swarmtrain_optimizers.outer import OuterTransform
from swarmtrain_optimizers.strategies.base import Exchange, Moved, OpKind, Values
from swarmtrain_optimizers.strategies.delayed.strategy import Delayed
from swarmtrain_optimizers.strategies.delayed_nesterov.strategy import arrivals_step
from swarmtrain_optimizers.strategies.synchronous import steps_for
from swarmtrain_optimizers.vectors import copied, fresh, pieces


class Asynchronous(Delayed):
    """With phi the anchor and b the weights with which the round began: Delta = b - theta is given
    when the round ends; with the op that ends then, b <- theta <- phi'. Every op moves phi by
    delayed Nesterov; in the midst of a round b and theta stay. A peer that has made no step since
    its round began goes along with the anchor.

    Args:
        num_values: length of the padded vector.
        inner_steps: H, inner steps per round of the fastest peer, and of all until `keep_pace`.
        lr: epsilon.
        momentum: beta.
        arrivals: N, ops in which momentum is renewed once, about peers by buffer.
        least_steps: fewest inner steps of a slow peer's round, as far as H reaches.
        max_stale: results after which work that began before them is given up.
        error_feedback: keep what compression lost for the next op.
        dtype: float32; float64 for oracles.

    Raises:
        ValueError: `arrivals` is below 1.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        lr: float,
        momentum: float,
        arrivals: int,
        max_stale: int = 16,
        least_steps: int = 4,
        error_feedback: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._rates, self._arrivals = (lr, momentum), arrivals
        super().__init__(
            num_values,
            inner_steps=inner_steps,
            lr=lr,
            momentum=momentum,
            error_feedback=error_feedback,
            dtype=dtype,
        )
        self._own_steps = inner_steps
        self._max_stale = max_stale
        self._least_steps = least_steps

    @property
    def own_steps(self) -> int:
        """Inner steps of this peer's round."""
        return self._own_steps

    @property
    def max_stale(self) -> int:
        """Results after which work that began before them is given up."""
        return self._max_stale

    def give_up(self) -> Tensor:
        """Drop all that is not in the anchor; see `KeepsBase`."""
        self._forget()
        self._dropped = ((0, self._num_values),)
        return copied(self._anchor)

    def exchange(self, op: int) -> Exchange:
        """The mean of the whole vector, waited for by those who have given."""
        return Exchange(OpKind.MEAN, ((0, self._num_values),))

    def keep_pace(self, own_steps_per_s: float, wanted_steps_per_s: float) -> None:
        """Make so many inner steps a round from now on that all come back together; if those are
        too few, as many as bring this peer back with a later exchange of the fastest's.

        Raises:
            ValueError: a speed is not positive, or the own one above the wanted one.
        """
        steps_for(own_steps_per_s, wanted_steps_per_s, self._inner_steps)  # checks both
        alone = own_steps_per_s * self._inner_steps / wanted_steps_per_s
        rounds = max(1, math.ceil(min(self._least_steps, self._inner_steps) / alone))
        self._own_steps = max(1, min(int(rounds * alone), self._inner_steps))

    def is_due(self, steps_since_outer: int) -> bool:
        """True from `own_steps` on."""
        return steps_since_outer >= self._own_steps

    def land(
        self,
        mean: Values,
        included: Sequence[tuple[int, int, bool]],
        weights_now: Values | None,
        decoded_own: DecodeOwn | None = None,
        *,
        op: int = 1,
        own_share: float | None = None,
    ) -> Moved:
        """Outer step; see `StepsInPlace`. In the midst of a round the weights stay.

        Raises:
            ValueError: as `Delayed.land`; nothing changed.
        """
        has_given = self._has_given
        moved = super().land(mean, included, weights_now, decoded_own, op=op, own_share=own_share)
        if not has_given and not self._is_at_begin(weights_now):
            return moved
        weights = fresh(self._num_values, self._dtype)
        for piece in pieces(self._num_values):
            anchor, base = self._anchor[piece], self._base[piece]
            since = (base if weights_now is None else weights_now[piece].detach()) - base
            weights[piece] = torch.where(since == 0, anchor, anchor + since)
            base.copy_(anchor)
        return Moved(((0, self._num_values),), weights)

    def _is_at_begin(self, weights: Values | None) -> bool:
        """Return True if these weights are those that the round began with."""
        places = pieces(self._num_values)
        return weights is None or all(torch.equal(weights[at], self._base[at]) for at in places)

    def _carry(self, mean: Values, outer: OuterTransform, weights_now: Values | None) -> Moved:
        """The anchor goes on alone."""
        for piece in pieces(self._num_values):
            self._step_in_place(outer, mean[piece], piece)
        return Moved((), self._held)

    def _due_to_drop(
        self, included: Sequence[tuple[int, int, bool]]
    ) -> tuple[tuple[int, int], ...]:
        """None: an op that began before the peer was ready has left nobody out."""
        return ()

    def _outer_by(self, lr: float, momentum: float) -> OuterTransform:
        return arrivals_step(1, lr=lr, momentum=momentum, arrivals=self._arrivals)

    def _outer_of(self, op: int) -> OuterTransform:
        lr, momentum = self._rates
        return arrivals_step(op, lr=lr, momentum=momentum, arrivals=self._arrivals)
