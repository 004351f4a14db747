"""Schedule and learning rates of a swarm that changes its size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarmtrain_optimizers import scaling
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_optimizers.strategies.base import SwarmFacts
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo

torch.set_num_threads(1)
SHAPE = {"peak": 1.0, "warmup_steps": 10, "total_steps": 100, "end_fraction": 0.1}


@given(st.lists(st.integers(1, 255), min_size=1, max_size=64))
def test_effective_contributors_are_at_most_those_there_are(weights: list[int]) -> None:
    found = scaling.effective_contributors(weights)
    assert 1 <= found <= len(weights) * (1 + 1e-12)
    assert scaling.effective_contributors([7] * len(weights)) == len(weights)


def test_slow_peers_make_a_swarm_smaller() -> None:
    # Speeds of 1, 1, 1/2 and 1/4: 2.75^2 / 2.3125.
    weights = [255, 255, 127, 63]
    assert scaling.effective_contributors(weights) == pytest.approx(3.27, abs=0.02)
    for wrong in ([], [0, 1]):
        with pytest.raises(ValueError, match="positive integers"):
            scaling.effective_contributors(wrong)


@pytest.mark.parametrize(
    ("contributors", "expected"),
    [(1, 0.5), (2, 0.6), (3, 0.6), (4, 0.6), (6, 0.7), (8, 0.8), (12, 0.9), (16, 1.0), (64, 1.0)],
)
def test_the_outer_rate_passes_through_the_papers_table(
    contributors: float, expected: float
) -> None:
    assert scaling.outer_lr(contributors) == pytest.approx(expected, abs=1e-12)


def stability_bound(momentum: float) -> float:
    """Return what lr * a must stay below; written anew here, and held against DiLoCo itself
    below."""
    return 2 * (1 + momentum) / (1 + 2 * momentum)


def distances(share: float, rounds: int, contributors: int = 0, **settings: float) -> list[float]:
    """Return DiLoCo's distance from the minimum after each round that goes `share` of the way.

    It begins 1 away; the rate is that of so many contributors, or the `lr` of `settings`.
    """
    diloco = DiLoCo(
        1, inner_steps=1, error_feedback=False,
        lr_rule="contributors" if contributors else "fixed",
        dtype=torch.float64, **({"lr": 9.0} | settings),
    )  # fmt: skip
    diloco.set_initial(torch.ones(1, dtype=torch.float64))
    found = []
    for _ in range(rounds):
        diloco.hear_of_swarm(SwarmFacts(0, (255,) * contributors))
        diloco.apply(share * diloco.anchor, [(0, 1, False)], diloco.anchor.clone())
        found.append(abs(diloco.anchor.item()))
    return found


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.5, 0.8, 0.9, 0.95])
def test_the_outer_rate_is_stable_where_inner_steps_go_nearly_all_the_way(momentum: float) -> None:
    for contributors in (*range(1, 17), 32, 64):
        found = distances(0.98, 60, contributors, momentum=momentum)
        assert max(found) < 1, contributors
        assert found[-1] < 1e-3, contributors


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.5, 0.8, 0.9, 0.95])
def test_the_outer_step_is_stable_below_its_bound_alone(momentum: float) -> None:
    bound = stability_bound(momentum)
    for share in (1.0, 0.5):
        assert distances(share, 150, lr=0.95 * bound / share, momentum=momentum)[-1] < 1e-6
        assert distances(share, 150, lr=1.05 * bound / share, momentum=momentum)[-1] > 1e3
    # A rate of 1 is the fastest where inner steps arrive: two rounds, whatever the momentum.
    assert distances(1.0, 2, lr=1.0, momentum=momentum)[-1] < 1e-12


@given(st.floats(1, 100), st.floats(1, 100), st.floats(0, 0.99))
def test_the_outer_rate_never_falls_with_contributors_and_stays_below_three_caps(
    one: float, other: float, momentum: float
) -> None:
    few, many = sorted((one, other))
    assert scaling.outer_lr(few) <= scaling.outer_lr(many) + 1e-12
    rate, published = scaling.outer_lr(few, momentum=momentum), scaling.outer_lr(few)
    assert rate <= scaling.outer_lr(many, momentum=momentum) + 1e-12
    gain = published * (1 - momentum) / 0.1
    part = published * stability_bound(momentum) / stability_bound(0.9)
    assert rate == pytest.approx(min(gain, part, 1.0), rel=1e-12)
    assert rate < 0.75 * stability_bound(momentum)


def test_at_the_papers_momentum_the_outer_rates_are_the_papers() -> None:
    for contributors, rate in ((1, 0.5), (2, 0.6), (4, 0.6), (8, 0.8), (16, 1.0)):
        assert scaling.outer_lr(contributors, momentum=0.9) == rate


@pytest.mark.parametrize(
    "arguments",
    [{"contributors": 0.5}, {"contributors": float("nan")}, {"contributors": 4, "momentum": 1.0}],
)
def test_an_outer_rate_of_nothing_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        scaling.outer_lr(**arguments)


def test_a_swarm_of_the_planned_size_follows_the_schedule_step_by_step() -> None:
    for step in range(100):
        tokens = step * 4 * 512
        assert scaling.schedule_step(tokens, tokens_per_step=4 * 512) == step


def test_a_swarm_that_doubles_ends_its_schedule_when_the_tokens_are_spent() -> None:
    # Planned: 4 peers, 100 steps. After 40 local steps 4 more come, so 30 more local steps remain.
    tokens, rates = 0, []
    for local_step in range(70):
        step = scaling.schedule_step(tokens, tokens_per_step=4 * 512)
        rates.append(warmup_cosine(step, **SHAPE))
        tokens += (4 if local_step < 40 else 8) * 512
    assert tokens == 100 * 4 * 512
    planned = [warmup_cosine(step, **SHAPE) for step in range(100)]
    assert rates == planned[:40] + planned[40::2]


def test_within_a_round_the_swarm_is_taken_to_go_on_as_before() -> None:
    def estimate(steps: int) -> int:
        return scaling.tokens_since_commit(steps, inner_steps=20, round_tokens=100_001)

    assert [estimate(steps) for steps in (0, 1, 10, 20)] == [0, 5000, 50_000, 100_001]
    assert estimate(35) == 100_001  # Waiting for a late op is no progress of the swarm.


@pytest.mark.parametrize(
    "call",
    [
        lambda: scaling.schedule_step(-1, tokens_per_step=4),
        lambda: scaling.schedule_step(1, tokens_per_step=0),
        lambda: scaling.tokens_since_commit(-1, inner_steps=1, round_tokens=1),
        lambda: scaling.tokens_since_commit(1, inner_steps=0, round_tokens=1),
    ],
)
def test_numbers_that_make_no_sense_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r"make no|must be"):
        call()  # type: ignore[operator]
