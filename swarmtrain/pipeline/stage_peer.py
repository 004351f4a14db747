"""A peer of a pipeline without IO: its stage machine, its payloads, and its training.

Events come in with their time, and what follows goes out through `Outside`. Training comes in parts
(`next_part`), one after another; a part may be made on a thread of its own, and its end is told
back. So a process, a test and a simulation drive the same peer.
"""

import math
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from torch import Tensor

from swarmtrain.config.settings import RunConfig
from swarmtrain.pipeline.costs import most_slots_of, slots_of, under_way_of
from swarmtrain.pipeline.evaluation import Anchors, num_judged
from swarmtrain.pipeline.places import Parcel, Place, Places, Read
from swarmtrain.pipeline.sketch import likeness, sketch
from swarmtrain.pipeline.stage_trainer import BAD, Forms, StageTrainer
from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.comparisons import Likeness
from swarmtrain_transport.pipeline.peer.requests import Job, Request, RunBackward, RunForward, Text
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.peer.stage import StageMachine
from swarmtrain_transport.pipeline.wire import encoding, orders
from swarmtrain_transport.pipeline.wire.messages import CARRIES, Reason
from swarmtrain_transport.pipeline.wire.route import Boot, MicroBatch
from swarmtrain_transport.wire.frames import Frame

End = Callable[[float], None]
"""Takes the time: what is to be told when a part is made."""


class Training(Protocol):
    """The training thread: all that parts need of it."""

    @property
    def trainer(self) -> StageTrainer:
        """Trainer of the span."""

    def begin(self, pace: orders.Pace) -> None:
        """A round begins, whose steps go by this."""

    def anchors(self, ops: tuple[int, ...]) -> Anchors | None:
        """The values of our stages after these ops of the run's; None if a stage has others."""

    def is_behind(self, ops: tuple[int, ...]) -> bool:
        """Return True if the outcome of one of these ops is still to come into place here."""

    def step(self, request: requests.Step) -> None:
        """Make an inner step."""

    def settle(self, round: int) -> None:
        """Give the round's work to its exchange: all of its steps are made."""


Part = Callable[[Training], End]
"""Some work of the training thread."""


class Outside(Protocol):
    """Surroundings of a peer: all that it needs of whoever drives it."""

    def send(self, peer: PeerId, frame: Frame) -> None:
        """Send to another peer."""

    def report(self, report: orders.Report) -> None:
        """Tell the coordinator."""

    def evaluated(self, evaluated: requests.Evaluated) -> None:
        """An evaluation is over."""

    def expelled(self) -> None:
        """This process was given up: begin anew under another boot."""


class StagePeer:
    """One life of a peer.

    Args:
        machine: machine of this process.
        boot: boot of this process.
        run_tag: fence of the run.
        forms: forms of all that travels.
        outside: the others.

    Attributes:
        machine: machine of this process.
        places: payloads of what is under way.
        ended: own micro-batches by the reason of their loss; None is those that came back.
    """

    def __init__(
        self, machine: StageMachine, boot: Boot, run_tag: int, forms: Forms, outside: Outside
    ) -> None:
        self.machine = machine
        self.places = Places()
        self.ended: Counter[Reason | None] = Counter()
        self._boot, self._run_tag, self._forms, self._outside = boot, run_tag, forms, outside
        self._text: Read | None = None  # newest of our own micro-batches
        self._sketch: tuple[MicroBatch, Tensor] | None = None  # of one whose twin is under way
        self._training: deque[Callable[[], Part]] = deque()
        self._is_training = False

    # ---- events

    def received(self, peer: PeerId, frame: Frame, now_s: float) -> None:
        """A frame of `encoding.HOP_FRAMES` came.

        Raises:
            RemoteFault: it holds no message of a pipeline; nothing has changed.
        """
        boot, message, data = encoding.unpack(frame)
        came, is_sound = None, True
        if isinstance(message, CARRIES):
            came = Parcel(message.payload, data)
            is_sound = self._forms.is_sound(message, data, self.machine.span)
        self._obey(self.machine.received(peer, boot, message, now_s, is_sound=is_sound), came)

    def told(self, order: orders.Order, now_s: float) -> None:
        """Heed an order of the coordinator."""
        self._obey(self.machine.told(order, now_s))

    def tick(self, now_s: float) -> None:
        """The time that the machine asked for has come."""
        self._obey(self.machine.tick(now_s))

    def next_part(self) -> Part | None:
        """The next work of the training thread, None where there is none or one is being made. Its
        result is called here, with the time."""
        if self._is_training or not self._training:
            return None
        part = self._training.popleft()()
        self._is_training = True

        def made(training: Training) -> End:
            end = part(training)

            def told(now_s: float) -> None:
                self._is_training = False
                end(now_s)

            return told

        return made

    # ---- requests of the machine

    def _obey(self, asked: tuple[Request, ...], came: Parcel | None = None) -> None:
        """Do what the machine asks, in order; `came` lies beside the message that it has heard."""
        for request in asked:
            match request:
                case requests.Send():
                    self._send(request)
                case requests.Keep():
                    if came is None:
                        raise LocalFault(f"{request} without a payload")
                    self.places.arrived(request.job, came)
                case requests.Free():
                    self.places.free(request.job)
                case RunForward():
                    self._training.append(partial(self._forward, request))
                case RunBackward():
                    self._training.append(partial(self._backward, request))
                case requests.SetPace():
                    self._training.append(partial(self._begin, request.pace))
                case requests.RunJudged():
                    self._training.append(partial(self._judge, request))
                case requests.Evaluated():
                    self._outside.evaluated(request)
                case requests.Count() | requests.Step() | requests.Discard():
                    self._training.append(partial(self._at_once, request))
                case requests.Weigh():
                    self._training.append(partial(self._weigh, request))
                case requests.Settle():
                    self._training.append(partial(self._settle, request.round))
                case requests.SendReport():
                    self._outside.report(request.report)
                case requests.Ended():
                    self.ended[request.reason] += 1
                case requests.Expelled():
                    self._outside.expelled()

    def _send(self, request: requests.Send) -> None:
        data = self.places.beside(request.message, request.job)
        frame = encoding.pack(self._run_tag, self._boot, request.message, data)
        self._outside.send(request.peer, frame)

    # ---- training

    def _forward(self, request: RunForward) -> Part:
        place = self.places.opened(request.job)
        given = None if place is None else place.first
        if given is None and request.job.slot is not None:
            return self._failing(request.job)  # freed since it was asked for

        def make(training: Training) -> End:
            trainer = training.trainer
            read = self._read(trainer, request) if given is None else given
            try:
                output = trainer.forward(request, read)
            except BAD:
                return partial(self._failed, request.job)
            return partial(self._forward_made, request.job, read, output)

        return make

    def _judge(self, request: requests.RunJudged) -> Part:
        job = request.job
        place = self.places.opened(job) or Place()
        given, labels = place.first, place.second
        if given is None and job.slot is not None:
            return self._failing(job)

        def make(training: Training) -> End:
            trainer = training.trainer
            read = trainer.read(job.micro_batch) if given is None else given
            anchors = training.anchors(request.ops)
            if anchors is None and training.is_behind(request.ops):
                return lambda now_s: self._obey(self.machine.postponed(job, now_s))
            if anchors is None:
                return partial(self._failed, job)
            try:
                made = trainer.judge(request, read, labels, anchors)
            except BAD:
                return partial(self._failed, job)
            if isinstance(made, Parcel):
                return partial(self._forward_made, job, read, made)
            return lambda now_s: self._obey(self.machine.loss_made(job, made, now_s))

        return make

    def _read(self, trainer: StageTrainer, request: RunForward) -> Read:
        """The text of an own micro-batch."""
        if self._text is None or not request.again:
            self._text = trainer.read(request.job.micro_batch)
        return self._text

    def _forward_made(self, job: Job, read: Parcel | Read, output: Parcel, now_s: float) -> None:
        self.places.made(job, first=read, second=output)
        self._obey(self.machine.forward_made(job, output.form, now_s, _text(read)))

    def _backward(self, request: RunBackward) -> Part:
        place = self.places.opened(request.job) or Place()
        given, answer = place.first, place.second
        is_alone = request.is_end and request.job.slot is None
        if (given is None or answer is None) and not is_alone:
            return self._failing(request.job)

        def make(training: Training) -> End:
            trainer = training.trainer
            read = trainer.read(request.job.micro_batch) if is_alone else given
            labels = read.labels if isinstance(read, Read) and is_alone else answer
            assert read is not None and labels is not None
            try:
                gradient = trainer.begin_backward(request, read, labels)
            except BAD:
                return partial(self._failed, request.job)
            alike = self._compared(trainer, request, labels)
            return partial(self._input_made, request.job, read, gradient, alike)

        return make

    def _compared(
        self, trainer: StageTrainer, request: RunBackward, answer: Parcel
    ) -> Likeness | None:
        """The likeness of an answer and that to its twin; None if there is none, or not yet."""
        twin = request.twin
        if twin is None:
            return None
        mine = sketch(trainer.answered(answer), twin.seed)
        other, self._sketch = self._sketch, (request.job.micro_batch, mine)
        if other is None or other[0] != twin.micro_batch:
            return None
        self._sketch = None
        return likeness(mine, other[1])

    def _input_made(
        self,
        job: Job,
        read: Parcel | Read,
        gradient: Parcel | None,
        alike: Likeness | None,
        now_s: float,
    ) -> None:
        """The peer before gets its gradient; the weights' come before all that is asked now."""

        def make(training: Training) -> End:
            training.trainer.end_backward()
            return partial(self._backward_made, job, read, alike)

        self._training.appendleft(lambda: make)
        if gradient is not None:
            self.places.made(job, first=gradient)
            self._obey(self.machine.gradient_made(job, gradient.form, now_s))

    def _backward_made(
        self, job: Job, read: Parcel | Read, alike: Likeness | None, now_s: float
    ) -> None:
        self._obey(self.machine.backward_made(job, now_s, _text(read), alike))

    def _failing(self, job: Job) -> Part:
        return lambda training: partial(self._failed, job)

    def _failed(self, job: Job, now_s: float) -> None:
        self._obey(self.machine.failed(job, now_s))

    def _at_once(self, request: requests.Count | requests.Step | requests.Discard) -> Part:
        def make(training: Training) -> End:
            match request:
                case requests.Count():
                    training.trainer.count(request)
                case requests.Step():
                    training.step(request)
                case requests.Discard():
                    training.trainer.discard()
            return _nothing

        return make

    def _begin(self, pace: orders.Pace) -> Part:
        def make(training: Training) -> End:
            training.begin(pace)
            return _nothing

        return make

    def _weigh(self, request: requests.Weigh) -> Part:
        def make(training: Training) -> End:
            squares = training.trainer.weigh()
            return lambda now_s: self._obey(self.machine.weighed(request.fence, squares, now_s))

        return make

    def _settle(self, round: int) -> Part:
        def make(training: Training) -> End:
            training.settle(round)
            norms, planes = training.trainer.take_norms(), training.trainer.steepest

            def told(now_s: float) -> None:
                if planes:
                    self._outside.report(orders.Proposed(planes))
                self._obey(self.machine.settled(round, now_s, norms))

            return told

        return make


def _text(read: Parcel | Read) -> Text | None:
    """The text of one's own micro-batch, as the machine knows it."""
    if not isinstance(read, Read):
        return None
    return Text(math.prod(read.labels.form.shape), read.labels.form)


def _nothing(now_s: float) -> None:
    """Tell nothing."""


def rules_of(config: RunConfig) -> Rules:
    """The run file's part for the stage machine."""
    pipeline = config.pipeline
    return Rules(
        num_stages=pipeline.num_stages,
        slots=slots_of(config),
        most_slots=most_slots_of(config),
        flushes=pipeline.schedule == "flush",
        step_micro_batches=config.inner.batch // pipeline.micro_batch,
        max_stale_steps=pipeline.max_stale_steps,
        under_way=under_way_of(config, slots_of(config)),
        most_under_way=under_way_of(config, most_slots_of(config)),
        # Two micro-batches of one text would not visit the same stages.
        repeat_every=0 if pipeline.schedule == "flush" or pipeline.visit else limits.REPEAT_EVERY,
        tokens=pipeline.micro_batch * config.model.context,
        judged=num_judged(config),
        visit=pipeline.visit,
    )
