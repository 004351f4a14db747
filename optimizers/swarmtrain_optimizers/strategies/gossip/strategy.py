"""Gossip: two peers that are ready average their weights, and the others work on.

There is no outer optimizer and no state in common. Each peer trains, says that it is ready after
some steps, and meets whoever is ready too; what both get is the mean of the two. Who finds no
partner has lost nothing: its weights seek one in the next op, at once.

Clocks are independent: a round has half to one and a half times the steps, drawn from the bits of
what the peer has just given, which nobody else has. Were all rounds alike, two that have met would
be ready together again, and meet nobody else.

With a flow each peer has one further copy of its weights (A2CiD2). Both make the same inner steps.
A pair's difference moves the copy farther than the weights, and between exchanges the two flow
together: so a message goes on moving weights after it has been heard, and on sparse graphs
replicas come together sooner. What is kept here is the lag, the copy minus the weights: inner steps
leave it alone.

Departures: weights flow once an exchange, by all that the paper's flow moves since the one before,
and that counts as one unit of time however many inner steps a slow peer has made; the exponential
is (1 - t / 1024)^1024, as every peer's must have the same bits.

References:
    Lian et al., Asynchronous Decentralized Parallel Stochastic Gradient Descent (AD-PSGD),
    arXiv 1710.06952, Alg. 1. Nabli et al., A2CiD2: Accelerating Asynchronous Communication in
    Decentralized Deep Learning, arXiv 2306.08289, eq. 4 and Alg. 1. Nabli and Oyallon, DADAO,
    arXiv 2208.00779 (exchanges on clocks of their own).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn, check_cover
from swarmtrain_optimizers.outer import OuterTransform, State
from swarmtrain_optimizers.strategies.anchored import Anchored
from swarmtrain_optimizers.strategies.base import Exchange, OpKind
from swarmtrain_optimizers.subnormals import flush_tiny_

_SQUARINGS = 10
_DRAWN_VALUES = 4096


@dataclass(frozen=True, slots=True)
class _Pending:
    """This peer's half of the op under way.

    Attributes:
        snapshot: (num_values,) the weights when the op began.
        given: (num_values,) what they are after their flow.
    """

    snapshot: Tensor
    given: Tensor


class Gossip(Anchored):
    """With x the weights and z the lag: x <- x + (1 - e) / 2 z and z' = e z, where
    e = exp(-2 flow); then with m = x_i - x_j of the pair: x <- x - m / 2 and
    z <- z' - (reach - 1/2) m. Without a flow z is 0 throughout.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps from one exchange to the next in the mean, the unit of time.
        flow: eta. On a graph whose edges are used with rates of a Laplacian L that is
            1 / (2 sqrt(chi_1 chi_2)), with 1 / chi_1 the least positive eigenvalue of L and
            chi_2 half the largest effective resistance of an edge.
        reach: the second alpha, sqrt(chi_1 / chi_2) / 2.
        dtype: float32; float64 for oracles.

    Raises:
        ValueError: `flow` or `reach` is out of its range.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        flow: float = 0.0,
        reach: float = 0.5,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not (0 <= flow <= 4 and reach >= 0.5):
            raise ValueError(f"flow {flow} must be 0 to 4, and reach {reach} at least 0.5")
        outer = OuterTransform(("lag",), _unused)
        super().__init__(num_values, inner_steps=inner_steps, outer=outer, dtype=dtype)
        self._left = decay(2 * flow)
        self._reach = reach
        self._pending: _Pending | None = None
        self._round = inner_steps

    def is_due(self, steps_since_outer: int) -> bool:
        """True when the clock of this peer's own has come round."""
        return steps_since_outer >= self._round

    def exchange(self, op: int) -> Exchange:
        """The weights, whole, with one partner."""
        return Exchange(OpKind.PAIR, ((0, self._num_values),))

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """(num_values,) the weights after their flow.

        Raises:
            RuntimeError: the last op was ended by neither `apply` nor `skip`.
        """
        if self._pending is not None:
            raise RuntimeError("an op is under way: end it with apply() or skip() first")
        self._check(weights, "weights")
        snapshot = weights.detach().clone()
        given = torch.add(snapshot, torch.mul(self._state[0], (1.0 - self._left) / 2))
        self._pending = _Pending(snapshot, given)
        return given

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
        """End the op with the partner's weights.

        Args:
            mean: (num_values,) what the partner gave, decoded.
            included: parts of the op's vector in which both halves count; elsewhere nobody moves.
            weights_now: (num_values,) with steps made since, which are kept (rule 10).
            decoded_own: our half as the partner decoded it; None where the codec loses nothing.
            op: ignored.
            own_share: ignored, as it is a half.

        Returns:
            (num_values,) the weights to go on from; as they are for a peer that gave nothing.

        Raises:
            ValueError: shapes or ranges do not fit; nothing changed.
        """
        self._check(weights_now, "weights_now")
        now, pending = weights_now.detach(), self._pending
        if pending is None:
            return now.clone()
        given = pending.given
        if mean.shape != given.shape or mean.dtype != given.dtype:
            raise ValueError(f"the partner's half is {tuple(mean.shape)} {mean.dtype}")
        check_cover(included, given.numel())
        self._make_spares()
        (old,), (lag,), anchor = self._state, self._spare_state, self._spare_anchor
        torch.mul(old, self._left, out=lag)
        midway(given, mean, included, decoded_own, anchor)
        for start, stop, both in included:
            if both:
                partner, kept = mean[start:stop], given[start:stop]
                own = kept if decoded_own is None else decoded_own(start, stop)
                lag[start:stop].add_(torch.sub(partner, own).mul_(self._reach - 0.5))
        flush_tiny_(anchor)
        flush_tiny_(lag)
        self._swap()
        self._pending = None
        self._round = drawn_steps(pending.given, self._inner_steps)
        if torch.equal(now, pending.snapshot):
            return self._anchor.clone()
        return torch.add(self._anchor, now - pending.snapshot)

    def skip(self) -> None:
        """End the op without any move."""
        self._pending = None

    def _forget(self) -> None:
        self._pending = None


def midway(
    given: Tensor,
    partner: Tensor,
    included: Sequence[tuple[int, int, bool]],
    decoded_own: DecodeOwn | None,
    out: Tensor,
) -> Tensor:
    """Write the mean of two partners' weights into `out`, and return it.

    Both compute with what was decoded: what one moves the other moves back. What the codec lost of
    the own half stays; where it loses nothing the two have the same bits.

    Args:
        given: (num_values,) the own half.
        partner: (num_values,) the other half, decoded.
        included: parts in which both count; elsewhere `given` stays.
        decoded_own: the own half as the partner decoded it; None where the codec loses nothing.
        out: (num_values,) written to.
    """
    out.copy_(given)
    for start, stop, both in included:
        if both:
            kept = given[start:stop]
            own = kept if decoded_own is None else decoded_own(start, stop)
            middle = torch.add(partner[start:stop], own).mul_(0.5)
            out[start:stop] = middle.add_(torch.sub(kept, own))
    return out


def drawn_steps(given: Tensor, inner_steps: int) -> int:
    """Return the steps of a round: uniform about `inner_steps`, from the bits of a tensor."""
    digest = hashlib.sha256(given[:_DRAWN_VALUES].numpy().tobytes()).digest()
    share = int.from_bytes(digest[:8], "little") / (1 << 64)
    return max(1, round(inner_steps * (0.5 + share)))


def decay(time: float) -> float:
    """Return about exp(-time), by multiplications alone (protocol.md rule 4); exactly 1 at 0."""
    left = 1.0 - time / (1 << _SQUARINGS)
    for _ in range(_SQUARINGS):
        left *= left
    return left


def _unused(direction: Tensor, state: State, state_out: State) -> Tensor:
    """The step is written out above; this only names its state."""
    return direction
