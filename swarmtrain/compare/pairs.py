"""A pair op without a network: each peer gets what its partner of this op gives, and nobody else.

Who is left over, and both of a pair of which one half is lost, step alone: as in a run their op
holds no half. Where no pair at all is whole the op is a skip.
"""

from collections.abc import Collection, Mapping

from swarmtrain.compare.costs import Traffic
from swarmtrain.compare.encoding import CHUNK_VALUES, Chunks, Encoder, Outcome, num_bytes
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain_optimizers.strategies.noloco.strategy import pairs_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult, SliceResult

_PAIR_WEIGHT = 2


def exchange_pairs(
    encoder: Encoder,
    parts: Mapping[PeerId, OwnPart],
    lost: Collection[PeerId],
    num_values: int,
    *,
    seed: int,
    ahead: float,
) -> Outcome:
    """What each peer's partner gave.

    Args:
        encoder: of the halves.
        parts: of every peer, all for the same op.
        lost: peers whose halves do not arrive.
        num_values: of the op's vector.
        seed: of the draw of partners.
        ahead: share of the bytes that is known before the inner steps and travels during them.
    """
    op = next(iter(parts.values())).op
    window = encoder.window(_PAIR_WEIGHT)
    halves: dict[PeerId, Chunks] = {}
    for peer, part in sorted(parts.items()):
        by_owner = encoder.encoded(part, {peer: (0, num_values)}, window)
        if by_owner is not None:
            halves[peer] = by_owner[peer]
    up, down = dict.fromkeys(sorted(parts), 0), dict.fromkeys(sorted(parts), 0)
    results = {}

    def end(peer: PeerId, *halves: SliceResult) -> None:
        results[peer] = OpResult(op, window, CHUNK_VALUES, num_values, halves, b"", b"", False)

    pairs, _ = pairs_of(parts, op, seed=seed)
    for pair in pairs:
        is_whole = all(peer in halves and peer not in lost for peer in pair)
        for peer, partner in (pair, pair[::-1]):
            size = num_bytes(halves.get(peer, ()))
            up[peer] = size
            down[partner] = size if peer not in lost else 0
            if is_whole:
                end(peer, SliceResult(0, num_values, pair, halves[partner]))
    if results or len(parts) == 1:
        for peer in sorted(halves.keys() - results.keys()):
            end(peer)
    left_out = tuple(peer for peer in sorted(parts) if peer in lost or peer not in halves)
    return Outcome(op, results, Traffic(up, down, ahead), left_out)
