"""Worlds in which others keep the state of a group with one or two members."""

import pytest

from swarmtrain.simulate.seeds import run_seed, world_of
from swarmtrain_transport.coordinator.stages.group_keepers import GroupKeepers
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.peer.keeper import Keeper
from swarmtrain_transport.wire.records import Commit, Rewind, bodies_of

KEPT = (12, 13, 264, 35, 50, 66)
"""Seeds of such worlds; in the second and the third the group loses all of its members."""


@pytest.mark.parametrize("seed", KEPT)
def test_such_worlds_are_clean(seed: int) -> None:
    world = world_of(seed, 4, 10, groups=2)
    assert world.scene.conditions.stage_holders == 3
    world.start()
    world.run()
    assert not world.violations


def test_a_group_that_lost_all_members_went_on_without_going_back() -> None:
    world = world_of(197, 4, 10, groups=2)
    world.start()
    world.run()
    log = world.invariants.decided.log
    view, times_empty = LedgerView(), 0
    for record, body in zip(log, bodies_of(log), strict=True):
        had = 1 in view.groups and bool(view.groups[1].members)
        view.apply(record, body)
        times_empty += had and not view.groups[1].members
    outcomes = [one for one in bodies_of(log) if isinstance(one, Commit | Rewind) and one.group]
    assert times_empty and [one.op for one in outcomes] == list(range(1, 11))


def test_a_commit_that_does_not_wait_for_keepers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupKeepers, "lacks", lambda *_: False)
    found = {one.invariant for seed in KEPT for one in run_seed(seed, 4, 10, groups=2).violations}
    assert found == {"P7"}


def test_keepers_that_are_not_told_of_new_commits_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They say that they keep what there is, and take nothing."""

    def pretends(self: Keeper) -> None:
        self.op = self.view.last_op if self._snapshot is not None else -1

    monkeypatch.setattr(Keeper, "_collect", pretends)
    monkeypatch.setattr(GroupKeepers, "_holds", lambda self, peer, *_: peer in self.holding)
    found = {one.invariant for seed in KEPT for one in run_seed(seed, 4, 10, groups=2).violations}
    assert "P7" in found
