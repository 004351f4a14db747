"""Pairs for the tests of strategies that go by pairs; in a run `ledger.pairing` draws them."""

import hashlib
from collections.abc import Iterable


def pairs_of(
    peers: Iterable[bytes], op: int, *, seed: int
) -> tuple[tuple[tuple[bytes, bytes], ...], bytes | None]:
    """Draw the pairs of an op: a permutation that all draw alike, taken two by two.

    The permutation orders peers by a hash of seed, op and id: no generator whose bits might change
    from version to version has a part in it.

    Args:
        peers: ids of the live peers, each once, in any order.
        op: number of the op; another one, other pairs.
        seed: the run's.

    Returns:
        The pairs, each ordered by id, and the peer that is left over, if their number is odd.
    """
    draw = b"swarmtrain pairs %d %d " % (seed, op)
    order = sorted(set(peers), key=lambda peer: (hashlib.sha256(draw + peer).digest(), peer))
    pairs = tuple(
        (min(first, second), max(first, second))
        for first, second in zip(order[::2], order[1::2], strict=False)
    )
    return pairs, order[-1] if len(order) % 2 else None


def partner_of(me: bytes, peers: Iterable[bytes], op: int, *, seed: int) -> bytes | None:
    """Our partner in an op, or None when we step alone; known as soon as the live peers are.

    Raises:
        ValueError: `me` is not among the peers.
    """
    pairs, left_over = pairs_of(peers, op, seed=seed)
    for first, second in pairs:
        if me in (first, second):
            return second if me == first else first
    if me != left_over:
        raise ValueError("we are not among the live peers")
    return None
