"""Weights that a run begins with, at a peer: fetched in pieces, checked against its model."""

import asyncio
import hashlib
from collections.abc import Mapping

import pytest
import safetensors.torch
import torch
from torch import Tensor

from swarmtrain.foundation.control_lane import INITIAL_PIECE_BYTES
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.tensors import Layout, ParameterSpec
from swarmtrain.models.weights_file import moment_name
from swarmtrain.peer.training.initial import initial_weights
from swarmtrain_optimizers.strategies.registry import BUILT_IN

WEIGHTS = {
    "a": torch.arange(300_000, dtype=torch.float32).reshape(300, 1000),
    "b": torch.tensor([0.5, -2.0]).bfloat16(),
    "c": torch.tensor(7.0, dtype=torch.float64),
    "d": torch.zeros(0, 4),
}


class Shelf:
    """A file in pieces, and how often each was asked for."""

    def __init__(self, data: bytes) -> None:
        step = INITIAL_PIECE_BYTES
        parts = [data[at : at + step] for at in range(0, len(data), step)]
        self.pieces = {hashlib.sha256(part).digest(): part for part in parts}
        listed = b"".join(hashlib.sha256(part).digest() for part in parts)
        self.name = hashlib.sha256(listed).hexdigest()
        self.pieces[bytes.fromhex(self.name)] = listed
        self.asked: list[bytes] = []

    async def fetch(self, digest: bytes, most: int) -> bytes:
        self.asked.append(digest)
        assert len(self.pieces[digest]) <= most
        return self.pieces[digest]


def layout(**shapes: tuple[int, ...]) -> Layout:
    specs = tuple(ParameterSpec(name, shape, "float32") for name, shape in shapes.items())
    return Layout.from_parameters(specs, 16)


def begun(shelf: Shelf, wanted: Layout) -> Tensor:
    (vector,) = asyncio.run(
        initial_weights(shelf.name, wanted, shelf.fetch, BUILT_IN["diloco"])
    ).values()
    return vector


def shelf_of(weights: Mapping[str, Tensor] = WEIGHTS) -> Shelf:
    return Shelf(safetensors.torch.save(dict(weights)))


def test_the_vector_has_the_files_values_as_float32() -> None:
    wanted = layout(c=(), a=(300, 1000), b=(2,), d=(0, 4))
    shelf = shelf_of()
    vector = begun(shelf, wanted)
    assert vector.dtype == torch.float32 and len(vector) == wanted.padded
    for name, view in wanted.named_views(vector).items():
        assert torch.equal(view, WEIGHTS[name].float())
    assert not vector[wanted.num_values :].any()
    assert len(shelf.asked) <= len(shelf.pieces) + 1  # each once, but for what the head is in


def test_a_stage_fetches_its_own_pieces_alone() -> None:
    others = {f"z{index}": torch.zeros(400_000) + index for index in range(5)}
    shelf = shelf_of(WEIGHTS | others)
    begun(shelf, layout(b=(2,)))
    assert len(shelf.asked) < len(shelf.pieces) - 4


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"a": (1000, 300)}, "a is 300 x 1000, and should be 1000 x 300"),
        ({"b": (2,), "x": (1,)}, "x is missing"),
    ],
)
def test_a_model_that_it_does_not_fit_is_told(
    shapes: dict[str, tuple[int, ...]], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        begun(shelf_of(), layout(**shapes))
    assert caught.value.code == "SWT-E451" and words in caught.value.what


@pytest.mark.parametrize(
    "weights", [{"b": torch.tensor([1, 2])}, {"b": torch.full((2,), torch.nan)}]
)
def test_values_that_are_none_are_refused(weights: dict[str, Tensor]) -> None:
    with pytest.raises(UserError) as caught:
        begun(shelf_of(weights), layout(b=(2,)))
    assert caught.value.code == "SWT-E451"


@pytest.mark.parametrize("data", [b"", b"no file at all", (99).to_bytes(8, "little") + b"{}"])
def test_what_is_no_such_file_is_refused(data: bytes) -> None:
    with pytest.raises(UserError) as caught:
        begun(Shelf(data), layout(b=(2,)))
    assert caught.value.code == "SWT-E451"


def test_moments_of_the_runs_strategy_come_with_the_weights() -> None:
    moments = {
        moment_name("diloco", "momentum", "b"): torch.tensor([3.0, 4.0]),
        moment_name("diloco", "first_moment", "b"): torch.ones(2),
        moment_name("streaming", "momentum", "c"): torch.ones(()),
    }
    shelf, wanted = shelf_of(WEIGHTS | moments), layout(b=(2,), c=())
    facts = BUILT_IN["diloco"]
    found = asyncio.run(initial_weights(shelf.name, wanted, shelf.fetch, facts))
    assert list(found) == ["anchor", "momentum"]
    assert found["anchor"][:3].tolist() == [0.5, -2.0, 7.0]
    assert found["momentum"][:3].tolist() == [3.0, 4.0, 0.0]
    broken = {moment_name("diloco", "momentum", "b"): torch.tensor([3.0, torch.inf])}
    shelf = shelf_of(WEIGHTS | broken)
    with pytest.raises(UserError) as caught:
        asyncio.run(initial_weights(shelf.name, wanted, shelf.fetch, facts))
    assert caught.value.code == "SWT-E451"
