"""A subspace: what lies in it goes through it, weights stay in it, and nothing else gets in."""

import hashlib

import pytest
import torch
from torch import Tensor

from swarmtrain.config.settings import InnerSection, ModelSection, PipelineSection, RunConfig
from swarmtrain.config.settings import RunSection as Run
from swarmtrain.config.stages import stage_cut
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.build import build_model
from swarmtrain.models.tensors import Layout
from swarmtrain.pipeline.activations import ActivationCodec, Boundary
from swarmtrain.pipeline.blocks import built_in
from swarmtrain.pipeline.span import Span
from swarmtrain.pipeline.steps import StageSteps
from swarmtrain.pipeline.subspace import Slope, Subspace, confining, subspace_of
from swarmtrain_optimizers.codecs.base import IllegalPayload
from swarmtrain_transport.wire.records import Plane, Turn

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


# ---- turned

TURNS = (
    Turn(3, (Plane(0, 9, 51), Plane(7, 8, -20))),
    Turn(5, (Plane(0, 8, 33),)),
    Turn(7, (Plane(1, 31, -51), Plane(0, 9, -5))),
)
TURNED = Subspace(RANK, WIDTH, TOKENS, 7, 51).turned(TURNS)


def drawn(*shape: int) -> Tensor:
    """The same numbers on every machine: quotients of bytes."""
    count = torch.Size(shape).numel()
    data = bytearray(hashlib.shake_256(b"turned").digest(count))
    return torch.frombuffer(data, dtype=torch.int8).view(shape).to(torch.float32) / 96


def weights() -> dict[str, Tensor]:
    """Of a first stage; each value is drawn."""
    return {
        "embedding.weight": drawn(TOKENS, WIDTH),
        "blocks.0.attention_out.weight": drawn(WIDTH, WIDTH),
        "blocks.0.mlp_down.weight": drawn(WIDTH, 4 * WIDTH),
        "blocks.0.mlp_up.weight": drawn(4 * WIDTH, WIDTH),
    }


def test_anchors_of_a_turned_subspace_have_the_same_bits_on_every_machine() -> None:
    held = weights()
    TURNED.confine(held)
    digest = hashlib.sha256()
    for tensor in held.values():
        digest.update(tensor.numpy().astype("<f4").tobytes())
    assert digest.hexdigest()[:16] == "cfdeddecaf2c6223"


def test_axes_are_orthonormal_and_turned_by_the_angles_that_the_record_has() -> None:
    axes = TURNED.axes(torch.device("cpu")).double()
    assert torch.allclose(axes.T @ axes, torch.eye(WIDTH).double(), atol=1e-6)
    for turns in range(len(TURNS)):
        before, after = (
            TURNED.turned(TURNS[:count]).axes(torch.device("cpu")).double()[:, :RANK]
            for count in (turns, turns + 1)
        )
        angles = torch.linalg.svdvals(before.T @ after).clamp(max=1).acos()
        steps = torch.tensor([abs(one.step) for one in TURNS[turns].planes]).sort(descending=True)[
            0
        ]
        wanted = 2 * (steps.double() / 1024).atan()
        assert torch.allclose(angles.sort(descending=True)[0][: len(wanted)], wanted, atol=1e-3)


def test_a_second_confining_moves_weights_by_no_more_than_rounding_and_holding_does_the_same() -> (
    None
):
    once, twice, held = weights(), weights(), weights()
    for some, times in ((once, 1), (twice, 2)):
        for _ in range(times):
            TURNED.confine(some)
    TURNED.hold(held)
    for name, tensor in once.items():
        assert torch.allclose(twice[name], tensor, atol=1e-6)
        assert torch.allclose(held[name], tensor, atol=1e-5)
    assert torch.equal(once["blocks.0.mlp_up.weight"], weights()["blocks.0.mlp_up.weight"])
    rows = TURNED.coordinates(once["embedding.weight"])
    assert torch.allclose(
        TURNED.whole(rows, torch.arange(TOKENS)), once["embedding.weight"], atol=1e-5
    )


def test_what_lies_in_a_turned_subspace_passes_and_the_fixed_part_is_at_right_angles_to_it() -> (
    None
):
    coordinates = torch.randn((*SHAPE[:2], RANK), generator=torch.Generator().manual_seed(0))
    values = TURNED.whole(coordinates, IDS)
    assert torch.allclose(passed(boundary(NONE, TURNED), values), values, atol=1e-5)
    fixed = TURNED.whole(torch.zeros_like(coordinates), IDS)
    assert TURNED.coordinates(fixed).abs().max() < 1e-5 < fixed.abs().max()
    gradient = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))
    coordinates.requires_grad_()
    TURNED.whole(coordinates, IDS).backward(gradient)
    between = boundary(NONE, TURNED)
    found = between.decode(between.encode(gradient), between.form)
    assert torch.allclose(TURNED.coordinates(found), coordinates.grad, atol=1e-5)
    assert torch.allclose(TURNED.direction(coordinates.grad), found, atol=1e-5)


def test_gradients_of_weights_that_write_stay_in_a_turned_subspace() -> None:
    named = {name: torch.nn.Parameter(value) for name, value in weights().items()}
    for parameter in named.values():
        parameter.grad = torch.randn_like(parameter)
    before = {name: one.grad.clone() for name, one in named.items()}
    TURNED.confine_gradients(named)
    written = named["blocks.0.mlp_down.weight"].grad
    assert torch.allclose(TURNED.direction(TURNED.coordinates(written.T)).T, written, atol=1e-5)
    assert torch.equal(named["blocks.0.mlp_up.weight"].grad, before["blocks.0.mlp_up.weight"])
    assert not torch.equal(named["embedding.weight"].grad, before["embedding.weight"])


@pytest.mark.parametrize("before", [(), TURNS])
def test_a_turn_goes_where_the_gradient_leaves_the_subspace(before: tuple[Turn, ...]) -> None:
    subspace = TURNED.turned(before)
    axes = subspace.axes(torch.device("cpu"))
    wanted = axes[:, 2] - 0.8 * axes[:, RANK + 3], 0.7 * axes[:, 5] + 0.6 * axes[:, RANK]
    draws = torch.randn((40, 2, 1), generator=torch.Generator().manual_seed(5))
    gradient = (draws * torch.stack(wanted)).sum(1)
    slope = Slope(subspace)
    assert slope.planes == ()
    slope.add(gradient[:20])
    slope.add(gradient[20:].view(4, 5, WIDTH))
    planes = {(one.inside, one.outside): one.step for one in slope.planes}
    assert planes[2, RANK + 3] < 0 < planes[5, RANK] and max(map(abs, planes.values())) == 51

    def inside_of(some: Subspace) -> float:
        return float(some.coordinates(gradient).square().sum())

    assert inside_of(subspace.turned((*before, Turn(9, slope.planes)))) > inside_of(subspace)


def test_gradients_that_are_no_numbers_propose_nothing() -> None:
    slope = Slope(TURNED)
    slope.add(torch.full(SHAPE, torch.nan))
    assert slope.planes == ()
    quiet = Slope(TURNED)
    quiet.add(torch.zeros(SHAPE))
    assert quiet.planes == ()


@pytest.mark.parametrize(
    "plane", [Plane(8, 9, 1), Plane(0, 32, 1), Plane(0, 7, 1), Plane(0, 9, 52)]
)
def test_a_turn_that_the_run_file_does_not_allow_ends_the_peer_with_a_word(plane: Plane) -> None:
    with pytest.raises(UserError) as caught:
        TURNED.turned((Turn(1, (plane,)),))
    assert caught.value.code == "SWT-E703"


def test_a_subspace_that_stays_is_never_turned() -> None:
    with pytest.raises(UserError):
        SUBSPACE.turned(TURNS[:1])
