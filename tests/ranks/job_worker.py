"""One rank of a job that goes through ops beside a plain peer of the same weights, which is rank
0's too: after each op both must stand at the same place. A program of `test_job.py`."""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from swarmtrain import checkpoint
from swarmtrain.models.tensors import Layout, local_part
from swarmtrain.peer.arithmetic import ChunkSum, TensorContribution, codec_of, result_codec_of
from swarmtrain.peer.disk.image_file import put_in
from swarmtrain.peer.ranks.contribution import stop_encoders
from swarmtrain.peer.ranks.driver import LeadDriver, RankDriver, Word, serve
from swarmtrain.peer.ranks.layout import RankLayout
from swarmtrain.peer.ranks.ranks import Ranks
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.model_weights import ModelWeights
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_transport.actions import LoadState
from swarmtrain_transport.arithmetic import ContributionRefused, Window
from swarmtrain_transport.blocks.retention import bytes_of
from swarmtrain_transport.result import OpResult, SliceResult

BLOCK = 16
ME, OTHER = b"m" * 32, b"o" * 32


class Net(nn.Module):
    """Odd sizes, a norm, a scalar, two types."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(9, 26)
        self.down = nn.Linear(26, 7)
        self.norm = nn.LayerNorm(7)
        self.short = nn.Linear(7, 5, bias=False).to(torch.bfloat16)


def by_rows(model: Net, mesh: dist.DeviceMesh) -> None:
    fully_shard(model.short, mesh=mesh)
    fully_shard(model, mesh=mesh, ignored_params=set(model.short.parameters()))


def by_columns(model: Net, mesh: dist.DeviceMesh) -> None:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh, plan)


def copied(model: Net, mesh: dist.DeviceMesh) -> None:
    """As with DDP: every rank has everything."""


WAYS = {"fsdp": by_rows, "tensor-parallel": by_columns, "ddp": copied}


def put_values(model: nn.Module, copy: nn.Module) -> None:
    """What training would do: the same values in both."""
    for here, there in zip(model.parameters(), copy.parameters(), strict=True):
        whole: Tensor = there.detach()
        if isinstance(here, DTensor):
            whole = distribute_tensor(whole, here.device_mesh, here.placements).to_local()
        local_part(here).copy_(whole)


def check_same(model: nn.Module, copy: nn.Module) -> None:
    for (name, here), there in zip(model.named_parameters(), copy.parameters(), strict=True):
        whole = here.full_tensor() if isinstance(here, DTensor) else here
        assert torch.equal(whole, there), name


def trained(copy: nn.Module, chance: torch.Generator) -> None:
    for parameter in copy.parameters():
        noise = torch.randn(parameter.shape, generator=chance) * 0.01
        parameter.data.add_(noise.to(parameter.dtype))


def result_of(
    op: int, parts: dict[bytes, object], size: int, codec: str, without: tuple[int, int] = (0, 0)
) -> OpResult:
    """Two slices of several chunks; our part is not in slice `without`."""
    window = Window(codec, BLOCK, -40, 0)
    chunk_values, cut = 5 * BLOCK, size // 3 // BLOCK * BLOCK
    slices = []
    for start, stop in ((0, cut), (cut, size)):
        names = tuple(peer for peer in parts if peer == OTHER or (start, stop) != without)
        chunks = []
        for low in range(start, stop, chunk_values):
            high = min(low + chunk_values, stop)
            total = ChunkSum(codec_of(window), result_codec_of(window), high - low, window)
            for name in names:
                total.add(parts[name].encode(low, high, window), 1)
            chunks.append(total.finish(len(names)))
        slices.append(SliceResult(start, stop, names, tuple(chunks)))
    return OpResult(op, window, chunk_values, size, tuple(slices), b"", b"", False, shares=(1, 1))


def strategy(num_values: int) -> DiLoCo:
    return DiLoCo(num_values, inner_steps=1, lr=0.7, momentum=0.9, error_feedback=True)


def lead(ranks: Ranks, model: Net, copy: Net, codec: str, folder: Path) -> None:
    layout = Layout.of(copy, BLOCK)
    assert Layout.of(model, BLOCK) == layout
    own = RankLayout(model, layout, BLOCK, ranks)
    job = LeadDriver(
        ME, strategy(own.padded), ModelWeights(model, own), own, ranks,
        digest=layout.digest, snapshot_rounds=2, put=put_in(folder),
    )  # fmt: skip
    plain = Driver(
        ME, strategy(layout.padded), ModelWeights(copy, layout),
        layout=layout.digest, num_values=layout.num_values, snapshot_rounds=2,
    )  # fmt: skip
    chance = torch.Generator().manual_seed(5)
    given = torch.randn(layout.num_values, generator=chance)
    given = torch.cat((given, torch.zeros(layout.padded - layout.num_values)))
    momentum = torch.cat(
        (torch.randn(layout.num_values, generator=chance), given[layout.num_values :])
    )
    job.begin_with(given, {"momentum": momentum})
    plain.begin_with(given, {"momentum": momentum})
    compare(ranks, model, copy)
    assert job.offer().manifest == plain.offer().manifest
    assert dict(plain.strategy.state_arrays())["momentum"].equal(momentum)
    job.op = plain.op = 0
    cut = layout.padded // 3 // BLOCK * BLOCK
    for op in range(1, 6):
        step(ranks, model, copy, chance)
        job.stepped(1)
        plain.stepped(1)
        ours, theirs = job.contribute(), plain.contribute()
        window = Window(codec, BLOCK, -40, 0)
        for start, stop in ((0, layout.padded), (BLOCK, 7 * BLOCK)):
            assert ours.contribution.encode(start, stop, window) == theirs.contribution.encode(
                start, stop, window
            )
        if op == 4:
            job.skip(op)
            plain.skip(op)
            continue
        other = TensorContribution(torch.randn(layout.padded, generator=chance) * 0.01)
        parts = {ME: theirs.contribution, OTHER: other}
        result = result_of(op, parts, layout.padded, codec, (0, cut) if op == 2 else (0, 0))
        images = job.end_op(result), plain.end_op(result)
        assert images[0].manifest == images[1].manifest, op
        assert (images[0].chunks is None) == (images[1].chunks is None)
        if images[0].chunks is not None:
            whole = [b"".join(map(bytes_of, image.chunks)) for image in images]
            assert whole[0] == whole[1]
        compare(ranks, model, copy)
    facts = checkpoint.RunFacts("run", b"c" * 32, 5, job.root)
    check_files(job, plain, layout, facts, folder)
    # A newcomer's way: the same state, piece by piece.
    image = plain._image(5, copy=True)
    action = LoadState(5, image.manifest, tuple(map(bytes_of, image.chunks)))
    assert job.load(action).manifest == plain.load(action).manifest
    compare(ranks, model, copy)
    # Work that is no number on one rank is broken work of all.
    with torch.no_grad():
        next(iter(copy.parameters())).view(-1)[-1] = float("nan")
    step(ranks, model, copy, chance)
    ours, part = job.contribute(), plain.contribute()
    for contribution in (part.contribution, ours.contribution):
        try:
            contribution.encode(0, layout.padded, window)
            raise AssertionError("NaN was encoded")
        except ContributionRefused as refused:
            assert refused.reason == "nonfinite"
    job.skip(6)
    plain.skip(6)
    compare(ranks, model, copy)
    ranks.tell(Word.OVER)
    stop_encoders(ranks)


def check_files(
    job: LeadDriver, plain: Driver, layout: Layout, facts: checkpoint.RunFacts, folder: Path
) -> None:
    """A job's checkpoint is a plain peer's, byte for byte."""

    def parts_of(name: str, start: int, stop: int) -> list[memoryview]:
        index = job.state_names.index(name)
        return [job.piece(index, start, stop).numpy().data.cast("B")]

    first = checkpoint.save_parts(folder / "a", facts, layout, job.state_names, parts_of)
    second = checkpoint.save(folder / "b", facts, layout, plain.strategy.state_arrays())
    assert first.manifest_hash == second.manifest_hash
    mapped = checkpoint.latest(folder / "a")
    whole = checkpoint.latest(folder / "b")
    assert mapped is not None and whole is not None
    for name, array in whole.arrays(layout):
        assert torch.equal(dict(mapped.arrays(layout))[name], array)


STEP, COMPARE = 100, 101


def step(ranks: Ranks, model: Net, copy: Net, chance: torch.Generator) -> None:
    trained(copy, chance)
    follow_copy(ranks, model, copy, STEP)


def compare(ranks: Ranks, model: Net, copy: Net) -> None:
    follow_copy(ranks, model, copy, COMPARE)


def follow_copy(ranks: Ranks, model: Net, copy: Net, word: int) -> None:
    """All ranks get rank 0's copy, and take its values over or compare their own with them."""
    if ranks.leads:
        ranks.tell(word)
    for parameter in copy.parameters():
        dist.broadcast(parameter.data, 0)
    (put_values if word == STEP else check_same)(model, copy)


def follow(ranks: Ranks, model: Net, copy: Net) -> None:
    layout = Layout.of(copy, BLOCK)
    own = RankLayout(model, layout, BLOCK, ranks)
    driver = RankDriver(
        ME, strategy(own.padded), ModelWeights(model, own), own, ranks,
        digest=layout.digest, snapshot_rounds=2,
    )  # fmt: skip
    driver.op = 0
    driver.listen()
    while (told := ranks.hear())[0] != Word.OVER:
        if told[0] in (STEP, COMPARE):
            follow_copy(ranks, model, copy, told[0])
        else:
            serve(driver, *told)
    driver.end()


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def main(rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    for way, shard in WAYS.items():
        for codec in ("int8", "none"):
            torch.manual_seed(3)
            model, copy = Net(), Net()
            copy.load_state_dict(model.state_dict())
            shard(model, mesh)
            threads = num_threads()
            ranks = Ranks()
            with TemporaryDirectory() as folder:
                if ranks.leads:
                    lead(ranks, model, copy, codec, Path(folder))
                else:
                    follow(ranks, model, copy)
            assert num_threads() >= threads + 4, "two groups, of two threads each"
            ranks.close()
            assert num_threads() < threads + 4, "one that frees a tensor as we end would abort us"
            print(f"rank {rank}: {way} {codec} ok", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
