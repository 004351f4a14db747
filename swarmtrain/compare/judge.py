"""Held-out loss of weights that nobody trains: the anchor, or a replica.

The same windows of the corpus's validation files for every strategy, in large batches. The batch
size is fixed because sums over another one may round otherwise.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from swarmtrain.data.batches import validation_batches
from swarmtrain.data.corpus import Corpus
from swarmtrain.models.tensors import Layout

BATCH = 32


class Judge:
    """Gives the loss of flat weights.

    Args:
        corpus: source of the validation pieces.
        model: structure of the model; its own weights do not matter.
        layout: layout of the model.
        context: bytes of a window.
        windows: number of windows.
    """

    def __init__(
        self, corpus: Corpus, model: nn.Module, layout: Layout, *, context: int, windows: int
    ) -> None:
        pieces = [corpus.piece(name) for name in corpus.validation]
        self._batches = validation_batches(pieces, windows=windows, batch=BATCH, context=context)
        self._model = model
        self._layout = layout

    def loss(self, vector: Tensor) -> float:
        """Nats per byte of these weights, (padded,) float32; not finite where they are not."""
        return self.loss_of(self._model, self._layout.named_views(vector))

    def loss_of(self, model: nn.Module, views: Mapping[str, Tensor]) -> float:
        """Nats per byte of a model with these weights, by name."""
        total, count = 0.0, 0
        with torch.no_grad():
            for batch in self._batches:
                logits_BTV = functional_call(model, dict(views), (batch.x_BT,))
                flat = logits_BTV.reshape(-1, logits_BTV.shape[-1])
                total += F.cross_entropy(flat, batch.y_BT.reshape(-1), reduction="sum").item()
                count += batch.y_BT.numel()
        return total / count
