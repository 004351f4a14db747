"""One stage machine, event by event, and what a hostile member can do to it."""

import random
from dataclasses import replace

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.requests import Job, Text
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.peer.source import Source
from swarmtrain_transport.pipeline.peer.stage import StageMachine
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import Payload, Reason
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Slot, Span

BOOT = b"12345678"
SOURCE, MIDDLE, OTHER, END = (Process(name * 32, BOOT) for name in (b"s", b"m", b"o", b"e"))
SPANS = {SOURCE: Span(0, 0), MIDDLE: Span(1, 1), OTHER: Span(1, 1), END: Span(2, 2)}
MEMBERS = {process.peer: orders.Member(BOOT, span) for process, span in SPANS.items()}
SEED, SECRET = b"seed", bytes(limits.SECRET_BYTES)
TENSOR = Payload("none", (1, 4, 8), 128)
TEXT = Text(7, TENSOR)
RULES = Rules(3, slots=2, step_micro_batches=4, max_stale_steps=1, tokens=7)


def machine(process, rules=RULES, share=0):
    made = StageMachine(process, SPANS[process], rules, SEED)
    asked = made.told(orders.Welcome(MEMBERS, 0, 0, 0, False), 0.0)
    return made, (*asked, *made.told(orders.Begin(0, share, MEMBERS), 0.0))


def of(kind, asked):
    return [request for request in asked if isinstance(request, kind)]


def sent(kind, asked):
    return [request for request in of(requests.Send, asked) if isinstance(request.message, kind)]


def above(made):
    """Who sends to the machine."""
    return SOURCE if made.span.first == 1 else MIDDLE


def invited(made, now_s=0.0):
    """The slot that the machine gives to a sender."""
    asked = made.received(above(made).peer, BOOT, msg.Want(made.span.first, 1), now_s)
    return sent(msg.Invite, asked)[0].message.slot


def name_of(number, **fence):
    return MicroBatch(
        SOURCE.peer, BOOT, fence.get("round", 0), fence.get("step", 0), fence.get("attempt", 0),
        number,
    )  # fmt: skip


def forwarded(made, number=1, now_s=0.0):
    """A micro-batch that has come to the machine, and the requests."""
    slot = invited(made, now_s)
    forward = msg.Forward(slot, name_of(number), SECRET, made.span.first, 7, TENSOR)
    return Job(name_of(number), slot), made.received(above(made).peer, BOOT, forward, now_s)


def answered(made, number=1):
    """A micro-batch that the middle has sent on to the end, and the end's slot."""
    job, _ = forwarded(made, number)
    made.forward_made(job, TENSOR, 1.0, TEXT)
    below = Slot(BOOT, number)
    asked = made.received(END.peer, BOOT, msg.Invite(below), 1.0)
    assert sent(msg.Forward, asked)[0].job == job
    return job, below


def test_a_source_has_no_more_of_its_own_under_way_than_its_rules_say():
    free = [machine(SOURCE, replace(RULES, under_way=n), share=3)[0].num_own for n in (0, 1, 3)]
    assert free == [RULES.slots, 1, 3]


def test_a_micro_batch_goes_on_and_its_gradient_comes_back_before_it_is_counted():
    made, _ = machine(MIDDLE)
    job, asked = forwarded(made)
    assert of(requests.Keep, asked) and of(requests.RunForward, asked)[0].job == job
    asked = made.forward_made(job, TENSOR, 1.0, TEXT)
    assert sent(msg.Want, asked)[0].peer == END.peer
    below = Slot(BOOT, 1)
    asked = made.received(END.peer, BOOT, msg.Invite(below), 1.1)
    assert sent(msg.Forward, asked)[0].message.stage == 2
    gradient = msg.Gradient(below, job.micro_batch, TENSOR)
    asked = made.received(END.peer, BOOT, gradient, 2.0)
    assert sent(msg.Ack, asked) and of(requests.RunBackward, asked)
    asked = made.gradient_made(job, TENSOR, 2.5)
    assert sent(msg.Gradient, asked)[0].peer == SOURCE.peer and not of(requests.Count, asked)
    asked = made.backward_made(job, 3.0)
    assert of(requests.Count, asked) == [requests.Count(job.micro_batch, (1,), 7)]
    asked = made.received(SOURCE.peer, BOOT, msg.Ack(job.slot), 3.1)
    assert of(requests.Free, asked) and made.num_held == 0


def test_what_may_count_counts_though_its_sender_needs_it_no_more():
    made, _ = machine(MIDDLE)
    job, below = answered(made)
    made.received(END.peer, BOOT, msg.Gradient(below, job.micro_batch, TENSOR), 2.0)
    asked = made.received(SOURCE.peer, BOOT, msg.Drop(job.slot), 2.1)
    assert not of(requests.Free, asked) and made.num_held == 1
    made.gradient_made(job, TENSOR, 2.5)
    assert of(requests.Count, made.backward_made(job, 3.0))


def test_what_may_count_counts_though_its_sender_has_left():
    made, _ = machine(MIDDLE)
    job, below = answered(made)
    other, _ = forwarded(made, 2)  # its pass is being made: the gradient waits for that
    made.received(END.peer, BOOT, msg.Gradient(below, job.micro_batch, TENSOR), 2.0)
    asked = made.told(orders.Departed(SOURCE), 2.1)
    assert [one.job for one in of(requests.Free, asked)] == [other]
    asked = made.forward_made(other, TENSOR, 2.2, TEXT)
    assert of(requests.RunBackward, asked)[0].job == job
    assert of(requests.Count, made.backward_made(job, 3.0))


def test_a_slot_is_offered_until_it_is_filled_and_never_beyond_the_bound():
    made, _ = machine(MIDDLE)
    asked = made.received(SOURCE.peer, BOOT, msg.Want(1, 9), 0.0)
    assert len(sent(msg.Invite, asked)) == made.num_held == RULES.slots
    assert len(sent(msg.Invite, made.tick(3.0))) == RULES.slots
    slot = sent(msg.Invite, asked)[0].message.slot
    made.received(SOURCE.peer, BOOT, msg.Return(slot), 3.0)
    assert made.num_held == RULES.slots - 1
    made.tick(limits.INVITED_S + 1)
    assert made.num_held == 0


def test_what_has_no_slot_or_comes_to_a_stage_that_is_not_ours_is_refused():
    made, _ = machine(MIDDLE)
    forward = msg.Forward(Slot(BOOT, 5), name_of(1), SECRET, 1, 7, TENSOR)
    asked = made.received(SOURCE.peer, BOOT, forward, 0.0)
    assert sent(msg.Refuse, asked)[0].message.reason is Reason.FULL
    slot = invited(made)
    asked = made.received(
        SOURCE.peer, BOOT, msg.Forward(slot, name_of(1), SECRET, 2, 7, TENSOR), 0.0
    )
    assert sent(msg.Refuse, asked)[0].message.reason is Reason.BAD
    assert not of(requests.Keep, asked) and made.num_held == 0


def test_an_invitation_is_used_once():
    made, _ = machine(MIDDLE)
    job, below = answered(made)
    made.received(END.peer, BOOT, msg.Gradient(below, job.micro_batch, TENSOR), 2.0)
    made.gradient_made(job, TENSOR, 2.0)
    made.backward_made(job, 2.0)
    second, _ = forwarded(made, 2)
    made.forward_made(second, TENSOR, 2.0, TEXT)
    asked = made.received(END.peer, BOOT, msg.Invite(below), 2.0)
    assert sent(msg.Return, asked) and not sent(msg.Forward, asked)


def sent_on(made, asked):
    """The source's micro-batch at the receiver that it has asked for a slot, and at which."""
    job = of(requests.RunForward, asked)[0].job
    peer = sent(msg.Want, made.forward_made(job, TENSOR, 0.0, TEXT))[0].peer
    asked = made.received(peer, BOOT, msg.Invite(Slot(BOOT, 1)), 0.0)
    assert sent(msg.Forward, asked)[0].peer == peer
    return job, peer


def test_a_silent_receiver_is_replaced_and_its_gradient_still_counts():
    made, asked = machine(SOURCE, share=1)
    job, first = sent_on(made, asked)
    asked = made.tick(limits.HOP_SILENCE_S + 1)
    second = sent(msg.Want, asked)[0].peer
    assert {first, second} == {MIDDLE.peer, OTHER.peer}
    asked = made.received(second, BOOT, msg.Invite(Slot(BOOT, 4)), 10.0)
    assert sent(msg.Forward, asked)[0].peer == second
    gradient = msg.Gradient(Slot(BOOT, 1), job.micro_batch, TENSOR)
    asked = made.received(first, BOOT, gradient, 11.0)
    assert of(requests.RunBackward, asked)[0].job == job
    gradient = msg.Gradient(Slot(BOOT, 4), job.micro_batch, TENSOR)
    asked = made.received(second, BOOT, gradient, 11.0)
    assert sent(msg.Ack, asked) and not of(requests.Keep, asked)
    made.backward_made(job, 12.0, TEXT)
    report = of(requests.SendReport, made.settled(0, 13.0))[0].report
    assert report.redone == {Reason.SILENT: 1}
    assert [(one.member.peer, one.stage) for one in report.seen] == [(first, 1)]


@pytest.mark.parametrize("is_first", [True, False])
def test_nobody_waits_for_the_gradient_of_an_end_behind_a_receiver_that_is_gone(is_first):
    made, asked = machine(SOURCE, share=1)
    job, first = sent_on(made, asked)
    secret = Source(SOURCE.peer, BOOT, SEED).secret(job.micro_batch)
    made.received(END.peer, BOOT, msg.Arrived(job.micro_batch, Slot(BOOT, 9), secret), 1.0)
    second = sent(msg.Want, made.tick(limits.HOP_SILENCE_S + 1))[0].peer
    made.received(second, BOOT, msg.Invite(Slot(BOOT, 4)), 10.0)
    gone = orders.Departed(Process(first, BOOT))
    refuse = msg.Refuse(Slot(BOOT, 4), job.micro_batch, Reason.GRANTED)
    events = [
        lambda: made.told(gone, 11.0), lambda: made.received(second, BOOT, refuse, 11.0)
    ]  # fmt: skip
    before, after = events if is_first else reversed(events)
    assert not of(requests.Ended, before())
    assert of(requests.Ended, after()) == [requests.Ended(job.micro_batch, Reason.GRANTED)]


def test_a_receiver_that_says_that_it_holds_a_micro_batch_is_waited_for():
    made, asked = machine(SOURCE, share=1)
    _, receiver = sent_on(made, asked)
    for now_s in range(5, 100, 5):
        made.received(receiver, BOOT, msg.Alive(Slot(BOOT, 1)), float(now_s))
        assert not sent(msg.Want, made.tick(float(now_s)))


def test_a_round_s_report_has_the_seconds_of_its_passes_and_not_those_between():
    made, _ = machine(MIDDLE)
    job, below = answered(made)  # forward: 1 s
    made.received(END.peer, BOOT, msg.Gradient(below, job.micro_batch, TENSOR), 5.0)
    made.gradient_made(job, TENSOR, 6.0)
    made.backward_made(job, 7.5)
    made.told(orders.Close(0), 8.0)
    (report,) = of(requests.SendReport, made.settled(0, 9.0))
    assert report.report.busy_s == 3.5
    (report,) = of(requests.SendReport, made.settled(1, 10.0))
    assert report.report.busy_s == 0


def test_one_end_alone_is_let_go_for_ever():
    made, asked = machine(SOURCE, share=1)
    job = of(requests.RunForward, asked)[0].job
    secret = Source(SOURCE.peer, BOOT, SEED).secret(job.micro_batch)
    early = msg.Arrived(job.micro_batch, Slot(BOOT, 1), secret)
    assert sent(msg.No, made.received(END.peer, BOOT, early, 0.0))  # nobody can have it yet
    made.forward_made(job, TENSOR, 0.0, TEXT)
    for number, kind in ((1, msg.Go), (2, msg.No), (1, msg.Go)):
        arrived = msg.Arrived(job.micro_batch, Slot(BOOT, number), secret)
        assert sent(kind, made.received(END.peer, BOOT, arrived, 0.0))
    arrived = msg.Arrived(name_of(99), Slot(BOOT, 1), secret)
    assert sent(msg.No, made.received(END.peer, BOOT, arrived, 0.0))


def test_an_end_begins_the_way_back_when_its_source_says_so_and_only_then():
    made, _ = machine(END)
    job, asked = forwarded(made)
    assert sent(msg.Arrived, asked)[0].peer == SOURCE.peer and not of(requests.RunForward, asked)
    go = msg.Go(job.micro_batch, job.slot, TENSOR)
    assert not made.received(MIDDLE.peer, BOOT, go, 0.0)
    asked = made.received(SOURCE.peer, BOOT, go, 0.0)
    assert of(requests.RunBackward, asked)[0].is_end
    assert not of(requests.RunBackward, made.received(SOURCE.peer, BOOT, go, 0.0))


def test_a_gradient_that_comes_back_too_many_steps_later_is_refused():
    made, _ = machine(MIDDLE, Rules(3, slots=4, step_micro_batches=1, max_stale_steps=1, tokens=7))
    jobs = [answered(made, number) for number in (1, 2, 3)]
    for number, (job, below) in enumerate(jobs, 1):
        gradient = msg.Gradient(below, job.micro_batch, TENSOR)
        asked = made.received(END.peer, BOOT, gradient, 2.0)
        if number < 3:
            made.gradient_made(job, TENSOR, 2.0)
            assert of(requests.Step, made.backward_made(job, 2.0))
    assert sent(msg.Refuse, asked)[0].message.reason is Reason.STALE


@pytest.mark.parametrize(
    ("members", "whole"), [((0, 1, 2), 4), ((0, 1, 1, 2), 2), ((0, 0, 1, 2), 8)]
)
def test_a_stage_makes_as_many_steps_of_a_round_whoever_serves_it(members, whole):
    present = {
        bytes([number + 1]) * 32: orders.Member(BOOT, Span(stage, stage))
        for number, stage in enumerate(members)
    }
    me = Process(bytes([members.index(1) + 1]) * 32, BOOT)
    made = StageMachine(me, Span(1, 1), RULES, SEED)
    made.told(orders.Welcome(present, 0, 0, 0, False), 0.0)
    made.told(orders.Begin(0, 0, present), 0.0)
    assert made._whole_steps == {1: whole}


@pytest.mark.parametrize(("share", "own"), [(6, 2), (12, 4), (60, 8), (120, 8), (18, 6)])
def test_a_source_has_as_many_under_way_as_its_part_of_the_round_says(share, own):
    made = StageMachine(SOURCE, Span(0, 0), replace(RULES, under_way=4), SEED)
    made.told(orders.Welcome(MEMBERS, 0, 0, 0, False), 0.0)
    made.told(orders.Begin(0, share, MEMBERS, orders.Pace(share=12)), 0.0)
    assert made.num_own == own


def test_a_peer_of_several_stages_steps_each_by_what_comes_to_it():
    """Others serve its middle stage: less comes there, and the steps are as many."""
    members = {
        END.peer: orders.Member(BOOT, Span(0, 2)),
        MIDDLE.peer: orders.Member(BOOT, Span(1, 1)),
    }
    made = StageMachine(END, Span(0, 2), Rules(3, slots=4, step_micro_batches=2, tokens=7), SEED)
    made.told(orders.Welcome(members, 0, 0, 0, False), 0.0)
    asked = made.told(orders.Begin(0, 4, members), 0.0)
    steps = []
    for _ in range(4):
        (run,) = of(requests.RunBackward, asked)
        asked = made.backward_made(run.job, 1.0, requests.Text(7, TENSOR))
        steps.append([(one.stages.first, one.micro_batches) for one in of(requests.Step, asked)])
    both = [(0, 2), (1, 1), (2, 2)]
    assert steps == [[(1, 1)], both, [(1, 1)], both]


def test_a_closed_round_frees_its_slots_and_what_is_being_accumulated_is_in_its_books():
    made, _ = machine(MIDDLE)
    first, below = answered(made, 1)
    answered(made, 2)
    made.received(END.peer, BOOT, msg.Gradient(below, first.micro_batch, TENSOR), 2.0)
    assert not of(requests.Settle, made.told(orders.Close(0), 2.1))
    made.gradient_made(first, TENSOR, 2.2)
    asked = made.backward_made(first, 2.3)
    assert of(requests.Step, asked) == [requests.Step(Span(1, 1), 7, 1, whole=2)]
    assert of(requests.Settle, asked) and made.num_held == 0
    report = of(requests.SendReport, made.settled(0, 3.0))[0].report
    assert report.counted == (orders.Counted(SOURCE, 1, orders.marks({1})),)
    assert {(one.member, one.stage) for one in report.seen} == {(SOURCE, 0), (END, 2)}
    made.told(orders.Begin(1, 0, MEMBERS), 4.0)
    slot = invited(made, 4.0)
    asked = made.received(
        SOURCE.peer, BOOT, msg.Forward(slot, name_of(3), SECRET, 1, 7, TENSOR), 4.0
    )
    assert sent(msg.Refuse, asked)[0].message.reason is Reason.CLOSED


def test_nothing_of_the_next_step_runs_before_the_word_to_step():
    made, _ = machine(MIDDLE, Rules(3, slots=2, flushes=True, tokens=7))
    slot = invited(made)
    forward = msg.Forward(slot, name_of(5, step=1), SECRET, 1, 7, TENSOR)
    asked = made.received(SOURCE.peer, BOOT, forward, 0.0)
    assert of(requests.Keep, asked) and not of(requests.RunForward, asked)
    asked = made.told(orders.MakeStep(0, 0, 0, 0), 1.0)
    assert [type(request) for request in asked] == [requests.Step, requests.RunForward]


def test_nothing_of_the_next_round_runs_before_it_begins_here():
    """Until then its sender's view of who serves what may be an old one."""
    made, _ = machine(MIDDLE)
    slot = invited(made)
    made.told(orders.Close(0), 1.0)
    forward = msg.Forward(slot, name_of(5, round=1), SECRET, 1, 7, TENSOR)
    asked = made.received(SOURCE.peer, BOOT, forward, 1.0)
    assert of(requests.Keep, asked) and not of(requests.RunForward, asked)
    assert of(requests.RunForward, made.told(orders.Begin(1, 0, MEMBERS), 2.0))


def test_a_void_step_is_forgotten():
    made, _ = machine(END, Rules(3, slots=2, flushes=True, tokens=7))
    job, _ = forwarded(made)
    made.received(SOURCE.peer, BOOT, msg.Go(job.micro_batch, job.slot, TENSOR), 0.0)
    made.gradient_made(job, TENSOR, 0.5)
    assert of(requests.Count, made.backward_made(job, 1.0))
    asked = made.told(orders.Void(0, 0, 0, 0), 2.0)
    assert of(requests.Discard, asked) and made.num_held == 0
    made.told(orders.Close(0), 3.0)
    assert not of(requests.SendReport, made.settled(0, 3.0))[0].report.counted


def test_a_peer_that_was_given_up_is_told_to_begin_anew():
    made, _ = machine(MIDDLE)
    assert of(requests.Expelled, made.told(orders.Departed(MIDDLE), 0.0))


def test_strangers_and_earlier_lives_are_left_aside():
    made, _ = machine(MIDDLE)
    assert not made.received(b"x" * 32, BOOT, msg.Want(1, 1), 0.0)
    assert not made.received(SOURCE.peer, b"earlier.", msg.Want(1, 1), 0.0)
    assert made.strangers == 2 and made.num_held == 0


PASSES = requests.RunForward | requests.RunBackward | requests.RunJudged


def drawn_message(rng, names, slots):
    name, slot, stage = rng.choice(names), rng.choice(slots), rng.randrange(3)
    reason = rng.choice(tuple(Reason))
    return rng.choice(
        (
            msg.Want(stage, rng.randrange(5)), msg.Invite(slot), msg.Return(slot),
            msg.Forward(slot, name, SECRET, stage, 7, TENSOR), msg.Gradient(slot, name, TENSOR),
            msg.Refuse(slot, name, reason), msg.Ack(slot), msg.Alive(slot),
            msg.Arrived(name, slot, SECRET), msg.Go(name, slot, TENSOR), msg.No(name, slot),
            msg.Drop(slot), msg.Judged(name, SECRET, 7, rng.choice((None, 1.0))),
        )
    )  # fmt: skip


def drawn_order(rng, process, flushes):
    fence = rng.randrange(2), rng.randrange(2), rng.randrange(2)
    share = rng.randrange(3) if process == SOURCE else 0
    stepping = (orders.MakeStep(*fence, share), orders.Void(*fence, share))
    return rng.choice(
        (
            *(stepping if flushes else ()),
            orders.Begin(fence[0], share, MEMBERS),
            orders.Close(fence[0]),
            orders.Departed(rng.choice((SOURCE, END, OTHER))),
            orders.Joined(SOURCE.peer, MEMBERS[SOURCE.peer]),
            orders.Joined(END.peer, MEMBERS[END.peer]),
            orders.Evaluate((rng.randrange(2), 0, 0), rng.choice((SOURCE, SOURCE, OTHER))),
        )
    )


@pytest.mark.parametrize("process", (SOURCE, MIDDLE, END))
@pytest.mark.parametrize("flushes", (False, True))
def test_no_message_makes_it_raise_or_hold_more_than_it_may(process, flushes):
    slots = [Slot(BOOT, number) for number in range(1, 8)]
    names = [
        MicroBatch(source.peer, BOOT, round, step, 0, number, judged)
        for source in (SOURCE, END)
        for round in (0, 1)
        for step in (0, 1)
        for number in (1, 2, 3)
        for judged in (False, False, True)
    ]
    for seed in range(150):
        rng = random.Random(seed)
        share = 3 if process == SOURCE else 0
        made, asked = machine(process, Rules(3, 2, flushes, 2, 1, tokens=7, judged=2), share)
        running, now_s = None, 0.0
        for _ in range(150):
            for request in asked:
                if isinstance(request, PASSES):
                    assert running is None, "two passes at once"
                    running = request
            now_s += rng.random()
            chance = rng.random()
            if running is not None and chance < 0.2:
                job, is_forward = running.job, not isinstance(running, requests.RunBackward)
                is_loss = isinstance(running, requests.RunJudged) and running.is_end
                running = None
                if rng.random() < 0.1:
                    asked = made.failed(job, now_s)
                elif is_loss:
                    asked = made.loss_made(job, 1.0, now_s)
                elif is_forward:
                    asked = made.forward_made(job, TENSOR, now_s, TEXT)
                else:
                    if job.slot is not None:
                        made.gradient_made(job, TENSOR, now_s)
                    asked = made.backward_made(job, now_s)
            elif chance < 0.9:
                sender = rng.choice((SOURCE, OTHER, END, MIDDLE))
                message = drawn_message(rng, names, slots)
                asked = made.received(sender.peer, BOOT, message, now_s)
            elif chance < 0.95:
                asked = made.tick(now_s)
            else:
                asked = made.told(drawn_order(rng, process, flushes), now_s)
            assert made.num_held <= 2 and made.num_own <= 2
