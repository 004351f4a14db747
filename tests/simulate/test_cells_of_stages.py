"""Stages whose means are summed in cells: a stage's group is one like any other."""

from typing import Any

import pytest

from swarmtrain.simulate.stages import world
from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ops import planning
from swarmtrain_transport.wire.records import Plan

SEEDS = (1, 3, 7, 11, 19)


def test_rounds_of_stages_end_in_cells_too(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []
    make_plan = planning.make_plan

    def seen(*of: Any, **also: Any) -> Plan:
        plan = make_plan(*of, **also)
        planned.append(plan.cells)
        return plan

    monkeypatch.setattr(limits, "CELL_PEERS_MAX", 2)
    monkeypatch.setattr(planning, "CELL_LEAST", 1)
    monkeypatch.setattr(planning, "make_plan", seen)
    monkeypatch.setattr(world, "_WIDTH", 8)  # three blocks: a piece for each of two cells
    found = [world.run_seed(seed) for seed in SEEDS]
    assert [(one.seed, one.story) for one in found if one.invariant] == []
    assert planned.count(2) >= 7
