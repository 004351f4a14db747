"""The cut of a model that is here into stages, found out on the meta device.

A run of the blocks on tensors without values costs no memory and next to no time. It tells the
operations of each block and the shape of what leaves it, and a model that cannot be trained in
stages is refused before anything is made. Not here: the arithmetic of a cut, and what is known of
the built-in model without torch (`config.stages`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from swarmtrain.config.settings import RunConfig
from swarmtrain.config.stages import Cost, cut, misfit, stage_cut
from swarmtrain.pipeline.activations import Boundary, codec_of
from swarmtrain.pipeline.blocks import Block, BlockModel, built_in, cannot, copied, refuse_shared
from swarmtrain_transport import limits


@dataclass(frozen=True, slots=True)
class Passed:
    """One block of a model, and what it gives.

    Attributes:
        cost: cost of one micro-batch.
        shape: shape of its output.
        dtype: type of its output.
    """

    cost: Cost
    shape: tuple[int, ...]
    dtype: torch.dtype


def passed(model: BlockModel, example: Tensor) -> tuple[Passed, ...]:
    """Send a micro-batch without values through all blocks.

    Args:
        model: model of any size; nothing of it is made.
        example: tensor of a micro-batch's input shape and dtype; its values do not matter.

    Raises:
        UserError: SWT-E613, a block does not take what the one before gives, or gives something
            that cannot go to the next stage.
    """
    found, values = [], outputs(model, example)
    for block in model.blocks:
        with FlopCounterMode(display=False) as counter:
            value = next(values)
        sizes = {id(tensor): tensor.numel() for _, tensor in block.tensors() if _trained(tensor)}
        cost = Cost(counter.get_total_flops(), sum(sizes.values()))
        found.append(Passed(cost, tuple(value.shape), value.dtype))
    return tuple(found)


def outputs(model: BlockModel, example: Tensor) -> Iterator[Tensor]:
    """The outputs of all blocks for a micro-batch without values; else as `passed`, which hangs
    hooks on all modules of the process meanwhile."""
    value = example.to("meta")
    for index, block in enumerate(model.blocks):
        try:
            with torch.no_grad(), torch.device("meta"):  # what a block makes lies there as well
                value = block.call(*_without_values(block), value)
        except Exception as error:  # whatever the user's own forward raises
            raise cannot(
                f"block `{block.name}` does not take what comes to it: {error}",
                "Each block takes one tensor, the one that the block before gives.",
            ) from error
        is_last = index + 1 == len(model.blocks)
        if not isinstance(value, Tensor) or not (is_last or value.is_floating_point()):
            what = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise cannot(
                f"block `{block.name}` gives {what}, and one tensor of a floating type can go on",
                "Cut elsewhere, or let later blocks make what they need besides.",
            )
        yield value


def run_stages(config: RunConfig) -> tuple[BlockModel, tuple[range, ...]]:
    """The built-in model of a run on the meta device, and the blocks of each stage."""
    return built_in(config.model), stage_cut(config)


def stages_of(
    model: BlockModel, stages: int | Sequence[str], example: Tensor, activations: str
) -> tuple[range, ...]:
    """`stages_among` of blocks that were not looked at yet, by an example of the shape and dtype of
    a micro-batch's input."""
    return stages_among(model, stages, passed(model, example), activations)


def stages_among(
    model: BlockModel, stages: int | Sequence[str], blocks: Sequence[Passed], activations: str
) -> tuple[range, ...]:
    """Cut a model into stages, or say why it cannot be.

    Args:
        model: all its blocks.
        stages: number of stages, or the name of the first block of each.
        blocks: blocks of the model, as `passed` finds them.
        activations: form of what goes between stages, by its name in the run file.

    Returns:
        The blocks of each stage, the same for all who have the same model. Another torch may count
        operations otherwise: where peers bring the model, the run file had better name the blocks.

    Raises:
        UserError: SWT-E613.
    """
    names = [block.name for block in model.blocks]
    if problem := misfit(names, stages):
        raise cannot(f"pipeline.stages {problem}", "Change it in the run file.")
    found = cut({name: one.cost for name, one in zip(names, blocks, strict=True)}, stages)
    refuse_shared(model, found)
    for stage in found[:-1]:
        last, shape = names[stage[-1]], blocks[stage[-1]].shape
        if blocks[stage[-1]].dtype != torch.float32:
            raise cannot(
                f"block `{last}` gives {blocks[stage[-1]].dtype}, and the next stage gets float32",
                "Let it end in `.float()`, or cut elsewhere.",
            )
        if not 1 <= len(shape) <= limits.SHAPE_DIMS_MAX:
            raise cannot(
                f"block `{last}` gives a tensor of {len(shape)} axes, and from 1 to "
                f"{limits.SHAPE_DIMS_MAX} can go on",
                "Let it join some of them.",
            )
        num_bytes = Boundary(codec_of(activations), shape).num_bytes
        if num_bytes > limits.HOP_PAYLOAD_BYTES_MAX:
            raise cannot(
                f"block `{last}` gives {shape} values of a micro-batch, in "
                f"{activations} {num_bytes} bytes; a frame takes {limits.HOP_PAYLOAD_BYTES_MAX}",
                "Set a smaller pipeline.micro_batch.",
            )
    return found


def _without_values(block: Block) -> tuple[nn.Module, ...]:
    """Copy a block's modules on the meta device; those with values are not copied."""
    memo = {id(old): _on_meta(old) for _, old in block.tensors()}
    return tuple(copied(part, memo) for part in block.parts.values())


def _on_meta(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _trained(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad
