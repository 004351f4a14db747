"""Shards of the text that peers train on: the same cut for every strategy of one seed.

Pieces of the built-in corpus are shuffled by the seed and dealt in turn, as leases would be; or,
not identically distributed, each peer gets one contiguous part, which is whole files in the order
of their paths. Every peer holds its part for the whole run.
"""

import random
from itertools import pairwise

from swarmtrain.data.corpus import Corpus

PIECE_BYTES = 65_536


def shards(corpus: Corpus, peers: int, seed: int, *, noniid: bool) -> list[tuple[bytes, ...]]:
    """The training pieces of each peer.

    Raises:
        ValueError: there are fewer pieces than peers.
    """
    names = list(corpus.train)
    if len(names) < peers:
        raise ValueError(f"{len(names)} pieces of text are too few for {peers} peers")
    if noniid:
        bounds = [len(names) * index // peers for index in range(peers + 1)]
        parts = [names[low:high] for low, high in pairwise(bounds)]
    else:
        random.Random(f"shards {seed}").shuffle(names)
        parts = [names[index::peers] for index in range(peers)]
    return [tuple(corpus.piece(name) for name in part) for part in parts]
