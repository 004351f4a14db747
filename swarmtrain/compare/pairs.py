"""A pair op without a network: each peer gets what its partner of this op gives, and nobody else.

Who is left over, and both of a pair of which one half is lost, step alone: such a peer is handed
its own half as if it were the partner's, which is that step exactly.
"""

from collections.abc import Collection, Mapping

from swarmtrain.compare.costs import Traffic
from swarmtrain.compare.encoding import CHUNK_VALUES, Chunks, Encoder, Outcome, num_bytes
from swarmtrain.peer.driver import OwnPart
from swarmtrain_optimizers.strategies.noloco import pairs_of
from swarmtrain_transport.link import PeerId
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

    def end(peer: PeerId, given: Chunks, contributors: tuple[PeerId, ...]) -> None:
        piece = SliceResult(0, num_values, contributors, given)
        results[peer] = OpResult(op, window, CHUNK_VALUES, num_values, (piece,), b"", b"", False)

    pairs, _ = pairs_of(parts, op, seed=seed)
    for pair in pairs:
        if any(peer in lost or peer not in halves for peer in pair):
            continue
        for peer, partner in (pair, pair[::-1]):
            end(peer, halves[partner], pair)
            up[peer] = num_bytes(halves[peer])
            down[peer] = num_bytes(halves[partner])
    for peer in halves:
        if peer not in results:
            end(peer, halves[peer], (peer,))
    left_out = tuple(peer for peer in sorted(parts) if peer in lost or peer not in halves)
    return Outcome(op, results, Traffic(up, down, ahead), left_out)
