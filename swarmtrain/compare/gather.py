"""A gather op without a network: every contribution goes to everybody, who add them up alike.

A part has more bytes than any mean of it could be cut to, so no owner sums it: each peer sends its
part to all others, and all decode in the order of ids. Here that is done once for all.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from swarmtrain.compare.costs import Traffic
from swarmtrain.compare.encoding import CHUNK_VALUES, Encoder, Outcome, chunk_bounds, num_bytes
from swarmtrain.peer.arithmetic import codec_of
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain_optimizers.flush import flush_tiny_
from swarmtrain_transport.ledger.samples import weights_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult, SliceResult


class GatheredMeans:
    """Decodes the results of gather ops, once for all peers, and leaves others to another.

    Args:
        otherwise: decodes the results of other ops.
    """

    def __init__(self, otherwise: Callable[[OpResult], Tensor]) -> None:
        self._otherwise = otherwise
        self._weights: dict[int, tuple[int, ...]] = {}
        self._means: dict[int, Tensor] = {}

    def expect(self, op: int, weights: tuple[int, ...]) -> None:
        """The result of this op holds every part, its contributors having these weights."""
        self._weights = {op: weights}
        self._means = {}

    def __call__(self, result: OpResult) -> Tensor:
        """(num_values,) float32, the weighted mean; never write to it."""
        if result.op not in self._weights:
            return self._otherwise(result)
        if result.op not in self._means:
            self._means[result.op] = mean_of(result, self._weights[result.op])
        return self._means[result.op]


def mean_of(result: OpResult, weights: tuple[int, ...]) -> Tensor:
    """The weighted mean of all parts that a gather op's result holds, (num_values,) float32."""
    codec = codec_of(result.window)
    (piece,) = result.slices
    total = torch.zeros(result.num_values, dtype=torch.float64)
    bounds = chunk_bounds(piece.start, piece.stop)
    for index, weight in enumerate(weights):
        chunks = piece.chunks[index * len(bounds) : (index + 1) * len(bounds)]
        for (low, high), chunk in zip(bounds, chunks, strict=True):
            codec.add_(total[low:high], chunk, weight, result.window)
    return flush_tiny_(total.div_(sum(weights)).float())


def gather(
    encoder: Encoder,
    parts: Mapping[PeerId, OwnPart],
    lost: Collection[PeerId],
    peers: Sequence[PeerId],
    num_values: int,
    means: GatheredMeans,
) -> Outcome:
    """Every part that arrives, in the order of ids.

    Args:
        encoder: of the parts.
        parts: of every contributor, all for the same op.
        lost: contributors whose parts do not arrive.
        peers: everybody who gets the result.
        num_values: of the op's vector.
        means: told what it needs to decode the result.
    """
    op = next(iter(parts.values())).op
    weights = weights_of({peer: part.samples for peer, part in sorted(parts.items())})
    window = encoder.window(sum(weights.values()))
    up, down = dict.fromkeys(peers, 0), dict.fromkeys(peers, 0)
    arrived = {}
    for peer in weights:
        by_owner = encoder.encoded(parts[peer], {peer: (0, num_values)}, window)
        if by_owner is None:
            continue
        size = num_bytes(by_owner[peer])
        up[peer] += size * (len(peers) - 1)
        if peer in lost:
            continue
        arrived[peer] = by_owner[peer]
        for other in peers:
            down[other] += size if other != peer else 0
    chunks = tuple(chunk for mine in arrived.values() for chunk in mine)
    piece = SliceResult(0, num_values, tuple(arrived), chunks)
    result = OpResult(op, window, CHUNK_VALUES, num_values, (piece,), b"", b"", False)
    means.expect(op, tuple(weights[peer] for peer in arrived))
    return Outcome(
        op,
        dict.fromkeys(peers, result) if arrived else {},
        Traffic(up, down),
        tuple(peer for peer in weights if peer not in arrived),
    )
