"""The validation text of a run in stages, and its loss by somebody who serves them all.

Micro-batch by micro-batch, in one order: so whoever has all stages gets, on the same values, the
bits of an evaluation over routes whose activations are not compressed.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from swarmtrain.config.built_in import width_of
from swarmtrain.config.settings import RunConfig
from swarmtrain.data.batches import VALIDATION_WINDOWS, Batch, validation_batches
from swarmtrain.models.tensors import Layout
from swarmtrain.pipeline.span import Span

Anchors = Mapping[int, tuple[Layout, Tensor]]
"""Values of stages, (padded,) float32 in their layouts: live buffers."""


_TRAINING = 10
"""Windows that a source trains on in a round for each one of validation text. This one takes a
forward pass alone, a third of the other's time: about a thirtieth of the stages' time at most,
however short a round is."""

_LEAST_WINDOWS = 8


def num_judged(config: RunConfig) -> int:
    """Micro-batches of the validation text: whole ones, as no others fit the forms on the way. None
    where peers bring their own text."""
    if config.model.kind == "custom":
        return 0
    affordable = config.outer.inner_steps * config.inner.batch // _TRAINING
    windows = min(max(affordable, _LEAST_WINDOWS), VALIDATION_WINDOWS)
    return -(-windows // config.pipeline.micro_batch)


def validation_text(config: RunConfig, pieces: Sequence[bytes]) -> tuple[Batch, ...]:
    """Return the same micro-batches every time."""
    examples = config.pipeline.micro_batch
    return validation_batches(
        pieces, windows=num_judged(config) * examples, batch=examples,
        context=config.model.context, width=width_of(config),
    )  # fmt: skip


def validation_loss(span: Span, anchors: Anchors, batches: Sequence[Batch]) -> float:
    """The mean loss of all tokens, in nats per token.

    Args:
        span: span of all stages.
        anchors: anchors to judge, by stage.
        batches: batches of validation text, at least one.
    """
    with span.judged(anchors):
        total = sum(span.loss(batch.x_BT, batch.y_BT) for batch in batches)
    return total / sum(batch.y_BT.numel() for batch in batches)
