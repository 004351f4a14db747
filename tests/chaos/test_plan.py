"""The plan is a function of the seed, leaves enough peers alone, and ends calmly."""

import pytest

from swarmtrain.chaos.plan import Deed, calm_from_s, draw_plan
from swarmtrain.chaos.setting import MIN_CONTRIBUTORS, names


def plan_of(seed: int, seconds: float = 600.0, peers: int = 4):
    return draw_plan(seed, seconds, *names(peers), MIN_CONTRIBUTORS)


def test_the_same_seed_gives_the_same_plan_and_another_seed_another():
    assert plan_of(5) == plan_of(5)
    assert plan_of(5) != plan_of(6)


@pytest.mark.parametrize("peers", [3, 4, 14])
def test_enough_peers_are_always_untouched(peers):
    for seed in range(30):
        steps = [step for step in plan_of(seed, peers=peers) if step.victim]
        present = set(names(peers)[0])
        for step in steps:
            present.add(step.victim)
            touched = {other.victim for other in steps if other.at_s <= step.at_s <= other.mended_s}
            assert len(present - touched) >= MIN_CONTRIBUTORS


def test_nobody_is_struck_again_before_it_was_mended():
    for seed in range(30):
        mended_s: dict[str, float] = {}
        for step in plan_of(seed):
            assert step.at_s >= mended_s.get(step.victim, 0.0)
            mended_s[step.victim] = step.mended_s


@pytest.mark.parametrize("seconds", [10.0, 60.0, 600.0])
def test_the_last_part_is_calm_and_everything_is_mended_before_it(seconds):
    for seed in range(30):
        for step in plan_of(seed, seconds):
            assert 0.0 <= step.at_s <= step.mended_s <= calm_from_s(seconds) < seconds


def test_ten_minutes_see_every_deed_and_long_absences():
    steps = [step for seed in range(5) for step in plan_of(seed)]
    assert {step.deed for step in steps} == set(Deed)
    assert any(step.lasts_s > 30.0 for step in steps)
    newcomers = [step.victim for step in plan_of(0) if step.deed is Deed.NEWCOMER]
    assert len(newcomers) == len(set(newcomers)) <= 2
