"""Search for peers that were named for a fault or thrown out: in a ledger, in what `status` answers
and in logs. Pure.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from statistics import median_low

from swarmtrain.chaos.invariants import Violation
from swarmtrain_transport.coordinator.status import CoordinatorStatus
from swarmtrain_transport.wire.records import (
    AnyBody,
    Commit,
    Freeze,
    Gone,
    Plan,
    Reassign,
    Skip,
    SliceFreeze,
)

_REFUSED = re.compile(r"The peer ([0-9a-f]{8}) (?:was refused|sent what was refused)")
"""Line that peers log (`peer.network.complaints`)."""

_SILENT = "silent"
"""Reason for which who just goes away is evicted: nobody has found it out."""


def evicted(bodies: Iterable[AnyBody], honest: Mapping[bytes, str]) -> Iterator[Violation]:
    """Honest peers that the coordinator has thrown out.

    Args:
        honest: names by key.
    """
    for body in bodies:
        if isinstance(body, Gone) and body.peer in honest and body.evicted:
            yield Violation("evicted", f"{honest[body.peer]} was evicted: {body.reason}")


def marks_in_ledger(bodies: Iterable[AnyBody], hostile: Collection[bytes]) -> Counter[str]:
    """Count what the ledger holds against these keys, by kind."""
    found: Counter[str] = Counter()
    owners: list[bytes] = []
    for body in bodies:
        match body:
            case Plan():
                found["not waited for"] += sum(peer in hostile for peer in body.unawaited)
                owners = [spec.owner for spec in body.slices]
            case Reassign():
                if owners[body.slice_index] in hostile:
                    found[f"slice taken away: {body.reason}"] += 1
                owners[body.slice_index] = body.owner
            case Freeze():
                for peer, reason in body.excluded.items():
                    if peer in hostile:
                        found[f"left out: {reason}"] += 1
                    elif any(owner in hostile for owner in body.accusers.get(peer, ())):
                        found["named as accuser"] += 1
            case SliceFreeze() if body.lacked and owners[body.slice_index] in hostile:
                found["named as accuser"] += 1
            case Commit():
                found["behind"] += sum(peer in hostile for peer in body.behind)
            case Skip():
                for peer, reason in body.blamed.items():
                    if peer in hostile:
                        found[f"skipped for it: {reason}"] += 1
                for peer, reason in body.excluded.items():
                    if peer in hostile:
                        found[f"left out: {reason}"] += 1
            case Gone() if body.peer in hostile and body.evicted and body.reason != _SILENT:
                found[f"evicted: {body.reason}"] += 1
    return +found


def first_unawaited(bodies: Iterable[AnyBody], hostile: Collection[bytes], after: int) -> int:
    """Return the first round after one for which nobody waited for these keys, -1 for none."""
    plans = (body for body in bodies if isinstance(body, Plan) and body.op > after)
    return next((plan.op for plan in plans if {*hostile} & {*plan.unawaited}), -1)


def marks_in_status(view: CoordinatorStatus, hostile: Collection[bytes]) -> Counter[str]:
    """Count what `status` shows of these keys beyond their coming and going."""
    named = {key.hex() for key in hostile}
    found: Counter[str] = Counter()
    for event in view.events:
        if event.peer in named and event.event not in ("joined", "left", "lost"):
            found[f"status: {event.event}"] += event.times
    for peer in view.peers:
        if peer.peer in named and peer.rests:
            found["status: rests"] += 1
    return found


def marks_in_log(lines: Iterable[str], hostile: Collection[bytes]) -> int:
    """Count the lines of a peer's log that name these keys for what they sent."""
    named = {key.hex()[:8] for key in hostile}
    return sum(found.group(1) in named for line in lines if (found := _REFUSED.search(line)))


def most_weight(bodies: Iterable[AnyBody], hostile: Collection[bytes]) -> float:
    """The largest weight of these keys in a plan, in low medians of all contributors' there, as the
    rule of weights has it; 0 for none."""
    found = 0.0
    for body in bodies:
        if not isinstance(body, Plan):
            continue
        weights = {member.peer: member.weight for member in body.members if member.weight}
        own = [weight for peer, weight in weights.items() if peer in hostile]
        if len(weights) > len(own) > 0:
            found = max(found, max(own) / median_low(weights.values()))
    return found
