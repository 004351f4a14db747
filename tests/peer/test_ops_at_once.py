"""Fragments of streaming whose exchanges overlap, through production sessions.

A result's place is further off than the next contribution, and the link is slow: so ops begin while
others are under way. What comes of it must be the formula, each fragment by itself.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from swarmtrain.compare.crowd import MemoryLane
from swarmtrain.config.limits import first_problem
from swarmtrain.config.settings import (
    CheckpointSection,
    ExchangeSection,
    OuterSection,
    RunConfig,
    RunSection,
)
from swarmtrain.coordinator.service import run_terms
from swarmtrain_transport.wire.records import Commit, Record
from tests.peer.crowd import Crowd, Member

torch.set_num_threads(1)
ROUNDS, STEPS, FRAGMENTS = 9, 2, 3
LR, MOMENTUM, MIXING = 0.5, 0.5, 0.25
FRAMES_PER_S = 60
"""An op of three peers has about 40 frames, and two inner steps take no time here."""


def config_of(delay_steps: int) -> RunConfig:
    config = RunConfig(
        run=RunSection("t", rounds=ROUNDS),
        outer=OuterSection(
            strategy="streaming", inner_steps=STEPS * FRAGMENTS, fragments=FRAGMENTS, lr=LR,
            momentum=MOMENTUM, mixing=MIXING, delay_steps=delay_steps,
        ),
        exchange=ExchangeSection(
            codec="none", block=16, chunk_values=16, start_peers=3, wait_ready_s=3.0,
            deadline_floor_s=20.0, deadline_cap_s=40.0,
        ),
        checkpoint=CheckpointSection(every_rounds=3, snapshot_rounds=2),
    )  # fmt: skip
    assert first_problem(config) is None
    return config


class SlowLane(MemoryLane):
    """Links in memory that carry so many frames a second together."""

    clock: Callable[[], float]

    def __init__(self) -> None:
        super().__init__()
        self._carry, self._carried = self.pump, 0
        self.pump = self._slowly

    def _slowly(self, max_frames: int) -> int:
        now = int(FRAMES_PER_S * self.clock()) - self._carried
        if now <= 0:
            return 0
        moved = self._carry(min(now, max_frames))
        self._carried = max(self._carried + moved, int(FRAMES_PER_S * (self.clock() - 1)))
        return moved


class SlowCrowd(Crowd):
    """Crowd that sees how many ops are under way, and what each result was made of."""

    def __init__(self, config: RunConfig, place: Path) -> None:
        lane = SlowLane()
        lane.clock = lambda: self.now_s
        self.under_way: list[int] = []
        super().__init__(config, place, lane=lane)

    def logged(self, record: Record) -> None:
        self.under_way.append(len(self.ops_under_way))

    @property
    def ops_under_way(self) -> list[int]:
        return [op.plan.op for op in self.hall.view.first.ops.values()]


def taken(vector: Tensor, ranges: tuple[tuple[int, int], ...]) -> Tensor:
    return torch.cat([vector[start:stop] for start, stop in ranges])


def put(vector: Tensor, ranges: tuple[tuple[int, int], ...], values: Tensor) -> None:
    position = 0
    for start, stop in ranges:
        vector[start:stop] = values[position : position + stop - start]
        position += stop - start


def formula(member: Member, slopes: dict[bytes, Tensor], delay_steps: int) -> tuple[Tensor, Tensor]:
    """Anchor and momentum after the last op, from arXiv 2501.18512, Alg. 2, and from whose
    contributions are in each slice."""
    torch.manual_seed(3)
    anchor = member.toy.__class__(member.crowd.config, 9, torch.float32).read_weights().double()
    momentum = torch.zeros_like(anchor)
    theta = {peer: anchor.clone() for peer in slopes}
    given: dict[int, dict[bytes, Tensor]] = {}
    commits = member.participant.view.first.commits
    for step in range(1, ROUNDS * STEPS + delay_steps + 1):
        for peer, slope in slopes.items():
            theta[peer] -= slope.double() / 64
        op, rest = divmod(step - delay_steps, STEPS)
        if op > 0 and not rest:
            ranges = member.driver.strategy.exchange(op).ranges
            mean = torch.zeros_like(next(iter(given[op].values())))
            outcome = commits[op].outcome
            assert isinstance(outcome, Commit)
            for spec, done in zip(commits[op].plan.slices, outcome.slices, strict=True):
                parts = [given[op][peer][spec.start : spec.stop] for peer in done.contributors]
                mean[spec.start : spec.stop] = torch.stack(parts).mean(dim=0)
            speed = MOMENTUM * taken(momentum, ranges) + mean
            put(momentum, ranges, speed)
            put(anchor, ranges, taken(anchor, ranges) - LR * (MOMENTUM * speed + mean))
            for own in theta.values():
                mixed = MIXING * taken(own, ranges) + (1 - MIXING) * taken(anchor, ranges)
                put(own, ranges, mixed)
        if not step % STEPS:
            ranges = member.driver.strategy.exchange(step // STEPS).ranges
            given[step // STEPS] = {
                peer: taken(anchor - own, ranges) for peer, own in theta.items()
            }
    return anchor, momentum


def assert_by_formula(members: list[Member], everybody: list[Member], delay_steps: int) -> None:
    slopes = {one.peer: one.toy.slope for one in everybody}
    anchor, momentum = formula(members[0], slopes, delay_steps)
    for one in members:
        assert one.driver.op == ROUNDS and one.roots == members[0].roots
        assert [report.outcome for report in one.reports] == ["merged"] * ROUNDS
        state = dict(one.driver.strategy.state_arrays())
        torch.testing.assert_close(state["anchor"].double(), anchor, rtol=0, atol=1e-5)
        torch.testing.assert_close(state["momentum"].double(), momentum, rtol=0, atol=1e-5)
        assert torch.equal(one.toy.read_weights(), state["anchor"])


@pytest.mark.parametrize(("delay_steps", "most"), [(2, 1), (3, 2), (4, 2), (6, 3)])
def test_as_many_fragments_are_under_way_as_have_begun_before_the_first_ones_place(
    tmp_path: Path, delay_steps: int, most: int
):
    config = config_of(delay_steps)
    assert config.ops_at_once == run_terms(config).ops_at_once == most
    crowd = SlowCrowd(config, tmp_path)
    try:
        members = [crowd.add(number) for number in (1, 2, 3)]
        crowd.run()
        assert max(crowd.under_way) == most
        assert_by_formula(members, members, delay_steps)
    finally:
        crowd.close()


def test_a_peer_that_dies_while_two_fragments_are_under_way_changes_no_place(tmp_path: Path):
    crowd = SlowCrowd(config_of(4), tmp_path)
    try:
        members = [crowd.add(number) for number in (1, 2, 3)]
        crowd.run(until=lambda: len(crowd.ops_under_way) == 2 and min(crowd.ops_under_way) > 2)
        under_way = crowd.ops_under_way
        crowd.kill(members[1])
        crowd.run()
        living = [members[0], members[2]]
        assert_by_formula(living, members, 4)
        commits = living[0].participant.view.first.commits
        for op in under_way:
            assert len(commits[op].weights) == 3
        assert len(commits[ROUNDS].weights) == 2
    finally:
        crowd.close()
