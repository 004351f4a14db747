"""SCAFFOLD-M: inner steps are corrected by how a peer's own differ from all peers', with momentum.

SCAFFOLD keeps two variates: a peer's own, the way of its steps in the last round that it was in,
and the mean of all. A step that goes on by the mean's and back by the own one leads where all
peers' steps together would, whatever its own text says. Here a peer keeps only their difference,
its correction, and learns it from what is exchanged anyway: whoever was in an op adds what the mean
difference has and its own lacks. Corrections of those in an op then add up to what they did before,
to nothing from the beginning on, so no step of the swarm is bent, however few are in a round, and
no estimate of the mean over all, nor of how many these are, is needed. Nothing but differences
travels, and no more is shared state than with `fedavg_m`.

With everybody in every round it is SCAFFOLD's option II to the letter: c - c_i changes by the mean
of (x - y_i) / (K eta) less the own one. With a part of the peers SCAFFOLD moves c by S / N of its
change at once for all; here who was not in the op keeps its correction as it is. A first form moved
a common variate by a set S / N: where that is not what happened, every peer is pushed back.

As with `fedavg_m` steps are ways of an optimizer, not gradients; so are corrections. A newcomer,
and who took a state over, begins without one.

References:
    Cheng, Huang, Wu and Yuan, arXiv 2306.16504, algorithm SCAFFOLD-M: a step goes by beta
    (gradient - c_i + c) + (1 - beta) g, then c_i' is the mean of the round's gradients and
    c' = c + sum over contributors of (c_i' - c_i) / N. The abstract was read; the rule is as it is
    commonly told, no section was read. Karimireddy et al., SCAFFOLD, arXiv 1910.06378, option II:
    c_i' = c_i - c + (x - y_i) / (K eta). Corrections that are summed up so are Scaffnew's, of
    Mishchenko et al., ProxSkip, arXiv 2202.09357.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn
from swarmtrain_optimizers.outer import OuterTransform
from swarmtrain_optimizers.strategies.anchored import within
from swarmtrain_optimizers.strategies.base import Moved, Values
from swarmtrain_optimizers.strategies.fedavg_m.strategy import FedAvgM


class ScaffoldM(FedAvgM):
    """With the names of `FedAvgM`, Delta a peer's difference, r the rounds that it spans, and z the
    peer's correction, zero at first, the way of a round: after each inner step
    theta <- theta - (z + mu D / R) / K; after an op that it was in z' = z + (r d / R - Delta) / R.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round, K.
        lr: eta.
        momentum: mu; 0 for SCAFFOLD.
        dtype: float32; float64 for oracles.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        lr: float,
        momentum: float,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(num_values, inner_steps=inner_steps, lr=lr, momentum=momentum, dtype=dtype)
        self._correction = torch.zeros_like(self._anchor)
        self._here: list[tuple[int, int]] = []

    def local_arrays(self) -> list[tuple[str, Tensor]]:
        """[("correction", z)]."""
        return [("correction", self._correction)]

    def load_local(self, arrays: Mapping[str, Tensor]) -> None:
        """Take back z.

        Raises:
            ValueError: names or shapes differ; nothing changed.
        """
        super().load_local(arrays)
        self._correction.copy_(arrays["correction"])

    def between(self) -> Tensor:
        """-(z + mu D) / K, (num_values,); see `ActsBetween`."""
        return super().between().sub_(torch.mul(self._correction, 1.0 / self.own_steps))

    def land(
        self,
        mean: Values,
        included: Sequence[tuple[int, int, bool]],
        weights_now: Values | None,
        decoded_own: DecodeOwn | None = None,
        *,
        op: int = 1,
        own_share: float | None = None,
    ) -> Tensor | Moved:
        """See `Rebasing.land`.

        Raises:
            ValueError: as there; nothing changed.
        """
        is_given = bool(self._pending)
        self._here = [(start, stop) for start, stop, is_in in included if is_in and is_given]
        return super().land(mean, included, weights_now, decoded_own, op=op, own_share=own_share)

    def _step_in_place(self, outer: OuterTransform, mean: Tensor, piece: slice) -> None:
        """Learn the piece's correction, of the anchor as it still is, and make the outer step."""
        if self._here:
            lacks = mean * (self._own_rounds / self._rounds)
            lacks.sub_(self._pending[0].plain(piece, piece)).mul_(1.0 / self._rounds)
            for start, stop in within(self._here, piece):
                self._correction[piece][start:stop].add_(lacks[start:stop])
        super()._step_in_place(outer, mean, piece)

    def _forget(self) -> None:
        super()._forget()
        self._correction.zero_()
