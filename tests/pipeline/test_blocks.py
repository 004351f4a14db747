"""A model as blocks: what is made of it, with which values, and what is refused."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swarmtrain.config.settings import ModelSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.models.tensors import Layout
from swarmtrain.pipeline.blocks import (
    BlockModel,
    build,
    built_in,
    of_modules,
    of_traced,
    refuse_shared,
)

torch.set_num_threads(1)

SECTION = ModelSection(layers=3, width=16, heads=2, context=8)
IDS = torch.zeros(2, 8, dtype=torch.int64)


def loss(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), labels.flatten(), reduction="sum")


def on_meta(make: Callable[[], Sequence[nn.Module] | nn.Module]) -> BlockModel:
    with torch.device("meta"):
        return of_modules(make(), loss)


def layers() -> list[nn.Module]:
    return [nn.Embedding(9, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 9)]


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        make()
    assert caught.value.code == "SWT-E613" and caught.value.remedy
    return caught.value.what


def test_any_part_of_the_built_in_model_has_the_bits_and_names_of_the_whole() -> None:
    model, whole = built_in(SECTION), build_model(SECTION, seed=4)
    assert [block.name for block in model.blocks] == [
        "embedding", "blocks.0", "blocks.1", "blocks.2", "head",
    ]  # fmt: skip
    expected = whole.state_dict()
    for blocks in (range(5), range(1), range(1, 3), range(2, 5)):
        state = build(model, blocks, seed=4).module.state_dict()
        assert all(torch.equal(values, expected[name]) for name, values in state.items())
    everything = build(model, range(5), seed=4).module
    assert list(everything.state_dict()) == list(expected)
    assert Layout.of(everything, 64) == Layout.of(whole, 64)


def test_only_the_blocks_that_are_asked_for_are_made() -> None:
    model = built_in(SECTION)
    built = build(model, range(1, 2), seed=4)
    assert {name.split(".")[1] for name, _ in built.module.named_parameters()} == {"0"}
    assert all(tensor.is_meta for block in model.blocks for _, tensor in block.tensors())
    assert not any(tensor.is_meta for tensor in built.module.state_dict().values())


def test_values_that_are_not_wanted_are_gone_before_the_next_ones_come() -> None:
    """The largest amount that lies in memory beside the blocks is one tensor."""
    model, there, most = built_in(SECTION), 0, 0

    def watched(seed: int, wanted: frozenset[str]):
        nonlocal there, most
        for name, values in model.values(seed, wanted):
            there += values.numel()
            most = max(most, there)
            yield name, values
            there -= values.numel()

    build(BlockModel(model.blocks, model.loss, watched), range(4, 5), seed=4)
    assert most == max(one.numel() for block in model.blocks for _, one in block.tensors())


def test_a_part_of_ones_own_modules_has_the_bits_of_the_whole_and_of_torchs_own_beginning() -> None:
    model = on_meta(layers)
    whole = build(model, range(4), seed=4).module.state_dict()
    for start in range(4):
        for stop in range(start + 1, 5):
            state = build(model, range(start, stop), seed=4).module.state_dict()
            assert all(torch.equal(values, whole[name]) for name, values in state.items())
    assert list(whole) == list(nn.Sequential(*layers()).state_dict())
    assert torch.equal(whole["2.weight"], torch.ones(4))
    assert whole["1.weight"].abs().max() <= 0.5 and whole["1.weight"].std() > 0.1
    other = build(model, range(4), seed=5).module.state_dict()
    assert not torch.equal(whole["1.weight"], other["1.weight"])


def test_modules_with_values_keep_them_and_lend_none() -> None:
    whole = nn.Sequential(*layers())
    built = build(of_modules(whole, loss), range(1, 3), seed=4)
    assert torch.equal(built.module.get_parameter("1.weight"), whole[1].weight)
    with torch.no_grad():
        built.module.get_parameter("1.weight").zero_()
    assert whole[1].weight.abs().sum() > 0


def test_an_initialiser_as_given_to_apply_has_the_last_word() -> None:
    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 3.0)

    with torch.device("meta"):
        model = of_modules(layers(), loss, initialise=initialise)
    state = build(model, range(4), seed=4).module.state_dict()
    assert torch.equal(state["1.weight"], torch.full((4, 4), 3.0))
    assert torch.equal(state["2.weight"], torch.ones(4))


def test_making_blocks_leaves_the_global_chance_alone() -> None:
    model = on_meta(layers)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    build(model, range(4), seed=4)
    built_in(SECTION)
    assert torch.equal(torch.rand(3), expected)


class Table(nn.Module):
    """Holds a parameter that nothing sets, and what is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.bias


def test_a_parameter_that_nothing_sets_is_refused_by_name() -> None:
    model = on_meta(lambda: [nn.Embedding(9, 4), Table()])
    build(model, range(1), seed=4)
    said = refusal(lambda: build(model, range(1, 2), seed=4))
    assert "nothing sets the values of `1.bias`" in said


def with_generator() -> nn.Module:
    module = nn.Linear(4, 4)
    module.chance = torch.Generator()
    return module


def with_counts() -> nn.Module:
    module = nn.Linear(4, 4)
    module.register_buffer("counts", torch.zeros(3, dtype=torch.int64))
    return module


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: [nn.BatchNorm1d(4)], "`0` (BatchNorm1d) keeps statistics"),
        (lambda: nn.Sequential(nn.Sequential(with_generator())), "`0.0` (Linear) draws from a"),
        (lambda: [nn.LazyLinear(4)], "the shape of `0.weight` is not known"),
        (lambda: [with_counts()], "`0.counts` lies on the meta device and is torch.int64"),
        (lambda: nn.Linear(4, 4), "a Linear says nothing of the order"),
        (lambda: [], "a ModuleList says nothing"),
    ],
)
def test_what_would_not_be_the_same_in_stages_is_refused(make, words: str) -> None:
    assert words in refusal(lambda: on_meta(make))


def shared() -> list[nn.Module]:
    made = layers()
    made[3].weight = made[0].weight  # as language models tie their head to their embedding
    return made


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_weights_that_two_stages_share_are_refused_and_within_one_they_stay_shared(device) -> None:
    with torch.device(device):
        model = of_modules(shared(), loss)
    said = refusal(lambda: refuse_shared(model, [range(2), range(2, 4)]))
    assert "0.weight, 3.weight" in said
    refuse_shared(model, [range(4)])
    module = build(model, range(4), seed=4).module
    assert module.get_parameter("0.weight") is module.get_parameter("3.weight")
    assert not module.get_parameter("0.weight").isnan().any()


def test_a_module_that_comes_twice_is_one_where_it_is_served_in_one_stage() -> None:
    activation, square = nn.ReLU(), nn.Linear(4, 4)
    model = of_modules([square, activation, square, activation], loss)
    refuse_shared(model, [range(1, 2), range(2, 4)])
    assert "0.weight, 2.weight" in refusal(lambda: refuse_shared(model, [range(2), range(2, 4)]))
    model = on_meta(lambda: [one := nn.Linear(4, 4), nn.ReLU(), one])
    module = build(model, range(3), seed=4).module
    assert module.get_parameter("0.weight") is module.get_parameter("2.weight")
    assert list(module.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


# ---- cut by tracing


class Tower(nn.Module):
    """A model whose forward is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def reset_parameters(self) -> None:
        self.shift.fill_(1.0)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = torch.relu(self.first(self.table(ids)))
        hidden = hidden + torch.relu(self.second(hidden))
        places = torch.arange(hidden.shape[1], device=hidden.device)[:, None]
        return self.head(hidden + self.shift * places)


class Tied(Tower):
    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(torch.relu(self.first(self.table(ids))), self.table.weight)


class Leaping(Tower):
    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.table(ids)
        return self.head(self.first(embedded) + self.second(embedded))


class Choosing(Tower):
    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.table(ids)
        return self.head(hidden if hidden.sum() > 0 else -hidden)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_traced_model_in_parts_is_the_model(device: str) -> None:
    with torch.device(device):
        tower = Tower()
    model = of_traced(tower, IDS.to(device), ["second", "head"], loss)
    assert [block.name for block in model.blocks] == ["table", "second", "head"]
    parts = [build(model, range(index, index + 1), seed=4) for index in range(3)]
    state = {name: one for part in parts for name, one in part.module.state_dict().items()}
    whole = Tower()
    whole.load_state_dict(state)  # strict: the same names
    if device == "cpu":
        assert all(torch.equal(one, state[name]) for name, one in tower.state_dict().items())
    value = ids = torch.tensor([[1, 2, 8]]).repeat(2, 3)[:, :8]
    for part in parts:
        for call in part.calls:
            value = call(value)
    assert torch.equal(value, whole(ids))
    if device == "cpu":
        assert torch.equal(tower(ids), value)  # the split points of the tracer are gone
    together = build(model, range(1, 3), seed=4).module
    assert set(together.state_dict()) == {"second.weight", "second.bias", "head.weight"}


@pytest.mark.parametrize(
    ("kind", "at", "words"),
    [
        (Tower, ["third"], "it has no submodule `third`"),
        (Tower, ["table"], "1 cuts make"),
        (Tied, ["first"], "two stages share the same weights (table.weight)"),
        (Choosing, ["head"], "it cannot be traced"),
    ],
)
def test_a_model_that_tracing_cannot_cut_is_refused(kind, at: list[str], words: str) -> None:
    tower = kind()
    assert words in refusal(lambda: of_traced(tower, IDS, at, loss))
    assert "forward" not in vars(tower.head)


def test_two_tensors_that_cross_a_traced_cut_are_refused() -> None:
    said = refusal(lambda: of_traced(Leaping(), IDS, ["second"], loss))
    assert "more than one tensor crosses the cut at second" in said
