"""T10: zero stays zero, and what a codec made once it makes again.

two_bit is not among those of the second kind: its scale is a block's best, not its largest value,
and the best for what it has made is another one. int8's scale is rounded up to a bfloat16, so a
block whose largest code is under 127 gets a smaller scale the second time.
"""

import pytest
import torch
from torch import Tensor

from swarmtrain_optimizers.codecs import CODECS
from tests.optimizers.window import PlanWindow, split_payload

torch.set_num_threads(1)
NUM_VALUES, BLOCK = 8192, 256
WINDOW = PlanWindow(block=BLOCK)
names = pytest.mark.parametrize("name", sorted(CODECS))


def made(name: str, values: Tensor) -> tuple[bytes, Tensor]:
    payload = CODECS[name].encode(values.clone(), WINDOW)
    return bytes(payload), CODECS[name].decode(payload, NUM_VALUES, WINDOW).clone()


def drawn() -> Tensor:
    values = torch.randn(NUM_VALUES, generator=torch.Generator().manual_seed(10)) / 100
    values[::77] = 0
    return values


@names
def test_t10_zeros_are_decoded_as_zeros(name: str):
    assert not made(name, torch.zeros(NUM_VALUES))[1].any()


@pytest.mark.parametrize("name", sorted(set(CODECS) - {"two_bit", "int8"}))
def test_t10_what_was_decoded_is_encoded_as_it_was(name: str):
    once = made(name, drawn())[1]
    assert once.any() and torch.equal(made(name, once)[1], once)


def test_t10_int8_makes_again_what_has_the_top_code():
    payload, once = made("int8", drawn())
    codes = torch.tensor(split_payload(payload, NUM_VALUES, BLOCK)[1]).view(-1, BLOCK)
    is_top = codes.abs().amax(dim=1) == 127
    assert 0 < int(is_top.sum()) < len(is_top)
    again = made("int8", once)[1]
    assert torch.equal(again.view(-1, BLOCK)[is_top], once.view(-1, BLOCK)[is_top])
    # The others move by less than a rounding step of theirs.
    step = once.view(-1, BLOCK).abs().amax(dim=1) / 126
    assert bool(((again - once).abs().view(-1, BLOCK) <= step[:, None] / 2).all())
