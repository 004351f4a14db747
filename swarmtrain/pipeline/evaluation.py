"""Validation loss of a model in stages, by somebody who serves them all."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from swarmtrain.data.batches import Batch
from swarmtrain.models.tensors import Layout
from swarmtrain.pipeline.span import Span


def validation_loss(
    span: Span, anchors: Mapping[int, tuple[Layout, Tensor]], batches: Sequence[Batch]
) -> float:
    """The mean loss of all tokens, in nats per token. The weights are put back afterwards.

    Args:
        span: of all stages.
        anchors: what is judged, by stage: (padded,) float32 in that layout.
        batches: of validation text, at least one.
    """
    live = {stage: layout.read(span.modules[stage]) for stage, (layout, _) in anchors.items()}
    try:
        for stage, (layout, anchor) in anchors.items():
            layout.write(span.modules[stage], anchor)
        total = sum(span.loss(batch.x_BT, batch.y_BT) for batch in batches)
    finally:
        for stage, (layout, _) in anchors.items():
            layout.write(span.modules[stage], live[stage])
    return total / sum(batch.y_BT.numel() for batch in batches)
