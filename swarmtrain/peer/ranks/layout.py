"""The part of a model's flat vector that belongs to one rank, read from shards and written to them.

It takes the place of `Layout` where `ModelWeights` reads and writes a model. FSDP2 and tensor
parallelism keep parameters as DTensors, of which a rank holds a box; with DDP each rank holds all.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swarmtrain.foundation.errors import UserError
from swarmtrain.models.tensors import Layout, LayoutMismatch, local_part
from swarmtrain.peer.ranks.places import Box, NoPlace, Places
from swarmtrain.peer.ranks.ranks import Ranks


class RankLayout:
    """One rank's own vector.

    Args:
        model: sharded or not; the same in all ranks.
        layout: layout of the whole model.
        block: values that share a scale.
        ranks: ranks of the job; all make theirs at once.

    Attributes:
        places: places of all ranks.
        padded: length of the own vector, whole blocks.
        num_values: length of the vector without padding.
        parameters: all parameters of the model: all ranks read and write at once, whoever has what.

    Raises:
        UserError: SWT-E641, a parameter is not held in boxes that make it up.
    """

    def __init__(self, model: nn.Module, layout: Layout, block: int, ranks: Ranks) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
            raise _unfit("it is wrapped by FullyShardedDataParallel, which makes flat parameters")
        self._layout, self._ranks = layout, ranks
        shapes = [spec.shape for spec in layout.parameters]
        parameters = self._parameters(model)
        mine = [_box_of(name, parameter) for name, parameter in parameters.items()]
        try:
            self.places = Places(shapes, _everyones(mine, shapes, ranks), block)
        except NoPlace as error:
            raise _unfit(str(error)) from error
        places, me = self.places, ranks.rank
        _, self.padded = places.own_range(me, 0, places.padded)
        _, self.num_values = places.own_range(me, 0, places.num_values)
        self.parameters = layout.parameters
        self._own = {
            spec.name: places.own_range(me, *places.range_of(index))
            for index, spec in enumerate(layout.parameters)
        }

    def read(self, model: nn.Module, out: Tensor | None = None) -> Tensor:
        """(padded,) float32 on the CPU, this rank's values. All ranks read at once.

        Args:
            model: the model of the beginning.
            out: a vector to write into instead of a new one.

        Raises:
            LayoutMismatch: it is another.
        """
        vector = torch.zeros(self.padded) if out is None else out.zero_()
        for index, parameter in enumerate(self._parameters(model).values()):
            shard = local_part(parameter).to(device="cpu", dtype=torch.float32).reshape(-1)
            for moves in self.places.gathered(index):
                self._ranks.move(moves, shard, vector)
        return vector

    def write(self, model: nn.Module, vector: Tensor) -> None:
        """Put (padded,) float32 into the shards of all who hold a value. All ranks at once.

        Raises:
            LayoutMismatch: as `read`; no value changed here.
        """
        for index, parameter in enumerate(self._parameters(model).values()):
            here = local_part(parameter)
            shard = torch.empty(here.numel())
            for moves in self.places.scattered(index):
                self._ranks.move(moves, vector, shard)
            with torch.no_grad():
                here.copy_(shard.view(here.shape))

    def named_views(self, vector: Tensor) -> dict[str, Tensor]:
        """Each parameter's values that are in `vector`, as views, flat."""
        return {name: vector[low:high] for name, (low, high) in self._own.items()}

    def _parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        found = dict(model.named_parameters())
        kept = {
            name: found[name] for spec in self._layout.parameters if (name := spec.name) in found
        }
        now = [(name, tuple(one.shape), one.requires_grad) for name, one in kept.items()]
        if now != [(spec.name, spec.shape, True) for spec in self._layout.parameters]:
            raise LayoutMismatch(
                "the model changed after the exchange began. Freeze, add or convert parameters "
                "before."
            )
        return kept


def _box_of(name: str, parameter: Tensor) -> Box | None:
    """The box of this rank.

    Raises:
        UserError: SWT-E641.
    """
    from torch.distributed.tensor import DTensor, Partial
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape = tuple(parameter.shape)
    if not isinstance(parameter, DTensor):
        return Box((0,) * len(shape), shape)
    if any(isinstance(placement, Partial) for placement in parameter.placements):
        raise _unfit(f"`{name}` is spread as a partial sum")
    local = local_part(parameter)
    if not local.numel():
        return None
    sizes, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    if tuple(sizes) != tuple(local.shape):
        raise _unfit(f"the shard of `{name}` has shape {tuple(local.shape)}, not {tuple(sizes)}")
    return Box(tuple(offset), tuple(sizes))


def _everyones(
    mine: list[Box | None], shapes: list[tuple[int, ...]], ranks: Ranks
) -> list[list[Box | None]]:
    """The boxes of all ranks, which tell each other."""
    numbers: list[int] = []
    for box, shape in zip(mine, shapes, strict=True):
        nothing = Box((0,) * len(shape), (0,) * len(shape))
        one = box or nothing
        numbers += [box is not None, *one.offset, *one.shape]
    found: list[list[Box | None]] = []
    for theirs in ranks.gather(torch.tensor(numbers, dtype=torch.int64)):
        values, boxes = iter(theirs.tolist()), list[Box | None]()
        for shape in shapes:
            is_held = next(values)
            offset = tuple(next(values) for _ in shape)
            box = Box(offset, tuple(next(values) for _ in shape))
            boxes.append(box if is_held else None)
        found.append(boxes)
    return found


def _unfit(detail: str) -> UserError:
    return UserError(
        "SWT-E641",
        f"The model of this torchrun job cannot be exchanged: {detail}.",
        "Each rank must hold whole parameters (DDP) or boxes of them (FSDP2, tensor parallel).",
        "Shard it with torch.distributed.fsdp.fully_shard or with DTensor, before the optimizer is"
        " made and before swarmtrain.join.",
    )


def is_a_job() -> bool:
    """True if this process is one of several that train one model together.

    Raises:
        UserError: SWT-E644, torchrun has started several that do not.
    """
    if not dist.is_available():
        return False
    if dist.is_initialized():
        return dist.get_world_size() > 1
    size = os.environ.get("WORLD_SIZE", "1")
    if dist.is_torchelastic_launched() and size != "1":
        raise UserError(
            "SWT-E644",
            f"torchrun has started {size} processes, and this one is in no process group.",
            "Each would be a peer of its own, not all together one.",
            "Before joining call torch.distributed.init_process_group; Lightning's Trainer takes "
            "devices and num_nodes.",
        )
    return False
