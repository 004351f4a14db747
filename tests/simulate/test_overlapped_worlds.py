"""Worlds in which an outcome waits for its place, as sessions have it wait, among faults."""

import pytest

from swarmtrain.peer.training.machine import TrainingMachine
from swarmtrain.simulate.seeds import run_seed
from swarmtrain.simulate.world import World
from swarmtrain_transport import actions as do


@pytest.mark.parametrize(
    ("overlap", "fragments"), [("delayed", 1), ("eager", 1), ("streaming", 1), ("streaming", 2)]
)
def test_late_results_hold_every_invariant_through_faults(overlap: str, fragments: int):
    results = [
        run_seed(seed, 4, 6, overlap=overlap, fragments=fragments) for seed in range(100, 112)
    ]
    assert [found for one in results for found in one.violations] == []
    assert sum(one.commits for one in results) > 40
    assert sum(len(one.faults) for one in results) > 12


@pytest.mark.parametrize("overlap", ["delayed", "eager", "streaming"])
def test_an_outcome_that_comes_early_waits_for_its_step(
    monkeypatch: pytest.MonkeyPatch, overlap: str
):
    waited = []
    advance = TrainingMachine.advance

    def watched(machine: TrainingMachine, now_s: float):
        actions = advance(machine, now_s)
        waited.extend(one for one in machine._outcomes if isinstance(one, do.ApplyResult))
        return actions

    monkeypatch.setattr(TrainingMachine, "advance", watched)
    world = World(3, rounds=4, overlap=overlap)
    world.start()
    world.run()
    assert not world.violations and waited
    assert {one.driver.op for one in world.swarm.survivors} == {4}
