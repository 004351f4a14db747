"""The matrix rule: the party at fault when some contributions are missing at some owners.

Rows are owners' slices, columns contributors. A gap may mean that the contributor is slow or that
the owner cannot be reached, and either of the two may lie: it is one peer's word against another's.
So one owner's word costs no more than the slice that it owns, which goes to somebody else, and a
contributor is left out on the word of several (protocol.md T4). An owner that lacks two or more
that most other owners have is the odd one out itself, and no witness against anybody.

More than half of the others must say so: then those who would have honest peers left out must be
more than half themselves. Where all other owners say so nobody is left who could say otherwise.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId

ABSENT = "absent"
ROOTS = "roots"
SCALARS = "scalars"
REFUSED = "refused:"
"""Words of an owner on a contribution: it has not come, or not as it was signed, or it was
measured to be of another length than its contributor says, or it is illegal and why."""

WITHDREW = "withdrew:"
"""Own word of a contributor that gives nothing to an op, and why."""

SUM = "sum"
"""Word of an owner in cells on another one that names a sum differently (`cell_sums`)."""

UNREACHABLE = "unreachable for most"
AT_ODDS = "at odds"
DIFFERS = "owners differ on a sum"
"""Reasons why an owner loses its slice: it lacks most contributors, and is no witness against them;
or few, and either it or these may lie; or it or another owner does."""

NOBODY: Mapping[PeerId, AbstractSet[PeerId]] = {}


@dataclass(frozen=True, slots=True)
class MatrixVerdict:
    """Either a slice to reassign, or the contributors that every owner has whole."""

    contributors: frozenset[PeerId]
    reassign: int | None


def in_words(word: str, whose: str) -> str:
    """An owner's word for people: "says that ..."."""
    if word == ROOTS:
        return f"the part of {whose} was not what had been signed"
    if word == SCALARS:
        return f"the part of {whose} was not as long as had been said"
    if word == SUM:
        return f"a sum that {whose} has too was not as {whose} had said"
    if word.startswith(REFUSED):
        return f"the part of {whose} was illegal ({word.removeprefix(REFUSED)})"
    return f"the part of {whose} never came"


def voices_needed(planned: int, owners: int) -> int:
    """Return the number of owners that must say that they lack a contribution before it is left
    out.

    Args:
        planned: contributors of the op.
        owners: owners besides the contributor who have a say. An owner that has lost its slice
            meanwhile has had its say all the same, or the last few would be all that are left.
    """
    return max(2, min((planned - 1) // 2 + 1, owners, limits.VOICES))


def matrix_rule(
    candidates: AbstractSet[PeerId],
    rows: Mapping[int, AbstractSet[PeerId]],
    owners: Mapping[int, PeerId],
    needed: Callable[[PeerId], int],
    before: Mapping[PeerId, AbstractSet[PeerId]] = NOBODY,
) -> MatrixVerdict:
    """Apply the rule once.

    Args:
        candidates: contributors that live and have signed.
        rows: contributors complete at the owner, per slice that is to be settled now.
        owners: owners of these slices.
        needed: number of owners that must lack a contributor to exclude it (`voices_needed`).
        before: earlier owners who have lacked somebody, per contributor.
    """
    remaining = set(candidates)
    while True:
        missing = {
            index: gaps for index, row in sorted(rows.items()) if (gaps := remaining - set(row))
        }
        if not missing:
            return MatrixVerdict(frozenset(remaining), None)
        for index, gaps in missing.items():
            if _is_odd(index, gaps, rows):
                return MatrixVerdict(frozenset(remaining), index)
        words = {
            peer: {owners[i] for i, gaps in missing.items() if peer in gaps} - {peer}
            for peer in remaining
        }
        late = {}
        for peer, said in words.items():
            if said and len(said | set(before.get(peer, ()))) >= needed(peer):
                late[peer] = len(said)
        if not late:
            most = max(missing, key=lambda index: len(missing[index]))
            return MatrixVerdict(frozenset(remaining), most)
        remaining.discard(max(sorted(late), key=lambda peer: late[peer]))


def _is_odd(index: int, gaps: AbstractSet[PeerId], rows: Mapping[int, AbstractSet[PeerId]]) -> bool:
    """Return True if this row lacks at least two that most of the others have."""
    others = [row for other, row in rows.items() if other != index]
    return sum(2 * sum(peer in row for row in others) > len(others) for peer in gaps) >= 2
