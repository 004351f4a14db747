"""Schedule by tokens and outer rate by contributors in sessions: all peers know the same of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from swarmtrain.config.limits import first_problem
from swarmtrain.config.settings import RunConfig, RunSection
from swarmtrain.peer.run import step_by_tokens
from swarmtrain.strategies import strategy_of
from swarmtrain_optimizers.scaling import effective_contributors, outer_lr
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_optimizers.strategies.base import SwarmFacts
from swarmtrain_optimizers.strategies.ddp.strategy import DDP, AdamW
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from tests.peer.crowd import Member, crowd_of
from tests.peer.test_strategy_sessions import ROUNDS, assert_agreed, config_of, founded, state_of

torch.set_num_threads(1)
SAMPLES_PER_STEP = 8


def changed(config: RunConfig, **sections: dict[str, Any]) -> RunConfig:
    """The same with other values in these sections."""
    for name, values in sections.items():
        section = msgspec.structs.replace(getattr(config, name), **values)
        config = msgspec.structs.replace(config, **{name: section})
    assert first_problem(config) is None
    return config


def naive_sum(member: Member) -> int:
    """Samples of all in all results, read off the ledger that a peer keeps."""
    total = 0
    for op in member.participant.view.first.commits.values():
        told = dict(zip(op.weights, op.plan.samples, strict=True))
        is_paired = member.driver.is_paired  # who is in no pair makes its step too
        total += sum(told[peer] for peer in (told if is_paired else op.outcome.contributors))
    return total


@pytest.mark.parametrize("name", ["diloco", "ddp", "streaming", "noloco", "sparseloco"])
def test_a_newcomer_and_who_comes_back_know_what_the_whole_swarm_has_trained_on(
    tmp_path: Path, name: str
):
    config = changed(config_of(name), inner={"schedule": "tokens"})
    with crowd_of(config, tmp_path) as crowd:
        members = founded(crowd)
        crowd.run(until=lambda: members[0].driver.op >= 2)
        crowd.kill(members.pop())
        newcomer, again = crowd.add(4), crowd.add(3)
        crowd.run()
        everybody = [*members, newcomer, again]
        assert_agreed(everybody)
        assert {one.driver.samples_so_far for one in everybody} == {naive_sum(members[0])}
        places = {step_by_tokens(config, one.driver) for one in everybody}
        assert len(places) == 1
        assert naive_sum(members[0]) > ROUNDS * SAMPLES_PER_STEP


def test_ddp_by_tokens_ends_its_schedule_with_the_swarms_tokens(tmp_path: Path):
    roots = {}
    schedules: dict[str, dict[str, Any]] = {
        "steps": {},
        "tokens": {"schedule": "tokens"},
        "longer": {"schedule": "tokens", "schedule_tokens": 1 << 40},
    }
    for place, inner in schedules.items():
        (tmp_path / place).mkdir()
        inner |= {"batch": SAMPLES_PER_STEP, "warmup_steps": 1}
        config = changed(config_of("ddp"), inner=inner)
        with crowd_of(config, tmp_path / place) as crowd:
            members = founded(crowd)
            crowd.run()
            assert_agreed(members)
            roots[place] = members[0].driver.root
    # Three peers all the time are the swarm that the schedule was written for.
    assert roots["steps"] == roots["tokens"] != roots["longer"]


def test_the_outer_rate_follows_the_contributors_and_all_agree(tmp_path: Path):
    config = changed(config_of("diloco"), outer={"lr_rule": "contributors"})
    with crowd_of(config, tmp_path) as crowd:
        members = founded(crowd)
        crowd.run(until=lambda: members[0].driver.op >= 2)
        crowd.kill(members.pop())
        newcomer = crowd.add(4)
        crowd.run()
        assert_agreed([*members, newcomer])
        lost = state_of(members[0])["anchor"]
    (tmp_path / "other").mkdir()
    with crowd_of(config_of("diloco"), tmp_path / "other") as crowd:
        (member, *_) = founded(crowd)
        crowd.run()
        assert not torch.equal(lost, state_of(member)["anchor"])


def test_diloco_by_contributors_steps_as_a_diloco_of_that_rate() -> None:
    weights = (255, 255, 128)
    rate = outer_lr(effective_contributors(weights), momentum=0.5)
    settings: dict[str, Any] = {"inner_steps": 1, "momentum": 0.5, "error_feedback": False}
    ruled = DiLoCo(16, lr=9.0, lr_rule="contributors", **settings)
    plain = DiLoCo(16, lr=rate, **settings)
    mean = torch.linspace(-1, 1, 16)
    for one in (ruled, plain):
        one.set_initial(torch.ones(16))
    for _ in range(3):
        ruled.hear_of_swarm(SwarmFacts(0, weights))
        for one in (ruled, plain):
            one.apply(mean, [(0, 16, False)], one.anchor.clone())
        assert torch.equal(ruled.anchor, plain.anchor)


def test_ddp_by_samples_asks_for_the_rate_after_what_it_was_told() -> None:
    asked: list[int] = []

    def rate(place: int) -> float:
        asked.append(place)
        return 0.5

    for by_samples in (True, False):
        ddp = DDP(16, optimizer=AdamW(), schedule=rate, by_samples=by_samples)
        ddp.set_initial(torch.ones(16))
        ddp.hear_of_swarm(SwarmFacts(4711, (1,)))
        ddp.apply(torch.ones(16), [(0, 16, False)], torch.ones(16), op=3)
    assert asked == [4711, 2]


def test_the_place_is_the_swarms_tokens_and_this_rounds_so_far() -> None:
    config = changed(
        RunConfig(RunSection("t", rounds=10)),
        exchange={"start_peers": 4, "min_contributors": 1},
        inner={"schedule": "tokens", "batch": 2},
        outer={"inner_steps": 5},
    )
    assert config.tokens_per_step == 4 * 2 * config.model.context
    assert config.schedule_steps == 50

    def place(steps: int, samples_so_far: int, round_samples: int) -> int:
        driver: Any = SimpleNamespace(
            steps=steps, round_steps=5, samples_so_far=samples_so_far, round_samples=round_samples
        )
        return step_by_tokens(config, driver)

    assert [place(steps, 0, 0) for steps in (0, 1, 4, 5, 9)] == [0, 1, 4, 5, 5]
    # A round of four peers: five of the schedule's steps. Of eight peers: ten.
    assert [place(steps, 40, 40) for steps in (0, 1, 4, 5, 9)] == [5, 6, 9, 10, 10]
    assert [place(steps, 80, 80) for steps in (0, 1, 5)] == [10, 12, 20]
    longer = changed(config, inner={"schedule_tokens": 70 * config.tokens_per_step + 1})
    assert longer.schedule_steps == 70


def test_a_strategys_own_schedule_has_the_same_rate_at_the_same_place() -> None:
    config = changed(config_of("ddp"), inner={"schedule": "tokens", "batch": 2, "warmup_steps": 2})
    layout: Any = SimpleNamespace(padded=16)
    by_tokens: Any = strategy_of(config, layout)
    inner = config.inner
    for samples in (0, 5, 6, 17, 10_000):
        expected = warmup_cosine(
            samples // 6, peak=inner.lr, warmup_steps=2, total_steps=ROUNDS,
            end_fraction=inner.lr_end_fraction,
        )  # fmt: skip
        assert by_tokens._schedule(samples) == expected
