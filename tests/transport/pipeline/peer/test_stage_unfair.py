"""The stage machine against members that break its rules, or lose what matters most.

Each test is one machine and words put into its ear; nobody else's machine is needed.
"""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.peer.requests import (
    Free,
    Job,
    Request,
    RunBackward,
    RunForward,
    Send,
    Text,
)
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.peer.source import Source
from swarmtrain_transport.pipeline.peer.stage import StageMachine
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import FINAL, Payload, Reason
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Slot, Span

ME, A, B, C = (Process(bytes([65 + n]) * 32, bytes([97 + n]) * 8) for n in range(4))
SEED, SECRET = b"seed", bytes(limits.SECRET_BYTES)
FORM = Payload("none", (2,), 8)
TEXT = Text(7, FORM)
SLOTS = 2


def machine_of(
    span: Span,
    others: dict[Process, Span],
    stages: int = 2,
    *,
    share: int = 0,
    flushes: bool = False,
) -> tuple[StageMachine, list[Request]]:
    machine = StageMachine(ME, span, Rules(stages, SLOTS, flushes=flushes, tokens=7), SEED)
    members = {one.peer: orders.Member(one.boot, its) for one, its in others.items()}
    members[ME.peer] = orders.Member(ME.boot, span)
    done = machine.told(orders.Welcome(members, 0, 0, 0, True), 0.0)
    done += machine.told(orders.Begin(0, share, members), 0.0)
    return machine, list(done)


def sent(requests: tuple[Request, ...] | list[Request], kind: type) -> list[Send]:
    return [one for one in requests if isinstance(one, Send) and isinstance(one.message, kind)]


def hear(machine: StageMachine, who: Process, what: msg.AnyHopMessage, now_s: float = 0.0):
    return machine.received(who.peer, who.boot, what, now_s)


def waiting_source(others: dict[Process, Span]) -> tuple[StageMachine, Job, list[Send]]:
    """A source whose first micro-batch waits for a slot, and the WANTs that it has said."""
    machine, done = machine_of(Span(0, 0), others, share=1)
    (run,) = [one for one in done if isinstance(one, RunForward)]
    done = list(machine.forward_made(run.job, FORM, 0.0, TEXT))
    return machine, run.job, sent(done, msg.Want)


def named(number: int = 1, round: int = 0, source: Process = A) -> MicroBatch:
    return MicroBatch(source.peer, source.boot, round, 0, 0, number)


def asks(machine: StageMachine, end: Process, name: MicroBatch, number: int = 1):
    """An end asks the machine for the permission of one of its own micro-batches."""
    secret = Source(ME.peer, ME.boot, SEED).secret(name)
    return hear(machine, end, msg.Arrived(name, Slot(end.boot, number), secret))


def filled(span: Span, stages: int, others: dict[Process, Span]) -> tuple[StageMachine, Slot]:
    """A receiver that was sent a micro-batch by A."""
    machine, _ = machine_of(span, others, stages)
    (invite,) = sent(hear(machine, A, msg.Want(span.first, 1)), msg.Invite)
    slot = invite.message.slot
    hear(machine, A, msg.Forward(slot, named(), SECRET, span.first, 2, FORM))
    return machine, slot


def came(machine: StageMachine, name: MicroBatch, tokens: int = 2) -> tuple[Slot, list[Request]]:
    """A sends a micro-batch: its slot, and what the machine asks for."""
    (invite,) = sent(hear(machine, A, msg.Want(1, 1)), msg.Invite)
    slot = invite.message.slot
    return slot, list(hear(machine, A, msg.Forward(slot, name, SECRET, 1, tokens, FORM)))


# ---- whom a micro-batch goes to


def test_an_invitation_that_nobody_asked_for_is_returned() -> None:
    """Else a peer that invites all the time gets everything, whatever its share."""
    machine, _, wants = waiting_source({A: Span(1, 1), B: Span(1, 1)})
    (asked,) = {want.peer for want in wants}
    other = B if asked == A.peer else A
    done = hear(machine, other, msg.Invite(Slot(other.boot, 1)))
    assert sent(done, msg.Return) and not sent(done, msg.Forward)


def test_who_failed_a_micro_batch_does_not_get_it_again_while_there_are_others() -> None:
    machine, job, _ = waiting_source({A: Span(1, 1), B: Span(1, 1)})
    done = machine.tick(4.0)
    first = next(one for one in (A, B) if one.peer == sent(done, msg.Want)[0].peer)
    hear(machine, first, msg.Invite(Slot(first.boot, 1)), 4.0)
    hear(machine, first, msg.Refuse(Slot(first.boot, 1), job.micro_batch, Reason.BAD), 4.0)
    done = hear(machine, first, msg.Invite(Slot(first.boot, 2)), 4.0)
    assert sent(done, msg.Return) and not sent(done, msg.Forward)


# ---- slots


def test_a_sender_that_never_fills_its_slots_does_not_keep_them() -> None:
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0), B: Span(0, 0), C: Span(0, 0)})
    for one in (A, C):
        assert len(sent(hear(machine, one, msg.Want(1, SLOTS)), msg.Invite)) == SLOTS - 1
    invited = []
    for now in range(3, int(limits.INVITED_S) + 9, 3):
        for one in (A, C):
            invited += hear(machine, one, msg.Want(1, SLOTS), now)  # they go on to ask
        invited += hear(machine, B, msg.Want(1, 1), now)
        invited += machine.tick(now)
    assert B.peer in {one.peer for one in sent(invited, msg.Invite)}


def test_a_sender_that_let_a_slot_expire_is_not_asked_again_at_once() -> None:
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0)})
    hear(machine, A, msg.Want(1, SLOTS))
    late_s = limits.INVITED_S + 1
    assert not sent(machine.tick(late_s), msg.Invite)
    assert not sent(hear(machine, A, msg.Want(1, 1), late_s + 1), msg.Invite)
    assert sent(hear(machine, A, msg.Want(1, 1), 2 * late_s), msg.Invite)


@pytest.mark.parametrize("away_s", [limits.INVITED_S - 10, limits.INVITED_S + 10])
def test_a_sender_is_not_to_blame_for_invitations_of_a_receiver_that_was_away(
    away_s: float,
) -> None:
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0)})
    (invite,) = sent(hear(machine, A, msg.Want(1, 1)), msg.Invite)
    machine.tick(away_s)
    machine.told(orders.Joined(ME.peer, orders.Member(ME.boot, Span(1, 1))), away_s)
    hear(machine, A, msg.Return(invite.message.slot), away_s)
    assert sent(hear(machine, A, msg.Want(1, 1), away_s + 1), msg.Invite)


@pytest.mark.parametrize("flushes", [False, True])
def test_a_sender_that_never_says_ack_leaves_a_slot_to_others(flushes: bool) -> None:
    """GO is A's own, so A can have its micro-batches come to any phase."""
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0), B: Span(0, 0)}, flushes=flushes)
    for invite in sent(hear(machine, A, msg.Want(1, SLOTS)), msg.Invite):
        name = named(invite.message.slot.number)
        hear(machine, A, msg.Forward(invite.message.slot, name, SECRET, 1, 2, FORM))
    assert sent(hear(machine, B, msg.Want(1, 1)), msg.Invite)


def test_what_is_never_taken_back_keeps_no_slot_for_ever_and_its_sender_waits_as_long() -> None:
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0)})
    slot, _ = came(machine, named())
    hear(machine, A, msg.No(named(), slot))  # refused, and A never says ACK
    came(machine, MicroBatch(A.peer, A.boot, 1, 0, 0, 2))  # its round never comes
    now = 0.0
    while machine.num_held and now < 3 * limits.MICRO_BATCH_S:
        now += limits.HOP_TICK_S
        machine.tick(now)
    assert now > limits.MICRO_BATCH_S and machine.num_held == 0
    assert not sent(hear(machine, A, msg.Want(1, 1), 1.9 * now), msg.Invite)
    assert sent(hear(machine, A, msg.Want(1, 1), 2 * now), msg.Invite)


def test_a_step_that_never_comes_keeps_no_slot_for_ever() -> None:
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0)}, flushes=True)
    came(machine, MicroBatch(A.peer, A.boot, 0, 1 << 40, 0, 1))
    for attempt in range(5):
        machine.told(orders.Void(0, 0, attempt, 0), 100.0 * attempt)
        machine.tick(100.0 * attempt + 90)
    assert machine.num_held == 0


def test_who_wants_holds_and_returns_in_a_circle_waits_as_long_as_it_has_held() -> None:
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0)})
    had, now, step = 0.0, 0.0, limits.INVITED_S - 5
    while now < 20 * step:
        invites = sent(hear(machine, A, msg.Want(1, 1), now), msg.Invite)
        now += step
        had += step * len(invites)
        for invite in invites:
            hear(machine, A, msg.Return(invite.message.slot), now)
    assert had <= now / 2


def test_a_slot_that_is_returned_at_once_is_no_reason_to_wait() -> None:
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0)})
    for now in range(5):
        (invite,) = sent(hear(machine, A, msg.Want(1, 1), now), msg.Invite)
        hear(machine, A, msg.Return(invite.message.slot), now + 0.5)


@pytest.mark.parametrize("how", ["mute", "deaf", "parked"])
def test_two_senders_that_keep_all_slots_make_room_for_a_third(how: str) -> None:
    """Their micro-batches wait for their source's answer, for their ACK, or for a later stage."""
    span, stages = (Span(1, 1), 3) if how == "parked" else (Span(1, 1), 2)
    others = {A: Span(0, 0), B: Span(0, 0), C: Span(0, 0)}
    machine, _ = machine_of(span, others, stages)

    def fill(one: Process, now: float) -> None:
        for invite in sent(hear(machine, one, msg.Want(1, 1), now), msg.Invite):
            slot, name = invite.message.slot, named(invite.message.slot.number, source=one)
            done = list(hear(machine, one, msg.Forward(slot, name, SECRET, 1, 2, FORM), now))
            if how == "deaf":
                done += hear(machine, one, msg.Go(name, slot, FORM), now)
            for run in [one for one in done if isinstance(one, RunForward)]:
                machine.forward_made(run.job, FORM, now)
            for run in [one for one in done if isinstance(one, RunBackward)]:
                machine.gradient_made(run.job, FORM, now)
                machine.backward_made(run.job, now)

    invited = []
    for now in range(0, 1000, 3):
        for one in (A, B):
            fill(one, now)
        invited += [now] * len(sent(hear(machine, C, msg.Want(1, 1), now), msg.Invite))
        asked = machine.tick(now)
        invited += [now for one in sent(asked, msg.Invite) if one.peer == C.peer]
    assert invited and invited[0] <= limits.INVITED_S + 3


def test_who_asks_again_keeps_its_turn() -> None:
    others = {A: Span(0, 0), B: Span(0, 0), C: Span(0, 0)}
    machine, _ = machine_of(Span(1, 1), others)
    kept = [sent(hear(machine, one, msg.Want(1, 1)), msg.Invite)[0].message.slot for one in (A, B)]
    hear(machine, C, msg.Want(1, 1), 1.0)
    hear(machine, A, msg.Want(1, 2), 2.0)
    hear(machine, C, msg.Want(1, 1), 3.0)
    (invite,) = sent(hear(machine, B, msg.Return(kept[1]), 4.0), msg.Invite)
    assert invite.peer == C.peer


def test_only_the_stage_before_is_invited() -> None:
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0), B: Span(1, 1), C: Span(2, 2)}, stages=3)
    for one in (B, C):
        assert not sent(hear(machine, one, msg.Want(1, 1)), msg.Invite)
    assert sent(hear(machine, A, msg.Want(1, 1)), msg.Invite)


@pytest.mark.parametrize("flushes", [False, True])
def test_a_micro_batch_of_a_round_that_nobody_has_begun_keeps_no_slot(flushes: bool) -> None:
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0)}, flushes=flushes)
    (invite,) = sent(hear(machine, A, msg.Want(1, 1)), msg.Invite)
    far = named(round=1 << 40)
    done = hear(machine, A, msg.Forward(invite.message.slot, far, SECRET, 1, 2, FORM))
    assert sent(done, msg.Refuse) and machine.num_held == 0


def test_an_unsound_input_is_refused_before_the_source_is_asked() -> None:
    """Else its end has the one permission and nobody else can make the micro-batch."""
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0)})
    (invite,) = sent(hear(machine, A, msg.Want(1, 1)), msg.Invite)
    forward = msg.Forward(invite.message.slot, named(), SECRET, 1, 2, FORM)
    done = machine.received(A.peer, A.boot, forward, 0.0, is_sound=False)
    assert [one.message.reason for one in sent(done, msg.Refuse)] == [Reason.BAD]
    assert not sent(done, msg.Arrived) and machine.num_held == 0


def test_a_slot_whose_drop_was_lost_is_freed_when_its_holder_speaks() -> None:
    """The holder says ALIVE for what its sender has given up long ago."""
    machine, _, _ = waiting_source({A: Span(1, 1)})
    hear(machine, A, msg.Invite(Slot(A.boot, 1)), 0.0)
    slot = Slot(A.boot, 1)
    for now in range(3, int(limits.MICRO_BATCH_S) + 9, 3):
        hear(machine, A, msg.Alive(slot), now)
        machine.tick(now)
    assert machine.num_own == 0
    assert sent(hear(machine, A, msg.Alive(slot), now), msg.Drop)


# ---- memory


def test_those_who_left_are_forgotten_with_their_round() -> None:
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0)})
    members = dict(machine._flight.members)
    for number in range(100):
        process = Process(B.peer, b"%08d" % number)
        machine.told(orders.Joined(B.peer, orders.Member(process.boot, Span(0, 0))), 0.0)
        machine.told(orders.Departed(process), 0.0)
    machine.told(orders.Close(0), 1.0)
    machine.told(orders.Begin(1, 0, members), 1.0)
    assert not machine._flight.gone


def test_a_pass_that_fails_after_its_round_keeps_no_payload() -> None:
    machine, done = machine_of(Span(0, 0), {A: Span(1, 1)}, share=1)
    (run,) = [one for one in done if isinstance(one, RunForward)]
    machine.told(orders.Close(0), 0.0)
    assert Free(run.job) in machine.failed(run.job, 1.0)


# ---- signs of life


def test_a_holder_whose_gradient_is_on_its_way_is_never_silent_for_long() -> None:
    """A payload is said again at growing pauses, longer than a sender waits for a sign."""
    machine, slot = filled(Span(1, 1), 2, {A: Span(0, 0)})
    (run,) = [
        one for one in hear(machine, A, msg.Go(named(), slot, FORM)) if isinstance(one, RunBackward)
    ]
    machine.gradient_made(run.job, FORM, 0.0)
    machine.backward_made(run.job, 0.0)
    last_s = 0.0
    for now in range(3, 100, 3):
        if sent(machine.tick(now), (msg.Gradient, msg.Alive)):
            assert now - last_s <= limits.HOP_SILENCE_S
            last_s = now
    assert now - last_s <= limits.HOP_SILENCE_S


# ---- the one permission


def test_only_a_peer_of_the_last_stage_gets_the_permission() -> None:
    """Names can be guessed: whoever else asks first would keep it from the true end."""
    others = {A: Span(1, 1), B: Span(2, 2)}
    machine, done = machine_of(Span(0, 0), others, stages=3, share=1)
    (run,) = [one for one in done if isinstance(one, RunForward)]
    name = run.job.micro_batch
    machine.forward_made(run.job, FORM, 0.0, TEXT)
    assert not sent(asks(machine, A, name), msg.Go)
    assert sent(asks(machine, B, name), msg.Go)


@pytest.mark.parametrize("shown", [bytes(16), b"", b"x" * 16])
def test_only_who_was_sent_it_gets_the_permission(shown: bytes) -> None:
    """A member that was sent nothing would keep it from the true end, of every micro-batch."""
    others = {A: Span(1, 1), B: Span(2, 2), C: Span(2, 2)}
    machine, done = machine_of(Span(0, 0), others, stages=3, share=1)
    (run,) = [one for one in done if isinstance(one, RunForward)]
    machine.forward_made(run.job, FORM, 0.0, TEXT)
    (forward,) = sent(hear(machine, A, msg.Invite(Slot(A.boot, 1))), msg.Forward)
    name, told = run.job.micro_batch, forward.message.secret
    guess = hear(machine, B, msg.Arrived(name, Slot(B.boot, 99), shown))
    assert sent(guess, msg.No) and not sent(guess, msg.Go)
    assert sent(hear(machine, C, msg.Arrived(name, Slot(C.boot, 1), told)), msg.Go)


def test_a_secret_tells_nothing_of_others() -> None:
    names = [named(number, source=ME) for number in (1, 2)]
    secrets = {
        Source(ME.peer, boot, seed).secret(name)
        for boot in (ME.boot, b"later...")
        for seed in (SEED, b"other")
        for name in names
    }
    assert len(secrets) == 8


def test_the_secret_goes_on_with_the_micro_batch() -> None:
    machine, _ = machine_of(Span(1, 1), {A: Span(0, 0), B: Span(2, 2)}, stages=3)
    (invite,) = sent(hear(machine, A, msg.Want(1, 1)), msg.Invite)
    forward = msg.Forward(invite.message.slot, named(), b"0123456789abcdef", 1, 2, FORM)
    (run,) = [one for one in hear(machine, A, forward) if isinstance(one, RunForward)]
    machine.forward_made(run.job, FORM, 0.0)
    (gone_on,) = sent(hear(machine, B, msg.Invite(Slot(B.boot, 1))), msg.Forward)
    assert gone_on.message.secret == forward.secret
    end, _ = machine_of(Span(1, 1), {A: Span(0, 0)})
    (invite,) = sent(hear(end, A, msg.Want(1, 1)), msg.Invite)
    forward = msg.Forward(invite.message.slot, named(), forward.secret, 1, 2, FORM)
    (arrived,) = sent(hear(end, A, forward), msg.Arrived)
    assert arrived.message.secret == forward.secret


@pytest.mark.parametrize("reason", sorted(FINAL))
def test_a_source_believes_nobody_that_another_end_has_the_permission(reason: Reason) -> None:
    machine, job, (want,) = waiting_source({A: Span(1, 1), B: Span(1, 1)})
    first, other = (A, B) if want.peer == A.peer else (B, A)
    slot = Slot(first.boot, 1)
    assert sent(hear(machine, first, msg.Invite(slot)), msg.Forward)
    done = hear(machine, first, msg.Refuse(slot, job.micro_batch, reason))
    assert [one.peer for one in sent(done, msg.Want)] == [other.peer] and machine.num_own == 1
    slot = Slot(other.boot, 1)
    assert sent(hear(machine, other, msg.Invite(slot)), msg.Forward)
    go = asks(machine, other, job.micro_batch)
    assert sent(go, msg.Go)
    hear(machine, other, msg.Refuse(slot, job.micro_batch, Reason.SPOILED))
    assert machine.num_own == 0


# ---- who holds micro-batches and never works


def given(machine: StageMachine, asked, one: Process, number: int, now_s: float):
    """A micro-batch goes to `one`: what it was sent, and what was asked besides."""
    done = hear(machine, one, msg.Invite(Slot(one.boot, number)), now_s)
    return [send.message for send in sent(done, msg.Forward)], done


def back(machine: StageMachine, one: Process, forward: msg.Forward, now_s: float) -> list[Request]:
    """The gradient of a micro-batch comes back, and is counted."""
    hear(machine, one, msg.Arrived(forward.micro_batch, forward.slot, forward.secret), now_s)
    done = list(hear(machine, one, msg.Gradient(forward.slot, forward.micro_batch, FORM), now_s))
    for run in [one for one in done if isinstance(one, RunBackward)]:
        done += machine.backward_made(run.job, now_s)
    return done


class Hall:
    """A source with a member that takes micro-batches and only says ALIVE, beside honest ones that
    answer in a second.

    Attributes:
        machine: of the source.
        kept: micro-batches that the idle one has, by the time at which they came.
        served: how many the honest ones have sent back.
    """

    def __init__(self, *honest: Process, idle: Process, share: int) -> None:
        others = dict.fromkeys((*honest, idle), Span(1, 1))
        self.machine, self.asked = machine_of(Span(0, 0), others, share=share)
        self.kept: dict[msg.Forward, float] = {}
        self.served = self.number = 0
        self._idle, self._by_peer = idle, {one.peer: one for one in others}

    def run(self, seconds: int) -> None:
        """Let the time pass."""
        for now in range(1, seconds):
            self.asked += self.machine.tick(now)
            for forward in self.kept:
                self.asked += hear(self.machine, self._idle, msg.Alive(forward.slot), now)
            asked, self.asked = self.asked, []
            self._obey(asked, now)

    def _obey(self, asked: list[Request], now: int) -> None:
        while asked:
            match request := asked.pop(0):
                case RunForward():
                    asked += self.machine.forward_made(request.job, FORM, now, TEXT)
                case Send(message=msg.Want()):
                    one, self.number = self._by_peer[request.peer], self.number + 1
                    asked += hear(self.machine, one, msg.Invite(Slot(one.boot, self.number)), now)
                case Send(message=msg.Forward() as forward) if request.peer == self._idle.peer:
                    self.kept.setdefault(forward, now)
                case Send(message=msg.Forward() as forward):
                    self.served += 1
                    self.asked += back(self.machine, self._by_peer[request.peer], forward, now)


def test_who_keeps_micro_batches_gets_no_others_while_there_are_others() -> None:
    hall = Hall(A, idle=B, share=1000)
    hall.run(300)
    first = [since for since in hall.kept.values() if since < limits.HELD_LONG_S]
    assert len(first) <= SLOTS - 1 and hall.served > 200
    assert len(hall.kept) - len(first) <= 2


def test_a_micro_batch_that_takes_far_longer_than_others_is_given_up_early() -> None:
    hall = Hall(A, idle=B, share=20)
    hall.run(int(limits.MICRO_BATCH_LEAST_S) + 10)
    assert hall.machine.num_own == 0 and hall.served >= 18


def test_a_micro_batch_is_not_given_up_early_by_a_source_that_knows_nothing_of_others() -> None:
    hall = Hall(idle=B, share=2)
    hall.run(int(limits.MICRO_BATCH_S) - 5)
    assert hall.machine.num_own == 2
