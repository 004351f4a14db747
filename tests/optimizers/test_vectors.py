"""Memory of vectors as long as the model."""

import pytest
import torch

from swarmtrain_optimizers import vectors
from swarmtrain_optimizers.vectors import copied, fresh, lying, parts_of, pieces, taken, zeros


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [fresh, zeros])
def test_a_vector_lies_in_this_machines_memory_whatever_a_program_has_set(make, dtype):
    with torch.device("meta"):
        vector = make(5, dtype)
    assert (vector.shape, vector.dtype, vector.device.type) == ((5,), dtype, "cpu")


def test_a_copy_shares_no_memory_with_what_it_is_of():
    vector = torch.arange(4.0, requires_grad=True)
    copy = copied(vector)
    assert torch.equal(copy, vector)
    assert not copy.requires_grad
    copy.zero_()
    assert vector.tolist() == [0, 1, 2, 3]


def test_parts_are_taken_in_their_order_however_long_they_are(monkeypatch):
    monkeypatch.setattr(vectors, "PIECE_VALUES", 3)
    assert list(pieces(7)) == [slice(0, 3), slice(3, 6), slice(6, 7)] and not list(pieces(0))
    assert taken(torch.arange(12.0), [(1, 6), (8, 8), (9, 11)]).tolist() == [1, 2, 3, 4, 5, 9, 10]


def test_values_of_ranges_are_found_and_chunks_of_them_are_not_crossed(monkeypatch):
    monkeypatch.setattr(vectors, "PIECE_VALUES", 4)
    ranges = [(1, 4), (8, 8), (10, 16)]
    assert list(lying(ranges, 2, 5)) == [(slice(2, 3), slice(3, 4)), (slice(3, 5), slice(10, 12))]
    assert [part for part, _ in parts_of(ranges)] == [
        slice(0, 3),
        slice(3, 4),
        slice(4, 8),
        slice(8, 9),
    ]
    assert [place.start for _, place in parts_of(ranges)] == [1, 10, 11, 15]


def test_zeros_are_zeros():
    assert zeros(3).tolist() == [0, 0, 0]
