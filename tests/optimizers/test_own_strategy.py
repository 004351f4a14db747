"""The example of strategies that another package brings: found by name, and right."""

import pytest
import torch

from swarmtrain_optimizers.strategies import registry
from swarmtrain_optimizers.strategies.base import OpKind, StepsAlone, Strategy
from tests.brought import install_example

torch.set_num_threads(1)
SIZE = 16


@pytest.fixture
def heavy_ball(monkeypatch: pytest.MonkeyPatch) -> Strategy:
    """Made by its name, as if the example were installed."""
    install_example(monkeypatch)
    assert "heavy_ball" in registry.known_strategies()
    maker = registry.maker_of(registry.facts_named("heavy_ball"))
    return maker(SIZE, inner_steps=3, lr=0.7, momentum=0.5)


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> list[Strategy]:
    """A pair."""
    install_example(monkeypatch)
    facts = registry.facts_named("halfway")
    assert facts.kind is OpKind.PAIR
    return [registry.maker_of(facts)(SIZE, inner_steps=3, share=0.25) for _ in "ab"]


def test_the_examples_strategy_follows_its_formula(heavy_ball: Strategy) -> None:
    heavy_ball.set_initial(torch.ones(SIZE))
    phi, m = 1.0, 0.0
    for op in range(1, 6):
        trained = dict(heavy_ball.state_arrays())["anchor"] - op
        part = heavy_ball.pseudo_gradient(trained, op)
        weights = heavy_ball.apply(part, [(0, SIZE, True)], trained, op=op)
        m = 0.5 * m + op
        phi -= 0.7 * m
        assert weights.tolist() == pytest.approx([phi] * SIZE, abs=1e-4)


def test_the_examples_strategy_keeps_what_was_left_out(heavy_ball: Strategy) -> None:
    heavy_ball.set_initial(torch.zeros(SIZE))
    part = heavy_ball.pseudo_gradient(torch.ones(SIZE), 1).clone()
    after = heavy_ball.apply(torch.ones(SIZE), [(0, SIZE, False)], torch.ones(SIZE), op=1)
    assert torch.equal(heavy_ball.pseudo_gradient(after, 2), part)
    assert heavy_ball.is_due(3) and not heavy_ball.is_due(2)


def test_of_a_pair_that_meets_each_goes_a_share_of_the_way_and_keeps_its_steps(
    peers: list[Strategy],
) -> None:
    ends = [torch.zeros(SIZE), torch.full((SIZE,), 8.0)]
    for one in peers:
        one.set_initial(torch.ones(SIZE))
    halves = [one.pseudo_gradient(end) for one, end in zip(peers, ends, strict=True)]
    assert [half.numel() for half in halves] == [peers[0].exchange(1).num_values] * 2
    whole = [(0, 2 * SIZE, True)]
    first = peers[0].apply(halves[1], whole, ends[0] + 1)
    second = peers[1].apply(halves[0], whole, ends[1])
    assert torch.equal(first, torch.full((SIZE,), 3.0))
    assert torch.equal(second, torch.full((SIZE,), 6.0))
    assert torch.equal(dict(peers[0].state_arrays())["anchor"], torch.full((SIZE,), 2.0))


def test_a_peer_without_a_partner_keeps_what_it_trained(peers: list[Strategy]) -> None:
    one = peers[0]
    assert isinstance(one, StepsAlone)
    one.set_initial(torch.ones(SIZE))
    one.pseudo_gradient(torch.zeros(SIZE))
    assert torch.equal(one.solo(torch.full((SIZE,), 0.5)), torch.full((SIZE,), 0.5))
    assert not dict(one.state_arrays())["anchor"].any()
