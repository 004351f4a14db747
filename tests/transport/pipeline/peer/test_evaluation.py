"""Validation text at one stage machine, event by event, and what hostile members can do to it."""

import msgspec
import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.requests import Evaluated, Job, RunJudged
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Slot
from tests.transport.pipeline.peer.test_pipeline_stage import (
    BOOT,
    END,
    MIDDLE,
    OTHER,
    SECRET,
    SOURCE,
    TENSOR,
    TEXT,
    forwarded,
    machine,
    of,
    sent,
)

OPS = (4, 4, 4)
RULES = Rules(3, slots=2, step_micro_batches=4, tokens=7, judged=3)
NAME = MicroBatch(SOURCE.peer, BOOT, OPS[0], 0, 0, 7, judged=True)


def evaluating(process, ops=OPS, by=SOURCE):
    made, _ = machine(process, RULES)
    return made, made.told(orders.Evaluate(ops, by), 0.0)


def came(made, name=NAME, now_s=0.0, tokens=7):
    """Validation text that has come to a hop, and the requests."""
    above = SOURCE if made.span.first == 1 else MIDDLE
    asked = made.received(above.peer, BOOT, msg.Want(made.span.first, 1), now_s)
    slot = sent(msg.Invite, asked)[0].message.slot
    forward = msg.Forward(slot, name, SECRET, made.span.first, tokens, TENSOR)
    return Job(name, slot), made.received(above.peer, BOOT, forward, now_s)


def on_its_way(made, asked, now_s=0.0):
    """The evaluator's text whose pass is asked for goes to the middle; what follows of the pass."""
    (run,) = of(RunJudged, asked)
    asked = made.forward_made(run.job, TENSOR, now_s, TEXT)
    (want,) = sent(msg.Want, asked)
    slot = Slot(BOOT, run.job.micro_batch.number)
    (forward,) = sent(msg.Forward, made.received(want.peer, BOOT, msg.Invite(slot), now_s))
    return forward.message, asked


def answer(made, forward, loss, now_s=0.0, *, by=END, tokens=7, secret=None):
    judged = msg.Judged(forward.micro_batch, secret or forward.secret, tokens, loss)
    return made.received(by.peer, BOOT, judged, now_s)


def test_the_evaluator_sends_each_part_of_the_text_and_tells_the_mean_of_all() -> None:
    made, asked = evaluating(SOURCE)
    first, asked = on_its_way(made, asked)
    second, asked = on_its_way(made, asked)
    assert not of(RunJudged, (*asked, *made.tick(4.0)))  # a few are on their way at a time
    arrived = msg.Arrived(first.micro_batch, Slot(BOOT, 9), first.secret)
    (go,) = sent(msg.Go, made.received(END.peer, BOOT, arrived, 4.0))
    assert go.message.payload == TEXT.labels
    third, _ = on_its_way(made, answer(made, second, 7.0))
    assert {one.micro_batch.number % RULES.judged for one in (first, second, third)} == {0, 1, 2}
    assert not of(Evaluated, answer(made, first, 14.0))
    asked = answer(made, third, 28.0)
    assert of(Evaluated, asked) == [Evaluated(4, 49.0 / 21)]
    assert not made.num_own and not of(requests.Ended, asked)


def test_a_hop_sends_on_and_forgets_as_soon_as_the_next_one_has_it() -> None:
    made, _ = evaluating(MIDDLE)
    job, asked = came(made)
    assert sent(msg.Alive, asked)[0].peer == SOURCE.peer
    assert of(RunJudged, asked) == [RunJudged(job, 1, OPS, False)] and made.num_held == 1
    assert sent(msg.Want, made.forward_made(job, TENSOR, 1.0))[0].peer == END.peer
    slot = Slot(BOOT, 1)
    (forward,) = sent(msg.Forward, made.received(END.peer, BOOT, msg.Invite(slot), 1.0))
    assert forward.message.micro_batch == NAME and made.num_held == 1
    again = made.received(END.peer, BOOT, msg.Invite(slot), 20.0)
    assert sent(msg.Forward, again) == [forward]
    asked = made.received(END.peer, BOOT, msg.Alive(slot), 20.0)
    assert of(requests.Free, asked) and made.num_held == 0


def test_an_end_asks_for_the_labels_tells_the_loss_and_counts_nothing() -> None:
    made, _ = evaluating(END)
    job, asked = came(made)
    assert sent(msg.Arrived, asked)[0].peer == SOURCE.peer and not of(RunJudged, asked)
    go = msg.Go(NAME, job.slot, TENSOR)
    assert not of(RunJudged, made.received(OTHER.peer, BOOT, go, 1.0))
    asked = made.received(SOURCE.peer, BOOT, go, 1.0)
    assert of(requests.Keep, asked) and of(RunJudged, asked) == [RunJudged(job, 2, OPS, True)]
    asked = made.loss_made(job, 14.0, 2.0)
    (told,) = sent(msg.Judged, asked)
    assert told.peer == SOURCE.peer and told.message == msg.Judged(NAME, SECRET, 7, 14.0)
    assert made.num_held == 0 and not of(requests.Count, asked)


@pytest.mark.parametrize("process", (MIDDLE, END))
def test_what_nobody_was_to_send_or_is_of_another_state_is_given_back(process: Process) -> None:
    other = MicroBatch(SOURCE.peer, BOOT, OPS[0] + 1, 0, 0, 7, judged=True)
    stranger = MicroBatch(OTHER.peer, BOOT, OPS[0], 0, 0, 7, judged=True)
    for name, tokens in ((other, 7), (stranger, 7), (NAME, 8), (NAME, 0)):
        made, _ = evaluating(process)
        _, asked = came(made, name, tokens=tokens)
        (told,) = sent(msg.Judged, asked)
        assert told.message.loss is None and told.peer == name.source
        assert made.num_held == 0 and not of(requests.Keep, asked)
    made, _ = machine(process, RULES)  # it has heard of no evaluation
    assert not of(RunJudged, came(made)[1]) and made.num_held == 0


def test_a_hop_whose_state_has_gone_on_says_so() -> None:
    made, _ = evaluating(MIDDLE)
    job, _ = came(made)
    (told,) = sent(msg.Judged, made.failed(job, 1.0))
    assert told.message.loss is None and told.peer == SOURCE.peer and made.num_held == 0


@pytest.mark.parametrize(
    "change", ({"by": MIDDLE}, {"tokens": 6}, {"secret": bytes(limits.SECRET_BYTES)})
)
def test_a_word_that_cannot_be_is_not_believed_and_what_is_true_still_is(change) -> None:
    made, asked = evaluating(SOURCE)
    first, asked = on_its_way(made, asked)
    second, _ = on_its_way(made, asked)
    answer(made, first, 0.0, **change)
    assert made.evaluation.refused == 1
    made.received(b"x" * 32, BOOT, msg.Judged(first.micro_batch, first.secret, 7, 0.0), 0.0)
    assert made.strangers == 1
    third, _ = on_its_way(made, answer(made, first, 7.0))
    answer(made, first, 70.0)  # doubled, or somebody else's
    answer(made, second, 7.0)
    assert of(Evaluated, answer(made, third, 7.0)) == [Evaluated(4, 1.0)]


def test_a_guess_that_there_is_no_loss_is_not_believed() -> None:
    made, asked = evaluating(SOURCE)
    forward, _ = on_its_way(made, asked)
    answer(made, forward, None, by=MIDDLE, secret=bytes(limits.SECRET_BYTES))
    assert made.evaluation.refused == 1 and len(made._flight.judged) == 2


def test_labels_are_for_ends_that_were_sent_the_text() -> None:
    made, asked = evaluating(SOURCE)
    forward, _ = on_its_way(made, asked)
    for process, secret in ((MIDDLE, forward.secret), (END, bytes(limits.SECRET_BYTES))):
        arrived = msg.Arrived(forward.micro_batch, Slot(BOOT, 9), secret)
        asked = made.received(process.peer, BOOT, arrived, 0.0)
        assert sent(msg.No, asked) and not sent(msg.Go, asked)


def test_what_is_lost_is_sent_again_under_another_name_and_not_for_ever() -> None:
    made, asked = evaluating(SOURCE)
    now_s, ended, seen = 0.0, [], set()
    while not ended and now_s < 1e4:
        for run in of(RunJudged, asked):
            assert run.job not in seen
            seen.add(run.job)
            asked = made.forward_made(run.job, TENSOR, now_s, TEXT)
            break
        else:
            now_s += limits.HOP_TICK_S
            asked = made.tick(now_s)
        ended = of(Evaluated, asked)
    assert ended == [Evaluated(4, None)]
    assert now_s <= limits.JUDGED_TRIES * (limits.JUDGED_S + limits.JUDGED_PAUSE_MAX_S)
    assert not of(RunJudged, made.tick(now_s + 100))


def test_the_evaluator_waits_for_its_own_state_and_a_hop_says_that_it_has_it_not() -> None:
    made, asked = evaluating(SOURCE)
    for now_s in range(0, 300, 3):
        assert not of(Evaluated, asked)
        (run,) = of(RunJudged, asked)
        more = made.postponed(run.job, now_s)
        asked = (*more, *made.tick(now_s + 3.0))
        if runs := of(RunJudged, more):  # the second one that may be on its way
            asked = made.postponed(runs[0].job, now_s + 3.0) + made.tick(now_s + 6.0)
    hop, _ = evaluating(MIDDLE)
    job, _ = came(hop)
    (told,) = sent(msg.Judged, hop.postponed(job, 1.0))
    assert told.message.loss is None and hop.num_held == 0


def test_a_newer_state_takes_the_place_of_the_one_before() -> None:
    made, asked = evaluating(SOURCE)
    forward, _ = on_its_way(made, asked)
    asked = made.told(orders.Evaluate((5, 5, 5), SOURCE), 1.0)
    assert of(Evaluated, asked) == [Evaluated(4, None)]
    asked = answer(made, forward, 7.0)
    assert not of(Evaluated, asked)
    hop, _ = evaluating(MIDDLE)
    job, _ = came(hop)
    asked = hop.told(orders.Evaluate((5, 5, 5), OTHER), 1.0)
    assert of(requests.Free, asked) and hop.num_held == 0
    hop.forward_made(job, TENSOR, 2.0)


def test_an_evaluator_that_is_gone_leaves_nothing_behind() -> None:
    made, _ = evaluating(MIDDLE)
    came(made)
    made.told(orders.Departed(SOURCE), 1.0)
    assert made.num_held == 0


def test_the_secret_of_validation_text_is_no_permission_for_training() -> None:
    made, asked = machine(SOURCE, RULES, share=1)
    job = of(requests.RunForward, asked)[0].job
    made.forward_made(job, TENSOR, 0.0, TEXT)
    twin = msgspec.structs.replace(job.micro_batch, judged=True)
    arrived = msg.Arrived(job.micro_batch, Slot(BOOT, 1), made._flight.source.secret(twin))
    assert not sent(msg.Go, made.received(END.peer, BOOT, arrived, 0.0))


def test_training_goes_on_beside_it_and_its_slots_are_bounded_together() -> None:
    made, _ = evaluating(MIDDLE)
    came(made)
    forwarded(made)
    assert made.num_held == RULES.slots
    asked = made.received(SOURCE.peer, BOOT, msg.Want(1, 3), 1.0)
    assert not sent(msg.Invite, asked)
