"""A strategy's shared state as bytes that others can load, and such bytes as arrays again.

The state is the strategy's arrays without padding, one after the other, float32; its root is what
the ledger attests.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from swarmtrain_optimizers.strategies.base import Strategy
from swarmtrain_transport.actions import LoadState
from swarmtrain_transport.blocks.manifest import (
    ArraySpec,
    StateManifest,
    describe_state,
    manifest_of,
)
from swarmtrain_transport.errors import RemoteFault


@dataclass(frozen=True, slots=True)
class StateImage:
    """The shared state after an op.

    Attributes:
        op: the op.
        manifest: names, lengths and chunk hashes; its root is the state root.
        chunks: the state's bytes, copied so that they never change; None where nobody needs them.
    """

    op: int
    manifest: StateManifest
    chunks: tuple[memoryview, ...] | None


def image_of(
    strategy: Strategy, layout: bytes, num_values: int, op: int, *, copy: bool
) -> StateImage:
    """Return the strategy's state after an op, as a manifest with its bytes.

    Args:
        strategy: whose.
        layout: digest of the model's parameter names and shapes, 32 bytes.
        num_values: values of the model without padding.
        op: after which.
        copy: True if the bytes are kept, and not only their hashes.
    """
    arrays = strategy.state_arrays()
    specs = tuple(ArraySpec(name, num_values) for name, _ in arrays)
    parts = [
        array[:num_values].numpy().astype("<f4", copy=False).data.cast("B") for _, array in arrays
    ]
    if not copy:
        return StateImage(op, manifest_of(layout, specs, parts), None)
    manifest, chunks = describe_state(layout, specs, b"".join(parts))
    return StateImage(op, manifest, tuple(memoryview(chunk) for chunk in chunks))


def arrays_of(strategy: Strategy, action: LoadState, num_values: int) -> dict[str, Tensor]:
    """The arrays of a downloaded or restored state, (padded,) float32 by name.

    Raises:
        RemoteFault: reason ``manifest``: they are not this strategy's.
    """
    names = [name for name, _ in strategy.state_arrays()]
    specs = action.manifest.arrays
    if [spec.name for spec in specs] != names or any(
        spec.num_values != num_values for spec in specs
    ):
        raise RemoteFault("manifest", f"the state holds {specs}, this strategy {names}")
    flat = torch.from_numpy(np.frombuffer(b"".join(action.chunks), dtype="<f4").copy())
    arrays = {}
    for index, name in enumerate(names):
        padded = torch.zeros(strategy.num_values, dtype=torch.float32)
        start = index * num_values
        padded[:num_values] = flat[start : start + num_values]
        arrays[name] = padded
    return arrays
