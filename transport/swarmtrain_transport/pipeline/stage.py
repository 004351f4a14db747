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
"""

from collections import deque
from dataclasses import dataclass

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.phases import entered
from swarmtrain_transport.pipeline import messages as msg
from swarmtrain_transport.pipeline import orders, requests
from swarmtrain_transport.pipeline.balance import Balance
from swarmtrain_transport.pipeline.held import OWED, PAST_GO, PHASES, Held, Phase, Try
from swarmtrain_transport.pipeline.messages import FINAL, AnyHopMessage, Payload, Reason
from swarmtrain_transport.pipeline.requests import Count, Job, Request, Send, Text
from swarmtrain_transport.pipeline.route import Boot, Fence, MicroBatch, Process, Slot, Span
from swarmtrain_transport.pipeline.slots import Invitations
from swarmtrain_transport.pipeline.source import Source
from swarmtrain_transport.pipeline.tally import Tally


@dataclass(frozen=True, slots=True)
class Rules:
    """A run's rules for its pipelines.

    Attributes:
        num_stages: of the model.
        slots: micro-batches that a peer takes in at a time, and as many that a source makes.
        flushes: the coordinator says when to step; else a peer steps by itself.
        step_micro_batches: that a peer counts until it steps, where steps are free.
        max_stale_steps: inner steps between a forward pass and its gradient's return.
        tokens: of a micro-batch at most.
    """

    num_stages: int
    slots: int
    flushes: bool = False
    step_micro_batches: int = 1
    max_stale_steps: int = 1 << 30
    tokens: int = 1 << 30


class StageMachine:
    """One life of a peer.

    Args:
        me: the process.
        span: stages that it serves.
        rules: of the run.

    Attributes:
        strangers: messages that were left aside because no member of the run sent them.
    """

    def __init__(self, me: Process, span: Span, rules: Rules) -> None:
        self.me = me
        self.span = span
        self.rules = rules
        self.strangers = 0
        self._source = Source(me.peer, me.boot)
        self._balance = Balance(me.peer)
        self._members: dict[PeerId, orders.Member] = {}
        self._gone: set[Process] = set()
        self._now: Fence = (0, 0, 0)
        self._is_open = False
        self._own: dict[MicroBatch, Held] = {}
        self._held: dict[Slot, Held] = {}
        self._invited = Invitations(me.boot)
        self._spent: dict[Process, Slot] = {}
        self._running: Held | None = None
        self._told: deque[orders.Order] = deque()
        self._tally = Tally()
        self._tick_s = 0.0
        self._now_s = 0.0
        self._requests: list[Request] = []

    # ---- events

    @property
    def next_wakeup_s(self) -> float:
        """Time at which to hear `tick`."""
        return self._tick_s

    @property
    def num_held(self) -> int:
        """Slots that are filled or kept for somebody."""
        return len(self._held) + len(self._invited)

    @property
    def invited_s(self) -> float:
        """When it has invited whoever has neither filled nor returned a slot for longest."""
        return self._invited.oldest_s

    @property
    def num_own(self) -> int:
        """Own micro-batches under way."""
        return len(self._own)

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
            peer: that sent it.
            boot: of the peer.
            message: what it says.
            now_s: the time.
            is_sound: whether the payload beside it is what its form says, and finite. An input that
                is not is refused before anybody is asked for the permission, so that another try
                may get it.
        """
        self._now_s = now_s
        sender = Process(peer, boot)
        if not self._is_member(sender):
            self.strangers += 1
            return ()
        match message:
            case msg.Want():
                count = min(message.count, self.rules.slots)
                self._invited.wanted(sender, count if message.stage in self.span else 0, now_s)
            case msg.Invite():
                self._on_invite(sender, message.slot)
            case msg.Return():
                self._invited.returned(message.slot, sender)
            case msg.Forward():
                self._on_forward(sender, message, is_sound=is_sound)
            case msg.Gradient():
                self._on_gradient(sender, message)
            case msg.Refuse():
                self._on_refuse(sender, message)
            case msg.Ack():
                self._on_ack(sender, message.slot)
            case msg.Alive():
                self._on_alive(sender, message.slot)
            case msg.Arrived():
                self._on_arrived(sender, message)
            case msg.Go():
                self._on_answer(sender, message.micro_batch, message.slot, goes=True)
            case msg.No():
                self._on_answer(sender, message.micro_batch, message.slot, goes=False)
            case msg.Drop():
                self._on_drop(sender, message.slot)
        return self._taken()

    def forward_made(
        self, job: Job, output: Payload, now_s: float, text: Text | None = None
    ) -> tuple[Request, ...]:
        """The forward pass of a job is made; at its source, of this text."""
        self._now_s = now_s
        self._running = None
        held = self._find(job)
        if held is None or held.phase is not Phase.FORWARD:
            self._requests.append(requests.Free(job))
            return self._taken()
        held.output = output
        if text is not None:
            held.tokens, held.labels = text.tokens, text.labels
        self._enter(held, Phase.WAITING)
        self._want(held)
        return self._taken()

    def gradient_made(self, job: Job, gradient: Payload, now_s: float) -> tuple[Request, ...]:
        """The input's gradient of a job is there; the parameters' is being made."""
        self._now_s = now_s
        held = self._find(job)
        if held is not None and held.phase is Phase.BACKWARD:
            held.gradient = gradient
            held.sends_anew()
            self._enter(held, Phase.RETURNED)
            if self._is_member(held.above):
                self._say_owed(held)
            else:
                self._free(held)
        return self._taken()

    def backward_made(
        self, job: Job, now_s: float, text: Text | None = None
    ) -> tuple[Request, ...]:
        """The backward pass of a job is made, and its gradient is accumulated; at a source that is
        the end as well, of this text."""
        self._now_s = now_s
        held, self._running = self._running, None
        assert held is not None and held.job == job
        if text is not None:
            held.tokens = text.tokens
        self._count(held)
        if self._own.get(job.micro_batch) is held:
            self._end(held, None)
        self._hear()
        return self._taken()

    def failed(self, job: Job, now_s: float) -> tuple[Request, ...]:
        """A pass could not be made of what came; nothing was accumulated, and no gradient of the
        input was made. After that a pass counts, or the stages above would count without us: a
        gradient of the parameters that is not finite is left out, and the pass is made."""
        self._now_s = now_s
        self._running = None
        held = self._find(job)
        if held is not None and held.phase in (Phase.FORWARD, Phase.BACKWARD):
            self._fail(held, Reason.BAD if held.phase is Phase.FORWARD else Reason.SPOILED)
        self._hear()
        return self._taken()

    def settled(self, round: int, now_s: float) -> tuple[Request, ...]:
        """The weights for the round's exchange are kept, and nothing is accumulated."""
        self._now_s = now_s
        report = orders.Settled(round, self._tally.settle(round), self._source.close(round))
        self._requests.append(requests.SendReport(report))
        return self._taken()

    def weighed(
        self, fence: Fence, squares: tuple[float | None, ...], now_s: float
    ) -> tuple[Request, ...]:
        """The mean of what is accumulated is made; its squared norms, of each stage in order."""
        self._now_s = now_s
        self._requests.append(requests.SendReport(orders.Weighed(*fence, squares)))
        return self._taken()

    def fetched(self, span: Span, now_s: float) -> tuple[Request, ...]:
        """The state of the stages that were to be fetched is here."""
        self._now_s = now_s
        self._requests.append(requests.SendReport(orders.Fetched(span)))
        return self._taken()

    def told(self, order: orders.Order, now_s: float) -> tuple[Request, ...]:
        """The coordinator has said this. While a gradient is being accumulated its word waits: what
        is in the accumulator is in the books."""
        self._now_s = now_s
        self._told.append(order)
        self._hear()
        return self._taken()

    def tick(self, now_s: float) -> tuple[Request, ...]:
        """The time that `next_wakeup_s` asked for has come: say again whatever may be lost."""
        self._now_s = now_s
        self._tick_s = now_s + limits.HOP_TICK_S
        self._invited.forget_old(now_s)
        for slot, sender in self._invited:
            self._send(sender, msg.Invite(slot))
        for held in list(self._held.values()):
            assert held.above is not None and held.job.slot is not None
            if held.phase in OWED:
                self._say_owed(held)
            else:
                self._send(held.above, msg.Alive(held.job.slot))
        for held in self._all():
            self._look_after(held)
        return self._taken()

    # ---- coordinator

    def _hear(self) -> None:
        while self._told and not self._is_counting:
            match order := self._told.popleft():
                case orders.Welcome():
                    self._members = dict(order.members)
                    self._now = (order.round, order.step, order.attempt)
                    self._is_open = order.is_open
                case orders.Joined():
                    self._members[order.peer] = order.member
                case orders.Departed():
                    self._departed(order.process)
                case orders.Move():
                    self._requests.append(requests.Fetch(order.span))
                case orders.Begin():
                    self._begin(order)
                case orders.Weigh():
                    fence = (order.round, order.step, order.attempt)
                    self._requests.append(requests.Weigh(fence))
                case orders.MakeStep():
                    self._make_step(order)
                case orders.Void():
                    self._void(order)
                case orders.Close():
                    self._close(order.round)

    def _begin(self, order: orders.Begin) -> None:
        self._now = max(self._now, (order.round, 0, 0))
        self._is_open = True
        self._members = dict(order.members)
        span = self._members[self.me.peer].span
        if span != self.span:
            self.span = span
            self._requests.append(requests.Serve(span))
        self._balance.begin_round(self._serving(self.span.last + 1))
        self._source.begin(order.round, 0, 0, order.share)

    def _make_step(self, order: orders.MakeStep) -> None:
        self._requests.append(self._tally.step(order.whole_norm))
        self._next_step((order.round, order.step + 1, 0), order.share)

    def _void(self, order: orders.Void) -> None:
        void = (order.round, order.step, order.attempt)
        self._tally.void(void)
        self._source.forget(*void)
        self._requests.append(requests.Discard())
        self._next_step((order.round, order.step, order.attempt + 1), order.share)

    def _next_step(self, now: Fence, share: int) -> None:
        """Whatever is left of an earlier step is over; nothing is owed for it."""
        self._now = now
        for held in self._all():
            if self._is_over(held.micro_batch):
                self._forget(held)
        self._source.begin(*now, share)

    def _close(self, round: int) -> None:
        self._source.stop()
        if round < self._now[0]:
            return
        self._now, self._is_open = (round + 1, 0, 0), False
        for held in self._all():
            if held.micro_batch.round <= round:
                self._forget(held, Reason.CLOSED)
        if len(self._tally):  # a last step, shorter than the others
            self._requests.append(self._tally.step())
        self._requests.append(requests.Settle(round))

    @property
    def _is_counting(self) -> bool:
        """A backward pass is being made."""
        return self._running is not None and self._running.phase in PAST_GO

    def _departed(self, process: Process) -> None:
        if process == self.me:
            self._requests.append(requests.Expelled())
            return
        if self._is_member(process):
            del self._members[process.peer]
        self._gone.add(process)
        self._invited.departed(process)
        self._spent.pop(process, None)
        for held in self._all():
            if held.above == process and held.phase is not Phase.BACKWARD:
                self._drop(held)
            elif held.phase is Phase.SENT and held.tries[-1].receiver == process:
                self._redo(held, Reason.GONE)

    # ---- receiver: slots

    def _invite(self) -> None:
        """Free slots go to those who want one."""
        if self._is_open:
            free = self.rules.slots - self.num_held
            for slot, sender in self._invited.give(free, self._now_s):
                self._send(sender, msg.Invite(slot))

    def _on_forward(self, sender: Process, forward: msg.Forward, *, is_sound: bool) -> None:
        slot, name = forward.slot, forward.micro_batch
        if slot in self._held:
            return
        if not self._invited.take(slot, sender):
            self._send(sender, msg.Refuse(slot, name, Reason.FULL))
            return
        # No member is two rounds ahead of another: rounds wait for all.
        is_one = is_sound and forward.stage in self.span and name.round <= self._now[0] + 1
        if self._is_over(name) or not is_one or forward.tokens > self.rules.tokens:
            reason = Reason.CLOSED if self._is_over(name) else Reason.BAD
            self._send(sender, msg.Refuse(slot, name, reason))
            return
        job = Job(name, slot)
        phase = Phase.ARRIVED if self._is_end else Phase.FORWARD
        held = Held(job, sender, forward.stage, forward.tokens, phase, self._now_s, self._now_s)
        self._held[slot] = held
        self._requests.append(requests.Keep(job))
        if self._is_end:
            self._ask_source(held)

    def _on_ack(self, sender: Process, slot: Slot) -> None:
        held = self._held.get(slot)
        if held is not None and held.above == sender and held.phase in OWED:
            self._free(held)

    def _on_drop(self, sender: Process, slot: Slot) -> None:
        held = self._held.get(slot)
        if held is not None and held.above == sender and held.phase not in PAST_GO:
            self._drop(held)

    # ---- sender: the next hop

    def _want(self, held: Held, *, everybody: bool = False) -> None:
        """Ask the best receiver for a slot; if it has kept us waiting, ask all of them."""
        receivers = self._serving(self.span.last + 1)
        excluded = [process.peer for process in held.avoided if self._is_member(process)]
        ranked = self._balance.ranked(receivers, excluded) if receivers else []
        held.asked = ranked if everybody else ranked[:1]
        if ranked and not everybody:
            held.meant = ranked[0]
            self._balance.chosen(ranked[0])
        for peer in held.asked:
            count = sum(
                other.phase is Phase.WAITING and peer in other.asked for other in self._all()
            )
            want = msg.Want(self.span.last + 1, count)
            self._requests.append(Send(peer, want))

    def _on_invite(self, receiver: Process, slot: Slot) -> None:
        held = next((held for held in self._all() if held.was_at(receiver, slot)), None)
        if held is None:
            held = self._next_for(receiver, slot)
            if held is None:
                self._send(receiver, msg.Return(slot))
                return
            if held.meant is not None and held.meant != receiver.peer:
                self._balance.passed_on(held.meant, receiver.peer)
            held.tries.append(Try(receiver, slot, self._now_s))
            held.sends_anew()
            self._enter(held, Phase.SENT)
        elif held.phase is not Phase.SENT or not held.is_at(receiver, slot):
            self._send(receiver, msg.Return(slot))
            return
        held.heard_s = self._now_s
        if held.may_send(self._now_s):
            assert held.output is not None
            forward = msg.Forward(
                slot, held.micro_batch, self.span.last + 1, held.tokens, held.output
            )
            self._send(receiver, forward, held.job)

    def _next_for(self, receiver: Process, slot: Slot) -> Held | None:
        """The micro-batch for a new slot; None if the receiver was asked for none that still waits,
        or if the slot was used before."""
        member = self._members[receiver.peer]
        is_new = slot.boot == receiver.boot and slot > self._spent.get(receiver, Slot(b"", -1))
        if not is_new or self.span.last + 1 not in member.span:
            return None
        self._spent[receiver] = slot

        def place(held: Held) -> tuple[object, ...]:
            return held.meant != receiver.peer, held.order

        waiting = [
            held
            for held in self._all()
            if held.phase is Phase.WAITING and receiver.peer in held.asked
        ]
        return min(waiting, key=place, default=None)

    def _on_gradient(self, sender: Process, gradient: msg.Gradient) -> None:
        self._send(sender, msg.Ack(gradient.slot))
        held = self._sent_to(sender, gradient.slot, gradient.micro_batch)
        if held is None or held.phase not in (Phase.SENT, Phase.WAITING, Phase.OUTRUN):
            return
        tried = next(one for one in held.tries if one.slot == gradient.slot)
        half_s = (self._now_s - tried.since_s) / 2
        self._balance.measured(sender.peer, forward_s=half_s, backward_s=half_s)
        if self._tally.steps - held.steps > self.rules.max_stale_steps:
            self._fail(held, Reason.STALE)
            return
        self._requests.append(requests.Keep(held.job))
        self._enter(held, Phase.BACKWARD)

    def _on_refuse(self, sender: Process, refuse: msg.Refuse) -> None:
        self._send(sender, msg.Ack(refuse.slot))
        held = self._sent_to(sender, refuse.slot, refuse.micro_batch)
        if held is not None and held.phase is Phase.SENT and held.is_at(sender, refuse.slot):
            self._redo(held, refuse.reason)

    def _on_alive(self, sender: Process, slot: Slot) -> None:
        held = next((held for held in self._all() if held.was_at(sender, slot)), None)
        if held is None:  # we have ended it, and what said so was lost
            self._send(sender, msg.Drop(slot))
        elif held.is_at(sender, slot):
            held.heard_s = self._now_s

    def _redo(self, held: Held, reason: Reason) -> None:
        """The receiver has failed: take another one, while there is hope."""
        if reason is Reason.GRANTED and len(held.tries) > 1:
            self._enter(held, Phase.OUTRUN)
        elif reason in FINAL:
            self._fail(held, reason)
        elif held.num_tries >= limits.HOP_TRIES:
            self._fail(held, Reason.TRIES)
        else:
            held.num_tries += 1
            held.avoided.add(held.tries[-1].receiver)
            self._enter(held, Phase.WAITING)
            self._want(held)

    # ---- the way back: who may begin it

    def _ask_source(self, held: Held) -> None:
        name, slot = held.job.micro_batch, held.job.slot
        if slot is None:
            self._answer(held, goes=self._source.permits(name, (self.me, None)))
        elif name.source == self.me.peer:
            goes = name.boot == self.me.boot and self._source.permits(name, (self.me, slot))
            self._answer(held, goes=goes)
        else:
            self._send(Process(name.source, name.boot), msg.Arrived(name, slot))

    def _on_arrived(self, sender: Process, arrived: msg.Arrived) -> None:
        name = arrived.micro_batch
        # Names can be guessed: who asks must at least be able to be the end.
        may_end = self.rules.num_stages - 1 in self._members[sender.peer].span
        own = self._own.get(name)
        labels = own.labels if own is not None else None
        if may_end and self._is_in_order and not self._source.is_next(name):
            return  # it asks again
        may_ask = may_end and not self._is_over(name)
        if labels is not None and may_ask and self._source.permits(name, (sender, arrived.slot)):
            self._send(sender, msg.Go(name, arrived.slot, labels), Job(name, None))
        else:
            self._send(sender, msg.No(name, arrived.slot))

    def _on_answer(self, sender: Process, name: MicroBatch, slot: Slot, *, goes: bool) -> None:
        held = self._held.get(slot)
        is_ours = held is not None and held.micro_batch == name
        if held is not None and is_ours and sender == Process(name.source, name.boot):
            if goes and held.phase is Phase.ARRIVED:
                self._requests.append(requests.Keep(held.job))
            self._answer(held, goes=goes)

    def _answer(self, held: Held, *, goes: bool) -> None:
        if held.phase is not Phase.ARRIVED:
            return
        if goes:
            self._enter(held, Phase.BACKWARD)
        else:
            self._fail(held, Reason.GRANTED)

    def _count(self, held: Held) -> None:
        """The backward pass is made: once, as only one gradient is taken for each slot."""
        count = Count(held.micro_batch, held.stage, self.span.last, held.tokens)
        self._tally.add(count)
        self._requests.append(count)
        if not self.rules.flushes and len(self._tally) >= self.rules.step_micro_batches:
            self._requests.append(self._tally.step())

    # ---- ends of a micro-batch here

    def _fail(self, held: Held, reason: Reason) -> None:
        if held.above is None:
            self._drop_below(held)
            self._end(held, reason)
            return
        held.reason = reason
        self._enter(held, Phase.REFUSED)
        self._say_owed(held)

    def _end(self, held: Held, reason: Reason | None) -> None:
        """One of ours came back, or is lost."""
        self._source.over(held.micro_batch, reason)
        self._requests.append(requests.Ended(held.micro_batch, reason))
        self._free(held)

    def _forget(self, held: Held, reason: Reason = Reason.CLOSED) -> None:
        """Its round or step is over, and all know it; a void step's were never made."""
        if held.above is None and not self.rules.flushes:
            self._end(held, reason)
        else:
            self._free(held)

    def _drop(self, held: Held) -> None:
        """Nobody above waits for it any more."""
        self._drop_below(held)
        self._free(held)

    def _drop_below(self, held: Held) -> None:
        if held.tries:
            self._send(held.tries[-1].receiver, msg.Drop(held.tries[-1].slot))

    def _free(self, held: Held) -> None:
        if held.job.slot is None:
            self._own.pop(held.micro_batch, None)
        else:
            self._held.pop(held.job.slot, None)
        self._requests.append(requests.Free(held.job))

    # ---- time

    def _look_after(self, held: Held) -> None:
        """Say again, try another, or give up, as its phase wants it."""
        aged_s = self._now_s - held.since_s
        name = held.micro_batch
        is_old = self._now_s - held.began_s > limits.MICRO_BATCH_S
        if is_old and held.above is None and held is not self._running:
            self._fail(held, Reason.LATE)
        elif held.phase is Phase.WAITING:
            self._want(held, everybody=True)
        elif held.phase is Phase.SENT and self._now_s - held.heard_s > limits.HOP_SILENCE_S:
            self._redo(held, Reason.SILENT)
        elif held.phase is Phase.OUTRUN and aged_s > limits.OUTRUN_S:
            self._fail(held, Reason.GRANTED)
        elif held.phase is Phase.ARRIVED:
            if aged_s > limits.ARRIVED_S or Process(name.source, name.boot) in self._gone:
                self._fail(held, Reason.MUTE)
            else:
                self._ask_source(held)

    def _say_owed(self, held: Held) -> None:
        """The gradient of the input, or the refusal, to whoever has sent the input."""
        assert held.above is not None and held.job.slot is not None
        if held.phase is Phase.REFUSED:
            assert held.reason is not None
            self._send(held.above, msg.Refuse(held.job.slot, held.micro_batch, held.reason))
        elif held.may_send(self._now_s):
            assert held.gradient is not None
            gradient = msg.Gradient(held.job.slot, held.micro_batch, held.gradient)
            self._send(held.above, gradient, held.job)
        else:
            self._send(held.above, msg.Alive(held.job.slot))

    def _taken(self) -> tuple[Request, ...]:
        """Requests after an event; own micro-batches, invitations and the next pass among them."""
        while len(self._own) < self.rules.slots:
            name = self._source.make()
            if name is None:
                break
            phase = Phase.ARRIVED if self._is_end else Phase.FORWARD
            held = Held(Job(name, None), None, 0, 0, phase, self._now_s, self._now_s)
            self._own[name] = held
            if self._is_end:
                self._ask_source(held)
        report = self._source.drained()
        if report is not None:
            self._requests.append(requests.SendReport(report))
        self._invite()
        if self._running is None:
            self._run_next()
        taken, self._requests = tuple(self._requests), []
        return taken

    def _run_next(self) -> None:
        """The next pass: backward first, for it frees memory; then the oldest."""
        ready = [
            held
            for held in self._all()
            if held.phase in (Phase.FORWARD, Phase.BACKWARD)
            and self._may_run(held.micro_batch)
            and (held.phase is Phase.FORWARD or not self._waits_for_older(held))
        ]
        if not ready:
            return
        held = min(ready, key=lambda held: (held.phase is Phase.FORWARD, held.order))
        self._running = held
        if held.phase is Phase.FORWARD:
            held.steps = self._tally.steps
            self._requests.append(requests.RunForward(held.job, held.stage))
        else:
            self._requests.append(requests.RunBackward(held.job, held.stage, self._is_end))

    # ---- who and when

    @property
    def _is_in_order(self) -> bool:
        """Steps are flushed, and each stage has one member: then gradients add up in the order of
        the micro-batches, whatever the links do, and the sum has the unsplit model's bits."""
        served = [
            stage
            for member in self._members.values()
            for stage in range(member.span.first, member.span.last + 1)
        ]
        return self.rules.flushes and len(served) == len(set(served))

    def _waits_for_older(self, held: Held) -> bool:
        """Return True if the gradient of an older micro-batch is still to come, and to be added
        first."""
        return self._is_in_order and any(
            other.order < held.order
            and other.micro_batch.fence == held.micro_batch.fence
            and other.phase not in OWED
            for other in self._all()
        )

    @property
    def _is_end(self) -> bool:
        return self.span.last == self.rules.num_stages - 1

    def _is_member(self, process: Process | None) -> bool:
        member = None if process is None else self._members.get(process.peer)
        return member is not None and process is not None and member.boot == process.boot

    def _serving(self, stage: int) -> list[PeerId]:
        return sorted(
            peer
            for peer, member in self._members.items()
            if stage in member.span and peer != self.me.peer
        )

    def _is_over(self, name: MicroBatch) -> bool:
        """Nothing of its round, or of its step, is counted any more."""
        return name.fence < self._now if self.rules.flushes else name.round < self._now[0]

    def _may_run(self, name: MicroBatch) -> bool:
        """Its round, or its step, has begun here: the weights are those that it is meant for, and
        all know who serves which stage in it."""
        is_now = name.fence == self._now if self.rules.flushes else name.round == self._now[0]
        return is_now and self._is_open

    def _all(self) -> list[Held]:
        return [*self._own.values(), *self._held.values()]

    def _find(self, job: Job) -> Held | None:
        held = self._own.get(job.micro_batch) if job.slot is None else self._held.get(job.slot)
        return held if held is not None and held.job == job else None

    def _sent_to(self, receiver: Process, slot: Slot, name: MicroBatch) -> Held | None:
        return next(
            (h for h in self._all() if h.micro_batch == name and h.was_at(receiver, slot)), None
        )

    def _enter(self, held: Held, phase: Phase) -> None:
        held.phase = entered(phase, held.phase, PHASES)
        held.since_s = self._now_s

    def _send(self, to: Process, message: AnyHopMessage, job: Job | None = None) -> None:
        if self._is_member(to):
            self._requests.append(Send(to.peer, message, job))
