"""The fate of a peer's work where the op is waited for: protocol.md rules 9 and 10.

Every peer keeps the anchor phi and the outer optimizer's state and makes the outer step itself from
the same decoded bytes, so there is no parameter server and nothing to broadcast. DiLoCo is made of
this, and so are strategies that differ from it in the outer step or the codec alone. Not here: the
exchange, and the inner optimizer, whose state stays with its peer from round to round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn, ErrorFeedback, check_cover
from swarmtrain_optimizers.outer import OuterTransform
from swarmtrain_optimizers.strategies.anchored import Giving
from swarmtrain_optimizers.strategies.checks import is_finite

_PIECE_VALUES = 262_144
"""Values per pass: the difference of all at once would be as large as the model."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """This peer's contribution to the op under way.

    Attributes:
        snapshot: (num_values,) theta_s, the weights when the op started.
        contribution: (num_values,) what is encoded: Delta, or e + Delta.
    """

    snapshot: Tensor
    contribution: Tensor


class Synchronous(Giving):
    """Inner steps, an op that is waited for, an outer step; with optional error feedback.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round.
        outer: the outer optimizer.
        feedback_beta: None without error feedback; else how much of what compression lost, or an
            exclusion held back, is sent with the next op, 1 for all.
        dtype: float32; float64 for oracles.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        outer: OuterTransform,
        feedback_beta: float | None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(num_values, inner_steps=inner_steps, outer=outer, dtype=dtype)
        self._feedback = (
            None
            if feedback_beta is None
            else ErrorFeedback(num_values, beta=feedback_beta, dtype=dtype)
        )
        self._pending: _Pending | None = None

    @property
    def snapshot(self) -> Tensor | None:
        """(num_values,) the weights when the op under way began; None without a contribution."""
        return None if self._pending is None else self._pending.snapshot

    def local_arrays(self) -> list[tuple[str, Tensor]]:
        """[("error_feedback", e)], or [] without error feedback."""
        return [] if self._feedback is None else [("error_feedback", self._feedback.residual)]

    def load_local(self, arrays: Mapping[str, Tensor]) -> None:
        """Take back e.

        Raises:
            ValueError: names or shapes differ; nothing changed.
        """
        super().load_local(arrays)
        if self._feedback is not None:
            self._feedback.residual = arrays["error_feedback"].detach().clone()

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """Delta = phi - theta, with error feedback plus beta e; kept, as the weights are.

        Raises:
            RuntimeError: the last op was ended by neither `apply` nor `skip`.
        """
        if self._pending is not None:
            raise RuntimeError("an op is under way: end it with apply() or skip() first")
        self._check(weights, "weights")
        snapshot = weights.detach().clone()
        delta = torch.sub(self._anchor, snapshot)
        contribution = delta if self._feedback is None else self._feedback.corrected(delta)
        self._pending = _Pending(snapshot, contribution)
        return contribution

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
        """Outer step, then error feedback and weights by rules 9 and 10; see `Strategy.apply`.

        Without a step since `pseudo_gradient`, included weights are exactly the new anchor.

        Raises:
            ValueError: shapes or ranges do not fit, or error feedback has nothing to settle
                with; nothing changed.
        """
        self._check(mean, "mean")
        self._check(weights_now, "weights_now")
        now = weights_now.detach()
        residual = self._settled(included, decoded_own)
        self._step(mean, op)
        del mean  # of the size of the model, as all that follows
        # Nothing below can fail: from here on the op counts.
        if self._pending is None:
            self._dropped = ()
            weights = self._carried(now)
        else:
            self._dropped = self._exclusions.record(included)
            weights = self._landed(self._pending, included, now)
        if residual is not None and self._feedback is not None:
            for start, stop in self._dropped:
                residual[start:stop] = 0
            self._feedback.residual = residual
        self._swap()
        self._pending = None
        return weights

    def skip(self) -> None:
        """End the op without a result; what was pending is computed anew for the next one."""
        self._pending = None

    def drop_broken(self, weights: Tensor) -> Tensor:
        """As `Anchored.drop_broken`; error feedback that is not finite is 0 then."""
        if self._feedback is not None and not is_finite(self._feedback.residual):
            self._feedback.drop()
        return super().drop_broken(weights)

    def _settled(
        self,
        included: Sequence[tuple[int, int, bool]],
        decoded_own: DecodeOwn | None,
    ) -> Tensor | None:
        """The residual after this op, or None when there is none to settle."""
        if self._pending is None:
            return None
        check_cover(included, self._num_values)
        if self._feedback is None:
            return None
        return self._feedback.settled(self._pending.contribution, included, decoded_own)

    def _landed(
        self, pending: _Pending, included: Sequence[tuple[int, int, bool]], now: Tensor
    ) -> Tensor:
        """theta of a peer that contributed; the new anchor is still in the spare buffer."""
        weights = self._spare_anchor.clone()
        if self._feedback is None:
            for start, stop, was_included in included:
                if not was_included:
                    # Local rebase: theta <- phi' - Delta, the work goes into the next Delta.
                    weights[start:stop].sub_(pending.contribution[start:stop])
        for start, stop in self._dropped:
            weights[start:stop] = self._spare_anchor[start:stop]
        if not torch.equal(now, pending.snapshot):
            for start in range(0, self._num_values, _PIECE_VALUES):
                piece = slice(start, start + _PIECE_VALUES)
                weights[piece].add_(now[piece] - pending.snapshot[piece])
        for start, stop in self._dropped:
            # NaN minus NaN is no step: without this, dropping would not heal what it is there for.
            part, anchor = weights[start:stop], self._spare_anchor[start:stop]
            weights[start:stop] = torch.where(torch.isfinite(part), part, anchor)
        return weights

    def _forget(self) -> None:
        super()._forget()
        self._pending = None
        if self._feedback is not None:
            self._feedback.drop()
