"""Sentences about a round, from the ledger: who said what of whom, and who sat it out and why.

Pure: what was decided in, sentences out. `why` tells the rest of a round.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from swarmtrain_transport.ledger import exclusion_rule
from swarmtrain_transport.ledger.standing import Standing, in_words
from swarmtrain_transport.limits import TOLD_LOSS_MAX
from swarmtrain_transport.wire.records import Books, Commit, Gone, Plan, Reassign, Skip

Names = Mapping[bytes, str]

_SOME = 20
"""Names that a sentence can hold: those of a few households, not those of hundreds of peers."""

_TOLD_MS = 1000
"""Waits that are shorter are told by nobody."""

_BLAMED = {
    "owner silent": "did not publish its sum",
    "owner alone has it": "alone held what it had summed",
    "too few have it": "brought what it had summed to too few",
}
_GONE = {
    "silent": "nothing was heard of it any more",
    "removed": "the organiser sent it away",
    "banned": "the organiser has banned it",
}


def gone_because(gone: Gone) -> str:
    """Say why somebody left, as a clause; in its own words if it chose to."""
    if gone.conviction is not None:
        return "an audit found that it had summed wrongly"
    return _GONE.get(gone.reason, gone.reason) if gone.evicted else gone.reason


def moved(body: Reassign, before: bytes, names: Names) -> str:
    """Tell on whose word a slice moved: either of the two may be wrong."""
    said: dict[str, list[str]] = {}
    for peer, word in body.lacked.items():
        said.setdefault(word, []).append(name_of(peer, names))
    told = "; ".join(exclusion_rule.in_words(word, listed(peers)) for word, peers in said.items())
    return (
        f"{name_of(before, names)} says that {told}. Nobody is left out for that: slice "
        f"{body.slice_index} went to {name_of(body.owner, names)} (attempt {body.attempt})."
    )


def accused(accusers: Iterable[bytes], names: Names) -> str:
    """On whose word somebody is left out."""
    said = [name_of(peer, names) for peer in accusers]
    if len(said) == 1:
        return f"{said[0]} alone says so, and there was nobody left to take its slice"
    return f"{listed(said)} say so"


def waited(outcome: Commit | Skip, names: Names) -> Iterator[str]:
    """For whom an op has waited in vain."""
    if isinstance(outcome, Commit) and outcome.behind:
        told = listed(name_of(peer, names) for peer in outcome.behind)
        yield f"It waited for {told} until it was time, and not beyond it."
    if isinstance(outcome, Commit) and outcome.late:
        told = listed(name_of(peer, names) for peer in outcome.late)
        yield f"The slice of {told} came through long after most others."
    if isinstance(outcome, Skip):
        for peer, reason in outcome.blamed.items():
            yield f"{name_of(peer, names)} {_BLAMED.get(reason, reason)}."


def waits(outcome: Books | Commit | Skip, names: Names) -> Iterator[str]:
    """For whom the others have waited, and for how long."""
    for peer, ms in outcome.waited.items():
        if ms >= _TOLD_MS:
            yield f"The others waited {ms / 1000:.1f} s for {name_of(peer, names)}."


def losses(told: Mapping[bytes, float], names: Names) -> str:
    """Return what each peer has said that it lost."""
    said = {TOLD_LOSS_MAX: "no number", -1.0: "nothing"}
    of = (f"{name_of(peer, names)} {said.get(loss, f'{loss:.4g}')}" for peer, loss in told.items())
    return f"In training they lost, by their own word: {listed(of)}."


def resting(plan: Plan, standing: Standing, names: Names) -> Iterator[str]:
    """Yield sentences on peers that give or own nothing for what they did in earlier rounds."""
    for peer in plan.unawaited:
        clause = in_words(standing.lateness, peer)
        yield f"Nobody waited for {name_of(peer, names)}: {clause}."
    sidelined = standing.sidelined(plan.op, {member.peer for member in plan.members})
    for member in plan.members:
        name = name_of(member.peer, names)
        until = standing.barred_until(member.peer, plan.op)
        if until >= 0 and not member.weight:
            yield f"{name} was at fault too often lately: nobody waits for it up to round {until}."
        elif member.peer in sidelined and not member.weight:
            yield f"{name} gave nothing: too many owners had lacked its part lately."
        until = standing.owns_nothing_until(member.peer, plan.op)
        if until >= 0 and member.peer not in {spec.owner for spec in plan.slices}:
            yield f"{name} owned nothing: its slices had to be moved; so up to round {until}."


def name_of(peer: bytes, names: Names) -> str:
    """The name that its JOIN record gave, or the beginning of its key."""
    return names.get(peer, peer.hex()[:8])


def listed(told: Iterable[str]) -> str:
    """Several in a sentence; of very many some."""
    told = some(sorted(told))
    return " and ".join(filter(None, [", ".join(told[:-1]), *told[-1:]])) or "nobody"


def some(told: Sequence[str]) -> list[str]:
    """Return all of a few; of many the first ones, and how many more there are."""
    left = len(told) - _SOME
    return list(told) if left <= 1 else [*told[:_SOME], f"{left} more"]
