import math

import msgspec
import pytest
import torch
import torch.nn.functional as F

from swarmtrain.config.built_in import (
    SIZES,
    built_in_parameters,
    is_tied,
    layout_digest,
    num_values_of,
)
from swarmtrain.config.settings import ModelSection
from swarmtrain.config.stages import built_in_costs
from swarmtrain.models.decoder import KeyValues
from swarmtrain.models.tensors import Layout
from swarmtrain.models.transformer import Transformer, build_model, initial_values
from swarmtrain.pipeline.blocks import build, built_in
from swarmtrain.pipeline.cut import passed

SMALL = ModelSection(
    kind="transformer", layers=2, width=16, heads=4, kv_heads=2, context=12, vocabulary=40
)
UNTIED = msgspec.structs.replace(SMALL, tied=False)
FORMS = [
    SMALL,
    UNTIED,
    ModelSection(kind="transformer", layers=1, width=24, heads=3, norm="layer", mlp_width=20),
]


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("section", FORMS)
def test_its_layout_is_known_without_torch(section: ModelSection) -> None:
    layout = Layout.of(build_model(section, 1), 64)
    facts = built_in_parameters(section)
    assert [(spec.name, spec.shape, spec.dtype) for spec in layout.parameters] == list(facts)
    assert layout_digest(facts) == layout.digest


@pytest.mark.parametrize(("size", "vocabulary"), [("10M", 256), ("124M", 50_257), ("350M", 50_257)])
def test_a_size_has_about_the_parameters_that_it_is_named_by(size: str, vocabulary: int) -> None:
    section = ModelSection(kind="transformer", vocabulary=vocabulary, **SIZES[size])
    found = num_values_of(built_in_parameters(section))
    assert found == pytest.approx(1e6 * int(size.removesuffix("M")), rel=0.08)


def test_the_same_seed_gives_the_same_bits_and_parts_those_of_the_whole() -> None:
    before = torch.random.get_rng_state()
    whole, same, other = (dict(build_model(SMALL, seed).named_parameters()) for seed in (5, 5, 6))
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, values in whole.items():
        assert torch.equal(values, same[name]), name
        assert torch.equal(values, other[name]) == (values.ndim < 2), name
    wanted = frozenset({"blocks.1.mlp_up.weight", "norm.weight"})
    some = dict(initial_values(SMALL, 5, wanted))
    assert some.keys() == wanted
    assert all(torch.equal(values, whole[name]) for name, values in some.items())


def test_the_first_loss_is_that_of_guessing_and_every_parameter_gets_a_gradient() -> None:
    model, x = build_model(SMALL, 0), tokens(4, 13)
    logits = model(x[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, 40), x[:, 1:].reshape(-1))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(40), abs=0.1)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_a_later_token_never_changes_an_earlier_prediction_and_positions_matter() -> None:
    model, x = build_model(SMALL, 0), tokens(1, 12)
    changed = x.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 40
    with torch.no_grad():
        before, after = model(x), model(changed)
        turned = model(x.flip(1))[0, -1]
    assert torch.equal(before[0, :7], after[0, :7])
    assert not torch.equal(before[0, 7:], after[0, 7:])
    assert not torch.allclose(turned, before[0, 0], atol=1e-4)
    with pytest.raises(ValueError, match="context of 12"):
        model(tokens(1, 13))


def test_with_a_cache_each_new_token_costs_one_position() -> None:
    model, x, cache = build_model(SMALL, 0), tokens(1, 12), KeyValues()
    with torch.no_grad():
        whole = model(x)
        found = [model(x[:, :5], cache=cache)]
        found += [model(x[:, [place]], cache=cache) for place in range(5, 12)]
    assert torch.allclose(torch.cat(found, dim=1), whole, atol=1e-5)
    assert cache.length == 12


def test_a_tied_head_is_the_embedding_and_is_one_parameter() -> None:
    model = build_model(SMALL, 0)
    assert model.head.weight is model.embedding.weight
    assert "head.weight" not in dict(model.named_parameters())
    assert is_tied(SMALL) and not is_tied(UNTIED) and not is_tied(ModelSection())


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"width": 20}, "multiple of 2 x heads"), ({"kv_heads": 3}, "kv_heads"), ({"layers": 0}, "1")],
)
def test_sizes_that_do_not_fit_are_refused_with_their_key(
    changes: dict[str, int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Transformer(msgspec.structs.replace(SMALL, **changes))


def test_in_stages_it_computes_as_in_one_piece_and_costs_what_is_counted() -> None:
    """So a run in stages takes the kind with nothing of its own."""
    model, whole = built_in(UNTIED), build_model(UNTIED, 4)
    value = tokens(2, 12)
    with torch.no_grad():
        expected = whole(value)
        for index in range(len(model.blocks)):
            built = build(model, range(index, index + 1), seed=4)
            value = built.calls[0](value)
    assert torch.equal(value, expected)
    known, found = built_in_costs(UNTIED), passed(model, tokens(1, 12))
    for (name, cost), one in zip(known.items(), found, strict=True):
        assert one.cost.num_values == cost.num_values, name
        if name == "head":
            assert one.cost.flops == pytest.approx(12 * cost.flops)
