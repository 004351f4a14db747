"""One round, told in a few plain sentences, from the ledger alone.

Every decision and its reason stands in the ledger, so anybody who holds a copy can explain a round,
also years later. Pure: records in, sentences out.
"""

from collections.abc import Iterable, Iterator

from swarmtrain.console.lines import counted
from swarmtrain.why import pairs as why_pairs
from swarmtrain.why import words as why_words
from swarmtrain_transport.kinds import GATHER, PAIR, WHOLE
from swarmtrain_transport.ledger import exclusion_rule
from swarmtrain_transport.ledger.fold import GroupView, LedgerView
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import (
    AnyBody,
    Attest,
    BodyReader,
    Commit,
    Conviction,
    Freeze,
    Gone,
    Join,
    Plan,
    Reassign,
    Record,
    Rewind,
    Skip,
    SliceFreeze,
    Times,
)

_REASONS = {
    "late": "its contribution came too late",
    "roots": "its chunks came, but not as it had signed them, or it had signed nothing",
    "lost": "nothing was heard of it any more",
    "deaf": "it spoke, but did not acknowledge what it was sent",
    "idle": "it spoke, but moved no byte of what it owed",
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


def explain_round(
    records: Iterable[Record],
    number: int,
    group: int = FIRST_GROUP,
    known: tuple[LedgerView, BodyReader] | None = None,
) -> list[str]:
    """The round's story, a sentence or two per line; empty if the ledger has no such round.

    Args:
        records: the ledger from its beginning, in order.
        number: of the round; round n ends with op n.
        group: whose round it is.
        known: fold of the records before these, and what reads these; None if there are none.
    """
    view, reader = known or (LedgerView(), BodyReader())
    names: dict[bytes, str] = {}
    for join in view.roster.values():
        names[join.peer] = name_of(join, names)
    lines: list[str] = []
    is_open = False
    plan: Plan | None = None
    freeze: Freeze | None = None
    for record in records:
        body = reader.read(record)
        if isinstance(body, Join):
            names[body.peer] = name_of(body, names)
        elif getattr(body, "group", group) != group:
            pass
        elif isinstance(body, Rewind) and body.op < number and lines:
            lines.append(f"A REWIND went back to round {body.op}: {body.reason}. ")
            lines[-1] += "Whatever this round had decided was cancelled."
        elif isinstance(body, Gone) and body.conviction and body.conviction.op == number:
            lines.append(_convicted(body, body.conviction, names))
        elif getattr(body, "op", None) == number:
            is_open = isinstance(body, Plan) or (is_open and not isinstance(body, Commit | Skip))
            if isinstance(body, Plan):
                plan, freeze = body, None
            freeze = body if isinstance(body, Freeze) else freeze
            if isinstance(body, Commit) and plan is not None and plan.kind == PAIR:
                lines += why_pairs.committed(plan, freeze, body, names)
            else:
                is_whole = plan is not None and plan.kind in WHOLE
                lines += _told(body, names, view.groups[group], is_whole=is_whole)
        view.apply(record, body)
    return [*lines, "It is still in progress."] if is_open else lines


def name_of(body: Join, names: dict[bytes, str]) -> str:
    """How sentences name a peer. Names are the peers' own choice, so two may be the same: then the
    key tells them apart."""
    taken = {name for peer, name in names.items() if peer != body.peer}
    return f"{body.name} ({body.peer.hex()[:8]})" if body.name in taken else body.name


def _told(
    body: AnyBody, names: dict[bytes, str], view: GroupView, *, is_whole: bool
) -> Iterator[str]:
    """One record's sentences; `view` is what the ledger says before it."""
    match body:
        case Plan():
            yield from _plan(body, names)
            yield from why_words.resting(body, view.standing, names)
        case Reassign(reason=exclusion_rule.AT_ODDS):
            (op,) = (one for one in view.ops.values() if one.plan.op == body.op)
            yield why_words.moved(body, op.owners[body.slice_index], names)
        case Reassign():
            reason = _OWNER_REASONS.get(body.reason, body.reason)
            yield (
                f"Slice {body.slice_index} was given to {names.get(body.owner, '?')} "
                f"(attempt {body.attempt}): {reason}."
            )
        case Freeze():
            yield f"Contributors: {_list(body.contributors, names)}."
            for peer, reason in body.excluded.items():
                if reason == "alone":
                    continue  # PLAN says so
                said = body.accusers.get(peer)
                by = f"; {why_words.accused(said, names)}" if said else ""
                who, because = names.get(peer, "?"), left_out_because(reason)
                yield f"{who} was left out ({reason}): {because}{by}."
                if peer in body.times:
                    yield "  " + _evidence(body.times[peer], is_whole=is_whole)
        case SliceFreeze():
            yield (
                f"Slice {body.slice_index} (attempt {body.attempt}) sums "
                f"{_list(body.contributors, names)}."
            )
        case Commit():
            yield f"Committed: result {body.result_root.hex()[:16]}."
            if any(not outcome.contributors for outcome in body.slices):
                yield (
                    f"It has what {_list(body.contributors, names)} gave. What others gave was not "
                    "held by enough peers; they keep it."
                )
            yield from why_words.waited(body, names)
        case Skip():
            yield f"Skipped: {body.reason}. Nobody lost anything: all train on from where they are."
            yield from why_words.waited(body, names)
        case Attest() if body.roots:
            yield why_pairs.attested(body, names)
        case Attest():
            yield f"State root {body.state_root.hex()[:16]}, as most of its peers reported."


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
    """Why FREEZE left a peer out, as a clause."""
    kind, _, detail = reason.partition(":")
    if kind in ("refused", "withdrew"):
        return _REFUSED.get(detail, f"{kind}, {detail}")
    return _REASONS.get(kind, reason)


def _list(peers: Iterable[bytes], names: dict[bytes, str]) -> str:
    return why_words.listed(why_words.name_of(peer, names) for peer in peers)
