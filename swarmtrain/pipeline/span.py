"""Forward and backward passes of a span: the consecutive stages that one peer serves.

A forward pass keeps nothing. A backward pass computes the forward pass again, from the input that
is kept for it and with the weights of that moment; so a micro-batch on its way costs its input
alone. Chance is the micro-batch's own: before each block torch's generators are set from the
micro-batch's seed and the block's place in the model. So dropout hangs neither on the cut, nor on
the peer, nor on how often a block is computed, as long as the kind of device is the same.

Not here: which micro-batch is next, whether it counts, and optimizer steps (`steps`).
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from swarmtrain.models.device import onto
from swarmtrain.models.tensors import Layout
from swarmtrain.pipeline.backward import Backward
from swarmtrain.pipeline.blocks import BlockModel, build, cannot
from swarmtrain.pipeline.subspace import Subspace
from swarmtrain_transport.pipeline.wire.route import MicroBatch


def dropout_seed(run: bytes, micro_batch: MicroBatch) -> int:
    """Seed of a micro-batch's chance: the same whoever computes it, and however often.

    Args:
        run: hash of the run's settings, which names it.
        micro_batch: name of the micro-batch; its step or attempt does not matter.
    """
    digest = hashlib.sha256(b"swarmtrain dropout 1" + run + micro_batch.source)
    for number in (micro_batch.round, micro_batch.number):
        digest.update(number.to_bytes(8, "big"))
    digest.update(micro_batch.boot)
    return int.from_bytes(digest.digest()[:8], "big")


def block_seed(seed: int, block: int) -> int:
    """Seed that torch's generators have when a block begins.

    Args:
        seed: `dropout_seed` of the micro-batch.
        block: place of the block in the model.
    """
    digest = hashlib.sha256(b"swarmtrain block 1" + seed.to_bytes(8, "big"))
    digest.update(block.to_bytes(8, "big"))
    return int.from_bytes(digest.digest()[:8], "big")


class Span:
    """Stages on one device.

    Args:
        model: all blocks, on the meta device.
        cut: the blocks of each stage of the run.
        served: the stages of this span, which follow each other.
        seed: seed of the run, for the values that it begins with.
        device: device to compute on.
        subspace: subspace that weights of all stages but the last are held in; None for none.

    Attributes:
        modules: by stage, its parameters under the names of the unsplit model.
        device, subspace: see the arguments.

    Raises:
        UserError: SWT-E613, a block cannot be made.
    """

    def __init__(
        self,
        model: BlockModel,
        cut: Sequence[range],
        served: range,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        subspace: Subspace | None = None,
    ) -> None:
        self.device, self.subspace = torch.device(device), subspace
        self._loss = model.loss
        self._names = [block.name for block in model.blocks]
        self._stages = {
            stage: build(model, cut[stage], seed=seed, device=self.device) for stage in served
        }
        self.modules: dict[int, nn.Module] = {
            stage: built.module for stage, built in self._stages.items()
        }
        if subspace is not None:
            for module in self.modules.values():
                subspace.confine(dict(module.named_parameters()))

    def forward(self, given: Tensor, *, stages: Sequence[int], seed: int) -> Tensor:
        """The output of the last of these stages.

        Args:
            given: input of the first of these stages, on the span's device; only read.
            stages: stages of this span that the micro-batch visits.
            seed: `dropout_seed` of the micro-batch.
        """
        with torch.no_grad():
            return self._run(given, stages, seed)

    def backward(
        self, given: Tensor, gradient: Tensor, *, stages: Sequence[int], seed: int
    ) -> Backward:
        """Compute again, and the gradient of the input from that of the output.

        Args:
            given: see `forward`; equal to what that had.
            gradient: gradient of the output, in its shape.
            stages: see `forward`.
            seed: see `forward`.

        Returns:
            The pass; its weights' gradients are not made yet.

        Raises:
            ValueError: the gradient has another shape than the output.
        """
        given, output = self._with_graph(given, stages, seed)
        if output.shape != gradient.shape:
            raise ValueError(f"a gradient of {tuple(gradient.shape)} for {tuple(output.shape)}")
        return Backward(
            output, gradient, given if given.requires_grad else None, self._weights(stages)
        )

    def backward_from_labels(
        self, given: Tensor, labels: Tensor, *, stages: Sequence[int], seed: int
    ) -> tuple[float, Backward]:
        """Begin the way back at the end of the route.

        Args:
            given: see `forward`.
            labels: labels of the micro-batch.
            stages: see `forward`.
            seed: see `forward`.

        Returns:
            Sum of the losses of all tokens, which may be NaN, and the pass.
        """
        given, output = self._with_graph(given, stages, seed)
        with self.device:
            loss = self._loss(output, labels)
        found = Backward(loss, None, given if given.requires_grad else None, self._weights(stages))
        return float(loss.item()), found

    def check(self, given: Tensor, labels: Tensor | None = None) -> None:
        """Refuse blocks of somebody's own that cannot be computed again or give no gradient, and a
        loss that is no sum.

        Args:
            given: input of the first stage here, on any device.
            labels: labels of the micro-batch, where the last stage is here.

        Raises:
            UserError: SWT-E613.
        """
        value = onto(given, self.device)
        firsts = {built.blocks.start for built in self._stages.values()}
        with torch.no_grad(), self._own_chance(), self.device:
            for index, call in self._blocks(tuple(self._stages)):
                outputs = []
                for _ in range(2):
                    self._set_chance(0, index)
                    taken = value.clone()
                    outputs.append(call(taken))
                    if index in firsts and not _is_same(taken, value):
                        raise cannot(
                            f"block `{self._names[index]}` changes its input in place",
                            "The input of a stage is kept, to be computed again. Let it make a new "
                            "tensor, as by inplace=False.",
                        )
                value = outputs[0]
                if not _is_same(value, outputs[1]):
                    raise cannot(
                        f"block `{self._names[index]}` gives another output each time",
                        "A block is computed again for its gradient. Let it draw from torch's own "
                        "generator, which is set before each block, and from nothing else.",
                    )
        _, output = self._with_graph(onto(given, self.device), tuple(self._stages), 0)
        if not output.requires_grad:
            raise cannot(
                f"nothing flows back through block `{self._names[index]}`",
                "Let it compute its output from its input with torch, under no torch.no_grad().",
            )
        if labels is not None:
            self._check_loss(output.detach(), onto(labels, self.device))

    def _check_loss(self, output: Tensor, labels: Tensor) -> None:
        with torch.no_grad(), self._own_chance(), self.device:
            once = self._loss(output, labels)
            twice = self._loss(torch.cat([output, output]), torch.cat([labels, labels]))
        if once.dim():
            raise cannot(
                f"the loss has the shape {tuple(once.shape)}", "Let it give one sum of all labels."
            )
        if once and torch.isclose(once, twice):
            raise cannot(
                "the loss of a micro-batch twice as large is the same, so it is a mean",
                'Let it give the sum over all labels, as by reduction="sum".',
            )

    @contextmanager
    def judged(self, values: Mapping[int, tuple[Layout, Tensor]]) -> Iterator[None]:
        """Compute with these values and without dropout; afterwards all is as it was, bit for bit.

        Args:
            values: by stage, (padded,) float32 in that layout; only read. They take the weights'
                place and are not copied, where they are on the same device.
        """
        live: list[tuple[Tensor, Tensor]] = []
        try:
            for stage, (layout, vector) in values.items():
                self.modules[stage].eval()
                views = layout.named_views(vector)
                for name, parameter in self.modules[stage].named_parameters():
                    if name in views:
                        live.append((parameter, parameter.data))
                        parameter.data = views[name].to(parameter.device, parameter.dtype)
            yield
        finally:
            for changed, was in live:
                changed.data = was
            for stage in values:
                self.modules[stage].train()

    def loss(self, given: Tensor, labels: Tensor, *, stages: Sequence[int] = ()) -> float:
        """Sum of the losses of all tokens; the span ends with the last stage.

        Args:
            given: input of the first of these stages.
            labels: labels of these tokens.
            stages: see `forward`; () for all.
        """
        with torch.no_grad(), self.device:
            output = self._run(onto(given, self.device), stages or tuple(self._stages), 0)
            return float(self._loss(output, onto(labels, self.device)).item())

    def _with_graph(self, given: Tensor, stages: Sequence[int], seed: int) -> tuple[Tensor, Tensor]:
        """The input as a leaf, and the output with the way to it."""
        leaf = given.detach().requires_grad_(given.is_floating_point())
        with torch.enable_grad():
            return leaf, self._run(leaf, stages, seed)

    def _run(self, value: Tensor, stages: Sequence[int], seed: int) -> Tensor:
        with self._own_chance(), self.device:  # what a block makes lies where it computes
            for index, call in self._blocks(stages):
                self._set_chance(seed, index)
                value = call(value)
        return value

    def _blocks(self, stages: Sequence[int]) -> Iterator[tuple[int, Callable[[Tensor], Tensor]]]:
        """Place in the model and call of each block of some stages."""
        for built in map(self._stages.__getitem__, stages):
            yield from zip(built.blocks, built.calls, strict=True)

    def _weights(self, stages: Sequence[int]) -> list[Tensor]:
        return [parameter for stage in stages for parameter in self.modules[stage].parameters()]

    def _own_chance(self) -> AbstractContextManager[None]:
        """Leave torch's generators as they were before."""
        on_gpu = self.device.type == "cuda"
        return torch.random.fork_rng(devices=[self.device] if on_gpu else [])

    def _set_chance(self, seed: int, block: int) -> None:
        """Set the generators for one block of a micro-batch."""
        torch.default_generator.manual_seed(block_seed(seed, block))
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(block_seed(seed, block))
        elif self.device.type == "mps":
            torch.mps.manual_seed(block_seed(seed, block))


def _is_same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
