"""Real sessions in a run with a guard: they go back to what they have, and on."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmtrain.config.limits import first_problem
from swarmtrain.config.settings import (
    CheckpointSection,
    ExchangeSection,
    GuardSection,
    OuterSection,
    RunConfig,
    RunSection,
)
from swarmtrain.peer.training.meter import Meter
from swarmtrain_transport.wire.records import Rewind, bodies_of
from tests.peer.crowd import Crowd, Member, crowd_of

torch.set_num_threads(1)


def config_of(peers: int, **outer: Any) -> RunConfig:
    outer = {"strategy": "diloco", "inner_steps": 2} | outer
    config = RunConfig(
        run=RunSection("t", rounds=14),
        outer=OuterSection(**outer),
        exchange=ExchangeSection(
            codec="none", block=16, chunk_values=32, start_peers=peers, min_contributors=1,
            wait_ready_s=3.0,
        ),
        guard=GuardSection(spike=2.0, window=5),
        checkpoint=CheckpointSection(every_rounds=1),
    )  # fmt: skip
    assert first_problem(config) is None
    return config


def gone_back(crowd: Crowd, members: list[Member], to: int = 8) -> None:
    """The run has made so many rounds, and then its loss leaps."""
    crowd.run(lambda: all(one.driver.op >= to for one in members))
    for one in members:
        one.loss = math.nan
    crowd.run(lambda: all(one.participant.view.first.rewinds for one in members))
    for one in members:
        one.loss = 1.5


@pytest.mark.parametrize(
    "outer",
    [
        {}, {"strategy": "ddp", "inner_steps": 1}, {"strategy": "streaming", "fragments": 2},
        {"strategy": "delayed"}, {"strategy": "sparseloco", "momentum": 0.0},
        {"strategy": "streaming", "fragments": 2, "inner_steps": 4, "delay_steps": 4},
    ],
)  # fmt: skip
def test_all_go_back_and_end_with_one_state(tmp_path: Path, outer: dict[str, Any]):
    with crowd_of(config_of(3, **outer), tmp_path) as crowd:
        members = [crowd.add(number) for number in (1, 2, 3)]
        gone_back(crowd, members)
        fetched = [one.participant.stats.bytes_in for one in members]
        crowd.run(lambda: all(one.driver.op >= 0 and one.began_with[0] > 0 for one in members))
        assert [one.participant.stats.bytes_in for one in members] == fetched  # nothing was fetched
        crowd.run()
        assert len({one.driver.root for one in members}) == 1
        assert {one.driver.op for one in members} == {14}
        backs = [one for one in bodies_of(crowd.records) if isinstance(one, Rewind)]
        assert 1 <= len(backs) <= 2 and all(one.losses for one in backs)
        assert backs[0].reason.endswith("the loss of most was no number")


def test_one_peer_without_numbers_costs_the_run_nothing(tmp_path: Path):
    with crowd_of(config_of(3), tmp_path) as crowd:
        members = [crowd.add(number) for number in (1, 2, 3)]
        crowd.run(lambda: all(one.driver.op >= 5 for one in members))
        members[0].toy.slope[:] = math.nan
        members[0].loss = math.nan
        crowd.run()
        assert not [one for one in bodies_of(crowd.records) if isinstance(one, Rewind)]
        assert len({one.driver.root for one in members}) == 1
        assert bool(torch.isfinite(members[1].toy.read_weights()).all())


def test_who_dies_of_going_back_finds_an_older_state_on_its_disk(tmp_path: Path):
    with crowd_of(config_of(1), tmp_path) as crowd:
        alone = crowd.add(1)
        gone_back(crowd, [alone])
        saved = alone.session._saves.newest[0]
        (back,) = [one for one in bodies_of(crowd.records) if isinstance(one, Rewind)]
        assert saved > back.op
        crowd.kill(alone)
        again = crowd.add(1)
        crowd.run()
        assert again.driver.op == 14 and 0 < again.began_with[0] <= back.op


def test_a_rounds_loss_is_the_mean_of_its_steps_and_what_is_no_number_does_not_stay():
    meter = Meter(lambda: 0.0)
    assert meter.end_round() is None
    for loss in (1.0, None, 3.0):
        meter.count(loss, 8)
    assert meter.end_round() == 2.0 and meter.end_round() is None
    meter.count(math.nan, 8)
    assert math.isnan(meter.end_round() or 0.0)
    meter.count(5.0, 8)
    assert meter.loss == 5.0
    meter.begin_round()
    assert meter.end_round() is None
