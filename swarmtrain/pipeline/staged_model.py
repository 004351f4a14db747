"""A model of one's own in stages, and the data of those who have some.

Nothing of it travels: every peer makes the same model from the same program, and the run file names
it by its digest. Not here: blocks and cuts (`blocks`, `cut`), and the peer that trains them.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from torch import Tensor, nn

from swarmtrain.config.built_in import ParameterFacts, num_values_of
from swarmtrain.config.fragments import uncut
from swarmtrain.config.settings import RunConfig
from swarmtrain.foundation.errors import UserError, misuse
from swarmtrain.pipeline.blocks import Initialise, Loss, cannot, of_modules, of_traced
from swarmtrain.pipeline.cut import passed, stages_among
from swarmtrain.pipeline.labels import Labels
from swarmtrain_transport.wire.messages import OWN, Brings

MicroBatch = tuple[Tensor, Tensor]
"""Input of the first block, and labels."""

_CLASSES_MAX = 1 << 31


class StagedModel:
    """A model of one's own for a run in stages: the same program makes it at every peer.

    Make its modules under ``torch.device("meta")``: then nobody holds more than its own stages, and
    their first values come from the run's seed. Modules that have values keep them.

    Args:
        model: an `nn.Sequential`, an `nn.ModuleList` or a list: blocks, of which each takes the one
            tensor that the block before gives. With `at` any module that takes one tensor.
        loss: (output of the last block, labels) -> the sum of the losses of all labels.
        example: input and labels of one micro-batch; their values do not matter.
        classes: labels are whole numbers from 0 to below this; 0 if they are float32 values.
        at: names of submodules, each of which begins a block, where tracing cuts the model
            (`torch.distributed.pipelining`). Tracing wants the example on the model's device.
        initialise: called with each module that holds parameters on the meta device, after its
            ``reset_parameters``.

    Attributes:
        blocks: the model.
        given: input of the example.
        labels: form of a micro-batch's labels.

    Raises:
        UserError: SWT-E613, it cannot be cut; E610, the example does not do.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        loss: Loss,
        *,
        example: MicroBatch,
        classes: int = 0,
        at: Sequence[str] = (),
        initialise: Initialise | None = None,
    ) -> None:
        self.given, labels = example
        if not 0 <= classes < _CLASSES_MAX or labels.is_floating_point() == bool(classes):
            raise misuse(
                f"Labels of {labels.dtype} do not go with classes={classes}.",
                "Whole numbers need classes=, how many there are; float32 values go without.",
            )
        if labels.dim() == 0 or self.given.dim() == 0 or len(labels) != len(self.given):
            raise misuse(
                f"An input of {tuple(self.given.shape)} does not go with labels of "
                f"{tuple(labels.shape)}.",
                "The first axis of both is the examples of a micro-batch.",
            )
        self.labels = Labels(tuple(labels.shape), classes)
        if at:
            if not isinstance(model, nn.Module):
                raise misuse("A list of modules is not traced.", "Leave out at=.")
            self.blocks = of_traced(model, self.given, at, loss, initialise=initialise)
        else:
            self.blocks = of_modules(model, loss, initialise=initialise)
        self._passed = passed(self.blocks, self.given)

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex of all that peers must agree on: blocks, their parameters, what goes from
        one to the next, and the labels. Values and the loss are not in it."""
        blocks = [
            [block.name, _facts(block.tensors()), one.cost.flops, one.shape, str(one.dtype)]
            for block, one in zip(self.blocks.blocks, self._passed, strict=True)
        ]
        forms = [self.given.shape, str(self.given.dtype), self.labels.shape, self.labels.classes]
        text = json.dumps([blocks, forms], separators=(",", ":"))
        return hashlib.sha256(b"swarmtrain staged model 1" + text.encode()).hexdigest()

    @property
    def num_values(self) -> int:
        """Values of all trainable parameters."""
        tensors = (pair for block in self.blocks.blocks for pair in block.tensors())
        return num_values_of(_facts(tensors))

    def stages(self, config: RunConfig) -> tuple[range, ...]:
        """The blocks of each stage of a run.

        Raises:
            UserError: SWT-E605, the run is not for a model in stages or has another micro-batch;
                E804, it is for another model; E613, the model cannot be cut so.
        """
        name, pipeline = config.run.name, config.pipeline
        if pipeline.num_stages == 1:
            raise UserError(
                "SWT-E605",
                f"The run {name} has its model in one piece.",
                "swarmtrain.join_stages is for a run whose file has a section [pipeline].",
                "Use swarmtrain.join(model, optimizer), or set pipeline.stages in the run file.",
            )
        if config.model.digest != self.digest:
            raise UserError(
                "SWT-E804",
                f"The digest of this model is {self.digest}, that of the run {name} "
                f"{config.model.digest or 'none, as its model is built in'}.",
                "Its blocks, parameters, micro-batch or labels differ from the run's.",
                "Build the model as the run's organiser does; or set model.digest in the run file.",
            )
        for key, has, needs in (
            ("pipeline.micro_batch", pipeline.micro_batch, len(self.given)),
            ("model.context", config.model.context, self.labels.count // len(self.given)),
        ):
            if has != needs:
                raise UserError(
                    "SWT-E605",
                    f"`{key}` is {has} in the run file of {name}, and {needs} in the model's "
                    "example.",
                    "A micro-batch has pipeline.micro_batch examples of model.context labels each.",
                    "Have the organiser change the run file, or make the example like it.",
                )
        found = stages_among(self.blocks, pipeline.stages, self._passed, pipeline.activations)
        self._check_parameters(config, found)
        return found

    def _check_parameters(self, config: RunConfig, stages: Sequence[range]) -> None:
        for stage, blocks in enumerate(stages):
            facts = _facts(pair for at in blocks for pair in self.blocks.blocks[at].tensors())
            if not facts:
                raise cannot(
                    f"stage {stage} has no parameters to train",
                    "Cut it so that every stage has some.",
                )
            if error := uncut(config, facts):
                raise UserError(
                    "SWT-E605",
                    f"`outer.fragments` is too large for stage {stage} of this model: {error}.",
                    "Each stage is exchanged apart, and in as many fragments as every other.",
                    "Have the organiser set fewer.",
                )


class OwnWork:
    """A model of one's own, and this peer's data for it.

    Args:
        model: model of the run.
        batches: (input, labels) of micro-batches, each like the model's example; gone through again
            when they end. Only who serves the first stage needs any.
    """

    def __init__(self, model: StagedModel, batches: Iterable[MicroBatch] = ()) -> None:
        self.model = model
        self._batches = batches
        self._rest: Iterator[MicroBatch] = iter(())

    @property
    def brings(self) -> Brings:
        """The model and the data, as the door is told of them."""
        layout = bytes.fromhex(self.model.digest)
        return Brings(model=OWN, layout=layout, num_values=self.model.num_values, data=OWN)

    def read(self) -> MicroBatch:
        """The next micro-batch.

        Raises:
            UserError: SWT-E610, there is none, or it is not like the example.
        """
        found = next(self._rest, None)
        if found is None:
            self._rest = iter(self._batches)
            found = next(self._rest, None)
        if found is None:
            raise misuse(
                "There is no micro-batch to train on.",
                "A peer of the first stage gives join_stages batches that can be gone through "
                "again, such as a DataLoader, or that never end.",
            )
        given, labels = found
        example = self.model.given
        is_alike = given.shape == example.shape and given.dtype == example.dtype
        try:
            self.model.labels.encode(labels)
        except ValueError:
            is_alike = False
        if not is_alike:
            raise misuse(
                f"A micro-batch has {given.dtype} {tuple(given.shape)} with labels of "
                f"{labels.dtype} {tuple(labels.shape)}, and is not like the model's example: "
                f"{example.dtype} {tuple(example.shape)} with labels of {self.model.labels.shape} "
                + (f"below {self.model.labels.classes}." if self.model.labels.classes else "."),
                "All micro-batches are alike; a DataLoader wants drop_last=True.",
            )
        return given, labels


def _facts(tensors: Iterable[tuple[str, Tensor]]) -> list[ParameterFacts]:
    """Trainable parameters, each once."""
    found = {
        id(tensor): (name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad
    }
    return list(found.values())
