"""Keys and values of the tokens that a model has read, so that each new one costs one position.

Legend of shapes: B windows, H heads, T positions, D width of one head.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Follow = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""One layer's `KeyValues.follow`."""


class KeyValues:
    """Keys and values of every layer so far. A model that takes one reads tokens that follow it.

    Several tokens at once only go into an empty one, where the causal mask is the usual one.
    """

    def __init__(self) -> None:
        self._layers: list[tuple[Tensor, Tensor]] = []

    @property
    def length(self) -> int:
        """Positions so far."""
        return self._layers[0][0].shape[2] if self._layers else 0

    def follow(self, layer: int, key_BHTD: Tensor, value_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values so far, the new ones last, which are kept.

        Raises:
            ValueError: several new positions follow older ones.
        """
        if layer == len(self._layers):
            self._layers.append((key_BHTD, value_BHTD))
            return key_BHTD, value_BHTD
        if key_BHTD.shape[2] != 1:
            raise ValueError("several tokens at once go into an empty cache only")
        keys, values = self._layers[layer]
        both = torch.cat((keys, key_BHTD), dim=2), torch.cat((values, value_BHTD), dim=2)
        self._layers[layer] = both
        return both
