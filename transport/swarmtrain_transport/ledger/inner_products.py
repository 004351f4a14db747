"""Numbers of whole vectors, for rules that a slice alone does not suffice for (protocol.md rule 7).

Clipping by norms asks how long a contribution is, projecting asks for angles between them. Every
owner measures its slice: the squared norm of each contribution, or its inner products with all.
It reports them with GOT; the coordinator adds them up in the order of the slices and writes the
totals into FREEZE, where everybody reads the same 64 bits of each. An owner then follows the rule
for its slice as if it had seen all, and so does a later owner of that slice.

A contributor measures what it gives too and says so with its roots. Its part counts as complete at
an owner only if both have found the same norm: so no owner makes an honest contribution look longer
or shorter than it is, and who says so alone only loses its slice (`exclusion_rule`). An owner's
word on a product is bounded only by the norms of the two.

Pure. The arithmetic is the caller's, in operations that give the same bits on every machine.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId

NONE = ""
NORMS = "norms"
PRODUCTS = "products"
CENTRED = "centred"
SCALARS = frozenset({NONE, NORMS, PRODUCTS, CENTRED})
"""Scalars that PLAN may ask owners for. `CENTRED` are products, also with the centre that PLAN
names."""

CENTRE: PeerId = b""
"""Stands for the centre among contributors, behind them all."""

Pair = tuple[PeerId, PeerId]
"""Two contributors, the smaller key first; a contributor twice for its squared norm."""

_NORM_MAX = 1e100
"""Largest squared norm: that of 2^75 of the largest float32 values. Sums and products of
such norms are finite, so what owners and contributors say never makes a FREEZE that nobody
accepts."""

_SLACK = 1.0 + 1e-9
"""Rounding of a product of two norms; what is measured is good to about 1e-15."""


def pair_of(one: PeerId, other: PeerId) -> Pair:
    """The name of an inner product, which is the same from either side."""
    return (one, other) if one <= other else (other, one)


def vectors(contributors: Iterable[PeerId], centre: int) -> tuple[PeerId, ...]:
    """Return the measured vectors: contributors in the order of their keys, then the centre, if
    any."""
    return (*sorted(contributors), *([CENTRE] if centre else []))


def columns(scalars: str, peer: PeerId, planned: Sequence[PeerId]) -> tuple[PeerId, ...]:
    """Return those with whom a contributor's row has entries: itself, or all planned vectors."""
    return (peer,) if scalars in (NONE, NORMS) else tuple(planned)


def pack_row(row: Mapping[PeerId, float], order: Sequence[PeerId]) -> bytes:
    """A row as float64, little-endian; NaN for whoever has no entry yet."""
    return struct.pack(f"<{len(order)}d", *(row.get(peer, math.nan) for peer in order))


def unpack_row(data: bytes, order: Sequence[PeerId]) -> dict[PeerId, float]:
    """The entries of a row.

    Raises:
        RemoteFault: reason ``scalars``: not one number per column, or one that no sum can be.
    """
    if len(data) != 8 * len(order):
        raise RemoteFault("scalars", f"{len(data)} bytes for {len(order)} numbers")
    found = dict(zip(order, struct.unpack(f"<{len(order)}d", data), strict=True))
    if any(map(math.isinf, found.values())):
        raise RemoteFault("scalars", "a product is infinite")
    return {peer: number for peer, number in found.items() if not math.isnan(number)}


def are_norms(norms: Sequence[float]) -> bool:
    """Return True if these can be squared norms."""
    return all(0.0 <= norm <= _NORM_MAX for norm in norms)


class Table:
    """One owner's numbers for one attempt at its slice. The first word on a pair stands."""

    def __init__(self, scalars: str, planned: Sequence[PeerId]) -> None:
        self._scalars = scalars
        self._planned = tuple(planned)
        self._numbers: dict[Pair, float] = {}

    def report(self, rows: Mapping[PeerId, bytes]) -> None:
        """Rows of contributors that have become complete; of who is not planned nothing is kept.

        Raises:
            RemoteFault: reason ``scalars``; nothing of the message is kept then.
        """
        named = [peer for peer in rows if peer in self._planned]
        read = [
            (peer, unpack_row(rows[peer], columns(self._scalars, peer, self._planned)))
            for peer in named
        ]
        for peer, row in read:
            for other, number in row.items():
                self._numbers.setdefault(pair_of(peer, other), number)

    def of(self, pair: Pair) -> float:
        """Return a number that was reported."""
        return self._numbers[pair_of(*pair)]

    def fits(self, peer: PeerId, norm: float, others: Sequence[PeerId]) -> bool:
        """Return True if the contributor was measured as it says itself, and with these others too.

        Args:
            peer: contributor.
            norm: the squared norm of the slice that it has reported.
            others: contributors whose own norms are known to be right, and the centre.
        """
        if self._numbers.get((peer, peer)) != norm:
            return False
        if self._scalars == NORMS:
            return True
        return all(self._is_possible(norm, peer, other) for other in others)

    def contradicts(self, peer: PeerId, norm: float) -> bool:
        """Return True if the contributor's measured norm is not the one it says; that stands."""
        return self._numbers.get((peer, peer), norm) != norm

    def _is_possible(self, norm: float, peer: PeerId, other: PeerId) -> bool:
        """Return True if a product was reported and is none beyond those of the lengths."""
        number, square = self._numbers.get(pair_of(peer, other)), self._numbers.get((other, other))
        if number is None or square is None or not are_norms([square]):
            return False
        return number * number <= norm * square * _SLACK


def pairs_of(scalars: str, contributors: Sequence[PeerId]) -> list[Pair]:
    """Return whose numbers FREEZE carries, in its order: norms, or the upper triangle row by row.

    Args:
        scalars: the kind that PLAN asks for.
        contributors: contributors in the order of `vectors`.
    """
    if scalars == NORMS:
        return [(peer, peer) for peer in contributors]
    if scalars == NONE:
        return []
    return [
        (peer, other) for place, peer in enumerate(contributors) for other in contributors[place:]
    ]


def totals(scalars: str, contributors: Sequence[PeerId], tables: Sequence[Table]) -> bytes:
    """Return FREEZE's scalars: every number added up in the order of the slices.

    Raises:
        KeyError: an owner has not reported one of them.
    """
    added = []
    for pair in pairs_of(scalars, contributors):
        total = 0.0
        for table in tables:
            total += table.of(pair)
        added.append(total)
    return struct.pack(f"<{len(added)}d", *added)


def check_totals(scalars: str, contributors: Sequence[PeerId], data: bytes) -> None:
    """Check that FREEZE carries the scalars that PLAN asked for.

    Raises:
        RemoteFault: reason ``order``.
    """
    pairs = pairs_of(scalars, contributors)
    if len(data) != 8 * len(pairs):
        raise RemoteFault("order", f"FREEZE has {len(data)} bytes for {len(pairs)} scalars")
    numbers = struct.unpack(f"<{len(pairs)}d", data)
    norms = [number for (one, other), number in zip(pairs, numbers, strict=True) if one == other]
    if not all(map(math.isfinite, numbers)) or min(norms, default=0.0) < 0.0:
        raise RemoteFault("order", "FREEZE has scalars that nothing can have")


def chosen(
    scalars: str, contributors: Sequence[PeerId], data: bytes, some: Sequence[PeerId]
) -> tuple[float, ...]:
    """The totals of some of FREEZE's contributors, in the same layout.

    Args:
        scalars: numbers that PLAN asks for.
        contributors: contributors of FREEZE.
        data: bytes that carry them.
        some: contributors whose part of a slice is to be had, in the order of `vectors`.
    """
    pairs = pairs_of(scalars, contributors)
    known = dict(zip(pairs, struct.unpack(f"<{len(pairs)}d", data), strict=True))
    return tuple(known[pair] for pair in pairs_of(scalars, some))
