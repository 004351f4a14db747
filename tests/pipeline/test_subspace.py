"""A subspace: what lies in it goes through it, weights stay in it, and nothing else gets in."""

import hashlib

import pytest
import torch
from torch import Tensor

from swarmtrain.config.settings import InnerSection, ModelSection, PipelineSection, RunConfig
from swarmtrain.config.settings import RunSection as Run
from swarmtrain.config.stages import stage_cut
from swarmtrain.models.build import build_model
from swarmtrain.models.tensors import Layout
from swarmtrain.pipeline.activations import ActivationCodec, Boundary
from swarmtrain.pipeline.blocks import built_in
from swarmtrain.pipeline.span import Span
from swarmtrain.pipeline.steps import StageSteps
from swarmtrain.pipeline.subspace import Subspace, confining, subspace_of
from swarmtrain_optimizers.codecs.base import IllegalPayload

WIDTH, RANK, TOKENS = 32, 8, 256
SHAPE = (2, 5, WIDTH)
SUBSPACE = Subspace(RANK, WIDTH, TOKENS, 7)
IDS = torch.randint(0, TOKENS, SHAPE[:2], generator=torch.Generator().manual_seed(1))
NONE, _, INT8 = ActivationCodec


def inside(seed: int = 0) -> Tensor:
    """Activations as a stage gives them."""
    coordinates = torch.randn((*SHAPE[:2], RANK), generator=torch.Generator().manual_seed(seed))
    return SUBSPACE.whole(coordinates, IDS)


def boundary(codec: ActivationCodec = INT8, subspace: Subspace = SUBSPACE) -> Boundary:
    return Boundary(codec, SHAPE, subspace)


def passed(between: Boundary, values: Tensor) -> Tensor:
    data = between.encode_input(values, IDS)
    assert len(data) == between.input_form.num_bytes
    found, ids = between.decode_input(data, between.input_form)
    assert ids is not None and torch.equal(ids, IDS)
    return found


def config_of(kind: str = "byte-transformer", stages: int = 3) -> RunConfig:
    return RunConfig(
        Run("thin", seed=7),
        model=ModelSection(kind=kind, layers=3, width=WIDTH, heads=2, context=16, tied=False),
        pipeline=PipelineSection(stages=stages, activations=f"subspace-{RANK}"),
    )


# ---- on the way


def test_what_lies_in_it_is_rebuilt_to_the_last_bit() -> None:
    assert torch.equal(passed(boundary(NONE), inside()), inside())


def test_int8_is_within_half_a_step_and_the_fixed_part_exact() -> None:
    values, found = inside(), passed(boundary(), inside())
    outside = (found - values).abs() > values[..., :RANK].abs().amax(-1, keepdim=True) / 250
    assert not outside.any() and torch.equal(found[..., RANK:], values[..., RANK:])


def test_a_gradient_is_that_of_the_coordinates() -> None:
    coordinates = torch.randn((*SHAPE[:2], RANK), requires_grad=True)
    gradient = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))
    SUBSPACE.whole(coordinates, IDS).backward(gradient)
    between = boundary(NONE)
    found = between.decode(between.encode(gradient), between.form)
    assert torch.equal(found[..., :RANK], coordinates.grad)
    assert not found[..., RANK:].any()


def test_bytes_on_the_way_are_those_of_the_rank_and_an_id() -> None:
    shape = (1, 256, 768)
    whole, thin = Boundary(INT8, shape), Boundary(INT8, shape, Subspace(64, 768, TOKENS, 0))
    assert (thin.form.num_bytes, thin.input_form.num_bytes) == (256 * 66, 256 * 67)
    assert whole.num_bytes > 11.5 * thin.input_form.num_bytes
    many = Boundary(INT8, shape, Subspace(64, 768, 50_257, 0))
    assert many.input_form.num_bytes == 256 * 70


def test_ids_are_whole_numbers_however_many_tokens_there_are() -> None:
    subspace = Subspace(4, 8, 200_000, 0)
    between = Boundary(INT8, (1, 3, 8), subspace)
    ids = torch.tensor([[199_999, 2049, 65_537]])
    values = subspace.whole(torch.ones(1, 3, 4), ids)
    found, there = between.decode_input(between.encode_input(values, ids), between.input_form)
    assert torch.equal(there, ids) and torch.allclose(found, values, atol=1e-3)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda form, data: (boundary().form, data), "form"),
        (lambda form, data: (form, data[:-1]), "length"),
        (lambda form, data: (form, data + b"\0"), "length"),
        (lambda form, data: (boundary(INT8, Subspace(9, WIDTH, 256, 7)).input_form, data), "form"),
        (lambda form, data: (Boundary(INT8, SHAPE).form, data), "form"),
        (lambda form, data: (form, b"\xff" * len(data)), "scale"),
    ],
)  # fmt: skip
def test_an_input_that_is_not_what_it_says_is_refused(spoil, reason: str) -> None:
    data = boundary().encode_input(inside(), IDS)
    form, spoilt = spoil(boundary().input_form, data)
    with pytest.raises(IllegalPayload) as caught:
        boundary().decode_input(spoilt, form)
    assert caught.value.reason == reason


def test_a_token_that_there_is_not_is_refused() -> None:
    subspace = Subspace(RANK, WIDTH, 200, 7)
    data = bytearray(boundary(INT8, subspace).encode_input(inside(), IDS.clamp(max=199)))
    data[-1] = 200
    with pytest.raises(IllegalPayload, match="code"):
        boundary(INT8, subspace).decode_input(bytes(data), boundary(INT8, subspace).input_form)


def test_a_gradient_with_ids_behind_it_is_refused() -> None:
    with pytest.raises(IllegalPayload, match="form"):
        boundary().decode(boundary().encode_input(inside(), IDS), boundary().input_form)


# ---- weights


def test_the_fixed_part_has_the_same_bits_on_every_machine() -> None:
    rows = SUBSPACE.whole(torch.zeros(TOKENS, RANK), torch.arange(TOKENS))
    assert (
        hashlib.sha256(rows.numpy().astype("<f4").tobytes()).hexdigest()[:16] == "24d06638fb6f1265"
    )
    other = Subspace(RANK, WIDTH, TOKENS, 8).whole(torch.zeros(1, RANK), torch.tensor([0]))
    assert not torch.equal(other[0], rows[0])


def spans(kind: str) -> list[Span]:
    config = config_of(kind)
    model, cut = built_in(config.model), stage_cut(config)
    return [
        Span(model, cut, range(at, at + 1), seed=7, subspace=subspace_of(config)) for at in range(3)
    ]


@pytest.mark.parametrize("kind", ["byte-transformer", "transformer"])
def test_what_stages_give_lies_in_it_for_each_kind_of_model(kind: str) -> None:
    subspace, value = subspace_of(config_of(kind)), IDS
    for at, span in enumerate(spans(kind)[:2]):
        for module in span.modules.values():  # as if they had learned
            for parameter in module.parameters():
                parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
            subspace.confine(dict(module.named_parameters()))
        value = span.forward(value, stages=(at,), seed=0)
        assert value[..., :RANK].std() > 0.05
        assert torch.equal(value, subspace.whole(value[..., :RANK], IDS))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_weights_are_in_it_after_every_step(optimizer: str) -> None:
    subspace = subspace_of(config_of())
    inner = InnerSection(optimizer=optimizer, lr=0.1, weight_decay=0.5)
    for stage, span in enumerate(spans("byte-transformer")):
        module = span.modules[stage]
        steps = StageSteps(module, inner, subspace=span.subspace)
        before = {name: one.detach().clone() for name, one in module.named_parameters()}
        for _ in range(3):
            for parameter in module.parameters():
                parameter.grad = torch.randn_like(parameter)
            steps.count(10)
            steps.close()
            steps.step(rate=0.1)
        for name, parameter in module.named_parameters():
            held = {
                name: parameter.detach().clone(),
                **({"head.weight": parameter} if stage == 2 else {}),
            }
            subspace.confine(held)
            assert torch.equal(held[name], parameter) and not torch.equal(parameter, before[name])


def test_the_last_stage_is_free_and_the_others_keep_what_they_read_with() -> None:
    config = config_of()
    for stage, span in enumerate(spans("byte-transformer")):
        layout = Layout.of(span.modules[stage], 1024)
        before = torch.randn(layout.padded)
        vector = before.clone()
        confining(config, layout)(vector, ())
        was = layout.named_views(before)
        changed = {
            name
            for name, view in layout.named_views(vector).items()
            if not torch.equal(view, was[name])
        }
        writes = {"embedding.weight"} if stage == 0 else set()
        assert all(
            name in writes or name.endswith(("attention_out.weight", "mlp_down.weight"))
            for name in changed
        )
        assert bool(changed) == (stage < 2)


def test_a_run_without_it_has_no_such_thing() -> None:
    config = RunConfig(Run("wide"))
    assert subspace_of(config) is None
    assert confining(config, Layout.of(build_model(config, 0), 1024)) is None
