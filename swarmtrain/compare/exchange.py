"""One op without a network: the bytes that the exchange would move, summed as owners sum them.

Parts are encoded chunk by chunk under the window that the coordinator would plan, checked as an
owner checks them, summed exactly and encoded again; the committed result is the same value that a
peer's session hands to its driver. What a network adds, who is late and who dies, is drawn
here: a part may be lost whole, and a part that cannot be encoded is left out.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swarmtrain.compare.costs import Traffic
from swarmtrain.peer.arithmetic import CodecArithmetic
from swarmtrain.peer.driver import OwnPart
from swarmtrain_transport import slices
from swarmtrain_transport.arithmetic import ContributionRefused, Window
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.planning import weights_of, window_floor
from swarmtrain_transport.result import OpResult, SliceResult

E_MAX = 0
CHUNK_VALUES = 262_144


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an op ended.

    Attributes:
        op: its number.
        result: what is committed, None for a skip.
        traffic: what was sent for it.
        refused: whose part could not be encoded.
        lost: whose part did not arrive.
    """

    op: int
    result: OpResult | None
    traffic: Traffic
    refused: tuple[PeerId, ...]
    lost: tuple[PeerId, ...]


class Exchange:
    """Makes the committed results of a run.

    Args:
        codec: of parts and results.
        block: values that share a scale.
        drop: probability that a contribution is lost.
        rng: of these losses.
    """

    def __init__(self, codec: str, *, block: int, drop: float, rng: random.Random) -> None:
        self._codec = codec
        self._block = block
        self._drop = drop
        self._rng = rng
        self._arithmetic = CodecArithmetic()

    def mean(self, parts: Mapping[PeerId, OwnPart], num_values: int) -> Outcome:
        """The mean of those parts that arrive.

        Args:
            parts: of every peer, all for the same op.
            num_values: length of the op's vector, whole blocks.
        """
        op = next(iter(parts.values())).op
        weights = weights_of({peer: part.samples for peer, part in parts.items()})
        window = self._window(sum(weights.values()))
        bounds = slices.cut(num_values, self._block, slices.shares([0.0] * len(parts)))
        owned = dict(zip(sorted(parts), bounds, strict=True))
        lost = tuple(peer for peer in sorted(parts) if self._rng.random() < self._drop)
        refused = []
        encoded = {}
        for peer in sorted(set(parts) - set(lost)):
            try:
                encoded[peer] = {
                    owner: self._encoded(parts[peer], place, window)
                    for owner, place in owned.items()
                }
            except ContributionRefused:
                refused.append(peer)
        made = {
            owner: SliceResult(
                *place,
                tuple(sorted(encoded)),
                self._summed([(encoded[p][owner], weights[p]) for p in encoded], place, window),
            )
            for owner, place in owned.items()
            if encoded and place[1] > place[0]
        }
        traffic = _traffic(sorted(parts), encoded, made)
        result = None
        if encoded:
            result = OpResult(
                op, window, CHUNK_VALUES, num_values, tuple(made.values()), b"", b"", False
            )
        return Outcome(op, result, traffic, tuple(refused), lost)

    def _window(self, total_weight: int) -> Window:
        return Window(self._codec, self._block, window_floor(E_MAX, total_weight), E_MAX)

    def _encoded(self, part: OwnPart, place: tuple[int, int], window: Window) -> tuple[bytes, ...]:
        chunks = tuple(part.contribution.encode(low, high, window) for low, high in _chunks(*place))
        for (low, high), chunk in zip(_chunks(*place), chunks, strict=True):
            self._arithmetic.check(chunk, high - low, window)
        return chunks

    def _summed(
        self,
        parts: Sequence[tuple[tuple[bytes, ...], int]],
        place: tuple[int, int],
        window: Window,
    ) -> tuple[bytes, ...]:
        made = []
        for index, (low, high) in enumerate(_chunks(*place)):
            total = self._arithmetic.accumulator(high - low, window)
            for chunks, weight in parts:
                total.add(chunks[index], weight)
            made.append(total.finish(sum(weight for _, weight in parts)))
        return tuple(made)


def _chunks(start: int, stop: int) -> list[tuple[int, int]]:
    return [(low, min(low + CHUNK_VALUES, stop)) for low in range(start, stop, CHUNK_VALUES)]


def _traffic(
    peers: Sequence[PeerId],
    encoded: Mapping[PeerId, Mapping[PeerId, tuple[bytes, ...]]],
    made: Mapping[PeerId, SliceResult],
) -> Traffic:
    """Each part goes to its owners, each result to everybody else."""
    up, down = dict.fromkeys(peers, 0), dict.fromkeys(peers, 0)
    for peer, by_owner in encoded.items():
        for owner, chunks in by_owner.items():
            if owner != peer:
                size = sum(map(len, chunks))
                up[peer] += size
                down[owner] += size
    for owner, piece in made.items():
        size = sum(len(chunk) for chunk in piece.chunks)
        up[owner] += size * (len(peers) - 1)
        for peer in peers:
            if peer != owner:
                down[peer] += size
    return Traffic(up, down)
