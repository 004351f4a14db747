"""A strategy that a package brings, goes by pairs and inherits nothing of ours, through a run."""

from pathlib import Path

import pytest
import torch

from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig
from swarmtrain.coordinator.service import run_terms
from swarmtrain_transport.kinds import PAIR
from tests.brought import install_example
from tests.peer.crowd import crowd_of
from tests.peer.test_strategy_sessions import assert_agreed, founded, state_of

torch.set_num_threads(1)
ROUNDS = 6
TEXT = """
[run]
name = "t"
rounds = 6
[outer]
strategy = "halfway"
inner_steps = 2
[exchange]
codec = "%s"
block = 16
chunk_values = 32
start_peers = %d
wait_ready_s = 3.0
deadline_floor_s = 20.0
deadline_cap_s = 40.0
[checkpoint]
snapshot_rounds = 2
[strategy.halfway]
share = %g
"""


@pytest.fixture
def config(request, tmp_path: Path, monkeypatch) -> RunConfig:
    install_example(monkeypatch)
    path = tmp_path / "run.toml"
    path.write_text(TEXT % getattr(request, "param", ("none", 2, 0.5)), encoding="utf-8")
    return config_file.load(path)


def test_the_coordinator_plans_pairs_for_it_and_loads_its_facts_alone(config: RunConfig):
    assert run_terms(config).kind is PAIR
    assert (config.exchange.min_contributors, config.exchange.codec) == (2, "none")


@pytest.mark.parametrize("config", [("none", 3, 0.25), ("int8", 3, 0.25)], indirect=True)
def test_its_pairs_meet_whoever_dies_or_comes(tmp_path: Path, config: RunConfig):
    with crowd_of(config, tmp_path) as crowd:
        members = founded(crowd)
        before = members[0].toy.read_weights()
        crowd.run(until=lambda: members[0].driver.op >= 2)
        crowd.kill(members.pop())
        newcomer = crowd.add(4)
        crowd.run()
        assert_agreed([*members, newcomer], ROUNDS)
        outcomes = {report.outcome for one in members for report in one.reports}
        assert outcomes == {"merged", "alone"}
        assert (state_of(members[0])["anchor"] - before).abs().max() > 1e-3


def test_two_that_meet_in_the_middle_are_the_same(tmp_path: Path, config: RunConfig):
    with crowd_of(config, tmp_path) as crowd:
        members = [crowd.add(number) for number in (1, 2)]
        crowd.run()
        one, other = (member.toy.read_weights() for member in members)
        assert torch.allclose(one, other, atol=1e-6)
