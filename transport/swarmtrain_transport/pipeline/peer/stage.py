"""A peer of a pipeline: what it holds, to whom it sends, and what it counts. Pure; payloads and
passes are the shell's.

The way of a micro-batch: whoever has one for the next stage says WANT to its members, best first.
A receiver with a free slot answers INVITE, and FORWARD fills the slot. So a receiver's memory is
bounded whoever sends. The end of the route asks the source (ARRIVED), which says GO, with the
labels, to one end ever. Only then begins the way back: GRADIENT goes hop by hop to whoever sent the
micro-batch, and each peer counts it, once.

The sender is the guardian. It keeps the input and the output until the gradient comes, sends the
output again to another receiver if the first one is silent or refuses, and gives it back after
`HOP_TRIES`. A holder says ALIVE; silence is measured, never age. After GO nothing is made again: a
gradient that does not come back is lost above the break and counted below it.

All that may be lost is said again each tick. Passes are asked for one at a time, backward before
forward, older before younger.

Here are the machine's events, the coordinator's orders and the next pass. `guardian`, `receiver`
and `permission` have a peer's parts towards other peers, `evaluation` those where validation text
goes forward only; what they share is in `in_flight`.
"""

from collections import deque

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.comparisons import Likeness
from swarmtrain_transport.pipeline.peer.evaluation import Evaluation
from swarmtrain_transport.pipeline.peer.guardian import Guardian
from swarmtrain_transport.pipeline.peer.held import OWED, PAST_GO, Held, Phase
from swarmtrain_transport.pipeline.peer.in_flight import InFlight
from swarmtrain_transport.pipeline.peer.permission import Permission
from swarmtrain_transport.pipeline.peer.receiver import Receiver
from swarmtrain_transport.pipeline.peer.requests import Count, Job, Request, Text
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import AnyHopMessage, Payload, Reason
from swarmtrain_transport.pipeline.wire.route import Boot, Fence, MicroBatch, Process, Span


class StageMachine:
    """One life of a peer.

    Args:
        me: the process.
        span: stages that it serves.
        rules: rules of the run.
        seed: nobody else knows it; drawn anew by each process, or of the peer.

    Attributes:
        strangers: messages that were left aside because no member of the run sent them.
        evaluation: the peer's part in evaluations.
    """

    def __init__(self, me: Process, span: Span, rules: Rules, seed: bytes) -> None:
        self.me = me
        self.rules = rules
        self.strangers = 0
        self._flight = InFlight(me, span, rules, seed)
        self._guardian = Guardian(self._flight)
        self._permission = Permission(self._flight)
        self._receiver = Receiver(self._flight, self._permission)
        self.evaluation = Evaluation(self._flight, self._guardian, self._receiver.invited)
        self._told: deque[orders.Order] = deque()
        self._whole_steps: dict[int, int] = {}
        self._own_part = 1.0  # of the window of an average source
        self._tick_s = 0.0
        self._share = rules.paths.share
        self._busy_s = self._pass_s = 0.0  # in passes since the last round; when the last one began

    # ---- events

    @property
    def span(self) -> Span:
        """Stages that it serves."""
        return self._flight.span

    @property
    def next_wakeup_s(self) -> float:
        """Time at which to hear `tick`."""
        return self._tick_s

    @property
    def num_held(self) -> int:
        """Slots that are filled or kept for somebody."""
        return self._receiver.num_held

    @property
    def invited_s(self) -> float:
        """Time at which it invited whoever has neither filled nor returned a slot for longest."""
        return self._receiver.invited.oldest_s

    @property
    def num_own(self) -> int:
        """Own micro-batches under way, without those of an evaluation."""
        return len(self._flight.own)

    def received(
        self,
        peer: PeerId,
        boot: Boot,
        message: AnyHopMessage,
        now_s: float,
        *,
        is_sound: bool = True,
    ) -> tuple[Request, ...]:
        """A message came from this process.

        Args:
            peer: peer that sent it.
            boot: boot of the peer.
            message: the message.
            now_s: the time.
            is_sound: True if the payload beside it is what its form says, and finite. An input that
                is not is refused before anybody is asked for the permission, so that another try
                may get it.
        """
        self._flight.now_s = now_s
        sender = Process(peer, boot)
        if not self._flight.is_member(sender):
            self.strangers += 1
            return ()
        match message:
            case msg.Want():
                self._receiver.on_want(sender, message)
            case msg.Invite():
                self._guardian.on_invite(sender, message.slot)
            case msg.Return():
                self._receiver.invited.returned(message.slot, sender, now_s)
            case msg.Forward() if message.micro_batch.judged:
                self.evaluation.on_forward(sender, message, is_sound=is_sound)
            case msg.Forward():
                self._receiver.on_forward(sender, message, is_sound=is_sound)
            case msg.Gradient():
                self._guardian.on_gradient(sender, message)
            case msg.Refuse():
                self._guardian.on_refuse(sender, message)
            case msg.Ack():
                self._receiver.on_ack(sender, message.slot)
            case msg.Alive():
                self._guardian.on_alive(sender, message.slot)
            case msg.Arrived() if message.micro_batch.judged:
                self.evaluation.on_arrived(sender, message)
            case msg.Arrived():
                self._permission.on_arrived(sender, message)
            case msg.Go() | msg.No() if message.micro_batch.judged:
                goes = isinstance(message, msg.Go)
                self.evaluation.on_answer(sender, message.slot, message.micro_batch, goes=goes)
            case msg.Judged():
                self.evaluation.on_judged(sender, message)
            case msg.Go():
                self._permission.on_answer(sender, message.micro_batch, message.slot, goes=True)
            case msg.No():
                self._permission.on_answer(sender, message.micro_batch, message.slot, goes=False)
            case msg.Drop():
                self._receiver.on_drop(sender, message.slot)
        return self._taken()

    def forward_made(
        self, job: Job, output: Payload, now_s: float, text: Text | None = None
    ) -> tuple[Request, ...]:
        """The forward pass of a job is made; at its source, of this text."""
        held = self._held_after_pass(job, now_s, Phase.FORWARD)
        if held is not None:
            held.output = output
            if text is not None:
                held.tokens, held.labels = text.tokens, text.labels
            self._flight.enter(held, Phase.WAITING)
            self._guardian.want(held)
        return self._taken()

    def loss_made(self, job: Job, loss: float, now_s: float) -> tuple[Request, ...]:
        """The sum of the losses of validation text is made, at the end of its route."""
        held = self._held_after_pass(job, now_s)
        if held is not None:
            self.evaluation.loss_made(held, loss)
        return self._taken()

    def gradient_made(self, job: Job, gradient: Payload, now_s: float) -> tuple[Request, ...]:
        """The input's gradient of a job is there; the parameters' is being made."""
        flight = self._flight
        flight.now_s = now_s
        held = flight.find(job)
        if held is not None and held.phase is Phase.BACKWARD:
            held.gradient = gradient
            held.sends_anew()
            flight.enter(held, Phase.RETURNED)
            if flight.is_member(held.above):
                flight.say_owed(held)
            else:
                flight.free(held)
        return self._taken()

    def backward_made(
        self,
        job: Job,
        now_s: float,
        text: Text | None = None,
        likeness: Likeness | None = None,
    ) -> tuple[Request, ...]:
        """The backward pass of a job is made, and its gradient is accumulated; at a source that is
        the end as well, of this text. With the second of two twins comes their likeness."""
        flight = self._flight
        flight.now_s = now_s
        held = self._pass_over()
        assert held is not None and held.job == job
        if text is not None:
            held.tokens = text.tokens
        self._count(held)
        if likeness is not None:
            self._guardian.compared(held, likeness)
        if flight.own.get(job.micro_batch) is held:
            flight.end(held, None)
        self._hear()
        return self._taken()

    def failed(self, job: Job, now_s: float) -> tuple[Request, ...]:
        """A pass could not be made of what came; nothing was accumulated, and no gradient of the
        input was made. After that a pass counts, or the stages above would count without us: a
        gradient of the parameters that is not finite is left out, and the pass is made."""
        held = self._held_after_pass(job, now_s)
        if held is not None and job.micro_batch.judged:
            self.evaluation.fail(held)
        elif held is not None and held.phase in (Phase.FORWARD, Phase.BACKWARD):
            is_forward = held.phase is Phase.FORWARD
            self._flight.fail(held, Reason.BAD if is_forward else Reason.SPOILED)
        self._hear()
        return self._taken()

    def settled(
        self, round: int, now_s: float, norms: tuple[float | None, ...] = ()
    ) -> tuple[Request, ...]:
        """The weights for the round's exchange are kept, and nothing is accumulated; `norms` are
        those of the round's steps, see `orders.Settled`."""
        made = self._flight.source.close(round)
        busy_s, self._busy_s = self._busy_s, 0.0
        self._pass_s = now_s  # of one that has been asked for, which was not begun before
        report = self._flight.tally.settle(round, made, norms, busy_s)
        compared = self._guardian.comparisons.told(round)
        return self._reports(msgspec.structs.replace(report, compared=compared), now_s)

    def weighed(
        self, fence: Fence, squares: tuple[float | None, ...], now_s: float
    ) -> tuple[Request, ...]:
        """The mean of what is accumulated is made; its squared norms, of each stage in order."""
        return self._reports(orders.Weighed(*fence, squares), now_s)

    def _reports(self, report: orders.Report, now_s: float) -> tuple[Request, ...]:
        self._flight.now_s = now_s
        self._flight.requests.append(requests.SendReport(report))
        return self._taken()

    def postponed(self, job: Job, now_s: float) -> tuple[Request, ...]:
        """A pass of validation text could not be made: the state is not in place here yet."""
        held = self._held_after_pass(job, now_s)
        if held is not None:
            self.evaluation.postpone(held)
        return self._taken()

    def told(self, order: orders.Order, now_s: float) -> tuple[Request, ...]:
        """The coordinator has said this. While a gradient is being accumulated its word waits: what
        is in the accumulator is in the books."""
        self._flight.now_s = now_s
        self._told.append(order)
        self._hear()
        return self._taken()

    def tick(self, now_s: float) -> tuple[Request, ...]:
        """The time that `next_wakeup_s` asked for has come: say again whatever may be lost."""
        self._flight.now_s = now_s
        self._tick_s = now_s + limits.HOP_TICK_S
        self._receiver.say_again()
        for held in self._flight.all():
            self._look_after(held)
        self.evaluation.look_after()
        return self._taken()

    def _look_after(self, held: Held) -> None:
        """Say again, try another, or give up, as its phase wants it."""
        flight = self._flight
        if held.above is None and held is not flight.running and flight.is_late(held):
            flight.fail(held, Reason.LATE)
        else:
            self._permission.look_after(held)
            self._guardian.look_after(held)

    def _taken(self) -> tuple[Request, ...]:
        """Requests after an event; own micro-batches, invitations and the next pass among them."""
        flight = self._flight
        own_max = max(1, round(flight.window.size * self._own_part))
        while len(flight.own) < own_max:
            name = flight.source.make()
            if name is None:
                break
            phase = Phase.ARRIVED if flight.is_end else Phase.FORWARD
            secret = flight.source.secret(name)
            held = Held(Job(name, None), None, 0, secret, 0, phase, flight.now_s, flight.now_s)
            flight.own[name] = held
            if flight.is_end:
                self._permission.ask(held)
            else:
                self._guardian.made(held)
        report = flight.source.drained()
        if report is not None:
            flight.requests.append(requests.SendReport(report))
        self.evaluation.go_on()
        self._receiver.invite()
        if flight.running is None:
            self._run_next()
        taken, flight.requests = tuple(flight.requests), []
        return taken

    # ---- coordinator

    def _hear(self) -> None:
        flight = self._flight
        while self._told and not self._is_counting:
            match order := self._told.popleft():
                case orders.Welcome():
                    self._welcome(order)
                case orders.Joined():
                    flight.members[order.peer] = order.member
                    flight.gone.discard(Process(order.peer, order.member.boot))
                    if order.peer == self.me.peer:  # to the others we had left
                        self._receiver.invited.unheard(flight.now_s)
                case orders.Departed():
                    self._departed(order.process)
                case orders.Begin():
                    self._begin(order)
                case orders.More() if flight.is_open and flight.now[0] == order.round:
                    flight.source.more(order.round, order.share)
                case orders.Weigh():
                    fence = (order.round, order.step, order.attempt)
                    flight.requests.append(requests.Weigh(fence))
                case orders.MakeStep():
                    self._make_step(order)
                case orders.Void():
                    self._void(order)
                case orders.Close():
                    self._close(order.round)
                case orders.Evaluate():
                    self.evaluation.begin(order)

    def _welcome(self, order: orders.Welcome) -> None:
        """In the run; or in it again, where the coordinator has begun anew: it knows nothing of the
        rounds before, so what is under way of them is over and nobody is told of it."""
        flight = self._flight
        if flight.tally.micro_batches and self.rules.flushes:
            flight.tally.void(flight.now)
            flight.requests.append(requests.Discard())
        flight.requests += flight.tally.steps_due(self._whole_steps, rest=True)
        flight.source.stop()
        self.evaluation.stop()
        flight.members = dict(order.members)
        self._pace(order.pace)
        flight.now = (order.round, order.step, order.attempt)
        flight.is_open = flight.invites = order.is_open
        for held in flight.all():
            if flight.is_over(held.micro_batch):
                flight.forget(held)
        flight.tally.settle(order.round - 1, flight.source.close(order.round - 1))

    def _begin(self, order: orders.Begin) -> None:
        flight = self._flight
        flight.now = max(flight.now, (order.round, 0, 0))
        flight.is_open = flight.invites = True
        flight.gone.clear()  # all that they have made is over
        flight.members = dict(order.members)
        self._pace(order.pace)
        # By its part of the round: else a fast source waits for its own to come back, while those
        # of a slow one wait for it.
        self._own_part = 1.0
        if order.share and order.pace.share:
            self._own_part = min(limits.OWN_SPREAD, order.share / order.pace.share)
        self._guardian.begin_round()
        self._receiver.window.begin_round()
        flight.window.begin_round()
        flight.source.begin(order.round, 0, 0, order.share)

    def _pace(self, pace: orders.Pace) -> None:
        """The steps of a round go by this, and are of so many micro-batches: all sources' for a
        step that visit a stage go to all who serve it, so that all of these make as many steps."""
        flight, span = self._flight, self.span
        flight.requests.append(requests.SetPace(pace))
        if self.rules.flushes:
            return
        spans = [member.span for member in flight.members.values()]
        made, share = self.rules.step_micro_batches * sum(0 in one for one in spans), self._share
        self._whole_steps = {
            stage: max(1, round(made * share(stage) / max(1, sum(stage in one for one in spans))))
            for stage in range(span.first, span.last + 1)
        }

    def _make_step(self, order: orders.MakeStep) -> None:
        self._flight.requests.append(self._flight.tally.step(self.span, order.whole_norm))
        self._next_step((order.round, order.step + 1, 0), order.share)

    def _void(self, order: orders.Void) -> None:
        flight = self._flight
        void = (order.round, order.step, order.attempt)
        flight.tally.void(void)
        flight.source.forget(*void)
        flight.requests.append(requests.Discard())
        self._next_step((order.round, order.step, order.attempt + 1), order.share)

    def _next_step(self, now: Fence, share: int) -> None:
        """Whatever is left of an earlier step is over; nothing is owed for it."""
        flight = self._flight
        flight.now = now
        for held in flight.all():
            if flight.is_over(held.micro_batch):
                flight.forget(held)
        flight.source.begin(*now, share)

    def _close(self, round: int) -> None:
        flight = self._flight
        flight.source.stop()
        if round < flight.now[0]:
            return
        flight.now, flight.is_open, flight.invites = (round + 1, 0, 0), False, False
        for held in flight.all():
            if held.micro_batch.round <= round:
                flight.forget(held, Reason.CLOSED)
        flight.requests += flight.tally.steps_due(self._whole_steps, rest=True)  # shorter ones
        flight.requests.append(requests.Settle(round))

    def _departed(self, process: Process) -> None:
        flight = self._flight
        if process == flight.me:
            flight.requests.append(requests.Expelled())
            return
        if flight.is_member(process):
            del flight.members[process.peer]
        flight.gone.add(process)
        self._receiver.invited.departed(process)
        for held in flight.all():
            if held.above == process and held.phase is not Phase.BACKWARD:
                flight.drop(held)
        self._guardian.departed(process)
        self.evaluation.departed(process)

    # ---- passes

    def _pass_over(self) -> Held | None:
        """The pass that was being made has come to an end; returns whose it was."""
        flight = self._flight
        held, flight.running = flight.running, None
        if held is not None and not held.micro_batch.judged:
            self._busy_s += flight.now_s - self._pass_s
        return held

    def _held_after_pass(self, job: Job, now_s: float, phase: Phase | None = None) -> Held | None:
        """The pass of a job has come to an end; returns its micro-batch. If that has ended, or is
        in another phase than this one, what the pass has made is freed, and nothing returned."""
        self._flight.now_s = now_s
        self._pass_over()
        held = self._flight.find(job)
        if held is not None and phase in (None, held.phase):
            return held
        self._flight.requests.append(requests.Free(job))
        return None

    @property
    def _is_counting(self) -> bool:
        """A backward pass is being made."""
        running = self._flight.running
        return running is not None and running.phase in PAST_GO

    def _count(self, held: Held) -> None:
        """The backward pass is made: once, as only one gradient is taken for each slot."""
        flight = self._flight
        stages, _ = flight.path(held)
        count = Count(held.micro_batch, stages, held.tokens)
        flight.tally.add(count, held.above, held.below)
        flight.requests.append(count)
        if not self.rules.flushes:
            flight.requests += flight.tally.steps_due(self._whole_steps)

    def _run_next(self) -> None:
        """The next pass: backward first, for it frees memory; then validation text, as there is
        little at a time; then the oldest."""
        flight = self._flight
        ready = [
            held
            for held in flight.all()
            if held.phase in (Phase.FORWARD, Phase.BACKWARD)
            and self._may_run(held.micro_batch)
            and (held.phase is Phase.FORWARD or not self._waits_for_older(held))
        ]
        judged = [
            held for held in flight.judged.values() if held.phase in (Phase.FORWARD, Phase.LABELLED)
        ]
        if not ready and not judged:
            return
        held = min(
            (*judged, *ready),
            key=lambda held: (
                held.phase is not Phase.BACKWARD,
                not held.micro_batch.judged,
                held.order,
            ),
        )
        flight.running, self._pass_s = held, flight.now_s
        stages, _ = flight.path(held)
        if held.micro_batch.judged:
            assert flight.evaluated is not None
            is_end, by = held.phase is Phase.LABELLED, flight.evaluated
            judged_by = requests.RunJudged(held.job, held.stage, by.ops, is_end, by.turns)
            flight.requests.append(judged_by)
        elif held.phase is Phase.FORWARD:
            held.steps = flight.tally.steps[held.stage]
            is_second = held.twin is not None and held.twin.order < held.order
            flight.requests.append(requests.RunForward(held.job, stages, is_second))
        else:
            twin = self._guardian.comparisons.twin_of(held)
            flight.requests.append(requests.RunBackward(held.job, stages, flight.is_end, twin))

    def _may_run(self, name: MicroBatch) -> bool:
        """Its round, or its step, has begun here: the weights are those that it is meant for, and
        all know who serves which stage in it."""
        now = self._flight.now
        is_now = name.fence == now if self.rules.flushes else name.round == now[0]
        return is_now and self._flight.is_open

    def _waits_for_older(self, held: Held) -> bool:
        """Return True if the gradient of an older micro-batch is still to come, and to be added
        first."""
        return self._flight.is_in_order and any(
            other.order < held.order
            and other.micro_batch.fence == held.micro_batch.fence
            and other.phase not in OWED
            for other in self._flight.all()
        )
