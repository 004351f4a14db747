"""FedAvg-M: every inner step goes a little of the way that all peers together went last round.

Where peers' texts differ, inner steps drift each to a place of its own. With the last round's mean
direction in each step a peer goes where all went, as far as that is known, and its own gradients
are taken along that way: DiLoCo's momentum moves weights once, after a round. Error feedback is not
taken: what a codec loses is small beside a round, and the direction would hold it twice.

The paper's steps are plain ones, x <- x - eta (beta gradient + (1 - beta) g), with g the mean
direction of a step in the last round. Here any optimizer makes them. Its own step, which the
learning rate and the optimizer's history are in, stands for eta beta gradient, and g is counted in
the same: as a way, not as a gradient. So beta has no place of its own beside the learning rate, and
the share of the last way is the momentum.

Who is left out of a round goes on with its work, and its next difference spans several rounds. So
a mean over half of the peers is of two rounds' work, and the push goes by the rounds that it is of,
as far as this peer knows: by the mean as it is, momentum would grow without end where few are in a
round. A push is a peer's own affair; the direction, which is shared state, is the mean as it is.

References:
    Cheng, Huang, Wu and Yuan, Momentum Benefits Non-IID Federated Learning Simply and Provably,
    arXiv 2306.16504, algorithm FedAvg-M: g' = sum over peers of (x - x_i) / (eta N K), x' = x -
    gamma g'. The abstract was read; the rule is as it is commonly told, no section was read. It is
    also known as FedCM (arXiv 2106.10874).
"""

import torch
from torch import Tensor

from swarmtrain_optimizers.outer import OuterTransform, State
from swarmtrain_optimizers.strategies.base import SwarmFacts
from swarmtrain_optimizers.strategies.synchronous import Synchronous


class FedAvgM(Synchronous):
    """With phi the anchor, d the mean of a round's differences, R the rounds of work that it is of,
    eta the outer rate, mu the momentum and K a peer's inner steps of a round: after each inner step
    theta <- theta - (mu / K) D / R; at the round's end D' = d, phi' = phi - eta d.

    A difference holds the way of a peer's own steps, w a round, and mu D / R. For a constant w the
    mean tends to R w / (1 - mu).

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round, K.
        lr: eta.
        momentum: mu, (1 - beta) in the paper.
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
        super().__init__(
            num_values,
            inner_steps=inner_steps,
            outer=OuterTransform(("direction",), self._keep_direction),
            feedback_beta=None,
            dtype=dtype,
        )
        self._lr, self._momentum = lr, momentum
        self._rounds, self._own_rounds = 1.0, 1

    def hear_of_swarm(self, facts: SwarmFacts) -> None:
        """Take in how many rounds the next mean is of, and the own part."""
        self._rounds, self._own_rounds = facts.rounds, facts.own_rounds

    def between(self) -> Tensor:
        """-(mu / K) D / R, (num_values,); see `ActsBetween`."""
        return torch.mul(self._state[0], -self._momentum / (self._rounds * self.own_steps))

    def _keep_direction(self, direction: Tensor, state: State, state_out: State) -> Tensor:
        state_out[0].copy_(direction)
        return direction.mul_(self._lr)

    def _forget(self) -> None:
        super()._forget()
        self._rounds, self._own_rounds = 1.0, 1
