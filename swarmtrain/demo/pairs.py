"""Proof of a demo whose rounds go by pairs: both of every pair tell the same chain. Pure.

There is no common state to compare. After each exchange both partners put the same link at the end
of their own chain of exchanges; a peer that had applied another half, or had another past, would
tell another one.
"""

from collections.abc import Mapping

import msgspec

Told = Mapping[int, Mapping[str, tuple[str, str]]]
"""By round and peer: its partner, and the chain that it has told after the exchange, in hex."""


class Difference(msgspec.Struct, frozen=True):
    """Two partners that did not tell the same, by name."""

    round: int
    peers: tuple[str, str]


class PeerChain(msgspec.Struct, frozen=True):
    """The chain, in hex, that a peer had last, and after which round."""

    peer: str
    round: int
    chain: str


class PairChains(msgspec.Struct, frozen=True):
    """Findings over all pairs.

    Attributes:
        equal: exchanges after which both partners have told the same chain.
        unheard: exchanges of which one partner was gone before it could tell.
        alone: steps that peers have made without a partner.
        different: exchanges after which the two have told different chains.
        last: last exchange of each peer.
    """

    equal: int
    unheard: int
    alone: int
    different: tuple[Difference, ...]
    last: tuple[PeerChain, ...]


def compare(told: Told, num_alone: int) -> PairChains:
    """Compare the chains that partners have told.

    Args:
        told: reports of every exchange, by all who lived to tell.
        num_alone: steps without a partner.
    """
    equal = unheard = 0
    different: list[Difference] = []
    last: dict[str, PeerChain] = {}
    for number, peers in sorted(told.items()):
        for peer, (partner, chain) in sorted(peers.items()):
            last[peer] = PeerChain(peer, number, chain)
            other = peers.get(partner)
            if other is None:
                unheard += 1
            elif other != (peer, chain) or not chain:
                different.append(Difference(number, (peer, partner)))
            elif peer < partner:
                equal += 1
    return PairChains(equal, unheard, num_alone, tuple(different), tuple(last.values()))
