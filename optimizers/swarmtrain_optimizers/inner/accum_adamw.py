"""AdamW whose moments see the mean gradient of several steps, while every step moves the weights.

With g the gradient of step s, K steps between two updates of the moments, G the sum of g / K since
the last one, lr, betas b1 and b2, decoupled weight decay wd:

    theta <- theta (1 - lr wd) - lr (m' / c1) / (sqrt(v' / c2) + eps)
    m' = b1 m + (1 - b1) g,  v' = b2 v + (1 - b2) g^2,  c = 1 - b^ceil(s / K)

and after each K-th step m <- b1 m + (1 - b1) G, v <- b2 v + (1 - b2) G^2, G <- 0. A mean of K
gradients has a K-th of their noise: the second moment is as small as with a batch K times as large,
which is what a swarm's mean moves by. K is about the number of peers.

State: three times the parameters in their own type, kept in float32 for shorter ones.

References:
    Wang et al., From promise to practice: realizing high-performance decentralized training,
    arXiv 2410.11998 (AccumAdamW; the rule is as in the authors' public code, which keeps the
    moments multiplied by their decay).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from swarmtrain_optimizers.inner.uncompiled import Uncompiled


class AccumAdamW(Uncompiled):
    """AdamW with accumulated moments.

    Args:
        params: parameters or groups of them; each group may have settings of its own.
        lr: learning rate.
        betas: decays of the first and the second moment.
        eps: keeps a step finite where a gradient has always been zero.
        weight_decay: decoupled decay, times the learning rate.
        every: K, steps whose mean gradient the moments see.

    Raises:
        ValueError: `every` is below 1, or a rate or decay is out of its range.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        every: int = 4,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is {every}; moments see the mean of at least one step")
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"lr {lr}, betas {betas}, eps {eps} or weight_decay {weight_decay}")
        super().__init__(
            params,
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "every": every},
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; see `torch.optim.Optimizer.step`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, parameter.grad, group)
        return loss

    def _step_one(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq", "gathered"):
                state[name] = torch.zeros_like(parameter, dtype=_kept_in(parameter.dtype))
        state["step"] += 1
        step, every, (beta1, beta2) = state["step"], group["every"], group["betas"]
        first, second, gathered = state["exp_avg"], state["exp_avg_sq"], state["gathered"]
        gradient = gradient.to(first.dtype)
        gathered.add_(gradient, alpha=1 / every)
        updates = math.ceil(step / every)
        scale = math.sqrt(1 - beta2**updates)
        below = second.mul(beta2).addcmul_(gradient, gradient, value=1 - beta2).sqrt_()
        below.div_(scale).add_(group["eps"])
        move = torch.lerp(gradient, first, beta1).div_(below)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(move.to(parameter.dtype), alpha=-group["lr"] / (1 - beta1**updates))
        if step % every == 0:
            first.lerp_(gathered, 1 - beta1)
            second.mul_(beta2).addcmul_(gathered, gathered, value=1 - beta2)
            gathered.zero_()


def _kept_in(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
