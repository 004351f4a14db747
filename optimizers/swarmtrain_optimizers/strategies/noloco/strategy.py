"""NoLoCo: no mean over all; every op is an exchange with one partner, drawn anew.

Each peer has an anchor and a momentum of its own, so there is no shared root: what partners can
compare is the pair of contributions, which both hold. A pair mixes its differences and pulls its
anchors together. A peer that is left over (an odd number, a partner that died, an op that was
skipped) makes a group of one (`solo`). The anchor half of a contribution is known when the round
begins and the partner when the roster is, so it may travel during the inner steps.

Both partners compute with the decoded halves, their own too: then what one anchor is pulled up
the other is pulled down, and the mean over all peers is what it would be without pulling.

References:
    Kolehmainen et al., NoLoCo: No-all-reduce Low Communication Training, arXiv 2506.10911, eq. 1,
    2 and 74. The sign follows their definition of the difference and their code, whose momentum
    is the heavy ball's (m <- alpha m + d, then phi moves by m), not DiLoCo's Nesterov.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn, check_cover
from swarmtrain_optimizers.outer import OuterTransform, State
from swarmtrain_optimizers.strategies.anchored import Anchored
from swarmtrain_optimizers.strategies.base import Exchange, OpKind
from swarmtrain_optimizers.subnormals import flush_tiny_
from swarmtrain_optimizers.vectors import copied, fresh


@dataclass(frozen=True, slots=True)
class _Pending:
    """This peer's half of the op under way.

    Attributes:
        snapshot: (num_values,) theta_s, the weights when the op began.
        contribution: (2 num_values,) the difference, then the anchor.
    """

    snapshot: Tensor
    contribution: Tensor


class NoLoCo(Anchored):
    """With phi_i, delta_i, theta_i peer i's anchor, momentum and weights, Delta_i = phi_i -
    theta_i (old minus new, as everywhere here), d and p the means over the pair of Delta and phi:
    delta_i <- alpha delta_i - beta d + gamma (p - phi_i); phi_i <- phi_i + delta_i;
    theta_i <- phi_i. Alone, p is phi_i and gamma has no effect.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round, 50 in the paper.
        momentum: alpha, 0.5 in the paper.
        lr: beta, 0.7 in the paper; above alpha, or the mean does not converge.
        pull: gamma, 0.7 in the paper's code; between alpha and sqrt(2 + alpha^2): below it
            replicas drift apart, above it they swing.
        dtype: float32; float64 for oracles.

    Raises:
        ValueError: `lr` or `pull` is out of its range.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        momentum: float = 0.5,
        lr: float = 0.7,
        pull: float = 0.7,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not 0 <= momentum < lr:
            raise ValueError(f"lr {lr} must be above momentum {momentum}, or nothing converges")
        if not momentum < pull < math.sqrt(2 + momentum * momentum):
            raise ValueError(
                f"pull {pull} must be between momentum {momentum} and "
                f"{math.sqrt(2 + momentum * momentum):.4f}"
            )
        outer = OuterTransform(("momentum",), _unused)
        super().__init__(num_values, inner_steps=inner_steps, outer=outer, dtype=dtype)
        self._momentum = momentum
        self._lr = lr
        self._pull = pull
        self._pending: _Pending | None = None

    def exchange(self, op: int) -> Exchange:
        """Difference and anchor, whole, with one partner."""
        return Exchange(OpKind.PAIR, ((0, self._num_values),), vectors=2)

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """(2 num_values,) Delta_i, then phi_i.

        Raises:
            RuntimeError: the last op was ended by neither `apply`, `solo` nor `skip`.
        """
        if self._pending is not None:
            raise RuntimeError("an op is under way: end it with apply(), solo() or skip() first")
        self._check(weights, "weights")
        snapshot, size = copied(weights), self._num_values
        contribution = fresh(2 * size, self._dtype)
        torch.sub(self._anchor, snapshot, out=contribution[:size])
        contribution[size:] = self._anchor
        self._pending = _Pending(snapshot, contribution)
        return contribution

    def known_ahead(self) -> tuple[int, Tensor]:
        """The anchor half, (num_values,): it stays as it is while the round lasts."""
        return self._num_values, self._anchor

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
        """End the op with the partner's half.

        Args:
            mean: (2 num_values,) what the partner gave, decoded.
            included: parts of the op's vector in which both halves count; elsewhere we step alone.
            weights_now: (num_values,) with steps made since, which are kept (rule 10).
            decoded_own: our half as the partner decoded it; None where the codec loses nothing.
            op: ignored.
            own_share: ignored, as it is a half.

        Returns:
            (num_values,) the weights to go on from; as they are for a peer that gave nothing, as
            a pair's op says nothing to others.

        Raises:
            ValueError: shapes or ranges do not fit; nothing changed.
        """
        self._check(weights_now, "weights_now")
        now = weights_now.detach()
        if self._pending is None:
            return now.clone()
        given = self._pending.contribution
        if mean.shape != given.shape or mean.dtype != given.dtype:
            raise ValueError(f"the partner's half is {tuple(mean.shape)} {mean.dtype}")
        check_cover(included, given.numel())
        own = _decoded(given, included, decoded_own)
        partner = copied(own)
        for start, stop, both in included:
            if both:
                partner[start:stop] = mean[start:stop]
        return self._landed(self._pending, own, partner, now)

    def solo(self, weights_now: Tensor) -> Tensor:
        """End the op alone: a group of one, which both of a failed pair are.

        Args:
            weights_now: see `apply`.

        Returns:
            (num_values,) the weights to go on from.

        Raises:
            RuntimeError: no op is under way.
        """
        if self._pending is None:
            raise RuntimeError("no op is under way: call pseudo_gradient() first")
        size = self._pending.contribution.numel()
        return self.apply(self._pending.contribution, [(0, size, True)], weights_now)

    def skip(self) -> None:
        """End the op without any step; what was pending is computed anew for the next one."""
        self._pending = None

    def _forget(self) -> None:
        self._pending = None

    def _landed(self, pending: _Pending, own: Tensor, partner: Tensor, now: Tensor) -> Tensor:
        """The step, in operations of protocol.md rule 4, and the weights after it."""
        size = self._num_values
        drift = torch.add(own[:size], partner[:size]).mul_(0.5).mul_(self._lr)
        pull = torch.sub(partner[size:], own[size:]).mul_(0.5).mul_(self._pull)
        self._make_spares()
        (old,), (new,) = self._state, self._spare_state
        torch.mul(old, self._momentum, out=new)
        new.sub_(drift).add_(pull)
        flush_tiny_(torch.add(self._anchor, new, out=self._spare_anchor))
        flush_tiny_(new)
        self._swap()
        self._pending = None
        if torch.equal(now, pending.snapshot):
            return copied(self._anchor)
        return torch.add(self._anchor, now - pending.snapshot)


def _decoded(
    given: Tensor,
    included: Sequence[tuple[int, int, bool]],
    decoded_own: DecodeOwn | None,
) -> Tensor:
    """Our half as the partner has it; where we step alone, and without a loss, as we gave it."""
    own = copied(given)
    for start, stop, both in included:
        if both and decoded_own is not None:
            own[start:stop] = decoded_own(start, stop)
    return own


def _unused(direction: Tensor, state: State, state_out: State) -> Tensor:
    """NoLoCo's step needs two means, so it is written out above; this only names its state."""
    return direction
