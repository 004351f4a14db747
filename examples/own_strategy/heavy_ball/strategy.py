"""A strategy of one's own: DiLoCo with the heavy ball's momentum instead of Nesterov's.

m <- mu m + d; phi <- phi - eta m, with phi the anchor, d the mean difference, m the momentum buffer
(zero at first), mu its decay and eta the learning rate; some public code calls this Nesterov. What
becomes of work that an op left out is inherited.

    pip install ./examples/own_strategy
    swarmtrain compare --strategies diloco,heavy_ball --peers 4 --steps 200

and in a run file, which every peer of the run must have the package for:

    [outer]
    strategy = "heavy_ball"
    inner_steps = 50
    lr = 0.7
    momentum = 0.5
"""

import torch

from swarmtrain_optimizers.outer import OuterTransform, State, chain, scale
from swarmtrain_optimizers.strategies.synchronous import Synchronous


def heavy_ball(lr: float, momentum: float) -> OuterTransform:
    def update(direction: torch.Tensor, state: State, state_out: State) -> torch.Tensor:
        # One eager elementwise operation per line: every peer must reach the same bits.
        (old,), (new,) = state, state_out
        torch.mul(old, momentum, out=new)
        new.add_(direction)
        return direction.copy_(new)

    return chain(OuterTransform(("momentum",), update), scale(lr))


class HeavyBall(Synchronous):
    def __init__(self, num_values: int, *, inner_steps: int, lr: float, momentum: float) -> None:
        super().__init__(
            num_values,
            inner_steps=inner_steps,
            outer=heavy_ball(lr, momentum),
            feedback_beta=None,
        )
