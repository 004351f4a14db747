"""The fate of a peer's work where the op is waited for: protocol.md rules 9 and 10.

Every peer keeps the anchor phi and the outer optimizer's state and makes the outer step itself from
the same decoded bytes, so there is no parameter server and nothing to broadcast. DiLoCo is made of
this, and so are strategies that differ from it in the outer step or the codec alone. All of it is
done piece by piece in place: anchor, outer state, error feedback if any, and the weights as they
were when the op began are the only whole vectors. Not here: the exchange, and the inner optimizer,
whose state stays with its peer from round to round.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import (
    DecodeOwn,
    ErrorFeedback,
    check_cover,
    check_decoded,
)
from swarmtrain_optimizers.outer import OuterTransform
from swarmtrain_optimizers.strategies.anchored import Giving, InPlace, carried, is_same, within
from swarmtrain_optimizers.strategies.base import Values
from swarmtrain_optimizers.strategies.checks import check_lengths, is_finite
from swarmtrain_optimizers.vectors import copied, fresh, pieces, taken

_NEARLY = 0.9
"""Speeds are measured, and no two peers have the same: who needs up to a ninth longer for a round
makes all of its steps. Others wait for it within its share (protocol.md T19)."""


def steps_for(own_steps_per_s: float, wanted_steps_per_s: float, inner_steps: int) -> int:
    """Dynamic local updates: floor(v / w * H) inner steps, at least one (arXiv 2401.09135).

    Args:
        own_steps_per_s: v, the measured speed of a peer.
        wanted_steps_per_s: w, that of who makes all steps.
        inner_steps: H, inner steps of these.

    Raises:
        ValueError: a speed is not positive, or v above w.

    >>> [steps_for(speed, 4.0, 50) for speed in (4.0, 2.0, 0.9)]
    [50, 25, 11]
    """
    if not 0 < own_steps_per_s <= wanted_steps_per_s < float("inf"):
        speeds = f"{own_steps_per_s} and {wanted_steps_per_s}"
        raise ValueError(f"speeds are positive, and nobody is faster than wanted: {speeds}")
    return max(1, int(own_steps_per_s * inner_steps / wanted_steps_per_s))


class _Difference:
    """This peer's contribution to the op under way, made when it is asked for.

    Args:
        anchor: (num_values,) phi, not changed while the op lasts.
        snapshot: (num_values,) theta_s, the weights when the op started.
        feedback: None without it.
    """

    def __init__(self, anchor: Tensor, snapshot: Tensor, feedback: ErrorFeedback | None) -> None:
        self.anchor, self.snapshot, self._feedback = anchor, snapshot, feedback

    def numel(self) -> int:
        """Length of the vector."""
        return self.anchor.numel()

    def plain(self, places: slice) -> Tensor:
        """Delta = phi - theta_s there, a new tensor."""
        return torch.sub(self.anchor[places], self.snapshot[places])

    def __getitem__(self, places: slice) -> Tensor:
        """Delta, with error feedback plus beta e, a new tensor: what is encoded."""
        delta = self.plain(places)
        return delta if self._feedback is None else self._feedback.corrected(delta, places)


class Synchronous(Giving, InPlace):
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
        self._pending: _Difference | None = None
        self._own_steps = inner_steps

    @property
    def own_steps(self) -> int:
        """Inner steps of this peer's round."""
        return self._own_steps

    def keep_pace(self, own_steps_per_s: float, wanted_steps_per_s: float) -> None:
        """Make so many inner steps a round from now on that most peers need not wait; all of them
        if this one is nearly as fast.

        Raises:
            ValueError: a speed is not positive, or the own one above the wanted one.
        """
        own = steps_for(own_steps_per_s, wanted_steps_per_s, self._inner_steps)
        is_slow = own_steps_per_s < _NEARLY * wanted_steps_per_s
        self._own_steps = own if is_slow else self._inner_steps

    def is_due(self, steps_since_outer: int) -> bool:
        """True from `own_steps` on; a peer may have made more while an op was under way."""
        return steps_since_outer >= self._own_steps

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
        """Delta = phi - theta, with error feedback plus beta e; the weights are kept.

        Raises:
            RuntimeError: the last op was ended by neither `apply` nor `skip`.
        """
        return self.difference(copied(weights), op)[:]

    def difference(self, weights: Values, op: int = 1) -> Values:
        """Make the part of `pseudo_gradient` when it is asked for; see `StepsInPlace`.

        Raises:
            RuntimeError: the last op was ended by neither `land`, `apply` nor `skip`.
        """
        if self._pending is not None:
            raise RuntimeError("an op is under way: end it with apply() or skip() first")
        if not isinstance(weights, Tensor):
            weights = taken(weights, ((0, weights.numel()),), self._dtype)
        self._check(weights, "weights")
        self._pending = _Difference(self._anchor, weights.detach(), self._feedback)
        return self._pending

    def land(
        self,
        mean: Values,
        included: Sequence[tuple[int, int, bool]],
        weights_now: Values | None,
        decoded_own: DecodeOwn | None = None,
        *,
        op: int = 1,
        own_share: float | None = None,
    ) -> Tensor:
        """Outer step, then error feedback and weights by rules 9 and 10; see `StepsInPlace`.

        Without a step since `difference`, included weights are exactly the new anchor.

        Raises:
            ValueError: shapes or ranges do not fit, or error feedback has nothing to settle
                with; nothing changed.
        """
        check_lengths(self._num_values, mean=mean, weights_now=weights_now)
        outer, pending = self._outer_of(op), self._pending
        if pending is None:
            return self._carry(mean, outer, weights_now)
        check_cover(included, self._num_values)
        if self._feedback is not None:
            check_decoded(included, decoded_own)
        if weights_now is not None and is_same(weights_now, pending.snapshot):
            weights_now = None
        # Nothing below can fail: from here on the op counts.
        self._dropped = self._exclusions.record(included)
        waits = self._feedback is None and not all(here for _, _, here in included)
        is_anchor = weights_now is None and not waits and not self._dropped
        for piece in pieces(self._num_values):
            delta = pending.plain(piece) if waits else None
            if self._feedback is not None:
                self._settle(pending, included, decoded_own, piece)
            self._step_in_place(outer, mean, piece)
            if is_anchor:
                continue
            weights = self._landed(delta, included, piece)
            if weights_now is not None:
                weights.add_(weights_now[piece] - pending.snapshot[piece])
            for start, stop in within(self._dropped, piece):
                # NaN minus NaN is no step: without this, dropping would not heal what it is for.
                part, anchor = weights[start:stop], self._anchor[piece][start:stop]
                weights[start:stop] = torch.where(torch.isfinite(part), part, anchor)
            pending.snapshot[piece] = weights
        self._pending = None
        return self._anchor if is_anchor else pending.snapshot

    def skip(self) -> None:
        """End the op without a result; what was pending is computed anew for the next one."""
        self._pending = None

    def drop_broken(self, weights: Tensor) -> Tensor:
        """See `Anchored.drop_broken`; error feedback that is not finite becomes 0."""
        if self._feedback is not None and not is_finite(self._feedback.residual):
            self._feedback.drop()
        return super().drop_broken(weights)

    def _carry(self, mean: Values, outer: OuterTransform, weights_now: Values | None) -> Tensor:
        """theta of a peer that did not contribute: it moves along with the anchor. Where it was the
        anchor it becomes the new one, exactly."""
        if weights_now is None:
            raise ValueError("a peer that contributed nothing must say where its weights are")
        self._dropped = ()
        weights = weights_now
        if not isinstance(weights, Tensor):
            weights = fresh(self._num_values, self._dtype)
        for piece in pieces(self._num_values):
            old, now = self._anchor[piece].clone(), weights_now[piece]
            self._step_in_place(outer, mean, piece)
            weights[piece] = carried(now, old, self._anchor[piece])
        return weights

    def _settle(
        self,
        pending: _Difference,
        included: Sequence[tuple[int, int, bool]],
        decoded_own: DecodeOwn | None,
        piece: slice,
    ) -> None:
        """The residual of a piece after the op; the anchor there is still the old one."""
        residual = pending[piece]
        if decoded_own is not None:
            given = [(start, stop) for start, stop, here in included if here]
            for start, stop in within(given, piece):
                residual[start:stop].sub_(decoded_own(piece.start + start, piece.start + stop))
        for start, stop in within(self._dropped, piece):
            residual[start:stop] = 0
        assert self._feedback is not None
        self._feedback.residual[piece] = residual

    def _landed(
        self, delta: Tensor | None, included: Sequence[tuple[int, int, bool]], piece: slice
    ) -> Tensor:
        """theta of a piece where no step was made meanwhile; the anchor is the new one.

        Args:
            delta: the piece's Delta, where what is left out is not in error feedback.
            included: see `apply`.
            piece: place of the piece in the vector.
        """
        weights = self._anchor[piece].clone()
        if delta is not None:
            out = [(start, stop) for start, stop, here in included if not here]
            for start, stop in within(out, piece):
                # Local rebase: theta <- phi' - Delta, the work goes into the next Delta.
                weights[start:stop].sub_(delta[start:stop])
        for start, stop in within(self._dropped, piece):
            weights[start:stop] = self._anchor[piece][start:stop]
        return weights

    def _forget(self) -> None:
        super()._forget()
        self._pending = None
        if self._feedback is not None:
            self._feedback.drop()
