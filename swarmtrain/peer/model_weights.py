"""The live weights of somebody else's model, as the driver reads and replaces them.

A parameter of bfloat16 or float16 cannot hold what the exchange computes in float32. What rounding
cut off is remembered and given back at the next reading, so that the difference that a peer sends
is what its own steps changed, and not the rounding of the last result.

Not here: buffers, frozen parameters and optimizer state, which stay with the peer, but for what an
optimizer remembers of weights that had become NaN.
"""

import torch
from torch import Tensor, nn

from swarmtrain.peer.moments import forget_broken
from swarmtrain.tensors import Layout


class ModelWeights:
    """Reads and writes the trainable parameters of a model in place.

    Args:
        model: anybody's; its parameters are copied into, never exchanged for others, so that
            optimizers, tied layers and captured references go on working.
        layout: of that model.
        optimizer: whose memory of weights that are no numbers any more goes with them.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        self._model = model
        self._layout = layout
        self._optimizer = optimizer
        self._is_rounded = any(spec.dtype in _SHORT_DTYPES for spec in layout.parameters)
        self._cut_off: Tensor | None = None

    def read_weights(self, out: Tensor | None = None) -> Tensor:
        """(padded,) float32 on the CPU; with what rounding cut off where nothing has changed it.

        Raises:
            LayoutMismatch: parameters were frozen, added or converted meanwhile.
        """
        vector = self._layout.read(self._model, out)
        if self._cut_off is not None:
            vector.add_(self._cut_off)
        return vector

    def write_weights(self, vector: Tensor) -> None:
        """Go on from `vector`, (padded,) float32.

        Raises:
            LayoutMismatch: as `read_weights`; no weight changed.
        """
        if self._optimizer is not None:
            forget_broken(self._optimizer)
        self._layout.write(self._model, vector)
        if self._is_rounded:
            self._cut_off = torch.sub(vector, self._layout.read(self._model))


_SHORT_DTYPES = frozenset({"bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"})
"""Types that hold less than float32 does."""
