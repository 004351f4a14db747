"""Micro-batches in flight at one peer: where each one is, who may send it, and how it ends here.

The parts of a stage's machine share this: guardian, receiver and permission. Each event of the
machine asks for something; the requests are gathered here.
"""

from collections import deque
from statistics import median_low

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.phases import entered
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.held import PAST_GO, PHASES, Held, Phase
from swarmtrain_transport.pipeline.peer.requests import Job, Request, Send
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.peer.slots import Window
from swarmtrain_transport.pipeline.peer.source import Source
from swarmtrain_transport.pipeline.peer.tally import Tally
from swarmtrain_transport.pipeline.wire import messages as msg
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import AnyHopMessage, Reason
from swarmtrain_transport.pipeline.wire.paths import Path, served
from swarmtrain_transport.pipeline.wire.route import Fence, MicroBatch, Process, Slot, Span, Stage


class InFlight:
    """All micro-batches at a peer.

    Args:
        me: the process.
        span: stages that it serves.
        rules: rules of the run.
        seed: seed of the secrets of its own micro-batches.

    Attributes:
        source: the peer's part as a source.
        tally: books of what it has counted.
        members: members of the run.
        gone: processes that have left it since the round began.
        now: round, step and attempt that is counted in.
        is_open: True if that round has begun here, and is not closed.
        invites: there is something to come: a round is open, or a state is evaluated since.
        evaluated: the state that was to be evaluated last; None if that is over for certain.
        now_s: time of the event that is being answered.
        own: own micro-batches under way.
        in_slots: micro-batches that others have sent.
        judged: micro-batches of evaluations, by job: own ones and others', which no book knows of.
        running: the one whose pass is being made.
        requests: requests of the event that is being answered.
        window: Number of own micro-batches to have under way, on average of all sources.
        times_s: times for which the newest own micro-batches that came back were with others.
    """

    def __init__(self, me: Process, span: Span, rules: Rules, seed: bytes) -> None:
        self.me = me
        self.span = span
        self.rules = rules
        self.source = Source(me.peer, me.boot, seed)
        self.tally = Tally(rules.paths)
        self.members: dict[PeerId, orders.Member] = {}
        self.gone: set[Process] = set()
        self.now: Fence = (0, 0, 0)
        self.is_open = self.invites = False
        self.now_s = 0.0
        self.own: dict[MicroBatch, Held] = {}
        self.in_slots: dict[Slot, Held] = {}
        self.judged: dict[Job, Held] = {}
        self.evaluated: orders.Evaluate | None = None
        self.running: Held | None = None
        self.requests: list[Request] = []
        self.window = Window(rules.under_way or rules.slots, rules.most_under_way)
        self.times_s: deque[float] = deque(maxlen=4 * limits.MICRO_BATCHES_KNOWN)

    def all(self) -> list[Held]:
        """All of training, own ones first."""
        return [*self.own.values(), *self.in_slots.values()]

    def all_to_send(self) -> list[Held]:
        """All that may need a slot of the next stage: those of training, and judged ones."""
        return [*self.all(), *self.judged.values()]

    def find(self, job: Job) -> Held | None:
        """The micro-batch of a job; None if it has ended here."""
        if job.micro_batch.judged:
            return self.judged.get(job)
        held = self.own.get(job.micro_batch) if job.slot is None else self.in_slots.get(job.slot)
        return held if held is not None and held.job == job else None

    def enter(self, held: Held, phase: Phase) -> None:
        """A micro-batch enters its next phase."""
        held.phase = entered(phase, held.phase, PHASES)
        held.since_s = self.now_s

    def send(self, to: Process, message: AnyHopMessage, job: Job | None = None) -> None:
        """Send, if that process is in the run."""
        if self.is_member(to):
            self.requests.append(Send(to.peer, message, job))

    # ---- who and when

    def is_member(self, process: Process | None) -> bool:
        """Return True if this life of a peer is in the run."""
        member = None if process is None else self.members.get(process.peer)
        return member is not None and process is not None and member.boot == process.boot

    def serving(self, stage: int) -> list[PeerId]:
        """The other peers that serve a stage."""
        return sorted(
            peer
            for peer, member in self.members.items()
            if stage in member.span and peer != self.me.peer
        )

    def path(self, held: Held) -> tuple[Path, int | None]:
        """The stages that a micro-batch visits here, and the next one; None after the last."""
        whole = self.rules.path(held.micro_batch)
        return served(whole, held.stage, self.span), next(
            (stage for stage in whole if stage > self.span.last), None
        )

    def after(self, held: Held) -> Stage:
        """The stage that one visits next which does not end here."""
        _, after = self.path(held)
        assert after is not None
        return after

    @property
    def is_end(self) -> bool:
        """Routes end here: it serves the last stage."""
        return self.span.last == self.rules.num_stages - 1

    @property
    def is_in_order(self) -> bool:
        """Steps are flushed, and each stage has one member: then gradients add up in the order of
        the micro-batches, whatever the links do, and the sum has the unsplit model's bits."""
        served = [
            stage
            for member in self.members.values()
            for stage in range(member.span.first, member.span.last + 1)
        ]
        return self.rules.flushes and len(served) == len(set(served))

    def is_over(self, name: MicroBatch) -> bool:
        """Nothing of its round, or of its step, is counted any more."""
        return name.fence < self.now if self.rules.flushes else name.round < self.now[0]

    def may_count(self, held: Held) -> bool:
        """Return True if its name is not counted here, nor about to be from another slot."""
        name = held.micro_batch
        return name not in self.tally and not any(
            one.phase in PAST_GO and one.micro_batch.entry == name.entry
            for one in (*self.all(), self.running)
            if one is not None and one is not held
        )

    # ---- ends of a micro-batch here

    def fail(self, held: Held, reason: Reason) -> None:
        """Give it up: one of ours is lost, another is given back."""
        if held.above is None:
            self._drop_below(held)
            self.end(held, reason)
            return
        held.reason = reason
        self.enter(held, Phase.REFUSED)
        self.say_owed(held)

    def end(self, held: Held, reason: Reason | None) -> None:
        """One of ours came back, or is lost."""
        if reason is None and held.tries:
            self.times_s.append(self.now_s - held.tries[0].since_s)
            self.window.back(held.began_s, self.now_s)
        self.source.over(held.micro_batch, reason)
        self.requests.append(requests.Ended(held.micro_batch, reason))
        self.free(held)

    def is_late(self, held: Held) -> bool:
        """Return True if one of ours has been under way for too long."""
        most_s = limits.MICRO_BATCH_S
        if self.now_s - held.began_s > most_s:
            return True
        if not held.tries or len(self.times_s) < limits.MICRO_BATCHES_KNOWN:
            return False
        usual_s = limits.MICRO_BATCH_TIMES * median_low(self.times_s)
        return self.now_s - held.tries[0].since_s > max(limits.MICRO_BATCH_LEAST_S, usual_s)

    def forget(self, held: Held, reason: Reason = Reason.CLOSED) -> None:
        """Its round or step is over, and all know it; a void step's were never made."""
        if held.above is None and not self.rules.flushes:
            self.end(held, reason)
        else:
            self.free(held)

    def drop(self, held: Held) -> None:
        """Nobody above waits for it any more."""
        self._drop_below(held)
        self.free(held)

    def _drop_below(self, held: Held) -> None:
        if held.tries:
            self.send(held.tries[-1].receiver, msg.Drop(held.tries[-1].slot))

    def free(self, held: Held) -> None:
        """Its place is for another."""
        if held.micro_batch.judged:
            self.judged.pop(held.job, None)
        elif held.job.slot is None:
            self.own.pop(held.micro_batch, None)
        else:
            self.in_slots.pop(held.job.slot, None)
        self.requests.append(requests.Free(held.job))

    def say_owed(self, held: Held) -> None:
        """The gradient of the input, or the refusal, to whoever has sent the input."""
        assert held.above is not None and held.job.slot is not None
        if held.phase is Phase.REFUSED:
            assert held.reason is not None
            self.send(held.above, msg.Refuse(held.job.slot, held.micro_batch, held.reason))
        elif held.may_send(self.now_s):
            assert held.gradient is not None
            gradient = msg.Gradient(held.job.slot, held.micro_batch, held.gradient)
            self.send(held.above, gradient, held.job)
        else:
            self.send(held.above, msg.Alive(held.job.slot))
