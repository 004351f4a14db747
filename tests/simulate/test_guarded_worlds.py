"""Worlds in which the loss leaps now and then and the coordinator dies around the way back: clean,
and not when a rule is broken."""

from unittest import mock

import pytest

from swarmtrain.simulate.faults.weather import LEAP
from swarmtrain.simulate.seeds import SeedResult, run_seeds
from swarmtrain_transport.coordinator.ops import guard

PEERS, OPS = 4, 14


def world(seed: int, peers: int = PEERS) -> SeedResult:
    (result,) = run_seeds([seed], peers, OPS, guarded=True)
    return result


def test_worlds_with_a_guard_are_clean_and_go_back() -> None:
    leaps = 0
    for seed in range(10):
        result = world(seed)
        assert not result.violations, seed
        leaps += result.faults.get(LEAP, 0)
    assert leaps > 5


@pytest.mark.parametrize(("peers", "seed"), [(2, 5007), (2, 5009), (4, 138), (4, 228), (4, 21)])
def test_worlds_that_have_failed_once_are_clean(peers: int, seed: int) -> None:
    assert not world(seed, peers).violations


def test_a_broken_rule_is_found() -> None:
    with mock.patch.object(guard, "median_low", max):  # one voice is enough
        assert any("without a leap" in found.story for found in world(0).violations)
