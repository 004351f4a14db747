"""The example of a strategy that another package brings: found by name, and right."""

import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
import torch

from swarmtrain_optimizers.strategies import brought, registry
from swarmtrain_optimizers.strategies.base import Strategy

torch.set_num_threads(1)
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_strategy"
SIZE = 16


@pytest.fixture
def heavy_ball(monkeypatch: pytest.MonkeyPatch) -> Strategy:
    """Made by its name, as if the example were installed."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    points = EntryPoints(
        EntryPoint(name, value, brought.GROUP)
        for name, value in project["entry-points"][brought.GROUP].items()
    )
    monkeypatch.setattr(brought, "entry_points", lambda **wanted: points.select(**wanted))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    assert "heavy_ball" in registry.known_strategies()
    return registry.strategy_named("heavy_ball")(SIZE, inner_steps=3, lr=0.7, momentum=0.5)


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
