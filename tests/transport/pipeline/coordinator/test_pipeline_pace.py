"""The pace that BEGIN tells: the place in the schedule, and each stage's part of the gradient."""

import math

import msgpack
import msgspec
import pytest

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.pipeline.coordinator.books import check
from swarmtrain_transport.pipeline.coordinator.rounds import Rounds
from swarmtrain_transport.pipeline.wire import control, orders
from swarmtrain_transport.pipeline.wire.orders import Made, Marks, Member, Tell
from swarmtrain_transport.pipeline.wire.route import Process, Span

BOOT = b"12345678"
NOW_S = 5.0
NOTHING = Made(Marks(0, b""), {})


def pace_after(norms, **options):
    """The pace of the round that begins when round 0 has its outcome.

    Args:
        norms: that the members of each stage have told in it.
        options: of the rounds.
    """
    rounds, told = Rounds(len(norms), share=4, **options), {}
    for stage, those in enumerate(norms):
        for norm in those:
            process = Process(bytes([len(told)]) * 32, BOOT)
            told[process] = norm
            rounds.joined(process, Member(BOOT, Span(stage, stage)), NOW_S)
    sources = list(told)[: len(norms[0])]

    def drained():
        fence = rounds.round, rounds.step, rounds.attempt
        return [rounds.drained(one, orders.Drained(*fence, 4, 0), NOW_S) for one in sources][-1]

    drained()
    for process, norm in told.items():
        rounds.settled(process, orders.Settled(0, (), NOTHING, norms=(norm,)), NOW_S)
    rounds.outcome(0, NOW_S)
    (pace,) = {
        one.order.pace for one in drained() if isinstance(one, Tell) and hasattr(one.order, "pace")
    }
    return pace


def test_a_stage_clips_by_its_part_of_the_gradient_as_most_of_its_members_have_it():
    assert pace_after([[3.0], [4.0]]).norm_shares == pytest.approx((0.6, 0.8))
    fair = pace_after([[3.0, 3.1, 2.9], [4.0]]).norm_shares
    for lie in (1e-9, 1e6, 0.0, math.nan, math.inf, None):
        shares = pace_after([[3.0, 3.1, lie], [4.0]]).norm_shares
        assert shares == pytest.approx(fair, abs=0.02)


def test_nobody_clips_by_shares_of_which_one_is_unknown():
    assert pace_after([[3.0], [None]]).norm_shares == ()


@pytest.mark.parametrize("norm", [-1.0, math.nan, math.inf, 2e6])
def test_a_norm_that_is_none_is_refused_where_it_is_read(norm):
    body = msgpack.packb(
        msgspec.to_builtins(orders.Settled(0, (), NOTHING, norms=(norm,)), builtin_types=(bytes,))
    )
    with pytest.raises(RemoteFault):
        control.report_of(body)


def test_norms_of_other_stages_are_refused():
    with pytest.raises(RemoteFault, match="norms"):
        check(orders.Settled(0, (), NOTHING, norms=(1.0, 1.0)), Span(1, 1), 0)


def test_the_schedule_goes_by_rounds_or_by_what_was_asked_for_in_them():
    by_rounds = pace_after([[1.0], [1.0]], round_steps=20)
    assert (by_rounds.begins, by_rounds.length, by_rounds.steps) == (20, 20, 20)
    by_tokens = pace_after([[1.0], [1.0]], round_steps=20, step_micro_batches=2)
    assert (by_tokens.begins, by_tokens.length, by_tokens.step(10)) == (2, 2, 3)
