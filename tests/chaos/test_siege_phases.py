"""Phases are a function of the seed, follow each other, and begin and end in calm."""

import pytest

from swarmtrain.chaos.plan import calm_from_s
from swarmtrain.chaos.siege.offences import Offence
from swarmtrain.chaos.siege.phases import BREATH, CALM, TOGETHER, UNDISTURBED, draw_phases

ALL = tuple(Offence)


def test_the_same_seed_gives_the_same_phases_and_another_seed_others():
    assert draw_phases(5, 600.0, ALL) == draw_phases(5, 600.0, ALL)
    assert draw_phases(5, 600.0, ALL) != draw_phases(6, 600.0, ALL)


@pytest.mark.parametrize("offences", [ALL, ALL[:2], ALL[:1]])
@pytest.mark.parametrize("seconds", [20.0, 600.0])
def test_phases_fill_the_time_from_an_undisturbed_one_to_a_calm_one(offences, seconds):
    for seed in range(20):
        phases = draw_phases(seed, seconds, offences)
        ends_s = [0.0, *(phase.ends_s for phase in phases)]
        assert [phase.at_s for phase in phases] == ends_s[:-1]
        assert ends_s[-1] == pytest.approx(seconds)
        assert (phases[0].name, phases[-1].name) == (UNDISTURBED, CALM)
        assert phases[-1].at_s == pytest.approx(calm_from_s(seconds))
        quiet = [phase for phase in phases if not phase.order.offences]
        assert {phase.name for phase in quiet} == {UNDISTURBED, BREATH, CALM}


def test_every_offence_has_a_phase_of_its_own_and_all_have_one_together():
    phases = draw_phases(7, 600.0, ALL)
    alone = [phase.order.offences for phase in phases if len(phase.order.offences) == 1]
    assert sorted(alone) == sorted((offence,) for offence in ALL)
    assert [p.order.is_mixed for p in phases if set(p.order.offences) == set(ALL)] == [True]
    assert TOGETHER not in {phase.name for phase in draw_phases(7, 600.0, ALL[:1])}


def test_victims_are_sometimes_one_and_sometimes_all():
    victims = [p.order.victim for seed in range(10) for p in draw_phases(seed, 60.0, ALL)]
    assert -1 in victims and max(victims) >= 0
