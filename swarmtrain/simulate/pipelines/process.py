"""A simulated peer of a pipeline: the shell of its stage machine, without tensors.

It keeps payloads by name as a real one does, so what is sent must be there. Its accumulator is a
list of micro-batches: what it holds at each step is compared with what the machine tells.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.comparisons import Likeness
from swarmtrain_transport.pipeline.peer.requests import Job, Request
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.peer.stage import StageMachine
from swarmtrain_transport.pipeline.wire import encoding, messages, orders
from swarmtrain_transport.pipeline.wire.messages import AnyHopMessage, Payload
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Span

_TENSOR = Payload("none", (1, 4), 16)
TOKENS = 7
"""Tokens of each micro-batch."""

JUDGED = 5
"""Micro-batches of validation text."""

LABELS = Payload("labels", (1, 4), 32)
_TEXT = requests.Text(TOKENS, LABELS)
_RUN_TAG = 1

Stage = int
Passed = tuple[MicroBatch, Stage]
"""A micro-batch in one stage."""


class Ground(Protocol):
    """A process needs this of its world."""

    rng: random.Random
    now_s: float

    def later(self, process: "SimProcess", delay_s: float, act: Callable[[], None]) -> None:
        """Act in so many seconds, if that life of the process still goes on."""

    def send(self, process: "SimProcess", to: PeerId, message: AnyHopMessage) -> None:
        """Send over the links."""

    def report(self, process: "SimProcess", report: orders.Report) -> None:
        """Send to the coordinator."""

    def expelled(self, process: "SimProcess") -> None:
        """The process was given up."""

    def evaluated(self, process: "SimProcess", evaluated: requests.Evaluated) -> None:
        """An evaluation of its is over."""

    def counted(self, process: "SimProcess", passed: list[Passed]) -> None:
        """Hear that its accumulator will hold these, too, if it lives on."""

    def check(self, process: "SimProcess") -> None:
        """Check it after an event."""

    def broken(self, invariant: str, story: str) -> None:
        """Tell that an invariant does not hold."""

    def is_spoiled(self, micro_batch: MicroBatch) -> bool:
        """Return True if a hostile member has given a wrong gradient for it."""

    @property
    def is_harsh(self) -> bool:
        """Faults may strike now."""


@dataclass(slots=True)
class Work:
    """Work of a process in a round.

    Attributes:
        stepped: micro-batches of its inner steps, in their order.
        accumulated: since the last step.
        made: names that it has made, as a source.
        ended: names of those that have ended, with the reason.
    """

    stepped: list[Passed] = field(default_factory=list)
    accumulated: list[Passed] = field(default_factory=list)
    made: set[MicroBatch] = field(default_factory=set)
    ended: dict[MicroBatch, object] = field(default_factory=dict)


class SimProcess:
    """One life of a simulated peer.

    Args:
        ground: world of the process.
        me: the process.
        span: stages that it serves.
        rules: rules of the run.
        pass_s: seconds of a pass.

    Attributes:
        op: op that its stages' states are of.
        away_s: time when the rounds last went on without it.
    """

    def __init__(
        self, ground: Ground, me: Process, span: Span, rules: Rules, pass_s: float
    ) -> None:
        self.ground = ground
        self.me = me
        self.span = span
        self.machine = StageMachine(me, span, rules, seed=repr(me).encode())
        self.is_alive = True
        self.thaws_s = 0.0
        self.plugged_s = 0.0
        self.away_s = 0.0
        self.work = Work()
        self._pass_s = pass_s
        self._inputs: set[Job] = set()
        self._outputs: set[Job] = set()
        self._answered: set[MicroBatch] = set()
        self._training: deque[Request] = deque()
        self._is_training = False
        self._is_weighed = False
        self._num_steps: Counter[Stage] = Counter()
        self._forward_at: dict[Job, tuple[Stage, int]] = {}
        self.op = 0

    @property
    def is_training_at(self) -> list[Passed]:
        """Micro-batches that the backward pass that is under way will add."""
        first = self._training[0] if self._is_training else None
        return _passed(first) if isinstance(first, requests.RunBackward) else []

    # ---- events

    def received(self, sender: Process, message: AnyHopMessage) -> None:
        """A message came."""
        now_s = self.ground.now_s
        self._obey(self.machine.received(sender.peer, sender.boot, message, now_s))

    def told(self, order: orders.Order) -> None:
        """The coordinator's order came."""
        if isinstance(order, orders.Void):  # who was away meanwhile has not ended all of it
            void = (order.round, order.step, order.attempt)
            self.work.made = {made for made in self.work.made if made.fence != void}
        self._obey(self.machine.told(order, self.ground.now_s))

    def tick(self) -> None:
        """Tell the machine the time."""
        if self.machine.next_wakeup_s <= self.ground.now_s:
            self._obey(self.machine.tick(self.ground.now_s))
        due_s = self.machine.next_wakeup_s - self.ground.now_s
        self.ground.later(self, max(0.0, due_s) + self.ground.rng.uniform(0, 0.6), self.tick)

    # ---- requests

    def _obey(self, asked: tuple[Request, ...]) -> None:
        for request in asked:
            self._note_steps(request)
            match request:
                case requests.Send():
                    self._send(request)
                case requests.Keep():
                    self._keep(request.job)
                case requests.Free():
                    self._inputs.discard(request.job)
                    self._outputs.discard(request.job)
                case (
                    requests.RunForward()
                    | requests.RunBackward()
                    | requests.RunJudged()
                    | requests.Weigh()
                    | requests.Step()
                    | requests.Discard()
                    | requests.Settle()
                ):
                    self._training.append(request)
                case requests.SetPace():
                    pass  # nothing is learnt here
                case requests.Ended():
                    if request.micro_batch in self.work.ended:
                        self.ground.broken("P2", f"{request.micro_batch} ended twice")
                    self.work.ended[request.micro_batch] = request.reason
                case requests.Evaluated():
                    self.ground.evaluated(self, request)
                case requests.SendReport():
                    self.ground.report(self, request.report)
                case requests.Expelled():
                    self.ground.expelled(self)
        self._train()
        self.ground.check(self)

    def _note_steps(self, request: Request) -> None:
        """Count steps as the machine asks for them, and remember at which a forward pass was."""
        if isinstance(request, requests.Step):
            self._num_steps.update(range(request.stages.first, request.stages.last + 1))
        elif isinstance(request, requests.RunForward):
            first = request.stages[0]
            self._forward_at[request.job] = first, self._num_steps[first]
        elif isinstance(request, requests.Free):
            self._forward_at.pop(request.job, None)

    def _send(self, request: requests.Send) -> None:
        job = request.job
        match request.message:
            case messages.Forward() if job not in self._outputs:
                self.ground.broken("P3", f"{self.me} sends an output that it has not: {job}")
            case messages.Gradient() if job not in self._inputs:
                self.ground.broken("P3", f"{self.me} sends a gradient that it has not: {job}")
        self.ground.send(self, request.peer, self._framed(request.message))

    def _framed(self, message: AnyHopMessage) -> AnyHopMessage:
        """The message as it comes out of its frame at the other end."""
        payload = b""
        if isinstance(message, messages.CARRIES):
            payload = bytes(message.payload.num_bytes)
        frame = encoding.pack(_RUN_TAG, self.me.boot, message, payload)
        return encoding.unpack(frame).message

    def _keep(self, job: Job) -> None:
        """The first payload of a job is its input, if it has a slot; the next stands where its
        output was."""
        if job.slot is not None and job not in self._inputs:
            self._inputs.add(job)
            return
        self._outputs.add(job)
        stage, before = self._forward_at.get(job, (0, self._num_steps[0]))
        if self._num_steps[stage] - before > self.machine.rules.max_stale_steps:
            self.ground.broken("P12", f"{self.me} takes a stale gradient of {job}")

    @property
    def payloads(self) -> int:
        """Number of payloads that are kept."""
        return len(self._inputs) + len(self._outputs)

    # ---- training thread

    def _train(self) -> None:
        """Begin the next of what is asked of the training thread; short things are done at once."""
        while self._training and not self._is_training:
            request = self._training[0]
            self._is_training = True
            match request:
                case requests.RunForward() | requests.RunBackward() if not all(
                    stage in self.span for stage in request.stages
                ):
                    self.ground.broken("P6", f"{self.me} serves {self.span}, not {request}")
                case requests.RunJudged() if request.stage not in self.span:
                    self.ground.broken("P6", f"{self.me} serves {self.span}, not {request}")
            if isinstance(request, requests.RunForward):
                if request.job.slot is None:
                    self.work.made.add(request.job.micro_batch)
                    self._inputs.add(request.job)
                self.ground.later(self, self._time(1), self._forward_made)
                return
            if isinstance(request, requests.RunJudged):
                if request.job.slot is None:
                    self._inputs.add(request.job)
                self.ground.later(self, self._time(1), self._judged)
                return
            if isinstance(request, requests.RunBackward):
                if request.job.slot is None:
                    self.work.made.add(request.job.micro_batch)
                self.ground.later(self, self._time(2), self._input_done)
                return
            self._training.popleft()
            self._is_training = False
            self._do_at_once(request)

    def _time(self, passes: int) -> float:
        return passes * self._pass_s * self.ground.rng.uniform(0.6, 1.4)

    def _do_at_once(self, request: Request) -> None:
        self._is_weighed = isinstance(request, requests.Weigh)
        match request:
            case requests.Weigh():
                squares = (1.0,) * (self.span.last - self.span.first + 1)
                self._obey(self.machine.weighed(request.fence, squares, self.ground.now_s))
            case requests.Step():
                if request.tokens != _TEXT.tokens * request.micro_batches:
                    self.ground.broken("P2", f"{self.me} counts {request.tokens} tokens")
                work = self.work
                stepped = [passed for passed in work.accumulated if passed[1] in request.stages]
                if sum(s == request.stages.last for _, s in stepped) != request.micro_batches:
                    self.ground.broken("P2", f"{self.me} makes a step of what it has not")
                work.stepped += stepped
                work.accumulated = [one for one in work.accumulated if one not in stepped]
            case requests.Discard():
                self.work.accumulated.clear()
            case requests.Settle():
                if self.work.accumulated:
                    self.ground.broken("P2", f"{self.me} settles with a full accumulator")
                norms = (1.0,) * (self.span.last - self.span.first + 1)
                self._obey(self.machine.settled(request.round, self.ground.now_s, norms))

    def _forward_made(self) -> None:
        request = self._training.popleft()
        assert isinstance(request, requests.RunForward)
        self._is_training = False
        if self._fails():
            self._obey(self.machine.failed(request.job, self.ground.now_s))
            return
        self._outputs.add(request.job)
        now_s = self.ground.now_s
        text = _TEXT if request.job.slot is None else None
        self._obey(self.machine.forward_made(request.job, _TENSOR, now_s, text))

    def _judged(self) -> None:
        request = self._training.popleft()
        assert isinstance(request, requests.RunJudged)
        self._is_training = False
        job, now_s = request.job, self.ground.now_s
        if self.op < request.ops[request.stage]:
            self._obey(self.machine.postponed(job, now_s))
        elif self.op > request.ops[request.stage] or self._fails():
            self._obey(self.machine.failed(job, now_s))
        elif request.is_end:
            self._obey(self.machine.loss_made(job, loss_of(job.micro_batch), now_s))
        else:
            self._outputs.add(job)
            text = _TEXT if job.slot is None else None
            self._obey(self.machine.forward_made(job, _TENSOR, now_s, text))

    def _input_done(self) -> None:
        request = self._training[0]
        assert isinstance(request, requests.RunBackward)
        if self._fails():
            self._training.popleft()
            self._is_training = False
            self._obey(self.machine.failed(request.job, self.ground.now_s))
            return
        self.ground.counted(self, _passed(request))
        if request.job.slot is not None:
            now_s = self.ground.now_s
            self._obey(self.machine.gradient_made(request.job, _TENSOR, now_s))
        self.ground.later(self, self._time(1), self._backward_made)

    def _backward_made(self) -> None:
        request = self._training.popleft()
        assert isinstance(request, requests.RunBackward)
        self._is_training = False
        if self._is_weighed:
            self.ground.broken("P4", f"{self.me} adds {request} to what is weighed")
        self.work.accumulated += _passed(request)
        text = _TEXT if request.job.slot is None else None
        alike = self._compared(request)
        self._obey(self.machine.backward_made(request.job, self.ground.now_s, text, alike))

    def _compared(self, request: requests.RunBackward) -> Likeness | None:
        """The likeness of an answer and that to its twin, which came before."""
        if request.twin is None:
            return None
        mine, its = request.job.micro_batch, request.twin.micro_batch
        self._answered.add(mine)
        if its not in self._answered:
            return None
        spoiled = self.ground.is_spoiled(mine), self.ground.is_spoiled(its)
        return Likeness(1.0 - 2.0 * (spoiled[0] != spoiled[1]), 1.0)

    def _fails(self) -> bool:
        """A payload was not what a stage takes."""
        return self.ground.is_harsh and self.ground.rng.random() < 0.01


def loss_of(name: MicroBatch) -> float:
    """The sum of the losses of some validation text: other text has another."""
    return float(name.number % JUDGED) * TOKENS


def _passed(request: requests.RunBackward) -> list[Passed]:
    return [(request.job.micro_batch, stage) for stage in request.stages]
