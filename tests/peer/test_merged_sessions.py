"""Runs whose peers train alone until a last merge: real sessions, places of exchanges, the mean."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from swarmtrain.config.limits import first_problem
from swarmtrain.config.settings import ExchangeSection, OuterSection, RunConfig, RunSection
from swarmtrain_optimizers.strategies.budget import Budget, When
from tests.peer.crowd import Crowd, Member, crowd_of

torch.set_num_threads(1)
ROUNDS, STEPS = 6, 2


def config_of(**outer: Any) -> RunConfig:
    config = RunConfig(
        run=RunSection("t", rounds=ROUNDS),
        outer=OuterSection(strategy="local", inner_steps=STEPS, last_merge=True, **outer),
        exchange=ExchangeSection(
            codec="none", block=16, chunk_values=32, start_peers=3, min_contributors=3,
            wait_ready_s=3.0,
        ),
    )  # fmt: skip
    assert first_problem(config) is None
    return config


def ended(crowd: Crowd) -> tuple[list[Member], torch.Tensor]:
    """Three peers at the end of the run, and the weights that they began with."""
    members = [crowd.add(number) for number in (1, 2, 3)]
    began = members[0].toy.read_weights()
    crowd.run()
    return members, began


def test_peers_that_were_alone_end_with_the_mean_of_what_all_have_trained(tmp_path: Path):
    with crowd_of(config_of(), tmp_path) as crowd:
        members, began = ended(crowd)
        assert {one.driver.op for one in members} == {1}
        assert len({one.driver.root for one in members}) == 1
        way = torch.stack([one.toy.slope for one in members]).mean(0) * (ROUNDS * STEPS / 64)
        for one in members:
            assert torch.allclose(one.toy.read_weights(), began - way, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("when", "rounds"), [("late", [4, 5, 6]), ("early", [1, 2, 6]), ("even", [2, 4, 6])]
)
def test_a_budget_is_spent_in_the_rounds_that_its_rule_names(
    tmp_path: Path, when: When, rounds: list[int]
):
    config = config_of(budget=2, when=when)
    assert [Budget(ROUNDS, 2, when).round_of(op) for op in (1, 2, 3)] == rounds
    steps: list[int] = []
    with crowd_of(config, tmp_path) as crowd:
        members = [crowd.add(number) for number in (1, 2, 3)]
        began = members[0].toy.read_weights()
        step = torch.stack([one.toy.slope for one in members]).mean(0) / 64
        for op in (1, 2, 3):
            crowd.run(until=lambda op=op: members[0].driver.op >= op)
            anchor = dict(members[0].driver.strategy.state_arrays())["anchor"]
            steps.append(round(float((began - anchor).norm() / step.norm())))
        crowd.run()
        assert {one.driver.op for one in members} == {3}
        assert len({one.driver.root for one in members}) == 1
    assert steps == [STEPS * number for number in rounds]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"strategy": "diloco"}, "must be false with outer.strategy diloco"),
        ({"strategy": "noloco", "lr": 0.7, "momentum": 0.5}, "must be false with .* noloco"),
        ({"budget": ROUNDS}, r"must be below run\.rounds \(6\), it is 6"),
        ({"when": "even"}, r"must be late where outer\.budget is 0"),
        ({"last_merge": False}, "must be one that a run can have"),
        ({"last_merge": False, "strategy": "diloco", "budget": 3}, "must be 0 without"),
    ],
)
def test_what_has_nothing_to_merge_or_to_place_is_refused_before_a_run(
    changed: dict[str, Any], words: str
):
    config = config_of()
    outer = msgspec.structs.replace(config.outer, **changed)
    exchange = msgspec.structs.replace(config.exchange, min_contributors=2)
    problem = first_problem(msgspec.structs.replace(config, outer=outer, exchange=exchange))
    assert problem is not None
    assert re.search(words, problem.text)
