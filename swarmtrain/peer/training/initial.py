"""The weights that a run begins with, fetched from the coordinator in pieces by their hashes.

The first peers make the run's first state of these weights alone: one that offers others is found
out by all (`StateFinder`). For a stage only its own values are fetched. Not here: later states,
which come from other peers.
"""

import logging
from collections.abc import Awaitable, Callable

import torch
from torch import Tensor

from swarmtrain.checkpoint import ANCHOR
from swarmtrain.foundation.control_lane import INITIAL_LIST_BYTES_MAX, INITIAL_PIECE_BYTES
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.tensors import Layout
from swarmtrain.models.weights_file import (
    LENGTH_BYTES,
    differences,
    head_bytes,
    moment_name,
    places_in,
)
from swarmtrain.peer.network.memory import give_back
from swarmtrain_optimizers.strategies.checks import is_finite
from swarmtrain_optimizers.strategies.facts import StrategyFacts
from swarmtrain_transport import limits

logger = logging.getLogger(__name__)

Fetch = Callable[[bytes, int], Awaitable[bytes]]
"""Gets the piece of a hash, of so many bytes at most."""

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
}  # fmt: skip


async def initial_weights(
    name: str,
    layout: Layout,
    fetch: Fetch,
    facts: StrategyFacts,
    out: Tensor | None = None,
) -> dict[str, Tensor]:
    """Fetch the weights of a layout, and the moments of the outer optimizer that the file has of
    it; those of a stage are a part of the file.

    Args:
        name: name in the run file.
        layout: layout of the model, or of a stage.
        fetch: downloads from the coordinator.
        facts: facts of the run's strategy.
        out: (padded,) float32 to write to and return, with zeros behind the model's values; new
            memory if None. After an error its values are nobody's.

    Returns:
        (padded,) float32 by the state's names of arrays: the anchor, and what else is there.

    Raises:
        UserError: SWT-E451, the file is of another model; or a piece is not to be had.
    """
    file = _File(await fetch(bytes.fromhex(name), INITIAL_LIST_BYTES_MAX), fetch)
    try:
        places = places_in(await file.head(), file.num_bytes_max)
    except ValueError as error:
        raise _unfit(f"they cannot be read: {error}") from error
    wanted = {spec.name: spec.shape for spec in layout.parameters}
    kept = {  # places in the vectors, by the file's names
        moment_name(facts.name, array, key): (array, key)
        for array in facts.moments
        for key in wanted
    }
    kept = {one: at for one, at in kept.items() if one in places}
    wanted |= {one: wanted[key] for one, (_, key) in kept.items()}
    here = {key: places[key].shape for key in wanted if key in places}
    wrong = [*differences(wanted, here)]
    types = {key: places[key].dtype for key in here}
    wrong += [f"{key} is of type {dtype}" for key, dtype in types.items() if dtype not in _DTYPES]
    if wrong:
        raise _unfit("; ".join(wrong[:3]))
    vectors = {ANCHOR: torch.zeros(layout.padded) if out is None else out}
    vectors |= {array: torch.zeros(layout.padded) for array, _ in kept.values()}
    views = {array: layout.named_views(vector) for array, vector in vectors.items()}
    for key in sorted(wanted, key=lambda key: places[key].start):
        place = places[key]
        data = await file.read(place.start, place.stop)
        if data:
            array, parameter = kept.get(key, (ANCHOR, key))
            values = torch.frombuffer(data, dtype=_DTYPES[place.dtype])
            views[array][parameter].copy_(values.view(place.shape))
    if not all(map(is_finite, vectors.values())):
        raise _unfit("not all of their values are numbers")
    return vectors


class _File:
    """A file that is in pieces elsewhere, read from its beginning to its end."""

    def __init__(self, hashes: bytes, fetch: Fetch) -> None:
        step = limits.HASH_BYTES
        self._hashes = [hashes[at : at + step] for at in range(0, len(hashes), step)]
        self._fetch = fetch
        self._at, self._piece = -1, b""

    @property
    def num_bytes_max(self) -> int:
        """Bytes that it has at most: the last piece may be shorter."""
        return len(self._hashes) * INITIAL_PIECE_BYTES

    async def head(self) -> bytes:
        length = head_bytes(bytes(await self.read(0, LENGTH_BYTES)))
        return bytes(await self.read(LENGTH_BYTES, LENGTH_BYTES + length))

    async def read(self, start: int, stop: int) -> bytearray:
        """Bytes [start, stop).

        Raises:
            ValueError: it has no such place.
        """
        found = bytearray()
        while start < stop:
            index, inside = divmod(start, INITIAL_PIECE_BYTES)
            if index >= len(self._hashes):
                raise ValueError("it is cut short")
            if index != self._at:
                self._piece = await self._fetch(self._hashes[index], INITIAL_PIECE_BYTES)
                self._at = index
                give_back()
            part = self._piece[inside : inside + stop - start]
            if not part:
                raise ValueError("it is cut short")
            found += part
            start += len(part)
        return found


def _unfit(why: str) -> UserError:
    return UserError(
        "SWT-E451",
        f"The weights that this run begins with do not fit its model: {why}.",
        "The run cannot begin: no peer has a first state.",
        "Tell the organiser: the run file has another model than the file of `up --from`.",
    )
