"""The work of one peer of a pipeline: passes from bytes to bytes, and inner steps.

Made on one thread, in the order in which the stage machine asks for it. The input's gradient is
there before the weights' are made. Values from others are checked here, where they are needed; a
pass that cannot be made of them adds nothing. Not here: which pass is next, where payloads are
kept, and the clock of the learning rate.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

import torch
from torch import Tensor

from swarmtrain.config.settings import InnerSection
from swarmtrain.models.device import onto
from swarmtrain.pipeline.activations import ActivationCodec, Boundary, rounding_seed
from swarmtrain.pipeline.backward import Backward
from swarmtrain.pipeline.blocks import BlockModel, cannot
from swarmtrain.pipeline.clipping import clip_factor, norm_share
from swarmtrain.pipeline.cut import outputs
from swarmtrain.pipeline.evaluation import Anchors
from swarmtrain.pipeline.labels import Labels
from swarmtrain.pipeline.places import Parcel, Read
from swarmtrain.pipeline.span import Span, dropout_seed
from swarmtrain.pipeline.steps import StageSteps
from swarmtrain.pipeline.subspace import Slope, Subspace
from swarmtrain_optimizers.codecs.base import IllegalPayload, UnencodableValues
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.pipeline.peer.requests import (
    Count,
    RunBackward,
    RunForward,
    RunJudged,
    Step,
)
from swarmtrain_transport.pipeline.wire import route
from swarmtrain_transport.pipeline.wire.messages import (
    AnyHopMessage,
    Forward,
    Go,
    Gradient,
    Payload,
)
from swarmtrain_transport.pipeline.wire.orders import Pace
from swarmtrain_transport.wire.records import Plane, Turn

ReadText = Callable[[route.MicroBatch], tuple[Tensor, Tensor]]
"""The input of the first stage and the labels of a micro-batch that this peer makes; asked for
once."""

BAD = (IllegalPayload, UnencodableValues)
"""Errors of a pass that cannot be made of what came, or whose values cannot be told to others."""


@dataclass(frozen=True, slots=True)
class Forms:
    """Forms of all that travels in a run.

    Attributes:
        run: hash of the run's settings, which names it.
        boundaries: boundaries by the stage whose input passes them; the first stage has none.
        labels: labels of a micro-batch.
    """

    run: bytes
    boundaries: Mapping[int, Boundary]
    labels: Labels

    def is_sound(self, message: AnyHopMessage, data: Buffer, served: route.Span) -> bool:
        """Return True if the payload beside a message is what the stages that are served take, and
        the tokens are as many as there are labels."""
        try:
            match message:
                case Forward():
                    if message.stage not in served or message.tokens != self.labels.count:
                        return False
                    self.boundaries[message.stage].decode_input(data, message.payload)
                case Gradient():
                    self.gradient(served.last, data, message.payload)
                case Go():
                    self.labels.decode(data, message.payload)
        except (IllegalPayload, KeyError):
            return False
        return True

    def turned(self, turns: tuple[Turn, ...]) -> "Forms":
        """Return the forms after these turns of the subspace, if there is one."""
        boundaries = {
            stage: replace(one, subspace=one.subspace and one.subspace.turned(turns))
            for stage, one in self.boundaries.items()
        }
        return replace(self, boundaries=boundaries)

    def gradient(self, last: int, data: Buffer, form: Payload) -> Tensor:
        """The gradient of the output of stage `last`, of a size that a gradient has.

        Raises:
            IllegalPayload: as of `Boundary.decode`, or reason ``norm``.
        """
        gradient = self.boundaries[last + 1].decode(data, form)
        norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
        if not _is_sane(norm * norm):
            raise IllegalPayload("norm", f"a gradient with a norm of {norm:.3g}")
        return gradient


def boundaries_of(
    model: BlockModel,
    cut: Sequence[range],
    example: Tensor,
    codec: ActivationCodec,
    visit: int = 0,
    subspace: Subspace | None = None,
) -> dict[int, Boundary]:
    """The boundaries of a model that is cut, by the stage after each.

    Args:
        model: all blocks.
        cut: the blocks of each stage.
        example: tensor of a micro-batch's input shape and dtype.
        codec: form of the values.
        visit: stages that a micro-batch visits; 0 for all.
        subspace: subspace that the values lie in; None for none.

    Raises:
        UserError: SWT-E613, as for `cut.outputs`; or stages that may be left out have other shapes
            before them than after.
    """
    shapes = [tuple(output.shape) for output in outputs(model, example)]
    if visit and len({shapes[before[-1]] for before in cut[:-1]}) > 1:
        raise cannot(
            "what goes from stage to stage has several shapes, and routes leave stages out",
            "Cut it where all have one shape, or leave pipeline.visit out of the run file.",
        )
    return {
        stage: Boundary(codec, shapes[before[-1]], subspace)
        for stage, before in enumerate(cut[:-1], start=1)
    }


class StageTrainer:
    """Weights of a span, their gradients and their optimizers.

    Args:
        span: stages with their values.
        forms: forms of all that travels.
        inner: [inner] of the run file.
        read: text of own micro-batches.
        norm_shares: share of each stage in the norm of the whole gradient, until others are told.
        modules: code of installed packages that may be used.
        turns: gives all turns of the subspace that the ledger has.

    Attributes:
        span: the stages.
        forms: forms of all that travels.
        steps: the optimizer of each stage.
        rate: learning rate of the next step, by the run's clock.
        loss: sum and tokens of all losses whose gradient was added here.
        tokens: tokens of steps that were made, by stage; whoever gives them to others begins anew.
        num_steps: inner steps that were made, by stage.
        num_broken: steps that were not made, for their gradient was too large.
    """

    def __init__(
        self,
        span: Span,
        forms: Forms,
        inner: InnerSection,
        read: ReadText,
        *,
        norm_shares: Mapping[int, float],
        modules: frozenset[str] = frozenset(),
        turns: Callable[[], tuple[Turn, ...]] = tuple,
    ) -> None:
        self.span, self._turns = span, turns
        self._slope = Slope(span.subspace) if span.subspace and span.subspace.most else None
        self.steps = {
            stage: StageSteps(module, inner, modules, span.subspace)
            for stage, module in span.modules.items()
        }
        self.rate = inner.lr
        self.loss = (0.0, 0)
        self.tokens: Counter[int] = Counter()
        self.num_steps: Counter[int] = Counter()
        self.num_broken = 0
        self.forms, self._read, self._clip = forms, read, inner.grad_clip
        self._first_shares = self._shares = norm_shares
        self._norms: dict[int, list[float]] = {}  # of whole free steps, by stage
        self._squares: dict[int, float] = {}  # of the gradient that is closed, by stage
        self._begun: Backward | None = None
        self._new_loss = (0.0, 0)

    def read(self, micro_batch: route.MicroBatch) -> Read:
        """The text of one's own micro-batch."""
        given, labels = self._read(micro_batch)
        return Read(given, Parcel(self.forms.labels.form, self.forms.labels.encode(labels)))

    def forward(self, request: RunForward, given: Parcel | Read) -> Parcel:
        """The output of the span.

        Raises:
            IllegalPayload: the input is not what a stage takes.
            UnencodableValues: the output cannot be sent.
        """
        seed = dropout_seed(self.forms.run, request.job.micro_batch)
        given_values, tokens = self._input(request.stages[0], given)
        return self._sent(self.span.forward(given_values, stages=request.stages, seed=seed), tokens)

    def judge(
        self, request: RunJudged, given: Parcel | Read, labels: Parcel | None, anchors: Anchors
    ) -> Parcel | float:
        """The output of the span as these values of its stages make it; at the end of a route the
        sum of the losses. Nothing is left of it.

        Raises:
            IllegalPayload: the input is not what a stage takes, or the labels are not.
            UnencodableValues: the output or the loss cannot be told.
        """
        forms = self.forms.turned(self._known(request.turns))
        values, tokens = self._input(request.stage, given, forms)
        stages = tuple(stage for stage in sorted(self.steps) if stage >= request.stage)
        with self.span.judged(anchors):
            if not request.is_end:
                made = self.span.forward(values, stages=stages, seed=0)
                return self._sent(made, tokens, forms)
            assert labels is not None
            answer = self.forms.labels.decode(labels.data, labels.form)
            loss = self.span.loss(values, answer, stages=stages)
        if not abs(loss) <= limits.LOSS_MAX:
            raise UnencodableValues("nonfinite", f"a loss of {loss}")
        return loss

    def begin_backward(
        self, request: RunBackward, given: Parcel | Read, answer: Parcel
    ) -> Parcel | None:
        """Compute again, and the gradient of the input; then `end_backward`.

        Args:
            request: request for the pass.
            given: the input that the forward pass had.
            answer: the labels at the end of a route, the gradient of the output else.

        Returns:
            The input's gradient, for the peer before; None at the source.

        Raises:
            IllegalPayload: the input or the answer is not what it has to be.
            UnencodableValues: the loss or the input's gradient is not finite.
        """
        name, stages = request.job.micro_batch, request.stages
        seed = dropout_seed(self.forms.run, name)
        given_values, _ = self._input(stages[0], given)
        self._new_loss = (0.0, 0)
        if request.is_end:
            labels = onto(self.forms.labels.decode(answer.data, answer.form), self.span.device)
            loss, begun = self.span.backward_from_labels(
                given_values, labels, stages=stages, seed=seed
            )
            if not math.isfinite(loss):
                raise UnencodableValues("nonfinite", f"a loss of {loss}")
            self._new_loss = (loss, labels.numel())
        else:
            gradient = onto(self.answered(answer), self.span.device)
            begun = self.span.backward(given_values, gradient, stages=stages, seed=seed)
        parcel = None
        if request.job.slot is not None:
            boundary = self.forms.boundaries[stages[0]]
            if begun.input_gradient is None:
                raise LocalFault(f"stage {stages[0]} gives its input no gradient")
            rounding = rounding_seed(self.forms.run, name, stages[0])
            parcel = Parcel(boundary.form, boundary.encode(begun.input_gradient, seed=rounding))
            if request.is_end and self._slope is not None:
                self._slope.add(begun.input_gradient)
        self._begun = begun
        return parcel

    def answered(self, answer: Parcel) -> Tensor:
        """The gradient of the output that came for a pass.

        Raises:
            IllegalPayload: as of `Forms.gradient`.
        """
        return self.forms.gradient(max(self.steps), answer.data, answer.form)

    def end_backward(self) -> None:
        """Add the weights' gradients of the pass that was begun."""
        if self._begun is None:
            raise LocalFault("no backward pass was begun")
        begun, self._begun = self._begun, None
        begun.add_weights()
        self.loss = (self.loss[0] + self._new_loss[0], self.loss[1] + self._new_loss[1])

    def count(self, count: Count) -> None:
        """A gradient that was added counts in the next step of its stages."""
        for stage in count.stages:
            self.steps[stage].count(count.tokens)

    def weigh(self) -> tuple[float | None, ...]:
        """Make the mean of what is counted; nothing can be added until `step` or `discard`.

        Returns:
            Squared norm of each stage in order; None where nothing was counted, or where it is
            too large to be stepped with.
        """
        self._squares = {stage: steps.close() for stage, steps in sorted(self.steps.items())}
        return tuple(
            square if self.steps[stage].num_tokens and _is_sane(square) else None
            for stage, square in self._squares.items()
        )

    def begin(self, pace: Pace) -> None:
        """A round begins: clip by its shares of the norm, of each stage of the run; () is as in the
        beginning."""
        self._turn(self._turns()[: pace.turns])
        told = pace.norm_shares
        if pace.begins:
            for steps in self.steps.values():
                steps.come_late()
        self._shares = {
            stage: norm_share(first, told[stage] if stage < len(told) else None)
            for stage, first in self._first_shares.items()
        }

    def _known(self, count: int) -> tuple[Turn, ...]:
        """The first turns of the subspace.

        Raises:
            IllegalPayload: the ledger here has not so many yet.
        """
        turns = self._turns()[:count]
        if len(turns) < count:
            raise IllegalPayload("turns", f"{count} turns, {len(turns)} are known")
        return turns

    def _turn(self, turns: tuple[Turn, ...]) -> None:
        """Go on in the subspace after these turns."""
        if self.span.subspace is None or turns == self.span.subspace.turns:
            return
        self.span.subspace = subspace = self.span.subspace.turned(turns)
        self.forms = self.forms.turned(turns)
        for steps in self.steps.values():
            steps.subspace = subspace
            steps.hold()
        if self._slope is not None:
            self._slope = Slope(subspace)

    @property
    def steepest(self) -> tuple[Plane, ...]:
        """Planes in which the subspace lacks most, by the last stage's gradients since it has
        turned; () where they are not seen, or it stays."""
        return () if self._slope is None else self._slope.planes

    def take_norms(self) -> tuple[float | None, ...]:
        """The median norm of each stage's gradients since this was asked last, before they were
        clipped; None where no whole step was made."""
        norms, self._norms = self._norms, {}
        return tuple(
            median_low(norms[stage]) if stage in norms else None for stage in sorted(self.steps)
        )

    def step(self, request: Step) -> None:
        """One inner step of the stages that are asked for; of none of them if the gradient is too
        large for any.

        Args:
            request: stages, with the norm of the whole gradient, after `weigh`; else each stage is
                clipped by its own norm. Our own part counts as it is here: others have said what
                the whole is, and the gradient may not be like theirs.
        """
        stages = range(request.stages.first, request.stages.last + 1)
        is_short = request.micro_batches < request.whole
        nominal = request.whole * self.forms.labels.count if is_short else 0
        for stage in stages:
            # A peer that came after the others were weighed has counted nothing.
            if request.whole_norm is None or stage not in self._squares:
                self._squares[stage] = self.steps[stage].close(nominal_tokens=nominal)
        whole = request.whole_norm or 0.0
        if not (math.isfinite(whole) and all(_is_sane(self._squares[stage]) for stage in stages)):
            # Gradients of a usual size from others can still be such that those made of them have
            # none.
            self.num_broken += 1
            for stage in stages:
                self.steps[stage].void()
            return
        for stage in stages:
            steps, own = self.steps[stage], math.sqrt(self._squares[stage])
            self.tokens[stage] += steps.num_tokens
            share = 1.0
            if request.whole_norm is None:
                share = self._shares[stage]
                if not is_short:
                    self._norms.setdefault(stage, []).append(own)
            steps.step(rate=self.rate, factor=clip_factor(max(whole, own), self._clip * share))
            self.num_steps[stage] += 1

    def discard(self) -> None:
        """Forget the gradients that were added since the last step."""
        for steps in self.steps.values():
            steps.void()

    @property
    def is_midway(self) -> bool:
        """True if a backward pass was begun: its weights must stay until it has ended."""
        return self._begun is not None

    def _sent(self, output: Tensor, tokens: Tensor | None, forms: Forms | None = None) -> Parcel:
        """The output of the span as it goes on."""
        after = (forms or self.forms).boundaries[max(self.steps) + 1]
        return Parcel(after.input_form, after.encode_input(output, tokens))

    def _input(
        self, stage: int, given: Parcel | Read, forms: Forms | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The input, on the span's device, and the token ids if they are known."""
        if isinstance(given, Read):
            return onto(given.given, self.span.device), given.given
        boundary = (forms or self.forms).boundaries[stage]
        values, tokens = boundary.decode_input(given.data, given.form)
        return onto(values, self.span.device), tokens


def _is_sane(square: float) -> bool:
    """Return True if a squared norm is that of a gradient to step with; NaN is not."""
    return 0 <= square <= limits.NORM_SQUARE_MAX
