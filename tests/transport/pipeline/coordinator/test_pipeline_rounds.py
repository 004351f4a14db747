"""The coordinator's part of pipelines: rounds, steps, and members that do not answer."""

import math

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.pipeline.coordinator.books import record_of
from swarmtrain_transport.pipeline.coordinator.rounds import Booked, Late, Rounds
from swarmtrain_transport.pipeline.coordinator.shares import Shares
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import Reason
from swarmtrain_transport.pipeline.wire.orders import Made, Member, Tell
from swarmtrain_transport.pipeline.wire.route import Process, Span
from tests.transport.pipeline.coordinator.test_pipeline_books import (
    BOOT,
    FIRST,
    GONE,
    LAST,
    LIAR,
    NOTHING,
    SECOND,
    SPANS,
    settled,
)

THIRD = Process(b"t" * 32, BOOT)
NOW_S = 5.0


def running(steps=0, clips=False):
    rounds = Rounds(2, share=4, steps=steps, clips=clips)
    actions = ()
    for process, span in SPANS.items():
        actions = rounds.joined(process, Member(BOOT, span), NOW_S)
    return rounds, actions


def told(kind, actions):
    return {
        action.process: action.order
        for action in actions
        if isinstance(action, Tell) and isinstance(action.order, kind)
    }


def drained(rounds, process, lost=0, now_s=NOW_S):
    """The source says that it has made all that it was asked for."""
    fence = rounds.round, rounds.step, rounds.attempt
    made = rounds._shares.given[process]
    return rounds.drained(process, orders.Drained(*fence, made, lost), now_s)


def dealt(actions):
    return {process: order.share for process, order in told(orders.More, actions).items()}


def settle(rounds, round=0):
    actions = ()
    for process in SPANS:
        actions = rounds.settled(process, orders.Settled(round, (), NOTHING), NOW_S)
    return actions


def test_a_round_begins_when_every_stage_has_a_peer_and_sources_get_their_share():
    rounds = Rounds(2, share=4)
    assert not told(orders.Begin, rounds.joined(FIRST, Member(BOOT, SPANS[FIRST]), NOW_S))
    begun = told(orders.Begin, rounds.joined(LAST, Member(BOOT, SPANS[LAST]), NOW_S))
    assert {process: order.share for process, order in begun.items()} == {FIRST: 4, LAST: 0}


def test_a_round_is_closed_for_all_when_its_last_living_source_has_drained():
    rounds, _ = running()
    assert not drained(rounds, FIRST)
    assert not rounds.drained(SECOND, orders.Drained(5, 0, 0, 4, 0), NOW_S)
    actions = rounds.departed(SECOND, NOW_S)
    assert set(told(orders.Departed, actions)) == {FIRST, SECOND, LAST}
    assert dealt(actions) == {FIRST: 4} and not told(orders.Close, actions)
    assert set(told(orders.Close, drained(rounds, FIRST))) == {FIRST, LAST}


def test_the_next_round_begins_at_once_and_is_closed_after_the_outcome_of_this_one():
    rounds, _ = running()
    drained(rounds, FIRST)
    actions = drained(rounds, SECOND)
    assert told(orders.Close, actions)[LAST].round == 0
    assert told(orders.Begin, actions)[LAST].round == 1
    drained(rounds, FIRST)
    assert not drained(rounds, SECOND)
    booked = settle(rounds)
    assert [action.books.round for action in booked if isinstance(action, Booked)] == [0]
    actions = rounds.outcome(0, NOW_S)
    assert told(orders.Close, actions)[LAST].round == 1
    assert told(orders.Begin, actions)[LAST].round == 2


@pytest.mark.parametrize(
    ("seconds", "shares"),
    [((10, 20), (5, 3)), ((10, 10), (4, 4)), ((1, 2000), (7, 1)), ((0, 10), (7, 1))],
)
def test_a_source_that_was_done_sooner_makes_more_in_the_next_round(seconds, shares):
    rounds, _ = running()
    actions = ()
    for process, took_s in sorted(zip((FIRST, SECOND), seconds, strict=True), key=lambda p: p[1]):
        fence = rounds.round, 0, 0
        actions = rounds.drained(process, orders.Drained(*fence, 4, 0), NOW_S + took_s)
    begun = told(orders.Begin, actions)
    assert (begun[FIRST].share, begun[SECOND].share, begun[LAST].share) == (*shares, 0)


def test_a_source_s_share_is_bounded_and_a_new_one_s_is_the_middle_one_s():
    rounds, _ = running()
    third = Process(b"d" * 32, BOOT)
    fence = rounds.round, 0, 0
    rounds.drained(FIRST, orders.Drained(*fence, 4, 0), NOW_S + 1)
    rounds.joined(third, Member(BOOT, Span(0, 0)), NOW_S + 1)
    begun = told(orders.Begin, rounds.drained(SECOND, orders.Drained(*fence, 4, 4), NOW_S + 9))
    assert sum(order.share for order in begun.values()) == 12
    assert begun[SECOND].share == 1 and begun[third].share >= 5


def test_a_step_is_void_if_a_micro_batch_is_lost_or_a_member_left():
    rounds, _ = running(steps=2)
    drained(rounds, FIRST, lost=1)
    void = told(orders.Void, drained(rounds, SECOND))
    assert (void[FIRST].step, void[FIRST].attempt, void[FIRST].share) == (0, 0, 4)
    rounds.departed(SECOND, NOW_S)
    assert told(orders.Void, drained(rounds, FIRST))[LAST].attempt == 1
    assert told(orders.MakeStep, drained(rounds, FIRST))[FIRST].share == 8
    actions = drained(rounds, FIRST)
    assert told(orders.MakeStep, actions)[FIRST].share == 0
    assert told(orders.Close, actions) and not told(orders.Begin, actions)
    assert not told(orders.Begin, settle(rounds))
    assert told(orders.Begin, rounds.outcome(0, NOW_S))[FIRST].round == 1


def weighed(rounds, process, *squares, attempt=0):
    return rounds.weighed(process, orders.Weighed(0, 0, attempt, squares), NOW_S)


def weighing():
    """Members are asked for the size of the step's gradient."""
    rounds, _ = running(steps=2, clips=True)
    drained(rounds, FIRST)
    actions = drained(rounds, SECOND)
    assert set(told(orders.Weigh, actions)) == set(SPANS) and not told(orders.MakeStep, actions)
    return rounds


def test_a_clipped_step_is_made_by_the_norm_of_all_stages():
    rounds = weighing()
    weighed(rounds, FIRST, 10.0)
    weighed(rounds, SECOND, 9.0)
    assert not weighed(rounds, SECOND, 99.0)  # said twice
    step = told(orders.MakeStep, weighed(rounds, LAST, 16.0))
    assert {order.whole_norm for order in step.values()} == {5.0}


def test_who_has_counted_nothing_is_not_weighed():
    rounds = weighing()
    weighed(rounds, FIRST, 9.0)
    weighed(rounds, SECOND, None)
    assert told(orders.MakeStep, weighed(rounds, LAST, 16.0))[LAST].whole_norm == 5.0


@pytest.mark.parametrize(
    "square", [math.nan, -100.0, math.inf, 3e38, 1e300, limits.NORM_SQUARE_MAX, 0.0]
)
def test_one_of_a_stage_s_members_does_not_choose_how_far_the_others_step(square):
    for hostile, other in ((FIRST, SECOND), (SECOND, FIRST)):
        rounds = weighing()
        weighed(rounds, hostile, square)
        weighed(rounds, other, 9.0)
        norm = told(orders.MakeStep, weighed(rounds, LAST, 16.0))[LAST].whole_norm
        assert 4.0 <= norm <= 5.0


def test_a_stage_whose_word_is_none_does_not_stop_the_others():
    rounds = weighing()
    for process in (FIRST, SECOND):
        weighed(rounds, process, 9.0)
    assert told(orders.MakeStep, weighed(rounds, LAST, math.inf))[FIRST].whole_norm == 3.0


def test_a_step_is_void_if_a_member_leaves_while_it_is_weighed():
    rounds = weighing()
    weighed(rounds, FIRST, 9.0)
    rounds.departed(SECOND, NOW_S)
    assert told(orders.Void, weighed(rounds, LAST, 16.0))[LAST].attempt == 0
    actions = drained(rounds, FIRST)
    assert told(orders.Weigh, actions)[FIRST].attempt == 1
    assert not weighed(rounds, FIRST, 9.0)  # of the attempt before
    weighed(rounds, FIRST, 1.0, attempt=1)
    assert told(orders.MakeStep, weighed(rounds, LAST, 3.0, attempt=1))[FIRST].whole_norm == 2.0


def test_norms_of_other_stages_than_its_own_are_refused():
    rounds = weighing()
    with pytest.raises(RemoteFault):
        weighed(rounds, FIRST, 1.0, 2.0)


def test_a_step_whose_sources_are_all_gone_is_void_and_its_round_is_closed():
    rounds, _ = running(steps=2)
    rounds.departed(FIRST, NOW_S)
    actions = rounds.departed(SECOND, NOW_S)
    assert told(orders.Void, actions)[LAST].share == 0 and told(orders.Close, actions)


def test_a_process_that_begins_anew_takes_the_place_of_the_one_before():
    rounds, _ = running()
    again = Process(LAST.peer, b"anew...1")
    actions = rounds.joined(again, Member(again.boot, SPANS[LAST]), NOW_S)
    assert told(orders.Departed, actions)[FIRST].process == LAST
    welcome = told(orders.Welcome, actions)[again]
    assert (welcome.round, welcome.is_open) == (0, True)
    assert rounds.joined(again, Member(again.boot, SPANS[LAST]), NOW_S) == ()


def test_books_count_what_all_have_told_and_name_what_is_in_some_stages_only():
    rounds, _ = running()
    drained(rounds, FIRST)
    drained(rounds, SECOND)
    both, one = orders.marks({1, 2}), orders.marks({1})
    made = Made(one, {Reason.LATE: orders.marks({2, 9})})
    rounds.settled(FIRST, orders.Settled(0, (orders.Counted(FIRST, 0, one),), made), NOW_S)
    rounds.settled(SECOND, orders.Settled(0, (), NOTHING), NOW_S)
    last = orders.Settled(0, (orders.Counted(FIRST, 1, both),), NOTHING)
    (booked,) = rounds.settled(LAST, last, NOW_S)
    books = booked.books
    assert books.counted == (1, 2) and books.lost == {Reason.LATE: 2}
    assert books.partial == {(FIRST, 2): (1,)} and books.made[FIRST] == 3
    assert rounds.settled(LAST, last, NOW_S) == ()


@pytest.mark.parametrize(
    "report",
    [
        settled({(FIRST, 1): {1}}),
        settled({(FIRST, 0): {0, 1 << 22}}),
        settled({}, whole={0, 1 << 22}),
        settled({(FIRST, 0): {0, 1 << 18}, (LAST, 0): {0, 1 << 18}}, whole={0, 1 << 18}),
    ],
)
def test_books_that_cannot_be_are_refused(report):
    rounds, _ = running()
    drained(rounds, FIRST)
    drained(rounds, SECOND)
    with pytest.raises(RemoteFault) as caught:
        rounds.settled(FIRST, report, NOW_S)
    assert caught.value.reason == "books"
    assert any(isinstance(action, Booked) for action in settle(rounds))


def test_a_member_leaves_between_two_rounds_when_its_last_one_has_its_outcome():
    rounds, _ = running()
    rounds.release(SECOND)
    rounds.release(FIRST)  # one leaves at a time
    drained(rounds, FIRST)
    actions = drained(rounds, SECOND)
    assert told(orders.Close, actions).keys() == {FIRST, SECOND, LAST}
    begun = told(orders.Begin, actions)
    assert begun.keys() == {FIRST, LAST}
    assert begun[LAST].members.keys() == {FIRST.peer, LAST.peer}
    settle(rounds)
    assert rounds.closing == 0 and rounds.released is None
    rounds.outcome(0, NOW_S)
    assert rounds.released == SECOND
    welcome = told(orders.Welcome, rounds.joined(GONE, Member(BOOT, Span(1, 1)), NOW_S))[GONE]
    assert SECOND.peer not in welcome.members
    gone = told(orders.Departed, rounds.departed(SECOND, NOW_S))
    assert SECOND in gone and rounds.released is None and rounds.leaving is None


def test_a_flushed_step_is_not_void_because_a_member_leaves_that_is_not_in_its_round():
    rounds, _ = running(steps=1)
    rounds.release(SECOND)
    for process in (FIRST, SECOND):
        drained(rounds, process)
    settle(rounds)
    begun = told(orders.Begin, rounds.outcome(0, NOW_S))
    assert begun.keys() == {FIRST, LAST} and rounds.released == SECOND
    rounds.departed(SECOND, NOW_S)
    assert told(orders.MakeStep, drained(rounds, FIRST))


def test_nobody_leaves_a_stage_that_has_lost_its_other_member_meanwhile():
    rounds, _ = running()
    rounds.release(SECOND)
    rounds.departed(FIRST, NOW_S)
    drained(rounds, SECOND)
    begun = told(orders.Begin, drained(rounds, SECOND))
    assert begun[SECOND].members[SECOND.peer].span == Span(0, 0)
    assert rounds.leaving is None


def test_a_member_that_has_left_is_in_the_rounds_again_if_it_is_needed_before_it_is_gone():
    rounds, _ = running()
    rounds.release(SECOND)
    drained(rounds, FIRST)
    drained(rounds, SECOND)
    settle(rounds)
    rounds.departed(FIRST, NOW_S)
    begun = told(orders.Begin, rounds.outcome(0, NOW_S))
    assert begun[SECOND].members.keys() == {SECOND.peer, LAST.peer}
    assert rounds.released is None


def test_a_member_that_has_left_stays_if_its_stage_loses_the_others_before_the_last_outcome():
    rounds, _ = running()
    rounds.joined(GONE, Member(BOOT, Span(1, 1)), NOW_S)
    for _ in range(2):
        drained(rounds, FIRST)
        drained(rounds, SECOND)
        rounds.settled(GONE, orders.Settled(rounds.round - 1, (), NOTHING), NOW_S)
        settle(rounds, rounds.round - 1)
        rounds.release(GONE)
        rounds.outcome(0, NOW_S)
    assert rounds.closing == 1 and rounds.leaving == GONE
    rounds.departed(LAST, NOW_S)
    rounds.outcome(1, NOW_S)
    assert rounds.released is None
    drained(rounds, FIRST)
    begun = told(orders.Begin, drained(rounds, SECOND))
    assert begun[GONE].members.keys() == {FIRST.peer, SECOND.peer, GONE.peer}
    assert rounds.leaving is None


def test_books_have_the_time_that_a_round_took_and_that_its_members_were_busy():
    rounds, _ = running()
    rounds.pardon(1.0)
    for process in (FIRST, SECOND):
        rounds.drained(process, orders.Drained(0, 0, 0, 4, 0), NOW_S + 9)
    for process in SPANS:
        settled = orders.Settled(0, (), NOTHING, busy_s=float(process == LAST))
        (*_, last) = [(), *rounds.settled(process, settled, NOW_S + 10)]
    assert last.books.took_s == 8
    assert last.books.busy_s == {FIRST: 0, SECOND: 0, LAST: 1}


# ---- words that cannot be


@pytest.mark.parametrize("span", [Span(0, 2), Span(5, 5), Span(1, 0)])
def test_a_member_of_stages_that_there_are_not_is_refused(span):
    rounds, _ = running()
    with pytest.raises(RemoteFault):
        rounds.joined(GONE, Member(BOOT, span), NOW_S)


def test_what_a_member_says_of_others_is_of_stages_near_its_own():
    seen = orders.Seen(FIRST, FIRST, 3, orders.marks({1}))
    rounds, _ = running()
    drained(rounds, FIRST)
    drained(rounds, SECOND)
    with pytest.raises(RemoteFault):
        rounds.settled(LAST, orders.Settled(0, (), NOTHING, {}, (seen,)), NOW_S)


@pytest.mark.parametrize(("made", "lost"), [(4, -1), (4, 5), (5, 1), (1 << 40, 0)])
def test_a_source_drains_what_it_was_to_make(made, lost):
    rounds, _ = running()
    with pytest.raises(RemoteFault):
        rounds.drained(FIRST, orders.Drained(0, 0, 0, made, lost), NOW_S)
    assert not drained(rounds, FIRST) and told(orders.Close, drained(rounds, SECOND))


def test_a_source_that_has_made_more_than_it_was_asked_for_is_refused():
    rounds, _ = running()
    drained(rounds, FIRST)
    drained(rounds, SECOND)
    with pytest.raises(RemoteFault):
        rounds.settled(FIRST, settled({}, whole=range(5)), NOW_S)


# ---- members that do not answer


def late(actions):
    return {(action.process, action.report) for action in actions if isinstance(action, Late)}


def test_a_round_goes_on_without_a_source_that_never_drains():
    rounds, _ = running()
    rounds.drained(FIRST, orders.Drained(0, 0, 0, 4, 0), NOW_S + 10)
    assert rounds.due_s == NOW_S + 2 * limits.MICRO_BATCH_S
    assert not rounds.overdue(rounds.due_s - 1)
    actions = rounds.overdue(rounds.due_s)
    assert late(actions) == {(SECOND, "Drained")} and set(told(orders.Close, actions)) == set(SPANS)
    assert not rounds.drained(SECOND, orders.Drained(0, 0, 0, 4, 0), rounds.due_s)


def test_sources_have_the_time_that_all_their_micro_batches_may_take_while_nobody_is_done():
    rounds, _ = running()
    assert rounds.due_s == NOW_S + 5 * limits.MICRO_BATCH_S
    rounds.drained(FIRST, orders.Drained(0, 0, 0, 4, 0), NOW_S + 500)
    assert rounds.due_s == NOW_S + 3 * 500
    assert late(rounds.overdue(rounds.due_s)) == {(SECOND, "Drained")}


THIRD = Process(b"d" * 32, BOOT)


def three_sources():
    rounds, _ = running()
    rounds.joined(THIRD, Member(BOOT, Span(0, 0)), NOW_S)
    for process in (FIRST, SECOND):
        drained(rounds, process)  # the first round; it closes
    settle(rounds)
    rounds.settled(THIRD, orders.Settled(0, (), NOTHING), NOW_S)
    rounds.outcome(0, NOW_S)
    return rounds


@pytest.mark.parametrize(
    ("seconds", "due_s"),
    [
        ((60, 60), 60 + 2 * limits.MICRO_BATCH_LEAST_S),
        ((0, 60), 60 + 2 * limits.MICRO_BATCH_LEAST_S),
        ((300, 300), 3 * 300),
    ],
    ids=["alike", "one says so at once", "long"],
)
def test_of_three_sources_one_is_not_waited_for_much_longer_than_the_others(seconds, due_s):
    rounds = three_sources()
    for process, took_s in zip((FIRST, SECOND), seconds, strict=True):
        fence = rounds.round, 0, 0
        rounds.drained(process, orders.Drained(*fence, 1, 0), NOW_S + took_s)
    assert rounds.due_s == NOW_S + due_s
    assert late(rounds.overdue(rounds.due_s)) == {(THIRD, "Drained")}


def test_a_source_that_alone_voids_steps_makes_no_more_in_the_round():
    rounds, _ = running(steps=2)
    for _ in range(limits.VOIDS_ALONE):
        drained(rounds, FIRST, lost=1)
        void = told(orders.Void, drained(rounds, SECOND))
    assert (void[FIRST].share, void[SECOND].share) == (0, 4)
    assert told(orders.MakeStep, drained(rounds, SECOND))[FIRST].share == 0
    actions = drained(rounds, SECOND)
    settle(rounds)
    begun = told(orders.Begin, rounds.outcome(0, NOW_S))
    assert told(orders.Close, actions) and begun[FIRST].share > 0


def test_a_round_whose_steps_are_void_again_and_again_ends_with_those_that_were_made():
    rounds, _ = running(steps=3)
    drained(rounds, FIRST)
    assert told(orders.MakeStep, drained(rounds, SECOND))
    for attempt in range(limits.VOIDS_MAX):
        assert (rounds.step, rounds.attempt) == (1, attempt)
        drained(rounds, FIRST, lost=1)
        actions = drained(rounds, SECOND, lost=1)
        assert set(told(orders.Void, actions)) == set(SPANS)
    assert set(told(orders.Close, actions)) == set(SPANS)
    assert {one.share for one in told(orders.Void, actions).values()} == {0}
    (booked,) = (one for one in settle(rounds) if isinstance(one, Booked))
    assert booked.books.voided == 8 * (limits.VOIDS_MAX - 1)


def test_a_flushed_step_is_made_again_without_a_source_that_never_drains():
    rounds, _ = running(steps=2)
    drained(rounds, FIRST)
    void = told(orders.Void, rounds.overdue(rounds.due_s))
    assert (void[FIRST].share, void[SECOND].share) == (4, 0)
    assert told(orders.MakeStep, drained(rounds, FIRST))[SECOND].share == 0


def test_a_step_is_made_without_the_word_of_who_does_not_weigh():
    rounds = weighing()
    weighed(rounds, FIRST, 9.0)
    weighed(rounds, LAST, 16.0)
    assert rounds.due_s == NOW_S + limits.ANSWER_S
    actions = rounds.overdue(rounds.due_s)
    assert late(actions) == {(SECOND, "Weighed")}
    assert told(orders.MakeStep, actions)[SECOND].whole_norm == 5.0


def test_books_are_made_without_who_does_not_settle():
    rounds, _ = running()
    drained(rounds, FIRST)
    drained(rounds, SECOND)
    rounds.settled(FIRST, settled({(FIRST, 0): {1}}, whole={1}), NOW_S)
    rounds.settled(LAST, settled({(FIRST, 1): {1}}), NOW_S)
    assert rounds.due_s == NOW_S + limits.ANSWER_S
    (booked,) = (one for one in rounds.overdue(rounds.due_s) if isinstance(one, Booked))
    assert booked.books.processes == {FIRST, LAST} and booked.books.counted == (1, 1)
    assert rounds.settled(SECOND, settled({}), rounds.due_s) == ()


def test_who_never_answers_is_soon_not_waited_for():
    rounds, _ = running()
    now_s, num_late, actions = NOW_S, 0, ()
    while rounds.round < 60:
        booked = [one for one in actions if isinstance(one, Booked)]
        num_late += len(late(actions))
        if booked:
            actions = rounds.outcome(booked[0].books.round, now_s)
        elif FIRST in rounds._under_way.awaited:
            share = rounds._shares.given[FIRST]
            actions = rounds.drained(FIRST, orders.Drained(rounds.round, 0, 0, share, 0), now_s)
        elif owing := {FIRST, LAST} & (rounds._closing.unsettled if rounds._closing else set()):
            actions = rounds.settled(
                owing.pop(), orders.Settled(rounds.closing, (), NOTHING), now_s
            )
        else:
            now_s = rounds.due_s
            actions = rounds.overdue(now_s)
    assert 4 < num_late < 12 and now_s - NOW_S < 12 * 2 * limits.MICRO_BATCH_S


def test_the_first_round_waits_for_as_many_members_as_the_run_wants():
    rounds = Rounds(2, share=4, least_members=3)
    for process in (FIRST, LAST):
        actions = rounds.joined(process, Member(BOOT, SPANS[process]), NOW_S)
        assert not told(orders.Begin, actions)
    assert told(orders.Begin, rounds.joined(SECOND, Member(BOOT, Span(0, 0)), NOW_S))


def test_the_others_go_on_without_a_member_that_is_away_and_it_is_told_everything():
    rounds, _ = running()
    drained(rounds, FIRST)
    actions = rounds.away(SECOND, NOW_S)
    assert set(told(orders.Departed, actions)) == {FIRST, LAST}
    actions = drained(rounds, FIRST)
    assert set(told(orders.Close, actions)) == {FIRST, SECOND, LAST}
    begun = told(orders.Begin, actions)[SECOND]
    assert begun.share == 0 and SECOND.peer not in begun.members
    assert not rounds.away(FIRST, NOW_S), "nobody else makes micro-batches"
    assert rounds.known(SECOND.peer) == Member(BOOT, SPANS[SECOND])
    assert not rounds.joined(SECOND, Member(BOOT, SPANS[SECOND]), NOW_S)


def test_a_member_that_is_back_goes_on_where_it_was():
    rounds, _ = running()
    rounds.away(SECOND, NOW_S)
    actions = rounds.back(SECOND, NOW_S)
    assert set(told(orders.Joined, actions)) == {FIRST, SECOND, LAST}
    assert not drained(rounds, FIRST), "it makes what it was to make"
    rounds.away(SECOND, NOW_S)
    drained(rounds, SECOND)
    assert told(orders.Close, drained(rounds, FIRST))
    settled = [rounds.settled(one, orders.Settled(0, (), NOTHING), NOW_S) for one in (FIRST, LAST)]
    (books,) = [action.books for action in settled[-1] if isinstance(action, Booked)]
    has_told = {one.peer: one.has_told for one in record_of(books).members}
    assert has_told == {FIRST.peer: True, SECOND.peer: False, LAST.peer: True}


def test_what_a_member_says_before_the_round_is_booked_counts_though_it_was_away():
    rounds, _ = running()
    drained(rounds, FIRST)
    drained(rounds, SECOND)
    rounds.settled(FIRST, orders.Settled(0, (), NOTHING), NOW_S)
    rounds.away(SECOND, NOW_S)
    rounds.back(SECOND, NOW_S)
    assert not rounds.settled(LAST, orders.Settled(0, (), NOTHING), NOW_S)
    assert rounds.settled(SECOND, orders.Settled(0, (), NOTHING), NOW_S)


def test_a_member_that_is_gone_while_it_is_away_hears_it_itself():
    rounds, _ = running()
    rounds.away(SECOND, NOW_S)
    assert set(told(orders.Departed, rounds.departed(SECOND, NOW_S))) == {SECOND}
    assert not rounds.back(SECOND, NOW_S) and rounds.known(SECOND.peer) is None


def test_who_is_away_again_and_again_is_taken_back_some_rounds_later():
    rounds, _ = running(steps=2)
    for _ in range(3):
        rounds.away(SECOND, NOW_S)
        rounds.back(SECOND, NOW_S)
    assert SECOND.peer in rounds.absent
    rounds.departed(FIRST, NOW_S)
    assert rounds.back(SECOND, NOW_S), "a stage needs it"


def after_a_round_of_10_s():
    """Two sources have shown their pace; the second round has begun, at 15 s, and takes as long."""
    rounds, _ = running()
    fence, now_s = (0, 0, 0), NOW_S + 10.0
    rounds.drained(FIRST, orders.Drained(*fence, 4, 0), now_s)
    rounds.drained(SECOND, orders.Drained(*fence, 4, 0), now_s)
    assert rounds.round == 1 and rounds._shares.given == {FIRST: 4, SECOND: 4}
    return rounds, now_s


def test_a_source_that_comes_in_the_midst_of_a_round_makes_what_goes_into_the_rest_of_it():
    """Without it a round in which a fast source is replaced waits for the slow ones alone."""
    rounds, now_s = after_a_round_of_10_s()
    rounds.away(FIRST, now_s + 2.0)
    begun = told(orders.Begin, rounds.joined(GONE, Member(BOOT, Span(0, 0)), now_s + 4.9))
    assert {process: order.share for process, order in begun.items()} == {GONE: 2}
    assert begun[GONE].round == 1 and GONE.peer in begun[GONE].members
    with pytest.raises(RemoteFault, match="books"):
        rounds.drained(GONE, orders.Drained(1, 0, 0, 3, 0), now_s + 6.0)
    assert dealt(drained(rounds, SECOND, now_s=now_s + 10.0)) == {SECOND: 1, GONE: 1}
    drained(rounds, SECOND, now_s=now_s + 13.0)
    assert rounds._under_way.awaited == {FIRST, GONE}


def test_a_round_keeps_its_size_when_a_source_dies_and_no_more_than_that():
    rounds, now_s = after_a_round_of_10_s()
    assert not dealt(rounds.departed(FIRST, now_s + 2.0)), "somebody may come in its place"
    assert dealt(drained(rounds, SECOND, now_s=now_s + 10.0)) == {SECOND: 4}
    unaware = orders.Drained(1, 0, 0, 4, 0)
    assert not rounds.drained(SECOND, unaware, now_s + 10.1), "said before it heard of more"
    rounds.joined(GONE, Member(BOOT, Span(0, 0)), now_s + 11.0)
    assert rounds._shares.given[GONE] == 3, "as many as go into the time that is left"
    assert not dealt(rounds.departed(SECOND, now_s + 12.0))
    assert dealt(drained(rounds, GONE, now_s=now_s + 20.0)) == {GONE: 4}, "8 were dealt anew then"
    assert not drained(rounds, GONE, now_s=now_s + 30.0) and not rounds._under_way.awaited


@pytest.mark.parametrize(("at_s", "more"), [(0.0, 4), (2.4, 4), (5.0, 2), (10.0, 0), (20.0, 0)])
def test_what_a_source_has_made_by_its_pace_before_it_was_gone_is_not_made_again(at_s, more):
    rounds, now_s = after_a_round_of_10_s()
    rounds.away(FIRST, now_s + at_s)
    assert sum(dealt(drained(rounds, SECOND, now_s=now_s + 20.0)).values()) == more


def test_nothing_of_a_source_that_had_made_all_is_made_again():
    rounds, now_s = after_a_round_of_10_s()
    drained(rounds, FIRST, now_s=now_s + 1.0)
    rounds.departed(FIRST, now_s + 1.0)
    assert not dealt(drained(rounds, SECOND, now_s=now_s + 2.0))
    rounds, now_s = after_a_round_of_10_s()
    rounds.away(FIRST, now_s)
    drained(rounds, FIRST, now_s=now_s + 1.0)
    assert not dealt(drained(rounds, SECOND, now_s=now_s + 2.0))


def test_sources_that_a_round_is_dealt_anew_to_are_done_together():
    shares = Shares()
    fast, slow, dead = (Process(name * 32, BOOT) for name in (b"f", b"s", b"x"))
    shares.divide((fast, slow, dead), 8, 0.0)
    for process, took_s in ((fast, 4.0), (slow, 8.0), (dead, 4.0)):
        shares.drained(process, 8, took_s)
    shares.divide((fast, slow, dead), 10, 10.0)
    assert shares.given == {fast: 12, slow: 6, dead: 12}
    here = (fast, slow)
    assert shares.deal(here, here, {slow}, 15.0) == {fast: 9, slow: 3}, "slow is free at 16 s"
    assert not shares.deal(here, here, (), 25.0)
    assert shares.deal((slow,), (slow,), (), 25.0) == {slow: 18}, "as much again as the round has"
    assert not shares.deal((), (slow,), (), 40.0)


def test_whoever_comes_and_goes_again_and_again_does_not_keep_a_round_from_its_end():
    rounds, now_s = after_a_round_of_10_s()
    rounds.departed(SECOND, now_s)
    num_dealt = joins = 0
    while rounds._under_way.awaited and joins < 50:
        joins += 1
        coming = Process(GONE.peer, b"boot%04d" % joins)
        rounds.joined(coming, Member(coming.boot, Span(0, 0)), now_s)
        rounds.departed(coming, now_s)
        now_s += 10.0
        num_dealt += sum(dealt(drained(rounds, FIRST, now_s=now_s)).values())
    assert num_dealt == 8 and not rounds._under_way.awaited


def test_a_source_that_is_back_after_its_share_was_dealt_makes_it_as_well():
    rounds, _ = running()
    rounds.away(SECOND, NOW_S)
    assert dealt(drained(rounds, FIRST)) == {FIRST: 4}
    rounds.back(SECOND, NOW_S)
    assert not drained(rounds, FIRST)
    assert not dealt(rounds.departed(SECOND, NOW_S)) and rounds.round == 1


def test_nobody_has_to_make_what_no_time_is_left_for():
    rounds, now_s = after_a_round_of_10_s()
    for name, at_s in ((GONE, 5.0), (LIAR, 9.9), (THIRD, 10.0)):
        rounds.joined(name, Member(BOOT, Span(0, 0)), now_s + at_s)
    assert rounds._shares.given == {FIRST: 4, SECOND: 4, GONE: 2}


def test_of_the_first_round_nobody_knows_how_long_it_is():
    rounds, _ = running()
    assert not told(orders.Begin, rounds.joined(GONE, Member(BOOT, Span(0, 0)), NOW_S + 1.0))


def test_seconds_for_which_others_answers_have_waited_are_told_with_the_books():
    rounds, _ = running()
    drained(rounds, FIRST, now_s=10.0)
    drained(rounds, SECOND, now_s=18.0)
    for process, now_s in ((FIRST, 20.0), (LAST, 21.0), (SECOND, 25.0)):
        actions = rounds.settled(process, orders.Settled(0, (), NOTHING), now_s)
    (booked,) = [action for action in actions if isinstance(action, Booked)]
    assert booked.waited == {SECOND.peer: 8000 + 4000}


def test_for_whom_nobody_waits_makes_nothing_and_its_word_is_not_awaited():
    rounds, _ = running()
    drained(rounds, FIRST)
    rounds.unawaited = {SECOND.peer}
    begun = told(orders.Begin, drained(rounds, SECOND))
    assert {process: order.share for process, order in begun.items()} == {
        FIRST: 4, SECOND: 0, LAST: 0,
    }  # fmt: skip
    rounds.settled(FIRST, orders.Settled(0, (), NOTHING), 20.0)
    actions = rounds.settled(LAST, orders.Settled(0, (), NOTHING), 21.0)
    assert any(isinstance(action, Booked) for action in actions)
