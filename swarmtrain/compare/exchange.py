"""One op without a network: the bytes that the exchange would move, summed as owners sum them.

Parts are encoded chunk by chunk under the window that the coordinator would plan, checked as an
owner checks them, summed exactly and encoded again; the committed result is the same value that a
peer's session hands to its driver. What a network adds, who is late and who dies, is drawn
here: a part may be lost whole, and a part that cannot be encoded is left out.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmtrain.compare.costs import Traffic
from swarmtrain.peer.arithmetic import CodecArithmetic, codec_of
from swarmtrain.peer.driver import OwnPart
from swarmtrain_optimizers.robust.base import RobustRule
from swarmtrain_transport import slices
from swarmtrain_transport.arithmetic import ContributionRefused, Window
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.planning import weights_of, window_floor
from swarmtrain_transport.result import OpResult, SliceResult

E_MAX = 0
CHUNK_VALUES = 262_144

Slices = Mapping[PeerId, tuple[bytes, ...]]
"""Encoded chunks of a vector by the owner of their slice, in its order."""


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
        rule: takes the place of the mean; None for the mean.
    """

    def __init__(
        self,
        codec: str,
        *,
        block: int,
        drop: float,
        rng: random.Random,
        rule: RobustRule | None = None,
    ) -> None:
        self._codec = codec
        self._block = block
        self._drop = drop
        self._rng = rng
        self._rule = rule
        self._previous: dict[tuple[tuple[int, int], ...], Tensor] = {}
        self._arithmetic = CodecArithmetic()

    def mean(self, parts: Mapping[PeerId, OwnPart], ranges: tuple[tuple[int, int], ...]) -> Outcome:
        """The mean of those parts that arrive, or what the robust rule makes of them.

        Args:
            parts: of every peer, all for the same op.
            ranges: what of the vector they are: the op's vector is these one after the other.
        """
        op = next(iter(parts.values())).op
        num_values = sum(stop - start for start, stop in ranges)
        weights = weights_of({peer: part.samples for peer, part in sorted(parts.items())})
        window = self._window(sum(weights.values()))
        bounds = slices.cut(num_values, self._block, slices.shares([0.0] * len(parts)))
        owned = {
            owner: place
            for owner, place in zip(sorted(parts), bounds, strict=True)
            if place[1] > place[0]
        }
        lost = tuple(peer for peer in sorted(parts) if self._rng.random() < self._drop)
        encoded: dict[PeerId, Slices] = {}
        refused = []
        for peer in sorted(set(parts) - set(lost)):
            try:
                encoded[peer] = {
                    owner: self._encoded(parts[peer], place, window)
                    for owner, place in owned.items()
                }
            except ContributionRefused:
                refused.append(peer)
        made = self._made(encoded, weights, owned, window, ranges)
        sums = {
            owner: SliceResult(*owned[owner], tuple(sorted(encoded)), chunks)
            for owner, chunks in made.items()
        }
        result = None
        if sums:
            result = OpResult(
                op, window, CHUNK_VALUES, num_values, tuple(sums.values()), b"", b"", False
            )
        traffic = _traffic(sorted(parts), encoded, made)
        return Outcome(op, result, traffic, tuple(refused), lost)

    def _made(
        self,
        encoded: Mapping[PeerId, Slices],
        weights: Mapping[PeerId, int],
        owned: Mapping[PeerId, tuple[int, int]],
        window: Window,
        ranges: tuple[tuple[int, int], ...],
    ) -> Slices:
        """The result's chunks by owner; nothing if there is no result."""
        if not encoded:
            return {}
        if self._rule is not None:
            return self._ruled(self._rule, encoded, weights, owned, window, ranges)
        return {
            owner: self._summed(
                [(by_owner[owner], weights[peer]) for peer, by_owner in encoded.items()],
                place,
                window,
            )
            for owner, place in owned.items()
        }

    def _ruled(
        self,
        rule: RobustRule,
        encoded: Mapping[PeerId, Slices],
        weights: Mapping[PeerId, int],
        owned: Mapping[PeerId, tuple[int, int]],
        window: Window,
        ranges: tuple[tuple[int, int], ...],
    ) -> Slices:
        """Whole vectors at once: what owners reach slice by slice with shared scalars."""
        codec = codec_of(window)
        rows = [
            torch.cat(
                [
                    codec.decode(chunk, high - low, window)
                    for owner, place in owned.items()
                    for (low, high), chunk in zip(_chunks(*place), by_owner[owner], strict=True)
                ]
            )
            for by_owner in encoded.values()
        ]
        try:
            found = rule.aggregate(
                rows, [weights[peer] for peer in encoded], previous=self._previous.get(ranges)
            )
        except ValueError:
            return {}  # too few are left for the rule: a skip, as with too few contributors
        self._previous[ranges] = found.values
        return {
            owner: tuple(
                codec.finish(found.values[low:high].double(), 1, window)
                for low, high in _chunks(*place)
            )
            for owner, place in owned.items()
        }

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


def _traffic(peers: Sequence[PeerId], encoded: Mapping[PeerId, Slices], made: Slices) -> Traffic:
    """Each part goes to its owners, each result to everybody else."""
    up, down = dict.fromkeys(peers, 0), dict.fromkeys(peers, 0)
    for peer, by_owner in encoded.items():
        for owner, chunks in by_owner.items():
            if owner != peer:
                size = sum(map(len, chunks))
                up[peer] += size
                down[owner] += size
    for owner, chunks in made.items():
        size = sum(map(len, chunks))
        up[owner] += size * (len(peers) - 1)
        for peer in peers:
            if peer != owner:
                down[peer] += size
    return Traffic(up, down)
