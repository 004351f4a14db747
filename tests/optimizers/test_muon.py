"""Muon against its formulas in float64, AdamW's part against torch's, and what it may hold."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from swarmtrain.config.settings import ModelSection
from swarmtrain.models.byte_transformer import build_model
from swarmtrain_optimizers.inner.muon import (
    MatrixScale,
    Muon,
    is_hidden_matrix,
    muon_groups,
    newton_schulz,
)

torch.set_num_threads(1)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def naive_newton_schulz(matrix: np.ndarray, num_steps: int = 5) -> np.ndarray:
    """The quintic on the singular values, which is what the iteration does to them."""
    u, s, vh = np.linalg.svd(matrix, full_matrices=False)
    s = s / np.sqrt((s**2).sum())
    for _ in range(num_steps):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    return u @ np.diag(s) @ vh


@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (40, 8), (1, 5), (1, 1)])
def test_the_iteration_is_the_quintic_on_singular_values(shape: tuple[int, int]) -> None:
    matrix = drawn(*shape).double()
    exact = naive_newton_schulz(matrix.numpy())
    assert np.allclose(newton_schulz(matrix).numpy(), exact, atol=1e-5)
    assert np.allclose(newton_schulz(matrix.float()).numpy(), exact, atol=1e-3)


@pytest.mark.parametrize("shape", [(32, 64), (64, 32), (48, 128)])
def test_five_iterations_come_near_the_nearest_orthogonal_matrix(shape: tuple[int, int]) -> None:
    matrix = drawn(*shape, seed=3)
    found = newton_schulz(matrix)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.65 and values.max() < 1.25
    # The singular vectors stay: U' O V is diagonal.
    turned = u.mT @ found @ vh.mT
    assert (turned - torch.diag(turned.diagonal())).abs().max() < 1e-3
    assert torch.cosine_similarity(found.flatten(), (u @ vh).flatten(), dim=0) > 0.98


def test_a_zero_matrix_stays_zero_and_size_does_not_matter() -> None:
    assert newton_schulz(torch.zeros(4, 6)).eq(0).all()
    matrix = drawn(8, 8)
    assert torch.allclose(newton_schulz(matrix * 1e5), newton_schulz(matrix), atol=1e-4)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("scale", MatrixScale)
def test_steps_follow_the_formula(nesterov: bool, scale: MatrixScale) -> None:
    weights = nn.Parameter(drawn(6, 10))
    optimizer = Muon([weights], lr=0.05, weight_decay=0.1, nesterov=nesterov, scale=scale)
    w, b = weights.detach().double().numpy(), np.zeros((6, 10))
    factor = math.sqrt(6 / 10) if scale is MatrixScale.SPECTRAL else 0.2 * math.sqrt(10)
    for step in range(4):
        weights.grad = drawn(6, 10, seed=step + 1)
        g = weights.grad.double().numpy()
        b = 0.9 * b + g
        o = naive_newton_schulz(g + 0.9 * b if nesterov else b)
        w = w - 0.05 * 0.1 * w - 0.05 * factor * o
        optimizer.step()
        assert np.allclose(weights.detach().numpy(), w, atol=1e-4)


def test_the_rest_is_stepped_as_torchs_adamw_does() -> None:
    ours, theirs = nn.Parameter(drawn(5, 3)), nn.Parameter(drawn(5, 3))
    settings = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2}
    muon = Muon([{"params": [ours], "orthogonalize": False}], **settings)
    adamw = torch.optim.AdamW([theirs], **settings)
    for step in range(10):
        ours.grad = drawn(5, 3, seed=step)
        theirs.grad = ours.grad.clone()
        muon.step()
        adamw.step()
    assert torch.allclose(ours, theirs, atol=1e-6)


def small_model(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    return model.to(dtype)


def trained(model: nn.Module, optimizer: Muon, steps: range) -> None:
    dtype = next(model.parameters()).dtype
    for step in steps:
        optimizer.zero_grad()
        loss = (model(drawn(12, 8, seed=step).to(dtype)) - drawn(12, 4, seed=step).to(dtype)) ** 2
        loss.mean().backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_state_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    model = small_model(dtype)
    optimizer = Muon(muon_groups(model.named_parameters(), weight_decay=0.1), nesterov=True)
    trained(model, optimizer, range(3))
    again = small_model(dtype)
    again.load_state_dict(model.state_dict())
    restored = Muon(muon_groups(again.named_parameters(), weight_decay=0.0), lr=9.0)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    trained(model, optimizer, range(3, 6))
    trained(again, restored, range(3, 6))
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert one.dtype == dtype and torch.equal(one, other)
    for state in restored.state.values():
        assert all(v.dtype == torch.float32 for v in state.values() if torch.is_tensor(v))


def test_a_restored_state_shares_no_memory_with_what_it_was_made_from() -> None:
    model = small_model(torch.float32)
    optimizer = Muon(muon_groups(model.named_parameters(), weight_decay=0.0))
    trained(model, optimizer, range(1))
    saved = optimizer.state_dict()
    before = copy.deepcopy(saved["state"])
    restored = Muon(muon_groups(model.named_parameters(), weight_decay=0.0))
    restored.load_state_dict(saved)
    trained(model, restored, range(1, 3))
    assert torch.equal(saved["state"][0]["momentum"], before[0]["momentum"])


def test_weights_of_bfloat16_follow_those_of_float32() -> None:
    full, half = small_model(torch.float32), small_model(torch.bfloat16)
    for model in (full, half):
        groups = muon_groups(model.named_parameters(), weight_decay=0.01)
        trained(model, Muon(groups, lr=0.05), range(10))
    for one, other in zip(full.parameters(), half.parameters(), strict=True):
        assert torch.allclose(one, other.float(), atol=0.1)


def test_a_parameter_without_gradient_is_left_alone_and_a_closure_is_asked() -> None:
    first, second = nn.Parameter(drawn(3, 3)), nn.Parameter(drawn(3, 3))
    optimizer = Muon([first, second])
    kept = second.detach().clone()

    def closure() -> float:
        optimizer.zero_grad()
        loss = first.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == pytest.approx(drawn(3, 3).square().sum().item())
    assert torch.equal(second, kept) and second not in optimizer.state


def test_a_transformer_is_split_into_hidden_matrices_tables_and_gains() -> None:
    model = build_model(ModelSection(layers=2, width=16, heads=2, context=8), seed=1)
    groups = muon_groups(model.named_parameters(), weight_decay=0.1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    matrices, tables, vectors = ([names[id(p)] for p in group["params"]] for group in groups)
    kinds = ("query_key_value", "attention_out", "mlp_up", "mlp_down")
    assert matrices == [f"blocks.{i}.{kind}.weight" for i in range(2) for kind in kinds]
    assert tables == ["embedding.weight", "head.weight"]
    assert all("norm" in name for name in vectors)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.1, 0.0]
    assert len(matrices) + len(tables) + len(vectors) == len(names)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (8, 8), True),
        ("transformer.h.0.attn.c_attn.weight", (8, 24), True),
        ("model.embed_tokens.weight", (256, 8), False),
        ("transformer.wte.weight", (256, 8), False),
        ("tok_embeddings.weight", (256, 8), False),
        ("lm_head.weight", (256, 8), False),
        ("layers.0.bias", (8,), False),
        ("stem.conv.weight", (8, 3, 3, 3), False),
    ],
)
def test_names_of_common_models_are_told_apart(
    name: str, shape: tuple[int, ...], expected: bool
) -> None:
    assert is_hidden_matrix(name, torch.zeros(shape)) is expected


def test_frozen_parameters_and_empty_groups_are_left_out() -> None:
    model = nn.Linear(3, 3)
    model.weight.requires_grad_(False)
    groups = muon_groups(model.named_parameters(), weight_decay=0.1)
    assert [group["params"] for group in groups] == [[model.bias]]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": -1.0}, "lr must"),
        ({"lr": math.nan}, "lr must"),
        ({"momentum": 1.0}, "momentum must"),
        ({"betas": (0.9, 1.0)}, "betas must"),
        ({"weight_decay": -0.1}, "weight_decay must"),
        ({"newton_schulz_steps": 0}, "newton_schulz_steps is 0"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_name(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Muon([nn.Parameter(torch.zeros(2, 2))], **settings)


def test_what_is_no_matrix_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"\(3,\) is no matrix.*muon_groups"):
        Muon([nn.Parameter(torch.zeros(3))])
