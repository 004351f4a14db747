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

from swarmtrain_optimizers.error_feedback import DecodeOwn, ErrorFeedback, check_cover
from swarmtrain_optimizers.outer import OuterTransform, nesterov
from swarmtrain_optimizers.strategies.anchored import Giving
from swarmtrain_optimizers.strategies.base import Exchange, OpKind
from swarmtrain_optimizers.strategies.checks import is_finite
from swarmtrain_optimizers.vectors import copied, fresh


class Delayed(Giving):
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
        self._held = ErrorFeedback(num_values, dtype=dtype)
        self._base = copied(self._anchor)  # (num_values,) the weights that the round began with
        self._pending: Tensor | None = None  # (num_values,) what the op under way was given

    @property
    def base(self) -> Tensor:
        """(num_values,) the weights that the round began with; only read."""
        return self._base

    def exchange(self, op: int) -> Exchange:
        """The mean of the whole vector, at its place one round later."""
        return Exchange(OpKind.MEAN, ((0, self._num_values),), self._inner_steps)

    def local_arrays(self) -> list[tuple[str, Tensor]]:
        """[("held", ...)]: what is not in the anchor yet, with what the op under way was given."""
        return [("held", self._held.residual if self._pending is None else self._pending)]

    def load_local(self, arrays: Mapping[str, Tensor]) -> None:
        """Take back what was held; the round's own steps begin anew.

        Raises:
            ValueError: names or shapes differ; nothing changed.
        """
        super().load_local(arrays)
        self._held.residual = arrays["held"].detach().clone()

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """The round's own difference, plus the part that is held; the weights leave it behind.

        Raises:
            RuntimeError: the last op was ended by neither `apply` nor `skip`.
        """
        if self._pending is not None:
            raise RuntimeError("an op is under way: end it with apply() or skip() first")
        self._check(weights, "weights")
        delta = torch.sub(self._base, weights.detach(), out=fresh(self._num_values, self._dtype))
        contribution = self._held.corrected_(delta)
        self._pending = contribution
        self._base = self._restart(contribution)
        return contribution

    def weights_under_way(self) -> Tensor | None:
        """The weights of the next round: the anchor with the last op's result in it; only read."""
        return self._base

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
        """Outer step; see `Strategy.apply`. The weights follow at the next contribution.

        A peer that gave nothing moves along with the anchor at once.

        Raises:
            ValueError: shapes or ranges do not fit, or error feedback has nothing to settle
                with; nothing changed.
        """
        self._check(mean, "mean")
        self._check(weights_now, "weights_now")
        weights = copied(weights_now)
        residual = self._settled(included, decoded_own)
        self._step(mean, op)
        # Nothing below can fail: from here on the op counts.
        self._dropped = ()
        if residual is None:
            weights, self._base = self._carried(weights), self._carried(self._base)
        else:
            self._dropped = self._due_to_drop(included)
            for start, stop in self._dropped:
                residual[start:stop] = 0
            self._held.residual = residual
        self._swap()
        self._pending = None
        return weights

    def skip(self) -> None:
        """End the op without a result; what it was given is held for the next one."""
        if self._pending is not None:
            self._held.residual = self._pending
        self._pending = None

    def drop_broken(self, weights: Tensor) -> Tensor:
        """See `Anchored.drop_broken`; the held part becomes 0, and the round begins anew."""
        self._check(weights, "weights")
        if not is_finite(self._held.residual):
            self._held.drop()
        if is_finite(weights) and is_finite(self._base):
            return copied(weights)
        self._base = copied(self._anchor)
        return copied(self._anchor)

    def _forget(self) -> None:
        super()._forget()
        self._base = copied(self._anchor)
        self._pending = None
        self._held.drop()

    def _outer_by(self, lr: float, momentum: float) -> OuterTransform:
        """Return the outer optimizer of the first op."""
        return nesterov(lr, momentum)

    def _due_to_drop(
        self, included: Sequence[tuple[int, int, bool]]
    ) -> tuple[tuple[int, int], ...]:
        """Return the ranges whose held work is given up after this op."""
        return self._exclusions.record(included)

    def _restart(self, contribution: Tensor) -> Tensor:
        """The weights of the round that begins while this is under way, a new tensor."""
        return copied(self._anchor)

    def _settled(
        self,
        included: Sequence[tuple[int, int, bool]],
        decoded_own: DecodeOwn | None,
    ) -> Tensor | None:
        """Return the part that is held after this op, or None for a peer that gave nothing."""
        pending = self._pending
        if pending is None:
            return None
        check_cover(included, self._num_values)
        if not self._keeps_loss:
            decoded_own = _as_given(pending)
        return self._held.settled(pending, included, decoded_own)


def _as_given(contribution: Tensor) -> DecodeOwn:
    """Return the part as if a codec lost nothing."""
    return lambda start, stop: contribution[start:stop]
