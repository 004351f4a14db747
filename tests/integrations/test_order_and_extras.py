"""Orders of a peer's own, and what is said where a library is not installed."""

import importlib
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

from swarmtrain.foundation.errors import UserError
from swarmtrain.integrations.order import shuffle_apart

DATA = TensorDataset(torch.arange(32))


def order(loader: DataLoader) -> list[int]:
    torch.manual_seed(5)
    return [int(one) for (batch,) in loader for one in batch]


@pytest.mark.parametrize("given", [None, 3])
def test_a_shuffled_loader_gets_an_order_of_the_seeds(given: int | None) -> None:
    def made(seed: int) -> list[int]:
        torch.manual_seed(1)
        generator = None if given is None else torch.Generator().manual_seed(given)
        sampler = RandomSampler(DATA, generator=generator)
        loader = DataLoader(DATA, batch_size=4, sampler=sampler)
        assert shuffle_apart(loader, seed) == (seed != 0)
        return order(loader)

    assert made(0) == made(0)
    assert made(7) == made(7) != made(0)
    assert made(8) not in (made(7), made(0))
    assert sorted(made(8)) == list(range(32)), "each example once"


def test_that_of_accelerate_changes_too_and_its_passes_differ() -> None:
    accelerate = pytest.importorskip("accelerate")

    def made(seed: int) -> tuple[list[int], list[int]]:
        torch.manual_seed(1)
        settings = accelerate.utils.DataLoaderConfiguration(use_seedable_sampler=True)
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)
        loader = accelerator.prepare(DataLoader(DATA, batch_size=4, shuffle=True))
        assert shuffle_apart(loader, seed) == (seed != 0)
        return order(loader), order(loader)

    first, second = made(7)
    assert first != second and (first, second) == made(7) and first != made(0)[0]


def test_ranks_of_one_job_keep_their_shares() -> None:
    ranks = [DistributedSampler(DATA, num_replicas=2, rank=rank) for rank in (0, 1)]
    before = list(ranks[0])
    for sampler in ranks:
        assert shuffle_apart(DataLoader(DATA, sampler=sampler), 2**56 - 1)
    assert list(ranks[0]) != before
    assert sorted([*ranks[0], *ranks[1]]) == list(range(32))


def test_a_loader_that_does_not_shuffle_is_left_alone_and_said(caplog) -> None:
    loader = DataLoader(DATA, batch_size=4)
    assert not shuffle_apart(loader, 7) and order(loader) == list(range(32))
    assert not shuffle_apart(None, 7) and not shuffle_apart({"a": loader}, 7)
    assert len(caplog.records) == 3 and "swarm.seed" in caplog.text
    assert not shuffle_apart(loader, 0) and len(caplog.records) == 3


@pytest.mark.parametrize(
    "library, extra", [("transformers", "hf"), ("lightning", "lightning"), ("accelerate", "hf")]
)
def test_a_library_that_is_not_there_is_named_with_its_extra(
    library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    if library == "lightning":
        monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, f"swarmtrain.integrations.{library}", raising=False)
    with pytest.raises(UserError, match=f"swarmtrain.{extra}.") as caught:
        importlib.import_module(f"swarmtrain.integrations.{library}")
    assert caught.value.code == "SWT-E102" and library in str(caught.value)


def test_the_core_loads_none_of_them() -> None:
    code = (
        "import sys, swarmtrain.hook.api, swarmtrain.integrations\n"
        "assert not {'transformers', 'lightning', 'accelerate', 'datasets'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
