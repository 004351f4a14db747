"""Fine-tuning by forward passes: each tells one byte, and everybody makes the same steps of them.

An inner step moves all weights a little in a drawn direction, and a little against it, and looks
what a batch loses there. The difference is the slope of the loss in that direction; it travels as
one byte, as everybody can make the direction again from the names of run, op and peer. There are no
gradients, no activations to keep for them and no state of an optimizer, so a peer needs the memory
of inference. Losses may differ from machine to machine, the state does not: it is a function of
the bytes in the ledger's results alone.

All slopes of a round are measured at the anchor, which does not move meanwhile: of steps that small
a sum is as good as a walk, and nothing has to be taken back. As with `ddp`, what was left out or
skipped is lost. A slope of one direction says little of a large model: from nothing, nothing is
learned in this way in any useful time.

References:
    Spall, Multivariate stochastic approximation using a simultaneous perturbation gradient
    approximation, IEEE TAC 1992 (signs); Malladi et al., Fine-Tuning Language Models with Just
    Forward Passes, arXiv 2305.17333 (MeZO); Zelikman et al., Just One Byte (per gradient),
    github.com/ezelikman/justonebyte, where the machine that measured takes its own slope as it was
    and not as it is decoded, so that it drifts from the others; here all take what is decoded.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn
from swarmtrain_optimizers.outer import sgd
from swarmtrain_optimizers.strategies.anchored import Anchored
from swarmtrain_optimizers.strategies.base import Exchange, Given, OpKind
from swarmtrain_optimizers.strategies.checks import check_vector
from swarmtrain_optimizers.strategies.one_byte.scalars import (
    CODE_MAX,
    Signs,
    code_of,
    start_of,
    value_of,
)
from swarmtrain_optimizers.subnormals import flush_tiny_

_PIECE_VALUES = 262_144
"""Values per pass: temporaries stay in a cache."""


class OneByte(Anchored):
    """With phi the anchor, z_ik the direction of peer i's step k, c_ik its slope as it is decoded,
    L the loss of the step's batch, w_i the peer's weight, W their sum, eta_k the inner learning
    rate of the step and alpha the outer one:
    c_ik = byte((L(phi + epsilon z_ik) - L(phi - epsilon z_ik)) / (2 epsilon));
    phi' = phi - alpha sum_i (w_i / W) sum_k eta_k c_ik z_ik.

    A contribution are the bytes of a round's steps. The first value of each block is 127, so that
    the block's scale is 1 and all others come out of int8 as they went in; who sends anything else
    has given nothing.

    Args:
        num_values: length of the padded vector.
        inner_steps: slopes of one round.
        lr: alpha.
        schedule: eta of an inner step of the run, counted from 0; the same bits on every peer.
        seed: seed of the run.
        block: values that share a scale.
        num_used: length of the vector without padding, which stays 0.
        epsilon: length of a move to both sides, in each value.
        dtype: float32; float64 for oracles.

    Raises:
        ValueError: a round's slopes do not fit into the vector.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        lr: float,
        schedule: Callable[[int], float],
        seed: int,
        block: int,
        num_used: int,
        epsilon: float = 1e-3,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(num_values, inner_steps=inner_steps, outer=sgd(lr), dtype=dtype)
        self._lr, self._schedule, self._seed, self._epsilon = lr, schedule, seed, epsilon
        self._block, self._num_used = block, num_used
        self._num_given = -(-inner_steps // (block - 1)) * block
        if self._num_given > num_values:
            raise ValueError(
                f"{inner_steps} inner steps take {self._num_given} values, and the model has "
                f"{num_values}"
            )
        self._codes: list[int] = []

    def exchange(self, op: int) -> Exchange:
        """The first places of the vector, as many as a round's slopes take, to everybody."""
        return Exchange(OpKind.GATHER, ((0, self._num_given),))

    def live_in(self, weights: Tensor) -> None:
        """Let the anchor be this memory.

        Raises:
            ValueError: it is not (num_values,).
        """
        self._check(weights, "weights")
        self._anchor = weights

    def direction(self, op: int, peer: bytes) -> Signs:
        """Return the direction of the next step of the round that ends with `op`."""
        return Signs(start_of(self._seed, op, peer, len(self._codes)), self._epsilon)

    def heard(self, ahead: float, behind: float) -> None:
        """Keep the byte of the slope between the two losses."""
        self._codes.append(code_of((ahead - behind) / (2 * self._epsilon)))

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """The bytes of the round's slopes as numbers, (exchange.num_values,); `weights` are the
        anchor and not looked at. A round that ends early gives zeros for the rest."""
        rows = torch.zeros(self._num_given // self._block, self._block, dtype=self._dtype)
        rows[:, 0] = CODE_MAX
        codes = self._codes[: self._inner_steps]
        told = torch.zeros(rows[:, 1:].numel(), dtype=self._dtype)
        told[: len(codes)] = torch.tensor(codes, dtype=self._dtype)
        rows[:, 1:] = told.view(len(rows), -1)
        return rows.view(-1)

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
        """End an op that one peer without a name has given `mean` to; drivers call `take`.

        Raises:
            ValueError: shapes do not fit; nothing changed.
        """
        check_vector(mean, "mean", self._num_given, self._dtype)
        self._check(weights_now, "weights_now")
        return self.take([Given(b"", 1, mean)], op).clone()

    def take(self, given: Sequence[Given], op: int) -> Tensor:
        """Make everybody's steps, piece by piece where the anchor lies; see `Probing.take`."""
        told = [(one, codes) for one in given if (codes := self._codes_in(one.values))]
        total = sum(one.weight for one, _ in told)
        moves = [
            (Signs(start_of(self._seed, op, one.peer, number), 0.0), rate)
            for one, codes in told
            for number, code in enumerate(codes)
            if (rate := self._move(op, number, code, one.weight / total))
        ]
        for start in range(0, self._num_used, _PIECE_VALUES):
            stop = min(start + _PIECE_VALUES, self._num_used)
            way = torch.zeros(stop - start, dtype=self._dtype)
            for direction, rate in moves:
                way.add_(direction.signs(start, stop).mul_(rate))
            flush_tiny_(self._anchor[start:stop].sub_(way))
        self._codes.clear()
        return self._anchor

    def _move(self, op: int, number: int, code: int, share: float) -> float:
        """Move of each value for a slope, a number of float32."""
        step = (op - 1) * self._inner_steps + number
        rate = self._lr * self._schedule(step) * share * value_of(code)
        return float(np.float32(rate))

    def _codes_in(self, values: Tensor) -> list[int]:
        """The bytes of a contribution; none if it is not what a peer gives."""
        rows = values.view(-1, self._block)
        is_whole = bool(((rows == rows.round()) & (rows.abs() <= CODE_MAX)).all())
        if not is_whole or not bool((rows[:, 0] == CODE_MAX).all()):
            return []
        return [int(code) for code in rows[:, 1:].reshape(-1)[: self._inner_steps].tolist()]

    def skip(self) -> None:
        """Slopes are lost, the weights stay."""
        self._codes.clear()

    def _forget(self) -> None:
        self._codes.clear()
