"""A span on a card that is feigned: torch refuses an operation whose tensors lie in two places.

Run as a program of its own, as torch takes such a device for the whole process. It has shapes and
places and no values, so nothing here is encoded, and no loss is read.
"""

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration

from swarmtrain.config.settings import InnerSection, ModelSection
from swarmtrain.models.device import onto
from swarmtrain.models.tensors import Layout
from swarmtrain.pipeline.blocks import BlockModel, built_in, of_modules
from swarmtrain.pipeline.cut import stages_of
from swarmtrain.pipeline.span import Span
from swarmtrain.pipeline.steps import StageSteps

INNER = InnerSection(lr=0.1)


class Placed(nn.Module):
    """A block that makes a tensor without saying where."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, given: Tensor) -> Tensor:
        return self.inner(given) + torch.arange(8.0) / torch.zeros(8).add(1)


def own_model() -> BlockModel:
    blocks = [nn.Sequential(nn.Embedding(9, 8), Placed()), Placed(), nn.Linear(8, 9)]
    return of_modules(blocks, lambda out, labels: out.logsumexp(-1).sum() - labels.sum())


def one_micro_batch(model: BlockModel, example: Tensor, card: torch.device) -> None:
    """A micro-batch through three stages and back, a step, and a look at the weights."""
    cut = stages_of(model, 3, example, "none")
    with FakeTensorMode(allow_non_fake_inputs=True):
        spans = [Span(model, cut, range(n, n + 1), seed=1, device=card) for n in range(3)]
        given = [onto(torch.zeros(example.shape, dtype=example.dtype), card)]
        for stage, span in enumerate(spans):
            given.append(span.forward(given[stage], stages=(stage,), seed=2))
        gradient = torch.zeros_like(given.pop(), device="cpu")
        for stage in (2, 1, 0):
            span, module = spans[stage], spans[stage].modules[stage]
            back = span.backward(given[stage], onto(gradient, card), stages=(stage,), seed=2)
            back.add_weights()
            optimizer = StageSteps(module, INNER).optimizer
            optimizer.step()
            places = {one.device for one in module.parameters()}
            places |= {one.grad.device for one in module.parameters() if one.grad is not None}
            for state in optimizer.state.values():
                places |= {one.device for name, one in state.items() if name != "step"}
            assert places == {card}, (stage, places)
            layout = Layout.of(module, 64)
            vector = torch.zeros(layout.padded, device="cpu")
            with span.judged({stage: (layout, vector)}):
                assert span.forward(given[stage], stages=(stage,), seed=0).device == card
            if back.input_gradient is not None:
                assert back.input_gradient.device == card
                gradient = back.input_gradient.to("cpu")


if __name__ == "__main__":
    backend_registration._setup_privateuseone_for_python_backend("feigned")
    for kind in ("byte-transformer", "transformer"):
        section = ModelSection(layers=3, width=32, heads=2, context=12)
        if kind == "transformer":
            section = ModelSection(
                kind="transformer", layers=3, width=32, heads=2, context=12, vocabulary=256,
                tied=False,
            )  # fmt: skip
        text = torch.zeros(2, 12, dtype=torch.int64)
        one_micro_batch(built_in(section), text, torch.device("feigned:0"))
    numbers = torch.zeros(2, 5, dtype=torch.int64)
    one_micro_batch(own_model(), numbers, torch.device("feigned:0"))
    print("all on the card")
