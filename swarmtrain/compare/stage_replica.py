"""One peer of a pipeline's stage in a comparison: the production trainer, strategy and driver."""

import random
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from swarmtrain.compare.plan import SIZES, Plan
from swarmtrain.compare.replica import NEVER, peer_id, rounding_of, seed_of, settings_of
from swarmtrain.config.settings import InnerSection
from swarmtrain.data.batches import ByteStream
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.training.driver import Driver
from swarmtrain.pipeline.places import Parcel, Read
from swarmtrain.pipeline.span import Span
from swarmtrain.pipeline.stage_trainer import Forms, ReadText, StageTrainer
from swarmtrain.strategies import make_strategy
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_transport.pipeline.peer.requests import Count, RunBackward, RunForward
from swarmtrain_transport.pipeline.wire.route import MicroBatch
from swarmtrain_transport.result import OpResult


class StageWeights:
    """The weights of one stage as a vector.

    Args:
        module: module that holds them.
        block: values that share a scale.

    Attributes:
        layout: places of the parameters in the vector.
    """

    def __init__(self, module: nn.Module, block: int) -> None:
        self.layout = Layout.of(module, block)
        self._module = module

    def read_weights(self, out: Tensor | None = None) -> Tensor:
        """(padded,) float32; written into `out` if given."""
        return self.layout.read(self._module, out)

    def write_weights(self, vector: Tensor) -> None:
        """Go on from these weights, (padded,) float32."""
        self.layout.write(self._module, vector)


class TimedTrainer(StageTrainer):
    """Counts its work: a forward pass is one part of it, a backward pass with what is computed
    again three.

    Attributes:
        work: parts made so far.
        num_counted: micro-batches in its gradients so far.
    """

    work = 0
    num_counted = 0

    def forward(self, request: RunForward, given: Parcel | Read) -> Parcel:
        """See StageTrainer."""
        self.work += 1
        return super().forward(request, given)

    def begin_backward(
        self, request: RunBackward, given: Parcel | Read, answer: Parcel
    ) -> Parcel | None:
        """See StageTrainer."""
        self.work += 2
        return super().begin_backward(request, given, answer)

    def end_backward(self) -> None:
        """See StageTrainer."""
        self.work += 1
        super().end_backward()

    def count(self, count: Count) -> None:
        """See StageTrainer."""
        self.num_counted += 1
        super().count(count)


class StageReplica:
    """A peer of a stage.

    Args:
        plan: plan of the run.
        stage: number of the stage.
        index: place among the stage's peers.
        span: the stage with its values.
        forms: forms of all that travels.
        norm_share: share of the stage in the whole gradient's norm, until another is told.
        read: text of own micro-batches.
        decode: results as values, shared by the stage's peers.

    Attributes:
        peer: id of the peer.
        stage, index: see the arguments.
        weights: weights of the stage.
        driver: strategy and weights.
        stage_trainer: passes and inner steps.
        speed: inner steps in the time of one of the fastest peer's.
    """

    def __init__(
        self,
        plan: Plan,
        stage: int,
        index: int,
        span: Span,
        forms: Forms,
        norm_share: float,
        read: ReadText,
        decode: Callable[[OpResult], Tensor],
    ) -> None:
        self.peer = peer_id(stage * plan.peers + index)
        self.stage, self.index = stage, index
        self.speed = plan.relative_speeds()[index]
        self.weights = StageWeights(span.modules[stage], plan.block)
        self.stage_trainer = TimedTrainer(
            span, forms, plan.run_config().inner, read,
            norm_shares={stage: norm_share}, modules=frozenset({plan.inner}),
        )  # fmt: skip
        layout = self.weights.layout
        self.driver = Driver(
            self.peer,
            make_strategy(settings_of(plan), layout),
            self.weights,
            layout=layout.digest,
            num_values=layout.num_values,
            snapshot_rounds=1 if plan.returns else NEVER,
            decode=decode,
            seed_of=rounding_of(plan, self.peer),
            confine=span.subspace.confining(layout) if span.subspace else None,
        )

    @property
    def layout(self) -> Layout:
        """Length of the stage's vector."""
        return self.weights.layout

    @property
    def anchor(self) -> Tensor:
        """(padded,) float32, the strategy's anchor: a live buffer."""
        return dict(self.driver.strategy.state_arrays())["anchor"]


def reader(plan: Plan, index: int, life: int, pieces: Sequence[bytes], windows: int) -> ReadText:
    """The text of a source: in its first life that of the replica of the same place."""
    seed = seed_of(plan, index)
    stream = ByteStream(
        pieces,
        batch=windows,
        context=SIZES[plan.size].model.context,
        rng=random.Random(f"{seed} {life}" if life else seed),
    )

    def read(name: MicroBatch) -> tuple[Tensor, Tensor]:
        batch = stream.next_batch()
        return batch.x_BT, batch.y_BT

    return read


def rate_at(inner: InnerSection, step: int, total_steps: int) -> float:
    """Learning rate of an inner step of the run."""
    return warmup_cosine(
        step,
        peak=inner.lr,
        warmup_steps=inner.warmup_steps,
        total_steps=total_steps,
        end_fraction=inner.lr_end_fraction,
    )
