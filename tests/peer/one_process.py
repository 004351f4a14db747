"""An op worked out from whole vectors in one place: an oracle of the exchange.

It shares the codecs and rules with the machines, and nothing of how they move and cut vectors.
"""

from collections.abc import Mapping

from torch import Tensor

from swarmtrain.peer.arithmetic import ChunkSum, codec_of, result_codec_of
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_optimizers.robust import rule_named
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.coordinator.ops.planning import window_floor
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR
from swarmtrain_transport.ledger.sample_weights import weights_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult, SliceResult


def exchanged(
    parts: Mapping[PeerId, OwnPart],
    size: int,
    codec: str,
    block: int,
    *,
    kind: str = MEAN,
    rule: str = "",
    previous: Tensor | None = None,
) -> dict[PeerId, OpResult]:
    """The result of an op as each peer has it; of two peers at most where it goes by pairs."""
    op = next(iter(parts.values())).op
    weights = weights_of({peer: part.samples for peer, part in sorted(parts.items())})
    result_codec = facts_of(codec).result if kind == MEAN else codec
    low = window_floor(0, sum(weights.values()))
    window = Window(codec, block, low, 0, result_codec if result_codec != codec else "")
    encoded = {peer: parts[peer].contribution.encode(0, size, window) for peer in weights}

    def result(*pieces: SliceResult, weighed: tuple[int, ...] | None = None) -> OpResult:
        return OpResult(op, window, size, size, pieces, b"", b"", False, kind=kind, weights=weighed)

    if kind == PAIR:
        both = tuple(parts)
        return {
            peer: result(
                *(SliceResult(0, size, both, (encoded[other],)) for other in parts if other != peer)
            )
            for peer in parts
        }
    if kind == GATHER:
        pieces = [SliceResult(0, size, (peer,), (encoded[peer],)) for peer in weights]
        return dict.fromkeys(parts, result(*pieces, weighed=tuple(weights.values())))
    if rule:
        rows = [codec_of(window).decode(part, size, window) for part in encoded.values()]
        found = rule_named(rule).aggregate(rows, [*weights.values()], previous=previous)
        chunk = result_codec_of(window).finish(found.double(), 1, window)
    else:
        total = ChunkSum(codec_of(window), result_codec_of(window), size, window)
        for peer, part in encoded.items():
            total.add(part, weights[peer])
        chunk = total.finish(sum(weights.values()))
    return dict.fromkeys(parts, result(SliceResult(0, size, tuple(weights), (chunk,))))
