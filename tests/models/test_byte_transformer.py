import math

import pytest
import torch
import torch.nn.functional as F

from swarmtrain.config.settings import ModelSection
from swarmtrain.models.build import counted_kind
from swarmtrain.models.byte_transformer import ByteTransformer, build_model

SMALL = ModelSection(layers=2, width=16, heads=2, context=12)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0))


def stirred_model() -> ByteTransformer:
    """A model whose blocks do something: fresh ones add zero to what passes through them."""
    model = build_model(SMALL, seed=0)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return model


def test_the_demo_model_has_about_800_000_parameters() -> None:
    model = build_model(ModelSection(), seed=0)
    assert 780_000 < sum(parameter.numel() for parameter in model.parameters()) < 880_000


def test_logits_have_one_row_of_256_per_byte() -> None:
    assert build_model(SMALL, seed=0)(tokens(3, 12)).shape == (3, 12, 256)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    first, second, other = (build_model(SMALL, seed=seed) for seed in (5, 5, 6))
    for (name, a), b, c in zip(
        first.named_parameters(), second.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
        assert torch.equal(a, c) == (a.ndim < 2 or not a.any()), name


def test_building_leaves_the_global_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    build_model(SMALL, seed=5)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_later_byte_never_changes_an_earlier_prediction() -> None:
    model = stirred_model()
    x = tokens(1, 12)
    changed = x.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 256
    with torch.no_grad():
        before, after = model(x), model(changed)
    assert torch.equal(before[0, :7], after[0, :7])
    assert not torch.equal(before[0, 7:], after[0, 7:])


def test_positions_matter() -> None:
    # Without positions a bag of bytes before the last one would predict the same.
    model = stirred_model()
    with torch.no_grad():
        forward = model(torch.tensor([[1, 2, 3, 4]]))[0, -1]
        swapped = model(torch.tensor([[2, 1, 3, 4]]))[0, -1]
    assert not torch.allclose(forward, swapped, atol=1e-4)


def test_the_first_loss_is_that_of_guessing() -> None:
    x = tokens(4, 13)
    with torch.no_grad():
        logits = build_model(SMALL, seed=0)(x[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, 256), x[:, 1:].reshape(-1))
    assert loss.item() == pytest.approx(math.log(256), abs=0.1)


def test_every_parameter_gets_a_gradient() -> None:
    model = stirred_model()
    model(tokens(2, 12)).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_more_bytes_than_the_context_are_refused() -> None:
    with pytest.raises(ValueError, match="context of 12"):
        build_model(SMALL, seed=0)(tokens(1, 13))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (ModelSection(width=20, heads=4), "multiple of 2 x heads"),
        (ModelSection(layers=0), "at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_their_key(
    section: ModelSection, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        build_model(section, seed=0)


def test_a_model_that_peers_bring_is_not_made_here() -> None:
    with pytest.raises(ValueError, match="brought by a Python hook"):
        counted_kind(ModelSection(kind="custom"))
