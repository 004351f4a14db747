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

import torch
from torch import Tensor

from swarmtrain_optimizers.outer import OuterTransform, State
from swarmtrain_optimizers.strategies.base import Exchange, OpKind
from swarmtrain_optimizers.strategies.paired import Half, Halves, Paired, midway
from swarmtrain_optimizers.subnormals import flush_tiny_
from swarmtrain_optimizers.vectors import pieces

_SQUARINGS = 10
_DRAWN_VALUES = 4096


class Gossip(Paired):
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
        self._round = inner_steps

    def is_due(self, steps_since_outer: int) -> bool:
        """True when the clock of this peer's own has come round."""
        return steps_since_outer >= self._round

    def exchange(self, op: int) -> Exchange:
        """The weights, whole, with one partner."""
        return Exchange(OpKind.PAIR, ((0, self._num_values),))

    def _half(self, weights: Tensor) -> Half:
        """(num_values,) the weights after their flow."""
        (lag,), flow = self._state, (1.0 - self._left) / 2
        return Half(self._num_values, lambda at: torch.add(weights[at], torch.mul(lag[at], flow)))

    def _merge(self, half: Half, halves: Halves) -> None:
        self._round = drawn_steps(half[:_DRAWN_VALUES], self._inner_steps)
        for piece in pieces(self._num_values):
            kept, anchor, lag = half[piece], self._anchor[piece], self._state[0][piece]
            both = list(halves.within(kept, piece))  # ours is made of the lag as it was
            anchor.copy_(kept)
            lag.mul_(self._left)
            for here, own, partner in both:
                anchor[here] = midway(kept[here], own, partner)
                lag[here].add_(torch.sub(partner, own).mul_(self._reach - 0.5))
            flush_tiny_(anchor)
            flush_tiny_(lag)


def drawn_steps(given: Tensor, inner_steps: int) -> int:
    """Return the steps of a round: uniform about `inner_steps`, from the bits of a tensor."""
    digest = hashlib.sha256(given.numpy().tobytes()).digest()
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
