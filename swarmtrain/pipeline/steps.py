"""Optimizer steps of one stage at one peer, from the gradients of micro-batches that counted.

Gradients are of sums over tokens, and are added in the order in which they count. A step divides by
the tokens that counted, so a micro-batch that was lost changes the size of the sample and not that
of the gradient. Moments and weight decay go by a peer's own steps, the learning rate by the run's
clock, which the caller knows.

Not here: when a step is due, and by which norm it is clipped (`clipping`).
"""

import torch
from torch import nn

from swarmtrain.config.settings import InnerSection
from swarmtrain.inner_optimizer import make_optimizer, ramp_steps
from swarmtrain.pipeline.subspace import Subspace
from swarmtrain_optimizers.schedule import fresh_optimizer_ramp


class StageSteps:
    """The inner optimizer of one stage.

    Args:
        module: the stage's parameters. Their `grad` is where gradients are added.
        inner: [inner] of the run file.
        modules: code of installed packages that may be used.
        subspace: subspace that the weights are held in.

    Attributes:
        num_tokens: tokens that counted since the last step.
        subspace: see the argument; whoever changes it calls `hold`.
        optimizer: optimizer of the parameters.
    """

    def __init__(
        self,
        module: nn.Module,
        inner: InnerSection,
        modules: frozenset[str] = frozenset(),
        subspace: Subspace | None = None,
    ) -> None:
        self._named, self.subspace = dict(module.named_parameters()), subspace
        self.num_tokens = 0
        self.optimizer = make_optimizer(module, inner, modules)
        self._ramp_steps = 0
        self._num_steps = 0
        self._inner = inner
        self._parameters = [one for one in module.parameters() if one.requires_grad]

    def come_late(self) -> None:
        """The run has made steps already. The rate of an optimizer that has made none is ramped up:
        its moments have no history."""
        if not self._num_steps:
            self._ramp_steps = ramp_steps(self._inner)

    def count(self, num_tokens: int) -> None:
        """Count a micro-batch whose gradient was just added."""
        self.num_tokens += num_tokens

    def close(self, *, nominal_tokens: int = 0) -> float:
        """Make the mean of what counted; nothing can be added until `step` or `void`.

        Args:
            nominal_tokens: tokens of a whole step, for a last one that is short: the mean is over
                so many at least.

        Returns:
            The squared norm of the mean, a float64 sum in the order of the parameters. Apple's GPU
            has no float64, so there each of them is a float32 sum.
        """
        if self.subspace is not None:
            self.subspace.confine_gradients(self._named)
        divisor = max(self.num_tokens, nominal_tokens, 1)
        total = 0.0
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.div_(divisor)
                wide = torch.float32 if parameter.device.type == "mps" else torch.float64
                norm = float(torch.linalg.vector_norm(parameter.grad, dtype=wide))
                total += norm * norm
        return total

    def step(self, *, rate: float, factor: float = 1.0) -> None:
        """One optimizer step along the mean; begin anew.

        Args:
            rate: learning rate, by the run's clock.
            factor: factor of clipping, above 0 and at most 1.
        """
        if factor < 1:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * fresh_optimizer_ramp(self._num_steps, ramp_steps=self._ramp_steps)
        self._num_steps += 1
        self.optimizer.step()
        self.hold()  # whatever optimizer it is, and for its decay of the weights
        self.void()

    def hold(self) -> None:
        """Bring the weights into the subspace."""
        if self.subspace is not None:
            self.subspace.hold(self._named)

    def void(self) -> None:
        """Drop what counted since the last step."""
        self.num_tokens = 0
        for parameter in self._parameters:
            parameter.grad = None
