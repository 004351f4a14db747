"""A round of a run in stages, told from its books.

Pure: records in, sentences out. `story` tells the stages' exchanges.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from swarmtrain.console.lines import counted
from swarmtrain.pipeline.costs import span_words
from swarmtrain.why import words
from swarmtrain.why.words import Names
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.ledger.turns import UNITS
from swarmtrain_transport.wire.records import Books, BooksOfMember, Gone, Move

_REASONS = {
    "closed": "not back when the round was closed",
    "no slot": "the next peer had no room",
    "bad input": "what arrived was not a stage's input",
    "bad gradient": "what came back was not a gradient",
    "granted": "another peer had it already",
    "mute": "its source did not answer the end of its way",
    "tries": "no peer took it on in several tries",
    "stale": "back too many steps late",
    "late": "under way for too long",
    "silent": "the next peer fell silent",
    "gone": "the next peer left",
}
"""Why a micro-batch was lost, or was sent to another peer."""


@dataclass(frozen=True, slots=True)
class BookedRound:
    """One booking.

    Attributes:
        exchanges: number of the op that follows from it, by stage; none where nobody has counted.
        left: peers gone when it was booked, and not when the one before it was.
        moved: peers sent to other stages in that time.
    """

    books: Books
    exchanges: dict[int, int]
    left: tuple[Gone, ...]
    moved: tuple[Move, ...]

    @classmethod
    def of(cls, books: Books, view: LedgerView, since: Collection[Gone | Move]) -> "BookedRound":
        """The booking of BOOKS.

        Args:
            view: fold of the records before it.
            since: peers that left or moved since the booking before it.
        """
        exchanges = {
            stage: view.groups[stage].next_op
            for stage, count in enumerate(books.counted)
            if count and stage in view.groups
        }
        left = tuple(one for one in since if isinstance(one, Gone))
        return cls(books, exchanges, left, tuple(one for one in since if isinstance(one, Move)))


def told(booked: BookedRound, number: int, names: Names) -> Iterator[str]:
    """Yield what was made of text in a round, and what became of it."""
    books = booked.books
    yield f"Round {number}, in {len(books.counted)} stages: {_made(books)}."
    sources = {one.peer: one.made for one in books.members if one.made}
    if sources:
        yield f"Made by {_shares(sources, names)}."
    for stage, count in enumerate(books.counted):
        who = {
            one.peer: one.counted[stage - one.first]
            for one in books.members
            if one.has_told and 0 <= stage - one.first < len(one.counted)
        }
        yield f"Stage {stage} has counted {count}: {_shares(who, names)}."
    if books.num_members > len(books.members):
        yield f"The ledger names {len(books.members)} of its {books.num_members} members."
    if books.redone:
        times = sum(books.redone.values())
        how = f"{times} times" if times > 1 else "Once"
        yield f"{how} a micro-batch was sent to another peer: {_because(books.redone)}."
    if books.voided:
        were = "was" if books.voided == 1 else "were"
        yield f"{books.voided} {were} made again: a step that lacks one of them is not made."
    if books.lost:
        yield f"Lost: {_because(books.lost)}."
    yield from _breaks(books, names)
    if books.turn is not None:
        angle = 2 * math.atan(max(abs(one.step) for one in books.turn.planes) / UNITS)
        planes = counted(len(books.turn.planes), "plane")
        yield f"Then the subspace was turned in {planes}, by up to {angle:.2f} radians."
    yield from words.waits(books, names)
    for one in books.members:
        name = words.name_of(one.peer, names)
        if not one.has_told:
            yield f"{name} did not say in time what it had counted: nothing of it is in the round."
        if one.doubted:
            yield (
                f"{name} claims {one.doubted} that others claim as well, or that nobody has made."
            )
        if one.compared:
            yield f"{name} {_compared(one, names)}."
    for gone in booked.left:
        why = f": {because}" if (because := words.gone_because(gone)) else ""
        yield f"{words.name_of(gone.peer, names)} was gone before the round was booked{why}."
    for move in booked.moved:
        where = span_words(range(move.groups[0], move.groups[-1] + 1))
        yield f"{words.name_of(move.peer, names)} was sent to {where}: {move.why}."


def _made(books: Books) -> str:
    if not books.made and any(books.counted):
        return (
            "whoever made its micro-batches did not tell of them; none is known to be counted in "
            "every stage"
        )
    if not books.made:
        return "no micro-batch was made"
    whole = "each" if books.whole == books.made else f"{books.whole} of them"
    return f"{counted(books.made, 'micro-batch')}, {whole} counted in every stage"


def _breaks(books: Books, names: Names) -> Iterator[str]:
    """Yield a sentence for each place where gradients have stayed."""
    for one in books.breaks:
        were = "was" if one.count == 1 else "were"
        gave_up = f"; given up by the source: {_REASONS.get(one.reason, one.reason)}"
        end = gave_up if one.reason else ""
        if not one.above:
            yield f"{one.count} {were} counted in some stages, but nobody tells of the last{end}."
        else:
            last = words.name_of(one.above, names)
            yield (
                f"{one.count} {were} counted from stage {one.stage} on and lost above {last}, "
                f"which counted last{end}."
            )


def _compared(one: BooksOfMember, names: Names) -> str:
    """A source's own finding."""
    times = counted(one.compared, "time")
    suspects = f"; it suspects {words.name_of(one.suspect, names)}" if one.suspect else ""
    return f"compared two routes of the same text {times}: {one.odd} at odds{suspects}"


def _because(reasons: Mapping[str, int]) -> str:
    return ", ".join(
        f"{count} ({_REASONS.get(reason, reason)})" for reason, count in reasons.items()
    )


def _shares(counts: Mapping[bytes, int], names: Names) -> str:
    return words.listed(f"{words.name_of(peer, names)} {count}" for peer, count in counts.items())


def fields(booked: BookedRound, names: Names) -> dict[str, Any]:
    """Return the facts of a booking for programs."""
    books = booked.books
    return {
        **_of(books, "made", "whole", "counted", "redone", "voided", "lost"),
        "members": [
            {
                **_named(one.peer, names),
                "stages": [one.first, one.first + len(one.counted) - 1],
                **_of(one, "made", "counted", "doubted", "has_told", "compared", "odd"),
                "suspect": one.suspect.hex(),
            }
            for one in books.members
        ],
        "lost_above": [
            {**_named(one.above, names), **_of(one, "stage", "reason", "count")}
            for one in books.breaks
        ],
        "left": [gone.peer.hex() for gone in booked.left],
        "moved": {move.peer.hex(): list(move.groups) for move in booked.moved},
        "turned": len(books.turn.planes) if books.turn is not None else 0,
        "exchanges": {str(stage): op for stage, op in booked.exchanges.items()},
    }


def _of(one: Any, *fields: str) -> dict[str, Any]:
    found = {field: getattr(one, field) for field in fields}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}


def _named(peer: bytes, names: Names) -> dict[str, str]:
    return {"peer": peer.hex(), "name": names.get(peer, "")}
