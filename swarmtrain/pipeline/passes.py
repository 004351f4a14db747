"""The tensors of one peer of a pipeline: what its stage machine asks the training thread for.

The machine knows micro-batches by name; here are their inputs, outputs and gradients, as the bytes
that have come or will go, so what is sent again is the same. Nothing that came is trusted. The
shell asks `is_sound` before it tells the machine; a pass checks again what it is made of and
raises, and the machine is told that it has failed. Nothing of such a micro-batch is added anywhere.

Not here: when which pass is made (`swarmtrain_transport.pipeline.stage`), and threads.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmtrain.pipeline.activations import Boundary, rounding_seed
from swarmtrain.pipeline.backward import Backward
from swarmtrain.pipeline.clipping import clip_factor
from swarmtrain.pipeline.span import Span, dropout_seed
from swarmtrain.pipeline.steps import StageSteps
from swarmtrain_optimizers.codecs.base import (
    IllegalPayload,
    check_length,
    to_bytes,
    view_payload,
)
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.pipeline.messages import (
    AnyHopMessage,
    Forward,
    Go,
    Gradient,
    Payload,
)
from swarmtrain_transport.pipeline.requests import Job, RunBackward, RunForward, Send, Step, Text
from swarmtrain_transport.pipeline.route import MicroBatch

Read = Callable[[MicroBatch], tuple[Tensor, Tensor]]
"""Input and labels of an own micro-batch; its name gives the same ones each time."""

_LABELS = "labels"
_LABEL_BYTES = 4


@dataclass(frozen=True, slots=True)
class Labels:
    """Form of a micro-batch's labels.

    Attributes:
        shape: of the tensor.
        values: labels are whole numbers from 0 to below this.
    """

    shape: tuple[int, ...]
    values: int

    def encode(self, labels: Tensor) -> bytes:
        """Four bytes for each."""
        return to_bytes(labels.to("cpu", torch.int32).contiguous(), "<i4")

    def decode(self, data: Buffer, form: Payload) -> Tensor:
        """Labels that came from somebody else, int64.

        Raises:
            IllegalPayload: reason ``form``, ``length`` or ``label``.
        """
        if form != self.form:
            raise IllegalPayload("form", f"{form} for labels of {self.shape}")
        check_length(data, form.num_bytes)
        count = torch.Size(self.shape).numel()
        found = view_payload(data, "<i4", count, 0).long().reshape(self.shape)
        if bool((found < 0).any()) or bool((found >= self.values).any()):
            raise IllegalPayload("label", f"a label is not in 0..{self.values - 1}")
        return found

    @property
    def form(self) -> Payload:
        """The form as it is told beside the bytes."""
        count = torch.Size(self.shape).numel()
        return Payload(_LABELS, self.shape, _LABEL_BYTES * count)


def _is_sane(square: float) -> bool:
    """Return True if a squared norm is that of a gradient to step with; NaN is not."""
    return 0 <= square <= limits.NORM_SQUARE_MAX


@dataclass(slots=True)
class _Kept:
    """Payloads of one job.

    Attributes:
        tokens: that count in its loss.
        given: its input, and in that place the gradient of it, as bytes.
        made: its output, and in that place the gradient of it, or its labels.
        own: its text, of a source.
    """

    tokens: int = 0
    given: tuple[Buffer, Payload] | None = None
    made: tuple[Buffer, Payload] | None = None
    own: tuple[Tensor, Tensor] | None = None


class Passes:
    """Payloads, passes and steps of a peer.

    Args:
        run: what names the run, the hash of its settings.
        span: its stages.
        steps: of each of these.
        boundaries: in front of each stage of the run but the first: the form of its input.
        labels: their form.
        read: text of own micro-batches.
    """

    def __init__(
        self,
        run: bytes,
        span: Span,
        steps: Mapping[int, StageSteps],
        boundaries: Mapping[int, Boundary],
        labels: Labels,
        read: Read,
    ) -> None:
        self._run = run
        self._span = span
        self._steps = steps
        self._boundaries = boundaries
        self._labels = labels
        self._read = read
        self._last = max(steps)
        self._kept: dict[Job, _Kept] = {}
        self._squares: dict[int, float] = {}  # of the gradient that is closed, by stage
        self._way: tuple[Backward, int, int] | None = None  # with the stage and the tokens

    # ---- payloads

    def is_sound(self, message: AnyHopMessage, data: Buffer) -> bool:
        """Return True if the payload beside a message is what a stage of this span takes."""
        try:
            if isinstance(message, Forward):
                if message.stage not in self._steps or message.stage not in self._boundaries:
                    return False
                self._boundaries[message.stage].decode(data, message.payload)
            elif isinstance(message, Gradient):
                self._gradient(data, message.payload)
            elif isinstance(message, Go):
                self._labels.decode(data, message.payload)
        except (IllegalPayload, KeyError):
            return False
        return True

    def keep(self, job: Job, message: AnyHopMessage, data: Buffer) -> None:
        """Keep what has come with FORWARD, GRADIENT or GO, for the job; checked when it is used."""
        kept = self._kept.setdefault(job, _Kept())
        assert isinstance(message, Forward | Gradient | Go)
        if isinstance(message, Forward):
            kept.tokens, kept.given = message.tokens, (data, message.payload)
        else:
            kept.made = data, message.payload

    def beside(self, send: Send) -> Buffer:
        """The payload that goes with a message."""
        if send.job is None:
            return b""
        if isinstance(send.message, Go):
            return self._labels.encode(self._own(send.job)[1])
        kept = self._kept[send.job]
        place = kept.made if isinstance(send.message, Forward) else kept.given
        assert place is not None
        return place[0]

    def free(self, job: Job) -> None:
        """Forget a job's payloads: nobody needs them any more."""
        self._kept.pop(job, None)

    # ---- passes

    def text(self, job: Job) -> Text | None:
        """Tell of an own micro-batch's text; None of what others have sent."""
        if job.slot is not None:
            return None
        return Text(self._own(job)[1].numel(), self._labels.form)

    def forward(self, request: RunForward) -> Payload:
        """Make a job's output.

        Returns:
            Its form.

        Raises:
            IllegalPayload: the input is not what a stage takes, or was dropped meanwhile.
            UnencodableValues: the output is not finite.
        """
        job = request.job
        given = self._given(job, request.stage)
        kept = self._kept[job]
        output = self._span.forward(
            given, entry=request.stage, seed=dropout_seed(self._run, job.micro_batch)
        )
        boundary = self._boundaries[self._last + 1]
        kept.made = boundary.encode(output), boundary.form
        return boundary.form

    def backward(self, request: RunBackward) -> tuple[Payload | None, float | None]:
        """Make the gradient of a job's input, or nothing yet at its source. Then `add`.

        Returns:
            Its form; and at the end of a route the sum of the losses.

        Raises:
            IllegalPayload: input, gradient or labels are not what their form says.
            UnencodableValues: the gradient is not finite.
        """
        job, stage = request.job, request.stage
        given, loss = self._given(job, stage), None
        seed = dropout_seed(self._run, job.micro_batch)
        kept = self._kept[job]
        if request.is_end:
            labels = self._own(job)[1]
            if job.slot is not None:
                labels = self._labels.decode(*self._came(job)).to(self._span.device)
            loss, way = self._span.backward_from_labels(given, labels, entry=stage, seed=seed)
            kept.tokens = labels.numel()
        else:
            gradient = self._gradient(*self._came(job)).to(self._span.device)
            way = self._span.backward(given, gradient, entry=stage, seed=seed)
        form = None
        if job.slot is not None:
            assert way.input_gradient is not None
            boundary = self._boundaries[stage]
            rounding = rounding_seed(self._run, job.micro_batch, stage)
            kept.given = boundary.encode(way.input_gradient, seed=rounding), boundary.form
            form = boundary.form
        kept.made = None
        self._way = way, stage, kept.tokens
        return form, loss

    def add(self) -> None:
        """Add the gradients of the weights of the last backward pass to what is accumulated."""
        assert self._way is not None
        way, entry, tokens = self._way
        self._way = None
        way.add_weights()
        for stage, steps in self._steps.items():
            if stage >= entry:
                steps.count(tokens)

    # ---- steps

    @property
    def num_tokens(self) -> int:
        """Tokens accumulated for the next step, of the last stage: every route here reaches it."""
        return self._steps[self._last].num_tokens

    def weigh(self) -> tuple[float | None, ...]:
        """Make the mean of what is accumulated; nothing can be added until `step` or `discard`.

        Returns:
            Its squared norm of each stage in order; None where nothing was counted, or where it is
            too large to be stepped with.
        """
        self._squares = {stage: steps.close() for stage, steps in sorted(self._steps.items())}
        return tuple(
            square if self._steps[stage].num_tokens and _is_sane(square) else None
            for stage, square in self._squares.items()
        )

    def step(
        self,
        request: Step,
        *,
        rate: float,
        clips: Mapping[int, float],
        nominal_tokens: int = 0,
    ) -> bool:
        """One inner step of each stage; of none if the gradient is too large for any.

        Args:
            request: with the norm of all stages' gradient, after `weigh`; else each stage is
                clipped by its own norm. Our own part counts as it is here: others have said what
                the whole is, and the gradient may not be like theirs.
            rate: learning rate.
            clips: limits of that norm by stage; 0 clips nothing.
            nominal_tokens: tokens of a whole step, for a short one that was not weighed.

        Returns:
            True if it was made.
        """
        if request.whole_norm is None:
            self._squares = {
                stage: steps.close(nominal_tokens=nominal_tokens)
                for stage, steps in self._steps.items()
            }
        whole = request.whole_norm or 0.0
        if not (math.isfinite(whole) and all(map(_is_sane, self._squares.values()))):
            # Gradients of a usual size from others can still be such that those made of them have
            # none.
            self.discard()
            return False
        for stage, steps in self._steps.items():
            norm = max(whole, math.sqrt(self._squares[stage]))
            steps.step(rate=rate, factor=clip_factor(norm, clips[stage]))
        return True

    def discard(self) -> None:
        """Forget what is accumulated."""
        for steps in self._steps.values():
            steps.void()

    # ---- what a pass is made of

    def _own(self, job: Job) -> tuple[Tensor, Tensor]:
        """Text of an own micro-batch; read again if it was not kept."""
        kept = self._kept.setdefault(job, _Kept())
        if kept.own is None:
            given, labels = self._read(job.micro_batch)
            kept.own = given.to(self._span.device), labels.to(self._span.device)
            kept.tokens = kept.own[1].numel()
        return kept.own

    def _given(self, job: Job, stage: int) -> Tensor:
        if job.slot is None:
            return self._own(job)[0]
        kept = self._kept.get(job)
        if kept is None or kept.given is None:
            raise IllegalPayload("dropped", "its sender has taken it back meanwhile")
        return self._boundaries[stage].decode(*kept.given).to(self._span.device)

    def _came(self, job: Job) -> tuple[Buffer, Payload]:
        """The gradient of the job's output, or its labels: they have come in its place."""
        place = self._kept[job].made
        assert place is not None
        return place

    def _gradient(self, data: Buffer, form: Payload) -> Tensor:
        """The gradient of an output, of a size that a gradient has.

        Raises:
            IllegalPayload: as of `Boundary.decode`, or reason ``norm``.
        """
        gradient = self._boundaries[self._last + 1].decode(data, form)
        norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
        if not _is_sane(norm * norm):
            raise IllegalPayload("norm", f"a gradient with a norm of {norm:.3g}")
        return gradient
