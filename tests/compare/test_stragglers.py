"""Stragglers in a comparison: how long steps last, and who is left out."""

from dataclasses import replace

import pytest
from compare_text import TINY, run_one, small_corpus

from swarmtrain.compare import request
from swarmtrain.compare.plan import Stragglers
from swarmtrain.compare.stragglers import Clocks
from swarmtrain.foundation.errors import UserError

OFTEN = Stragglers(share=0.4, slowness=10.0, burst=2.0)
SLOW = Stragglers(share=0.1, slowness=10.0, burst=3.0)
BASE = replace(TINY, peers=4, steps=8, inner_steps=1, stragglers=SLOW)


def clocks(late, tolerates=1, peers=4, **changes):
    return Clocks(replace(BASE, late=late, tolerates=tolerates, peers=peers, **changes))


def lasted(one, steps=4000):
    total = 0.0
    for _ in range(steps):
        total += one.stepped()
        one.exchanged()
    return total / steps


def test_a_step_lasts_as_long_as_its_slowest_peer():
    # 1 - 0.9^4 of all steps have a slow peer.
    assert lasted(clocks("wait")) == pytest.approx(1 + 9 * (1 - 0.9**4), rel=0.1)


def test_leaving_one_out_leaves_the_steps_with_two_slow_peers():
    two = 1 - 0.9**4 - 4 * 0.1 * 0.9**3
    assert lasted(clocks("leave")) == pytest.approx(1 + 9 * two, rel=0.2)


def test_coded_steps_compute_twice_and_wait_where_a_whole_group_is_slow():
    both = 1 - (1 - 0.1**2) ** 2
    assert lasted(clocks("coded")) == pytest.approx(2 * (1 + 9 * both), rel=0.1)


def test_repeated_steps_wait_only_for_groups_that_are_late_twice_in_turn():
    short = replace(SLOW, burst=1.0)  # never slow in two steps in turn
    once, again = (lasted(clocks(late, stragglers=short)) for late in ("coded", "repeated"))
    assert again < 0.97 * once


def test_in_a_round_of_many_steps_bursts_of_different_peers_even_out():
    alone, together = clocks("wait"), clocks("wait")
    rounds = 0.0
    for step in range(4000):
        rounds += together.stepped()
        if step % 50 == 49:
            together.exchanged()
    assert rounds / 4000 < 0.8 * lasted(alone)


def test_slow_peers_are_slow_besides():
    one = clocks("wait", speeds=(1.0, 1.0, 1.0, 0.5))
    assert lasted(one) > 2


def test_whoever_is_left_out_is_in_no_result_and_codes_leave_nobody_out():
    corpus = small_corpus()
    words, base = "ddp,ddp:late=leave,ddp:late=coded", replace(BASE, stragglers=OFTEN)
    plain, left, coded = (run_one(plan, corpus) for plan in request.plans(words, base, [0], {}))
    assert (plain.left_out, coded.left_out) == (0, 0)
    assert left.left_out > 0
    assert coded.state_roots == plain.state_roots != left.state_roots
    assert left.modelled_seconds < plain.modelled_seconds


@pytest.mark.parametrize("text", ["0.1", "0.1,4,x", "0.9,4,3", "0.1,1,3", "0.1,4,0", "nan,4,3"])
def test_what_says_no_slow_steps_is_refused(text):
    with pytest.raises(UserError, match="--stragglers"):
        request.parse_stragglers(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("diloco:late=coded", "coded steps"),
        ("ddp:late=never", "late=never"),
        ("ddp:late=coded:tolerates=2", "groups of 3"),
        ("ddp:late=leave:tolerates=4", "tolerates 4 of 4"),
        ("streaming", "cannot be timed"),
        ("gossip", "cannot be timed"),
    ],
)
def test_ways_that_do_not_fit_are_refused(words, message):
    with pytest.raises(UserError, match=message):
        request.plans(words, BASE, [0], {})


def test_a_way_without_stragglers_is_refused():
    with pytest.raises(UserError, match="nobody is slow"):
        request.plans("ddp:late=leave", replace(BASE, stragglers=None), [0], {})
