"""Requests of the stage machine to its shell, which obeys them in order. Those to the training
thread are obeyed one after another.

The shell keeps the payloads, under the job's name; the machine knows their form alone. A place has
room for two: the stage's input, in whose place the input's gradient comes; and the output, in whose
place the output's gradient comes. At the end of a route the labels stand where the output would.
"""

import msgspec

from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.wire.messages import AnyHopMessage, Payload, Reason
from swarmtrain_transport.pipeline.wire.orders import Pace, Report
from swarmtrain_transport.pipeline.wire.paths import Path
from swarmtrain_transport.pipeline.wire.route import Fence, MicroBatch, Slot, Span


class Job(msgspec.Struct, frozen=True):
    """A micro-batch at a peer; `slot` is None at its source."""

    micro_batch: MicroBatch
    slot: Slot | None


class Send(msgspec.Struct, frozen=True):
    """Send the message; with FORWARD goes the job's output, with GRADIENT the gradient of its
    input, with GO the labels of its micro-batch."""

    peer: PeerId
    message: AnyHopMessage
    job: Job | None = None


class Keep(msgspec.Struct, frozen=True):
    """Keep the payload that has just come, for the job. All others are dropped."""

    job: Job


class Text(msgspec.Struct, frozen=True):
    """Text of a micro-batch, as its source has read it.

    Attributes:
        tokens: tokens that count in its loss.
        labels: form of the labels.
    """

    tokens: int
    labels: Payload


class RunForward(msgspec.Struct, frozen=True):
    """Training thread: the output of these stages, from the job's input. Then `forward_made`. A job
    without a slot has no input yet: read its text, or that of the one before `again`, and tell of
    it."""

    job: Job
    stages: Path
    again: bool = False


class Twin(msgspec.Struct, frozen=True):
    """Another own micro-batch of the same text.

    Attributes:
        micro_batch: name of the other one.
        seed: seed of both sketches; nobody else knows it, or could hide a difference from them.
    """

    micro_batch: MicroBatch
    seed: int


class RunBackward(msgspec.Struct, frozen=True):
    """Training thread: recompute, and `gradient_made` as soon as the input's gradient is there;
    then add the parameters' to what is accumulated, and `backward_made`. At the end of a route
    begin with the labels; a source has no input's gradient. Of one with a twin keep a sketch of
    the answer, and tell their likeness with the second `backward_made`."""

    job: Job
    stages: Path
    is_end: bool
    twin: Twin | None = None


class RunJudged(msgspec.Struct, frozen=True):
    """Training thread: the job's output, or at the end of its route the sum of its losses by the
    labels, as the weights after these ops of all stages make it, without dropout; what goes on
    lies in the subspace after so many turns. Then
    `forward_made` or `loss_made`; `postponed` if a state is not in place here yet, `failed` if it
    is gone. A job without a slot has no input yet: read its text, and tell of it."""

    job: Job
    stage: int
    ops: tuple[int, ...]
    is_end: bool
    turns: int = 0


class Count(msgspec.Struct, frozen=True):
    """The micro-batch's gradient is in that of these stages."""

    micro_batch: MicroBatch
    stages: Path
    tokens: int


class Weigh(msgspec.Struct, frozen=True):
    """Training thread: make the mean of what is accumulated, then `weighed`. Nothing is added until
    it is stepped or discarded."""

    fence: Fence


class SetPace(msgspec.Struct, frozen=True):
    """Training thread: a round begins, whose steps go by this."""

    pace: Pace


class Step(msgspec.Struct, frozen=True):
    """Training thread: an inner step of some stages, with what is accumulated in each of them.

    Attributes:
        stages: stages that step.
        tokens: tokens that the last of them holds.
        micro_batches: micro-batches that this one holds.
        whole_norm: norm of all stages' gradient, after `Weigh`; else each stage has its own norm.
        whole: micro-batches of a whole step, where it may be a round's last one with fewer, which
            then counts as if it held so many; 0 where steps are flushed.
    """

    stages: Span
    tokens: int
    micro_batches: int
    whole_norm: float | None = None
    whole: int = 0


class Discard(msgspec.Struct, frozen=True):
    """Training thread: forget what is accumulated."""


class Settle(msgspec.Struct, frozen=True):
    """Training thread: all steps of the round are made; keep the weights of now for its exchange,
    then `settled`."""

    round: int


class Free(msgspec.Struct, frozen=True):
    """The job's payloads are needed no more."""

    job: Job


class Ended(msgspec.Struct, frozen=True):
    """Source: a micro-batch came back, or is lost for a reason."""

    micro_batch: MicroBatch
    reason: Reason | None


class Evaluated(msgspec.Struct, frozen=True):
    """Evaluator: the mean loss of a token after this op of the first stage; None if the evaluation
    was given up."""

    op: int
    loss: float | None


class SendReport(msgspec.Struct, frozen=True):
    """Tell the coordinator."""

    report: Report


class Expelled(msgspec.Struct, frozen=True):
    """This process was given up: forget what it has counted, and begin anew under another boot."""


Request = (
    Send | Keep | RunForward | RunBackward | Count | Weigh | SetPace | Step | Discard | Settle
    | Free | Ended | SendReport | Expelled | RunJudged | Evaluated
)  # fmt: skip
