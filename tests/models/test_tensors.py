import pytest
import torch
from torch import nn

from swarmtrain.models.tensors import Layout, LayoutMismatch

BLOCK = 16


class Tied(nn.Module):
    """An embedding whose table is also the head, a frozen layer, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))


def ramp(layout: Layout) -> torch.Tensor:
    vector = torch.zeros(layout.padded)
    vector[: layout.num_values] = torch.arange(layout.num_values)
    return vector


def test_tied_parameters_count_once_and_frozen_ones_not_at_all() -> None:
    layout = Layout.of(Tied(), BLOCK)
    assert [spec.name for spec in layout.parameters] == ["scale", "embedding.weight"]
    assert (layout.num_values, layout.padded) == (16, 16)


def test_the_vector_is_padded_to_the_block_with_zeros() -> None:
    layout = Layout.of(nn.Linear(3, 5), BLOCK)
    assert (layout.num_values, layout.padded) == (20, 32)
    vector = layout.read(nn.Linear(3, 5), torch.full((32,), 7.0))
    assert vector[20:].tolist() == [0.0] * 12


def test_writing_and_reading_gives_the_same_bits_and_leaves_frozen_ones() -> None:
    model = Tied()
    layout = Layout.of(model, BLOCK)
    frozen = model.frozen.weight.clone()
    layout.write(model, ramp(layout))
    assert torch.equal(layout.read(model), ramp(layout))
    assert model.head.weight is model.embedding.weight
    assert model.head.weight[0].tolist() == [1.0, 2.0, 3.0]
    assert torch.equal(model.frozen.weight, frozen)


def test_reading_into_a_vector_returns_that_vector() -> None:
    model = Tied()
    layout = Layout.of(model, BLOCK)
    out = torch.empty(layout.padded)
    assert layout.read(model, out) is out
    assert torch.equal(out, layout.read(model))


def test_bfloat16_parameters_are_read_exactly_and_written_rounded() -> None:
    model = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    layout = Layout.of(model, BLOCK)
    vector = layout.read(model)
    assert vector.dtype == torch.float32
    assert torch.equal(vector.view(4, 4), model.weight.float())
    layout.write(model, torch.full((16,), 1.0 + 2**-12))
    assert model.weight.dtype == torch.bfloat16
    assert model.weight.unique().tolist() == [1.0]


def test_transposed_memory_is_read_in_the_order_of_its_axes() -> None:
    model = nn.Linear(4, 4, bias=False)
    model.weight = nn.Parameter(torch.arange(16.0).view(4, 4).t())
    layout = Layout.of(model, BLOCK)
    assert layout.read(model).tolist() == [float(4 * c + r) for r in range(4) for c in range(4)]


def test_writing_keeps_gradients_and_the_identity_of_parameters() -> None:
    model = nn.Linear(4, 4, bias=False)
    weight = model.weight
    weight.grad = torch.ones(4, 4)
    layout = Layout.of(model, BLOCK)
    layout.write(model, ramp(layout))
    assert model.weight is weight
    assert weight.requires_grad
    assert weight.grad is not None


def test_named_views_share_memory_with_the_vector() -> None:
    layout = Layout.of(Tied(), BLOCK)
    vector = ramp(layout)
    views = layout.named_views(vector)
    assert {name: tuple(view.shape) for name, view in views.items()} == {
        "scale": (),
        "embedding.weight": (5, 3),
    }
    views["embedding.weight"][0, 0] = -1.0
    assert vector[1] == -1.0


def test_packing_named_tensors_undoes_named_views() -> None:
    layout = Layout.of(nn.Linear(3, 5), BLOCK)
    vector = ramp(layout)
    views = layout.named_views(vector)
    backwards = dict(reversed(list(views.items())))
    assert torch.equal(layout.pack(backwards), vector)
    with pytest.raises(LayoutMismatch, match="bias is missing"):
        layout.pack({"weight": views["weight"]})
    with pytest.raises(LayoutMismatch, match="w2 is none of the model's"):
        layout.pack({**views, "w2": torch.ones(1)})


def test_the_digest_names_names_shapes_and_types_but_not_values_or_block() -> None:
    digests = [
        Layout.of(nn.Linear(3, 5), BLOCK).digest,
        Layout.of(nn.Linear(3, 5).to(torch.bfloat16), BLOCK).digest,
        Layout.of(nn.Linear(5, 3), BLOCK).digest,
        Layout.of(nn.Sequential(nn.Linear(3, 5)), BLOCK).digest,
    ]
    assert len(set(digests)) == 4
    assert {len(digest) for digest in digests} == {32}
    assert Layout.of(nn.Linear(3, 5), 2 * BLOCK).digest == digests[0]


def test_a_model_that_changed_since_is_refused_and_left_alone() -> None:
    model = Tied()
    layout = Layout.of(model, BLOCK)
    before = model.embedding.weight.clone()
    model.frozen.requires_grad_(True)
    with pytest.raises(LayoutMismatch, match=r"`frozen\.weight`"):
        layout.write(model, ramp(layout))
    with pytest.raises(LayoutMismatch, match="Freeze"):
        layout.read(model)
    assert torch.equal(model.embedding.weight, before)


@pytest.mark.parametrize(
    "vector", [torch.zeros(15), torch.zeros(16, dtype=torch.float64), torch.zeros(4, 4)]
)
def test_a_vector_of_another_length_or_type_is_refused(vector: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="float32 CPU vector of 16 values"):
        Layout.of(Tied(), BLOCK).named_views(vector)


def test_models_that_cannot_be_averaged_are_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameters"):
        Layout.of(nn.Linear(2, 2).requires_grad_(False), BLOCK)
    with pytest.raises(ValueError, match="complex64"):
        Layout.of(nn.Linear(2, 2, dtype=torch.complex64), BLOCK)
    with pytest.raises(ValueError, match="block"):
        Layout.of(nn.Linear(2, 2), 0)
