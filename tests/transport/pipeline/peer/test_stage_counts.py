"""The stage machine's counts: a micro-batch once, its tokens as they were read, sums in order."""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.peer.requests import (
    Count,
    Job,
    RunBackward,
    RunForward,
    SendReport,
    Step,
    Text,
)
from swarmtrain_transport.pipeline.peer.source import Source
from swarmtrain_transport.pipeline.peer.stage import StageMachine
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import Payload, Reason
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Slot, Span
from tests.transport.pipeline.peer.test_stage_unfair import (
    FORM,
    ME,
    SEED,
    TEXT,
    A,
    B,
    asks,
    came,
    hear,
    machine_of,
    named,
    sent,
)


def at_the_end(*, flushes: bool = False) -> StageMachine:
    """The end of routes from A, which makes micro-batches."""
    return machine_of(Span(1, 1), {A: Span(0, 0)}, flushes=flushes)[0]


def counted(machine: StageMachine, name: MicroBatch) -> list[Count]:
    """A sends a micro-batch, and says GO when it is asked."""
    slot, _ = came(machine, name)
    done = list(hear(machine, A, msg.Go(name, slot, FORM)))
    for run in [one for one in done if isinstance(one, RunBackward)]:
        machine.gradient_made(run.job, FORM, 0.0)
        done += machine.backward_made(run.job, 0.0)
    hear(machine, A, msg.Ack(slot))
    return [one for one in done if isinstance(one, Count)]


@pytest.mark.parametrize("far", [1 << 22, limits.COUNT_MAX])
def test_numbers_that_a_source_draws_far_apart_cost_whoever_counts_them_nothing(far: int) -> None:
    machine = at_the_end()
    numbers = {1, 2, 70, far - 1, far}
    for number in numbers:
        assert counted(machine, named(number))
    machine.told(orders.Close(0), 1.0)
    (settle,) = [one for one in machine.settled(0, 1.0) if isinstance(one, SendReport)]
    marked = [one.numbers for one in settle.report.counted]
    assert set().union(*map(orders.numbers, marked)) == numbers
    assert sum(len(one.bits) for one in marked) < 16


@pytest.mark.parametrize("flushes", [False, True])
def test_a_name_counts_once_whatever_its_slots(flushes: bool) -> None:
    machine = at_the_end(flushes=flushes)
    assert counted(machine, named(1)) and not counted(machine, named(1))


def test_a_name_that_is_in_two_slots_counts_once_though_both_go() -> None:
    machine = at_the_end()
    slots = [came(machine, named())[0] for _ in range(2)]
    done = [hear(machine, A, msg.Go(named(), slot, FORM)) for slot in slots]
    (refuse,) = sent(done[1], msg.Refuse)
    assert refuse.message.reason is Reason.GRANTED and not sent(done[0], msg.Refuse)
    (run,) = [one for one in done[0] if isinstance(one, RunBackward)]
    machine.gradient_made(run.job, FORM, 0.0)
    hear(machine, A, msg.Ack(run.job.slot))  # the slot is free before the gradient is added
    slot, _ = came(machine, named())
    assert sent(hear(machine, A, msg.Go(named(), slot, FORM)), msg.Refuse)


def test_two_gradients_of_one_name_count_once() -> None:
    """In the middle the word to count is the gradient: one for each slot."""
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0), B: Span(2, 2)}, stages=3)
    for number in (1, 2):
        slot, asked = came(machine, named())
        (run,) = [one for one in asked if isinstance(one, RunForward)]
        machine.forward_made(run.job, FORM, 0.0)
        hear(machine, B, msg.Invite(Slot(B.boot, number)))
    done = list(hear(machine, B, msg.Gradient(Slot(B.boot, 1), named(), FORM)))
    done += hear(machine, B, msg.Gradient(Slot(B.boot, 2), named(), FORM))
    assert len([one for one in done if isinstance(one, RunBackward)]) == 1
    (refuse,) = sent(done, msg.Refuse)
    assert refuse.message.slot == slot and refuse.message.reason is Reason.GRANTED


@pytest.mark.parametrize(("step", "attempt"), [(1, 0), (0, 1)])
def test_where_steps_are_free_nothing_is_of_a_step(step: int, attempt: int) -> None:
    name = MicroBatch(A.peer, A.boot, 0, step, attempt, 1)
    assert sent(came(at_the_end(), name)[1], msg.Refuse)
    assert sent(came(at_the_end(flushes=True), name)[1], msg.Arrived)


@pytest.mark.parametrize("tokens", [0, 8, 1 << 22])
def test_a_sender_tells_as_many_tokens_as_a_micro_batch_has_room_for(tokens: int) -> None:
    machine = at_the_end()
    _, done = came(machine, named(), tokens)
    assert [one.message.reason for one in sent(done, msg.Refuse)] == [Reason.BAD]
    assert sent(came(machine, named(), 7)[1], msg.Arrived)


# ---- books


def test_what_has_not_ended_is_not_told_as_whole() -> None:
    source = Source(ME.peer, ME.boot, SEED)
    source.begin(0, 0, 0, 1)
    assert source.make() is not None
    made = source.close(0)
    assert not orders.numbers(made.whole)


def test_a_full_replica_counts_the_tokens_that_it_has_read() -> None:
    machine, done = machine_of(Span(0, 1), {}, share=1)
    (run,) = [one for one in done if isinstance(one, RunBackward)]
    done = list(machine.backward_made(run.job, 1.0, TEXT))
    assert [one.tokens for one in done if isinstance(one, Step)] == [TEXT.tokens] * 2


def test_the_source_tells_the_form_of_its_labels() -> None:
    machine, done = machine_of(Span(0, 0), {A: Span(1, 1)}, share=1)
    (run,) = [one for one in done if isinstance(one, RunForward)]
    labels = Payload("labels", (2,), 16)
    machine.forward_made(run.job, FORM, 0.0, Text(2, labels))
    (go,) = sent(asks(machine, A, run.job.micro_batch), msg.Go)
    assert go.message.payload == labels


# ---- order


def two_at(others: dict[Process, Span], last: Process = A) -> tuple[StageMachine, list[Job]]:
    """A source whose two micro-batches of a flushed step are at A and at the last one."""
    machine, done = machine_of(Span(0, 0), others, share=2, flushes=True)
    jobs = []
    for number, at in ((1, A), (2, last)):
        (run,) = [one for one in done if isinstance(one, RunForward)]
        jobs.append(run.job)
        done = list(machine.forward_made(run.job, FORM, 0.0, TEXT))
        machine.tick(0.0)  # everybody is asked
        hear(machine, at, msg.Invite(Slot(at.boot, number)))
    return machine, jobs


def gradient(job: Job, number: int, at: Process = A) -> msg.Gradient:
    return msg.Gradient(Slot(at.boot, number), job.micro_batch, FORM)


def test_gradients_add_up_in_order_where_each_stage_has_one_member() -> None:
    machine, (first, second) = two_at({A: Span(1, 1)})
    late = asks(machine, A, second.micro_batch, 2)
    assert not sent(late, (msg.Go, msg.No))  # the first has not asked yet
    assert sent(asks(machine, A, first.micro_batch), msg.Go)
    assert sent(asks(machine, A, second.micro_batch, 2), msg.Go)
    done = hear(machine, A, gradient(second, 2))
    assert not [one for one in done if isinstance(one, RunBackward)]
    done = hear(machine, A, gradient(first, 1))
    assert [one.job for one in done if isinstance(one, RunBackward)] == [first]
    done = machine.backward_made(first, 1.0)
    assert [one.job for one in done if isinstance(one, RunBackward)] == [second]


def test_gradients_wait_for_nobody_where_a_stage_has_two_members() -> None:
    machine, (_, second) = two_at({A: Span(1, 1), B: Span(1, 1)}, B)
    assert sent(asks(machine, B, second.micro_batch, 2), msg.Go)
    done = hear(machine, B, gradient(second, 2, B))
    assert [one.job for one in done if isinstance(one, RunBackward)] == [second]
