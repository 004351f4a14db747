"""A stage machine where routes leave stages out: whom it asks, what it takes, what it counts."""

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.requests import Text
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.peer.stage import StageMachine
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import Payload, Reason
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Span

BOOT = b"12345678"
STAGES = 6
ALL = [Process(b"%032d" % stage, BOOT) for stage in range(STAGES)]
WHOLE = Process(b"w" * 32, BOOT)
SPANS = {one: Span(stage, stage) for stage, one in enumerate(ALL)} | {WHOLE: Span(0, STAGES - 1)}
TENSOR = Payload("none", (1, 4, 8), 128)
RULES = Rules(STAGES, slots=12, step_micro_batches=8, tokens=7, visit=4)


def machine(process, share=0, absent=()):
    members = {one.peer: orders.Member(BOOT, span) for one, span in SPANS.items()}
    members = {peer: one for peer, one in members.items() if peer not in absent}
    made = StageMachine(process, SPANS[process], RULES, b"seed")
    made.told(orders.Welcome(members, 0, 0, 0, False), 0.0)
    return made, made.told(orders.Begin(0, share, members), 0.0)


def of(kind, asked):
    return [request for request in asked if isinstance(request, kind)]


def sent(kind, asked):
    return [request for request in of(requests.Send, asked) if isinstance(request.message, kind)]


def test_a_source_asks_the_peers_of_the_stage_that_each_visits_next():
    made, asked = machine(ALL[0], share=8, absent={WHOLE.peer})
    wanted = []
    while passes := of(requests.RunForward, asked):
        job = passes[0].job
        assert passes[0].stages == (0,)
        asked = made.forward_made(job, TENSOR, 1.0, Text(7, TENSOR))
        (want,) = sent(msg.Want, asked)
        stage = RULES.path(job.micro_batch)[1]
        assert want.peer == ALL[stage].peer and want.message.stage == stage
        wanted.append(stage)
    assert len(wanted) == 8 and len(set(wanted)) > 1


def forwarded(made, stage, number):
    """A micro-batch of the first peer that is sent to this stage, and the requests."""
    asked = made.received(ALL[0].peer, BOOT, msg.Want(stage, 1), 1.0)
    slot = sent(msg.Invite, asked)[0].message.slot
    name = MicroBatch(ALL[0].peer, BOOT, 0, 0, 0, number)
    forward = msg.Forward(slot, name, bytes(limits.SECRET_BYTES), stage, 7, TENSOR)
    return name, made.received(ALL[0].peer, BOOT, forward, 1.0)


def route_with(stage):
    """The number of a micro-batch whose route goes to this stage first."""
    names = [MicroBatch(ALL[0].peer, BOOT, 0, 0, 0, number) for number in range(64)]
    return next(name.number for name in names if RULES.path(name)[1] == stage)


def test_an_input_of_a_micro_batch_that_does_not_visit_the_stage_is_refused():
    made, _ = machine(ALL[1])
    _, asked = forwarded(made, 1, route_with(2))
    assert [one.message.reason for one in sent(msg.Refuse, asked)] == [Reason.BAD]
    _, asked = forwarded(made, 1, route_with(1))
    assert len(of(requests.RunForward, asked)) == 1


def test_nobody_invites_a_micro_batch_that_could_not_come_from_there():
    made, _ = machine(ALL[4])  # of six stages two are left out: the first sends as far as to 3
    asked = made.received(ALL[0].peer, BOOT, msg.Want(4, 1), 1.0)
    assert not sent(msg.Invite, asked)
    asked = made.received(ALL[3].peer, BOOT, msg.Want(4, 1), 1.0)
    assert len(sent(msg.Invite, asked)) == 1


def test_a_full_replica_makes_and_counts_the_stages_of_a_route_alone():
    made, asked = machine(WHOLE, share=1)
    (back,) = of(requests.RunBackward, asked)
    assert back.stages == RULES.path(back.job.micro_batch) and len(back.stages) == 4
    (count,) = of(requests.Count, made.backward_made(back.job, 2.0, Text(7, TENSOR)))
    assert count.stages == back.stages


def test_a_stage_that_half_of_them_visit_steps_as_often_as_the_others():
    assert machine(ALL[2])[0]._whole_steps == {2: 4} and machine(ALL[5])[0]._whole_steps == {5: 8}
