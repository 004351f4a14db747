"""The matrix rule: who is at fault when some contributions are missing at some owners.

Rows are owners' slices, columns contributors. A zero may mean that a contributor is slow or that
an owner cannot be reached. If one owner lacks two or more contributors that most other owners
have, the owner is the odd one out and its slice goes to somebody else; otherwise the contributor
with the most zeros is left out. So one bad link costs one slice or one contribution, never all
of them (protocol.md T4). Where leaving one more out would leave too few, an owner is the odd one
out as soon as it lacks one: its slice goes round again, and the op need not be skipped.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from swarmtrain_transport.link import PeerId


@dataclass(frozen=True, slots=True)
class MatrixVerdict:
    """Either a slice to reassign, or the contributors that every owner has whole."""

    contributors: frozenset[PeerId]
    reassign: int | None


def matrix_rule(
    candidates: AbstractSet[PeerId], rows: Mapping[int, AbstractSet[PeerId]], needed: int = 0
) -> MatrixVerdict:
    """Apply the rule once.

    Args:
        candidates: live contributors.
        rows: contributors complete at the owner, per slice that still has its first owner.
        needed: how few contributors make an op.
    """
    remaining = set(candidates)
    while True:
        missing = {
            index: [peer for peer in sorted(remaining) if peer not in row]
            for index, row in rows.items()
        }
        if not any(missing.values()):
            return MatrixVerdict(frozenset(remaining), None)
        lacking = 2 if len(remaining) > needed else 1
        for index, absent in missing.items():
            others = [row for other, row in rows.items() if other != index]
            widely_held = [
                peer for peer in absent if 2 * sum(peer in row for row in others) > len(others)
            ]
            if others and len(widely_held) >= lacking:
                return MatrixVerdict(frozenset(remaining), index)
        zeros = {peer: sum(peer in absent for absent in missing.values()) for peer in remaining}
        remaining.discard(max(sorted(zeros), key=lambda peer: zeros[peer]))
