"""Fragments: the part of the vector that an op moves, where the run goes through it in parts.

Op n moves fragment (n - 1) mod their number: nobody has to say so, and a round that is skipped or
rewound changes nothing for the others. Only the peers know a fragment's place in the vector
(Douillard et al., Streaming DiLoCo, arXiv 2501.18512); here it has a length.
"""

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import MEAN, PAIR, PAIR_VECTORS
from swarmtrain_transport.wire.messages import Offer
from swarmtrain_transport.wire.records import Attest


def values_of(genesis: Attest, op: int, block: int, kind: str = MEAN) -> int:
    """How many values an op moves: the padded vector, or the fragment whose turn it is; of a pair
    op two such vectors, one after the other."""
    vectors = PAIR_VECTORS if kind == PAIR else 1
    if genesis.fragments:
        return vectors * genesis.fragments[(op - 1) % len(genesis.fragments)]
    return vectors * (-(-genesis.num_values // block) * block)


def genesis_of(offer: Offer, block: int, layout: bytes = b"") -> Attest:
    """Return op 0's ATTEST from the first peer's offer to a run that has no state.

    Args:
        layout: the only one that the run file allows, b"" where peers bring the model.

    Raises:
        RemoteFault: reason ``offer``: another layout, or fragments that are not the padded vector
            on whole blocks.
    """
    if layout and offer.layout != layout:
        raise RemoteFault("offer", "a first state of another model than the run file names")
    padded = -(-offer.num_values // block) * block
    are_whole = all(size > 0 and size % block == 0 for size in offer.fragments)
    if offer.fragments and not (are_whole and sum(offer.fragments) == padded):
        raise RemoteFault("offer", f"fragments {offer.fragments[:8]} of {padded} values")
    return Attest(
        0, offer.state_root, offer.num_values, offer.layout, offer.fragments, group=offer.group
    )
