"""The naive twin of a pipeline: the whole model, and gradient accumulation in micro-batch order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from swarmtrain.config.settings import InnerSection
from swarmtrain.inner_optimizer import make_optimizer
from swarmtrain.pipeline.clipping import clip_factor
from swarmtrain.pipeline.span import block_seed
from swarmtrain.pipeline.subspace import Subspace
from swarmtrain_transport.pipeline.coordinator.step_under_way import whole_norm


@dataclass(frozen=True)
class MicroBatch:
    """Input, labels, and the seed of its dropout."""

    given: Tensor
    labels: Tensor
    seed: int


class Unsplit:
    """A model in one piece.

    Args:
        model: whole.
        blocks: its modules, before each of which chance is set.
        loss: sum over all tokens.
        inner: its optimizer.
        stages: names of the parameters of each stage; only the norm's sum needs to know them, and
            the subspace.
        subspace: what the weights of all stages but the last are held in.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        loss: Callable[[Tensor, Tensor], Tensor],
        inner: InnerSection,
        stages: Sequence[Sequence[str]],
        subspace: Subspace | None = None,
    ) -> None:
        self._subspace = subspace
        self._named = [
            {name: one for name, one in model.named_parameters() if name in names}
            for names in stages
        ]
        self._confine()
        self.model, self._loss, self._clip, self._stages = model, loss, inner.grad_clip, stages
        self._optimizer = make_optimizer(model, inner)
        self._seed = 0
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(self._setter(index))

    def add(self, batch: MicroBatch) -> float:
        """Add the gradient of one micro-batch; its loss."""
        self._seed = batch.seed
        loss = self._loss(self.model(batch.given), batch.labels)
        loss.backward()
        return float(loss.item())

    def step(self, num_tokens: int, rate: float) -> float:
        """One step; the factor of its clipping."""
        parameters = dict(self.model.named_parameters())
        for named in self._named if self._subspace else ():
            self._subspace.confine_gradients(named)
        squares = []
        for names in self._stages:
            squares.append(0.0)
            for name in names:
                gradient = parameters[name].grad
                gradient /= num_tokens
                squares[-1] += gradient.norm(dtype=torch.float64).item() ** 2
        factor = clip_factor(whole_norm(squares), self._clip)
        for parameter in parameters.values():
            parameter.grad *= factor
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._confine()
        self._optimizer.zero_grad(set_to_none=True)
        return factor

    def _confine(self) -> None:
        for named in self._named if self._subspace else ():
            self._subspace.confine(named)

    def _setter(self, index: int) -> Callable[[nn.Module, object], None]:
        return lambda *_: (
            torch.default_generator.manual_seed(block_seed(self._seed, index)) and None
        )
