"""Streaming DiLoCo: one fragment of the vector after the other, merged while training goes on.

Each fragment p is a DiLoCo of its own (anchor, momentum, error feedback), and op n moves fragment
(n - 1) mod P, so the link carries a P-th of the vector at a time and every fragment is exchanged
once in H inner steps, the fragments H / P apart. An op's result takes its place tau inner steps
after the contribution and is mixed with what the peer has become meanwhile; the anchor is what the
outer step made, never the mixture, which is this peer's own. With tau above H / P the next
fragments are exchanged before that place is reached: so many ops are under way at once, each on a
fragment of its own. A skipped op's fragment waits for its next turn. Not here: which layers make a
fragment (`fragments`).

References:
    Douillard et al., Streaming DiLoCo with overlapping communication, arXiv 2501.18512, Alg. 2.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn
from swarmtrain_optimizers.outer import nesterov
from swarmtrain_optimizers.strategies.anchored import within
from swarmtrain_optimizers.strategies.base import Exchange, Moved, OpKind, Values
from swarmtrain_optimizers.strategies.checks import is_finite
from swarmtrain_optimizers.strategies.fragments import Ranges, check_fragments
from swarmtrain_optimizers.strategies.rebasing import Rebasing
from swarmtrain_optimizers.vectors import copied, taken


class Streaming(Rebasing):
    """With phi_p the anchor of fragment p, theta_p the peer's weights there, m_p the fragment's
    outer momentum buffer, zero in op 0, mu its decay and eta the outer learning rate: Delta_p =
    phi_p - theta_p; tau steps later d = weighted mean of the included Delta_p; m_p <- mu m_p + d;
    phi_p' = phi_p - eta (mu m_p + d), with the new m_p; then
    theta_p <- alpha theta_p + (1 - alpha) phi_p'.

    With one fragment, tau 0 and alpha 0 this is DiLoCo bit for bit; with alpha 1 peers are
    independent. Work that was left out of an op is rebased as in DiLoCo before it is mixed; with
    tau above 0 and alpha 0 the tau steps are thrown away, as in the paper. The first exchange of
    fragment p comes after (p + 1) H / P steps.

    Args:
        num_values: length of the padded vector.
        fragments: the ranges of each fragment, see `fragments.fragments_of`; their number is P.
        inner_steps: H, inner steps between two exchanges of one fragment; a multiple of P.
        delay_steps: tau, at most H: the fragment's result is there before its next exchange.
        mixing: alpha, how much of its own weights a peer keeps, 0..1.
        lr: eta.
        momentum: mu.
        error_feedback: keep what compression lost, or an exclusion held back.
        dtype: float32; float64 for oracles.

    Raises:
        ValueError: the fragments do not cover the vector, or a number is out of its range.
    """

    def __init__(
        self,
        num_values: int,
        *,
        fragments: Sequence[Ranges],
        inner_steps: int,
        delay_steps: int,
        mixing: float,
        lr: float,
        momentum: float,
        error_feedback: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_fragments(fragments, num_values)
        if inner_steps % len(fragments):
            raise ValueError(f"inner_steps {inner_steps} is no multiple of {len(fragments)}")
        interval = inner_steps // len(fragments)
        if interval < 1 or not 0 <= delay_steps <= inner_steps or not 0 <= mixing <= 1:
            raise ValueError(
                f"delay_steps {delay_steps} must be in 0..{inner_steps}, the steps from a "
                f"fragment's exchange to its next, and mixing {mixing} in 0..1"
            )
        super().__init__(
            num_values, inner_steps=interval, outer=nesterov(lr, momentum),
            feedback_beta=1.0 if error_feedback else None, dtype=dtype,
        )  # fmt: skip
        self._fragments = tuple(tuple(ranges) for ranges in fragments)
        self._delay_steps = delay_steps
        self._alpha = mixing
        self._ops_at_once = max(1, -(-delay_steps // interval))
        # With a delay the steps made meanwhile are alpha's matter, not rule 10's.
        self._rebases = delay_steps == 0
        self._mixes = mixing > 0

    def exchange(self, op: int) -> Exchange:
        """Fragment (op - 1) mod P, its result tau steps later."""
        ranges = self._fragments[(op - 1) % len(self._fragments)]
        return Exchange(OpKind.MEAN, ranges, self._delay_steps)

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
        """Outer step of the op's fragment, then its weights mixed; see `StepsInPlace`. Ops end in
        their order.

        Raises:
            RuntimeError: we contributed another fragment before this op's; nothing changed.
            ValueError: shapes or ranges do not fit; nothing changed.
        """
        ranges = self.exchange(op).ranges
        if self._pending and self._pending[0].ranges != ranges:
            now, given = map(self._fragments.index, (ranges, self._pending[0].ranges))
            raise RuntimeError(f"op {op} moves fragment {now}, we gave {given}")
        landed = super().land(mean, included, weights_now, decoded_own, op=op)
        values = landed.values if isinstance(landed, Moved) else landed
        moved = Moved(() if self._alpha == 1 else ranges, values)
        if not self._dropped or weights_now is None:
            return moved
        # NaN in another fragment would be back in this one after a step.
        whole = ((0, self._num_values),)
        weights = moved.put_in(taken(weights_now, whole, self._dtype))
        return Moved(whole, self.drop_broken(weights))

    def drop_broken(self, weights: Tensor) -> Tensor:
        """Each fragment by itself: one that is finite keeps its work and its error feedback.

        Raises:
            ValueError: `weights` is not (num_values,).
        """
        self._check(weights, "weights")
        kept, own = copied(weights), [array for _, array in self.local_arrays()]
        for ranges in self._fragments:
            parts = [slice(start, stop) for start, stop in ranges]
            is_kept = all(is_finite(kept[part]) for part in parts)
            is_own_kept = all(is_finite(array[part]) for array in own for part in parts)
            for part in parts:
                if not is_kept:
                    kept[part] = self._anchor[part]
                for array in () if is_own_kept else own:
                    array[part] = 0
        return kept

    def _mixed(self, own: Tensor, landed: Tensor, place: slice) -> Tensor:
        """Return alpha theta + (1 - alpha) phi', and phi' where pending work was dropped."""
        if not self._mixes:
            return landed
        mixed = torch.mul(own, self._alpha).add_(torch.mul(landed, 1 - self._alpha))
        for start, stop in within(self._dropped, place):
            mixed[start:stop] = landed[start:stop]
        return mixed
