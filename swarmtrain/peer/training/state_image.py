"""A strategy's shared state as bytes that others can load, and such bytes as arrays again.

The state is the strategy's arrays without padding, one after the other, float32; its root is what
the ledger attests.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from swarmtrain_optimizers.strategies.base import StepsInPlace, Strategy
from swarmtrain_transport import limits
from swarmtrain_transport.actions import LoadState
from swarmtrain_transport.blocks.manifest import (
    ArraySpec,
    StateManifest,
    describe_state,
    manifest_of,
)
from swarmtrain_transport.blocks.retention import Piece, bytes_of
from swarmtrain_transport.errors import RemoteFault

Put = Callable[[Iterable[memoryview], int], tuple[Piece, ...] | None]
"""Puts bytes somewhere else than into memory and returns them in pieces of so many; None if there
is no room for them."""


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
    chunks: tuple[Piece, ...] | None


def image_of(
    strategy: Strategy, layout: bytes, num_values: int, op: int, *, copy: bool,
    put: Put | None = None, before: StateManifest | None = None,
) -> StateImage:  # fmt: skip
    """Return the strategy's state after an op, as a manifest with its bytes.

    Args:
        strategy: strategy whose state it is.
        layout: digest of the model's parameter names and shapes, 32 bytes.
        num_values: values of the model without padding.
        op: op after which the state is taken.
        copy: True if the bytes are kept, and not only their hashes.
        put: takes the bytes; None to keep them in memory.
        before: manifest of the state before a strategy's step with this op, which has changed
            values of its exchange alone; None to hash all. Bytes that others get are hashed anyway.
    """
    arrays = strategy.state_arrays()
    specs = tuple(ArraySpec(name, num_values) for name, _ in arrays)
    parts = [_bytes_of(array, num_values) for _, array in arrays] if num_values else []
    if not copy:
        changed = strategy.exchange(op).ranges
        return StateImage(op, manifest_of(layout, specs, parts, before, changed), None)
    pieces = None if put is None else put(parts, limits.STATE_CHUNK_BYTES)
    if pieces is not None:
        return StateImage(op, manifest_of(layout, specs, parts), pieces)
    manifest, chunks = describe_state(layout, specs, b"".join(parts))
    return StateImage(op, manifest, tuple(memoryview(chunk) for chunk in chunks))


def anchor_of(strategy: Strategy) -> Tensor:
    """(padded,) the anchor, a live buffer."""
    return dict(strategy.state_arrays())["anchor"]


def forget_own(strategy: Strategy) -> None:
    """Drop all that is this peer's own, as if its state had just been loaded."""
    arrays = dict(strategy.state_arrays())
    if not isinstance(strategy, StepsInPlace):  # such a one may well write before it reads
        arrays = {name: array.clone() for name, array in arrays.items()}
    strategy.load_state(arrays)


def _bytes_of(array: Tensor, num_values: int) -> memoryview:
    """The first values of an array; at least one, as a view of nothing cannot be cast."""
    return array[:num_values].numpy().astype("<f4", copy=False).data.cast("B")


def arrays_of(
    strategy: Strategy, action: LoadState, num_values: int, *, in_place: bool = False
) -> dict[str, Tensor]:
    """The arrays of a downloaded or restored state, (padded,) float32 by name.

    Args:
        strategy: strategy whose state it is.
        action: the state.
        num_values: values of the model without padding.
        in_place: True to write them where the strategy's own lie.

    Raises:
        RemoteFault: reason ``manifest``: they are not this strategy's.
    """
    own = dict(strategy.state_arrays())
    names = list(own)
    specs = action.manifest.arrays
    if [spec.name for spec in specs] != names or any(
        spec.num_values != num_values for spec in specs
    ):
        raise RemoteFault("manifest", f"the state holds {specs}, this strategy {names}")
    if in_place:
        arrays = own
    else:
        arrays = {name: torch.zeros(strategy.num_values, dtype=torch.float32) for name in names}
    position = 0
    for chunk in action.chunks:  # one after the other: a copy of the whole would be as large
        values = np.frombuffer(bytes_of(chunk), dtype="<f4").astype(np.float32, copy=False)
        while len(values):
            index, start = divmod(position, num_values)
            here = values[: num_values - start]
            arrays[names[index]].numpy()[start : start + len(here)] = here
            position, values = position + len(here), values[len(here) :]
    return arrays
