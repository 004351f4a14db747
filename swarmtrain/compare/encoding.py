"""How parts become bytes in a comparison, and how an op ended.

Parts are encoded chunk by chunk under the window that the coordinator would plan and checked as a
receiver checks them. Shared by ops of every kind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from swarmtrain.compare.costs import Traffic
from swarmtrain.peer.arithmetic import CodecArithmetic
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_transport.arithmetic import ContributionRefused, Window
from swarmtrain_transport.ledger.plan_rules import window_floor
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult

E_MAX = 0
CHUNK_VALUES = 262_144

Chunks = tuple[bytes, ...]

Slices = Mapping[PeerId, Chunks]
"""Encoded chunks of a vector by the owner of their slice, in its order."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an op ended.

    Attributes:
        op: its number.
        results: what is committed, as each peer has it; of a mean or a gather the same for all.
            Nothing for a skip.
        traffic: what was sent for it.
        left_out: whose part is in no result: it did not arrive, or could not be encoded.
    """

    op: int
    results: Mapping[PeerId, OpResult]
    traffic: Traffic
    left_out: tuple[PeerId, ...]


def chunk_bounds(start: int, stop: int) -> list[tuple[int, int]]:
    """(start, stop) of each chunk of a slice."""
    return [(low, min(low + CHUNK_VALUES, stop)) for low in range(start, stop, CHUNK_VALUES)]


class Encoder:
    """Makes bytes in one codec.

    Args:
        codec: its name.
        block: values that share a scale.

    Attributes:
        arithmetic: of the exchange.
    """

    def __init__(self, codec: str, block: int) -> None:
        self.arithmetic = CodecArithmetic()
        self._codec = codec
        self._block = block

    @property
    def block(self) -> int:
        """Values that share a scale."""
        return self._block

    def window(self, total_weight: int, *, of_mean: bool = False) -> Window:
        """As the coordinator plans it for contributors of so much weight together.

        Args:
            total_weight: of all contributors.
            of_mean: owners sum the parts, and their result has a codec of its own.
        """
        result = facts_of(self._codec).result if of_mean else self._codec
        name = result if result != self._codec else ""
        return Window(self._codec, self._block, window_floor(E_MAX, total_weight), E_MAX, name)

    def encoded(
        self, part: OwnPart, places: Mapping[PeerId, tuple[int, int]], window: Window
    ) -> Slices | None:
        """A part by owner, or None: its values cannot be sent."""
        try:
            return {owner: self._chunks(part, *place, window) for owner, place in places.items()}
        except ContributionRefused:
            return None

    def _chunks(self, part: OwnPart, start: int, stop: int, window: Window) -> Chunks:
        bounds = chunk_bounds(start, stop)
        chunks = tuple(part.contribution.encode(low, high, window) for low, high in bounds)
        for (low, high), chunk in zip(bounds, chunks, strict=True):
            self.arithmetic.check(chunk, high - low, window)
        return chunks


def num_bytes(chunks: Iterable[bytes]) -> int:
    """Length of all chunks together."""
    return sum(map(len, chunks))
