"""One round's delay: the exchange of a round runs under the whole next one.

At the end of round t a peer makes the outer step with the mean of round t - 1, which arrived
meanwhile, gives its own difference to op t, and goes on from the new anchor without it. Nothing
waits for the link as long as an exchange is shorter than a round, and every update is one round
late: lower the learning rate (the paper's table: a loss of 3.01 against DiLoCo's 2.67 with the same
rate, 2.73 with a lower one), or use `eager`. The first round's work counts in the second step.

As the weights leave a difference behind when they give it, what an op did not take (left out, or
skipped) is held and goes with the next one, with or without error feedback.

References:
    Kale et al., Eager Updates for Overlapped Communication and Computation in DiLoCo, arXiv
    2502.12996, figure 2 (delayed outer gradients) and table 2 (the losses above). These parts of
    the paper were read, not the sections. The pipeline of two rounds in the examples of PCCL, arXiv
    2505.14065, has the same staleness.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn, check_cover, check_decoded
from swarmtrain_optimizers.outer import OuterTransform, nesterov
from swarmtrain_optimizers.strategies.anchored import Giving, InPlace, carried, within
from swarmtrain_optimizers.strategies.base import Exchange, Moved, OpKind, Values
from swarmtrain_optimizers.strategies.checks import check_lengths, is_finite
from swarmtrain_optimizers.vectors import copied, fresh, pieces, zeros


class Delayed(Giving, InPlace):
    """With phi the anchor, theta the weights, m the outer momentum buffer, zero in op 0, eta its
    learning rate and mu its decay, at the end of round t:
    m <- mu m + d(t-1); phi' = phi - eta (mu m + d(t-1)), with the new m; Delta(t) = phi - theta is
    given to op t; theta <- phi'; d(t-1) is the weighted mean of the included Delta(t-1), d(0) = 0.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round.
        lr: eta.
        momentum: mu.
        error_feedback: keep what compression lost for the next op.
        dtype: float32; float64 for oracles.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        lr: float,
        momentum: float,
        error_feedback: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        outer = self._outer_by(lr, momentum)
        super().__init__(num_values, inner_steps=inner_steps, outer=outer, dtype=dtype)
        self._keeps_loss = error_feedback
        self._held = zeros(num_values, dtype)  # (num_values,) with what was given, in an op
        self._has_given = False
        self._base = copied(self._anchor)  # (num_values,) the weights that the round began with

    @property
    def base(self) -> Tensor:
        """(num_values,) the weights that the round began with; only read."""
        return self._base

    def exchange(self, op: int) -> Exchange:
        """The mean of the whole vector, at its place one round later."""
        return Exchange(OpKind.MEAN, ((0, self._num_values),), self._inner_steps)

    def local_arrays(self) -> list[tuple[str, Tensor]]:
        """[("held", ...)]: what is not in the anchor yet, with what the op under way was given."""
        return [("held", self._held)]

    def load_local(self, arrays: Mapping[str, Tensor]) -> None:
        """Take back what was held; the round's own steps begin anew.

        Raises:
            ValueError: names or shapes differ; nothing changed.
        """
        super().load_local(arrays)
        self._held = copied(arrays["held"])

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """The round's own difference, plus the part that is held; the weights leave it behind.

        Raises:
            RuntimeError: the last op was ended by neither `apply` nor `skip`.
        """
        return copied(self.difference(weights, op))

    def difference(self, weights: Values, op: int = 1) -> Tensor:
        """Do what `pseudo_gradient` does, in place; see `StepsInPlace`.

        Raises:
            RuntimeError: as `pseudo_gradient`.
        """
        if self._has_given:
            raise RuntimeError("an op is under way: end it with apply() or skip() first")
        check_lengths(self._num_values, weights=weights)
        for piece in pieces(self._num_values):
            self._held[piece].add_(torch.sub(self._base[piece], weights[piece].detach()))
            self._restart(piece)
        self._has_given = True
        return self._held

    def weights_under_way(self) -> Tensor | None:
        """The weights of the next round: the anchor with the last op's result in it; only read."""
        return self._base

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
        """Outer step; see `StepsInPlace`. The weights follow at the next contribution.

        A peer that gave nothing moves along with the anchor at once.

        Raises:
            ValueError: shapes or ranges do not fit, or error feedback has nothing to settle
                with; nothing changed.
        """
        check_lengths(self._num_values, mean=mean, weights_now=weights_now)
        outer = self._outer_for(mean, op)
        if not self._has_given:
            self._dropped = ()
            return self._carry(mean, outer, weights_now)
        check_cover(included, self._num_values)
        if self._keeps_loss:
            check_decoded(included, decoded_own)
        else:
            decoded_own = self._as_given
        # Nothing below can fail: from here on the op counts.
        given = [(start, stop) for start, stop, here in included if here]
        for piece in pieces(self._num_values):
            if decoded_own is not None:
                for start, stop in within(given, piece):
                    sent = decoded_own(piece.start + start, piece.start + stop)
                    self._held[piece][start:stop].sub_(sent)
            self._step_in_place(outer, mean[piece], piece)
        self._dropped = self._due_to_drop(included)
        for start, stop in self._dropped:
            self._held[start:stop] = 0
        self._has_given = False
        return Moved((), self._held)

    def skip(self) -> None:
        """End the op without a result; what it was given is held for the next one."""
        self._has_given = False

    def drop_broken(self, weights: Tensor) -> Tensor:
        """See `Anchored.drop_broken`; the held part becomes 0, and the round begins anew."""
        self._check(weights, "weights")
        if not is_finite(self._held):
            self._held = zeros(self._num_values, self._dtype)
        if is_finite(weights) and is_finite(self._base):
            return copied(weights)
        self._base = copied(self._anchor)
        return copied(self._anchor)

    def _forget(self) -> None:
        super()._forget()
        self._base.copy_(self._anchor)
        self._has_given = False
        self._held = zeros(self._num_values, self._dtype)

    def _outer_by(self, lr: float, momentum: float) -> OuterTransform:
        """Return the outer optimizer of the first op."""
        return nesterov(lr, momentum)

    def _outer_for(self, mean: Values, op: int) -> OuterTransform:
        """Return the outer optimizer of an op with this mean."""
        return self._outer_of(op)

    def _due_to_drop(
        self, included: Sequence[tuple[int, int, bool]]
    ) -> tuple[tuple[int, int], ...]:
        """Return the ranges whose held work is given up after this op."""
        return self._exclusions.record(included)

    def _restart(self, piece: slice) -> None:
        """Let a piece of the round begin whose difference was just given."""
        self._base[piece] = self._anchor[piece]

    def _as_given(self, start: int, stop: int) -> Tensor:
        """Return the part as if a codec lost nothing."""
        return self._held[start:stop]

    def _carry(self, mean: Values, outer: OuterTransform, weights_now: Values | None) -> Moved:
        """A peer that gave nothing moves along with the anchor, and so does its round's begin."""
        if weights_now is None:
            raise ValueError("a peer that contributed nothing must say where its weights are")
        weights = fresh(self._num_values, self._dtype)
        for piece in pieces(self._num_values):
            old, now, base = self._anchor[piece].clone(), weights_now[piece], self._base[piece]
            self._step_in_place(outer, mean[piece], piece)
            weights[piece] = carried(now.detach(), old, self._anchor[piece])
            self._base[piece] = carried(base, old, self._anchor[piece])
        return Moved(((0, self._num_values),), weights)
