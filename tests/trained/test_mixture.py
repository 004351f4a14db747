"""Experts as one model: mixed by a router, and what an export of them refuses."""

import numpy as np
import pytest
import torch
from torch import nn

from swarmtrain.data import clusters
from swarmtrain.data.clusters import BUCKETS, Router
from swarmtrain.trained.mixture import Mixture


class Says(nn.Module):
    """Gives one byte nearly all of the chances."""

    def __init__(self, byte: int) -> None:
        super().__init__()
        self.logits_V = nn.Parameter(torch.zeros(256).index_fill(0, torch.tensor([byte]), 20.0))
        self.asked = 0

    def forward(self, tokens_BT):
        self.asked += tokens_BT.numel()
        return self.logits_V.expand(*tokens_BT.shape, 256)


def router_of(*texts):
    rarity = np.ones(BUCKETS, np.float32)
    return Router(rarity, np.stack([clusters._point(text, rarity) for text in texts]))


def tokens(*texts):
    return torch.tensor([list(text) for text in texts])


TEXTS = b"return self.value", b"the queen and sea", b"SELECT name FROM t"


def test_each_text_is_answered_by_its_own_expert():
    mixture = Mixture([Says(65), Says(66), Says(67)], router_of(*TEXTS))
    for number, text in enumerate(TEXTS[:2]):
        assert int(mixture(tokens(text))[0, -1].argmax()) == 65 + number


def test_chances_sum_to_one_and_at_most_two_experts_answer_for_a_place():
    experts = [Says(65 + number) for number in range(3)]
    mixture = Mixture(experts, router_of(*TEXTS))
    chances = mixture(tokens(TEXTS[0], TEXTS[1])).exp()
    assert torch.allclose(chances.sum(-1), torch.ones(2, len(TEXTS[0])), atol=1e-5)
    sure = (chances[..., 65:68] > 1e-6).sum(-1)
    assert int(sure[:, 2:].max()) <= 2
    assert (sure[:, :2] == 3).all()  # which kind of text it is nobody can tell yet


def test_an_expert_is_asked_no_farther_than_it_is_needed():
    experts = [Says(65), Says(66)]
    Mixture(experts, router_of(*TEXTS[:2]), mixed=1)(tokens(TEXTS[0]))
    assert [expert.asked for expert in experts] == [len(TEXTS[0]), 2]


def test_text_of_a_lost_expert_goes_to_those_that_are_left():
    left = router_of(*TEXTS).without([1])
    assert left.count == 2
    assert np.isclose(left.chances(TEXTS[1]).sum(), 1)


@pytest.mark.parametrize("text", [b"", b"a", b"ab"])
def test_a_context_without_a_triple_is_everybodys(text):
    chances = router_of(*TEXTS).chances(text)
    assert np.allclose(chances, 1 / 3)


def test_between_two_experts_the_text_so_far_decides():
    alike = Router(np.ones(BUCKETS, np.float32), np.ones((2, BUCKETS), np.float32))
    mixture = Mixture([Says(65), Says(66)], alike)
    chances = mixture(tokens(b"xyzBBBB"))[0].exp().detach()
    assert chances[0, 65] == pytest.approx(0.5, abs=0.01)  # nothing has spoken for either
    assert chances[-1, 66] > 0.99 and chances[-1, 65] < 0.01
