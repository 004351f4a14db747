"""A mean op without a network: the bytes that the exchange would move, summed as owners sum them.

The committed result is the same value that a peer's session hands to its driver. What a network
adds, who is late and who dies, is drawn outside: such parts do not come here.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from swarmtrain.compare.costs import Traffic
from swarmtrain.compare.encoding import (
    CHUNK_VALUES,
    Chunks,
    Encoder,
    Outcome,
    Slices,
    chunk_bounds,
    num_bytes,
)
from swarmtrain.peer.arithmetic import codec_of, result_codec_of
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain_optimizers.robust.base import RobustRule
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.coordinator import slices
from swarmtrain_transport.ledger.samples import weights_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult, SliceResult

Ranges = tuple[tuple[int, int], ...]


class MeanExchange:
    """Makes the committed results of mean ops.

    Args:
        encoder: of parts and results.
        rule: takes the place of the mean; None for the mean.
    """

    def __init__(self, encoder: Encoder, rule: RobustRule | None = None) -> None:
        self._encoder = encoder
        self._rule = rule
        self._previous: dict[Ranges, Tensor] = {}

    def run(
        self,
        parts: Mapping[PeerId, OwnPart],
        lost: Collection[PeerId],
        peers: Sequence[PeerId],
        ranges: Ranges,
    ) -> Outcome:
        """The mean of those parts that arrive, or what the robust rule makes of them.

        Args:
            parts: of every contributor, all for the same op; contributors own slices.
            lost: contributors whose parts do not arrive.
            peers: everybody who gets the result.
            ranges: what of the vector the parts are: one of these after the other.
        """
        op = next(iter(parts.values())).op
        num_values = sum(stop - start for start, stop in ranges)
        weights = weights_of({peer: part.samples for peer, part in sorted(parts.items())})
        window = self._encoder.window(sum(weights.values()), of_mean=True)
        bounds = slices.cut(num_values, self._encoder.block, slices.shares([0.0] * len(parts)))
        owned = {
            owner: place
            for owner, place in zip(weights, bounds, strict=True)
            if place[1] > place[0]
        }
        tried = {peer: self._encoder.encoded(parts[peer], owned, window) for peer in weights}
        sent = {peer: by_owner for peer, by_owner in tried.items() if by_owner is not None}
        encoded = {peer: by_owner for peer, by_owner in sent.items() if peer not in lost}
        made = self._made(encoded, weights, owned, window, ranges)
        sums = tuple(
            SliceResult(*owned[owner], tuple(encoded), chunks) for owner, chunks in made.items()
        )
        result = OpResult(op, window, CHUNK_VALUES, num_values, sums, b"", b"", False)
        return Outcome(
            op,
            dict.fromkeys(peers, result) if sums else {},
            _traffic(peers, sent, encoded, made),
            tuple(peer for peer in weights if peer not in encoded),
        )

    def _made(
        self,
        encoded: Mapping[PeerId, Slices],
        weights: Mapping[PeerId, int],
        owned: Mapping[PeerId, tuple[int, int]],
        window: Window,
        ranges: Ranges,
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
        ranges: Ranges,
    ) -> Slices:
        """Whole vectors at once: what owners reach slice by slice with shared scalars."""
        codec, results = codec_of(window), result_codec_of(window)
        rows = [
            torch.cat(
                [
                    codec.decode(chunk, high - low, window)
                    for owner, place in owned.items()
                    for (low, high), chunk in zip(
                        chunk_bounds(*place), by_owner[owner], strict=True
                    )
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
                results.finish(found.values[low:high].double(), 1, window)
                for low, high in chunk_bounds(*place)
            )
            for owner, place in owned.items()
        }

    def _summed(
        self,
        parts: Sequence[tuple[Chunks, int]],
        place: tuple[int, int],
        window: Window,
    ) -> Chunks:
        made = []
        for index, (low, high) in enumerate(chunk_bounds(*place)):
            total = self._encoder.arithmetic.accumulator(high - low, window)
            for chunks, weight in parts:
                total.add(chunks[index], weight)
            made.append(total.finish(sum(weight for _, weight in parts)))
        return tuple(made)


def _traffic(
    peers: Sequence[PeerId],
    sent: Mapping[PeerId, Slices],
    arrived: Collection[PeerId],
    made: Slices,
) -> Traffic:
    """Each part goes to its owners, whether it arrives or not, each result to everybody else."""
    up, down = dict.fromkeys(peers, 0), dict.fromkeys(peers, 0)
    for peer, by_owner in sent.items():
        for owner, chunks in by_owner.items():
            if owner != peer:
                size = num_bytes(chunks)
                up[peer] += size
                down[owner] += size if peer in arrived else 0
    for owner, chunks in made.items():
        size = num_bytes(chunks)
        up[owner] += size * (len(peers) - 1)
        for peer in peers:
            if peer != owner:
                down[peer] += size
    return Traffic(up, down)
