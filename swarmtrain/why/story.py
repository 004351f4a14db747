"""One round, told in a few plain sentences, from the ledger alone.

Every decision and its reason stands in the ledger, so anybody who holds a copy can explain a round,
also years later. Pure: records in, sentences out.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from swarmtrain.console.lines import counted
from swarmtrain.why import pairs as why_pairs
from swarmtrain.why import stages
from swarmtrain.why import words as why_words
from swarmtrain_transport.kinds import GATHER, PAIR, WHOLE
from swarmtrain_transport.ledger import exclusion_rule
from swarmtrain_transport.ledger.fold import LedgerView, OpDecision, OpView
from swarmtrain_transport.ledger.standing import Standing
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import (
    AnyBody,
    Attest,
    BodyReader,
    Books,
    Commit,
    Conviction,
    Freeze,
    Gone,
    Join,
    Move,
    Plan,
    Reassign,
    Record,
    Rewind,
    Skip,
    SliceFreeze,
    Times,
    body_of,
)

_NONE = -1
"""Number of no op."""

_REASONS = {
    "late": "its contribution came too late",
    "roots": "its chunks came, but not as it had signed them, or it had signed nothing",
    "lost": "nothing was heard of it any more",
    "deaf": "it spoke, but did not acknowledge what it was sent",
    "idle": "it spoke, but moved no byte of what it owed",
    "unreachable": "most of the others could open no connection to it",
}
_REFUSED = {
    "scale": "owners refused it: its scales were outside the agreed window",
    "code": "owners refused it: it held codes that stand for nothing",
    "index": "owners refused it: its places in a block were not in order",
    "length": "owners refused it: its chunks had a wrong length",
    "root": "owners refused it: its chunks were not the ones it had signed",
    "nonfinite": "it withdrew: its values were not finite",
    "above-window": "it withdrew: its values were too large for the agreed window",
}
_OWNER_REASONS = {
    "owner lost": "nothing was heard of its owner any more",
    "owner deaf": "its owner spoke, but did not acknowledge what it was sent",
    "owner idle": "its owner spoke, but moved no byte of what it owed",
    "owner silent": "its owner did not publish the sum in time",
    "owner alone has it": "nobody but its owner held a legal result in time",
    "too few have it": "no more than half held its sum in time",
    "unreachable for most": "its owner could not be reached by most contributors",
}


@dataclass(frozen=True, slots=True)
class Story:
    """A round as people are told it.

    Attributes:
        lines: a sentence or two each; none if the ledger has no such round.
        booked: the round of a run in stages, for programs.
    """

    lines: list[str]
    booked: list[dict[str, Any]]

    def fields(self) -> dict[str, Any]:
        """Return the story for programs."""
        return {"story": self.lines, **({"stages": self.booked} if self.booked else {})}


def story_of(
    records: Iterable[Record],
    number: int,
    group: int | None = None,
    known: tuple[LedgerView, BodyReader] | None = None,
) -> Story:
    """The story of a round.

    Args:
        records: the ledger from its beginning, in order.
        number: number of the round; round n ends with op n, in stages with that of stage 0.
        group: group of the round; None for the whole run's.
        known: fold of the records before these, and what reads these; None if there are none.
    """
    teller = Teller(number, group, known)
    for record in records:
        teller.take(record)
    return teller.story()


class Teller:
    """Tells a round from records that come one at a time. Arguments are those of `story_of`."""

    def __init__(
        self,
        number: int,
        group: int | None = None,
        known: tuple[LedgerView, BodyReader] | None = None,
    ) -> None:
        self._number, self._is_whole = number, group is None
        self._view, self._reader = known or (LedgerView(), BodyReader())
        self._names: dict[bytes, str] = {}
        for peer, name in self._view.names.items():
            self._names[peer] = name_of(peer, name, self._names)
        wanted = {FIRST_GROUP if group is None else group: number}
        self._exchanges = _Exchanges(self._view, self._names, wanted)
        self._booked: list[stages.BookedRound] = []
        self._since: list[Gone | Move] = []

    def take(self, record: Record) -> None:
        """The next record of the ledger."""
        view, body = self._view, self._reader.read(record)
        if isinstance(body, Join):
            self._names[body.peer] = name_of(body.peer, body.name, self._names)
        elif (isinstance(body, Gone) and body.peer in view.roster) or (
            isinstance(body, Move) and body.why
        ):
            self._since.append(body)
        elif isinstance(body, Books) and self._is_whole:
            found = stages.BookedRound.of(body, view, self._since)
            is_it = view.first.next_op == self._number
            self._exchanges.booked(found, is_it=is_it)
            if is_it:
                self._booked.append(found)
            self._since = []
        self._exchanges.take(body)
        view.apply(record, body)

    def story(self) -> Story:
        """The round as far as it was told."""
        lines: list[str] = []
        for one in self._booked:
            lines += stages.told(one, self._number, self._names)
        for stage in self._exchanges.told:
            of_it = self._exchanges.lines_of(stage)
            if self._booked and of_it:
                lines += [f"Exchange of stage {stage}:", *(f"  {line}" for line in of_it)]
            elif self._booked:
                lines.append(f"Stage {stage} exchanged nothing.")
            else:
                lines += of_it
        return Story(lines, [stages.fields(one, self._names) for one in self._booked])


class _Exchanges:
    """Sentences on ops, as their records go by.

    Args:
        view: fold of the records so far.
        wanted: number of the op, by group.
    """

    def __init__(self, view: LedgerView, names: dict[bytes, str], wanted: dict[int, int]) -> None:
        self._view, self._names, self._wanted = view, names, wanted
        self.told: dict[int, list[str]] = {group: [] for group in wanted}
        for group, number in wanted.items():
            if (begun := _under_way(view, number, group)) is not None:
                standing = view.groups[group].standing
                self.told[group] += _told_before(begun, names, standing)

    def booked(self, round: "stages.BookedRound", *, is_it: bool) -> None:
        """A round of stages is booked; the ops that follow are of that round.

        Args:
            is_it: True for the round that is told.
        """
        for stage, number in round.exchanges.items():
            if is_it:
                self._wanted[stage] = number
                self.told.setdefault(stage, [])
            elif self._wanted.get(stage) == number and not self.told[stage]:
                self._wanted[stage] = _NONE  # what was booked before had no exchange there
        if is_it:
            for stage in range(len(round.books.counted)):
                self.told.setdefault(stage, [])
            self.told = dict(sorted(self.told.items()))

    def take(self, body: AnyBody) -> None:
        """The next record, before it is folded."""
        if isinstance(body, Gone):
            found = body.conviction
            if found is not None and found.op == self._wanted.get(body.group, _NONE):
                self.told[body.group].append(_convicted(body, found, self._names))
            return
        group = getattr(body, "group", None)
        if group not in self._wanted:
            return
        number, lines = self._wanted[group], self.told[group]
        if isinstance(body, Rewind) and body.passed_over:
            if number <= 1:
                who = f"The first state of {_list(body.passed_over, self._names)} was given up"
                lines.append(f"{who}: {body.reason}. Another gives.")
        elif isinstance(body, Rewind) and body.op < number:
            if lines:
                lines.append(f"A REWIND went back to round {body.op}: {body.reason}. ")
                lines[-1] += "Whatever this round had decided was cancelled."
            elif body.losses and number == self._view.groups[group].next_op:
                lines.append(f"It was not planned at first: {body.reason}. ")
                lines[-1] += f"A REWIND went back to round {body.op}."
            if lines and body.losses:
                lines.append(why_words.losses(body.losses, self._names))
        elif getattr(body, "op", None) == number:
            op = _under_way(self._view, number, group)
            lines += _told(body, self._names, self._view.groups[group].standing, op)

    def lines_of(self, group: int) -> list[str]:
        """The sentences of a group's op."""
        is_open = _under_way(self._view, self._wanted.get(group, _NONE), group) is not None
        return [*self.told[group], "It is still in progress."] if is_open else self.told[group]


def name_of(peer: bytes, name: str, names: Mapping[bytes, str]) -> str:
    """Return how sentences name a peer. Names are the peers' own choice, so two may be the same:
    then the key tells them apart."""
    taken = {taken for other, taken in names.items() if other != peer}
    return f"{name} ({peer.hex()[:8]})" if name in taken else name


def _under_way(view: LedgerView, number: int, group: int) -> OpView | None:
    """Find a group's op that has no outcome yet."""
    ops = view.groups[group].ops.values() if group in view.groups else ()
    return next((op for op in ops if op.plan.op == number), None)


def _told_before(begun: OpView, names: dict[bytes, str], standing: Standing) -> Iterator[str]:
    """Yield the sentences of an op's records that only a fold of the ledger still holds."""
    op: OpView | None = None
    for data in begun.bodies:
        body = body_of(Record(0, b"", 0, data, b""), begun.bodies[0])
        yield from _told(body, names, standing, op)
        if isinstance(body, Plan):
            op = OpView.of(body, begun.plan_hash)
        elif op is not None and isinstance(body, OpDecision):
            op.apply(body)


def _told(
    body: AnyBody, names: dict[bytes, str], standing: Standing, op: OpView | None
) -> Iterator[str]:
    """Yield one record's sentences.

    Args:
        standing: standing of the peers before the record.
        op: the record's op before it; None before PLAN and after the outcome.
    """
    match body:
        case Plan():
            yield from _plan(body, names)
            yield from why_words.resting(body, standing, names)
        case Reassign(reason=exclusion_rule.AT_ODDS | exclusion_rule.DIFFERS) if op is not None:
            yield why_words.moved(body, op.owners[body.slice_index], names)
        case Reassign():
            reason = _OWNER_REASONS.get(body.reason, body.reason)
            yield (
                f"Slice {body.slice_index} was given to {names.get(body.owner, '?')} "
                f"(attempt {body.attempt}): {reason}."
            )
        case Freeze():
            is_whole = op is not None and op.plan.kind in WHOLE
            yield f"Contributors: {_list(body.contributors, names)}."
            for peer, reason in body.excluded.items():
                if reason == "alone":
                    continue  # PLAN says so
                yield _left_out(body, peer, names)
                if peer in body.times:
                    yield "  " + _evidence(body.times[peer], is_whole=is_whole)
        case SliceFreeze():
            yield (
                f"Slice {body.slice_index} (attempt {body.attempt}) sums "
                f"{_list(body.contributors, names)}."
            )
        case Commit() if op is not None and op.plan.kind == PAIR:
            yield from why_pairs.committed(op, body, names)
            yield from why_words.waits(body, names)
        case Commit():
            yield f"Committed: result {body.result_root.hex()[:16]}."
            if any(not outcome.contributors for outcome in body.slices):
                yield (
                    f"It has what {_list(body.contributors, names)} gave. What others gave was not "
                    "held by enough peers; they keep it."
                )
            yield from why_words.waited(body, names)
            yield from why_words.waits(body, names)
        case Skip():
            yield f"Skipped: {body.reason}. Nobody lost anything: all train on from where they are."
            yield from (_left_out(body, peer, names) for peer in body.excluded)
            yield from why_words.waited(body, names)
            yield from why_words.waits(body, names)
        case Attest() if body.roots:
            yield why_pairs.attested(body, names)
        case Attest():
            yield f"State root {body.state_root.hex()[:16]}, as most of its peers reported."


def _left_out(body: Freeze | Skip, peer: bytes, names: dict[bytes, str]) -> str:
    reason, said = body.excluded[peer], body.accusers.get(peer)
    by = f"; {why_words.accused(said, names)}" if said else ""
    return f"{names.get(peer, '?')} was left out ({reason}): {left_out_because(reason)}{by}."


def _convicted(gone: Gone, found: Conviction, names: dict[bytes, str]) -> str:
    return (
        f"Later an audit found that {names.get(gone.peer, '?')} had summed slice "
        f"{found.slice_index}, chunk {found.chunk}, wrongly; most peers checked the proof "
        f"({found.proof_hash.hex()[:16]}), and it was evicted for good."
    )


def _plan(plan: Plan, names: dict[bytes, str]) -> Iterator[str]:
    given = [member.peer for member in plan.members if member.weight]
    only = [member.peer for member in plan.members if not member.weight]
    total = plan.slices[-1].stop
    needed = f"and needed at least {counted(plan.min_contributors, 'contributor')}."
    shares = ", ".join(
        f"{names.get(spec.owner, '?')} {100 * (spec.stop - spec.start) / total:.0f} %"
        for spec in plan.slices
    )
    yield f"Round {plan.op} was planned with {_list(given, names)}."
    if only:
        yield f"{_list(only, names)} only listened."
    if plan.kind == PAIR and len(given) == 1:
        yield "There was nobody to exchange with."
        return
    cut = f"Slices: {shares}."
    if plan.kind == GATHER:
        cut = "Everybody gets everybody's contribution."
    if plan.kind == PAIR:
        cut = why_pairs.planned(plan, names)
    yield f"{cut} The whole exchange had {plan.deadline_s:.1f} s, {needed}"


def _evidence(times: Times, *, is_whole: bool) -> str:
    has_come = times.last_s >= 0
    if is_whole:  # there is no owner that sums it
        whole = "It had published " + (f"it at {times.last_s:.1f} s" if has_come else "nothing")
    else:
        whole = f"It was whole at {times.complete} of {times.owners} owners"
        whole += f", last at {times.last_s:.1f} s" if has_come else ""
    heard = f"last heard of at {times.heard_s:.1f} s" if times.heard_s >= 0 else "not heard of"
    return (
        f"{whole}; {heard}; left out at {times.frozen_s:.1f} s after the plan, "
        f"due was {times.deadline_s:.1f} s."
    )


def left_out_because(reason: str) -> str:
    """Say why FREEZE left a peer out, as a clause."""
    kind, _, detail = reason.partition(":")
    if kind in ("refused", "withdrew"):
        return _REFUSED.get(detail, f"{kind}, {detail}")
    return _REASONS.get(kind, reason)


def _list(peers: Iterable[bytes], names: dict[bytes, str]) -> str:
    return why_words.listed(why_words.name_of(peer, names) for peer in peers)
