"""The coordinator's state in the words that people are shown. Pure reading, no decisions."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, TypeVar

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.group import GroupCoordinator
from swarmtrain_transport.coordinator.ledger_recovery import LedgerRecovery
from swarmtrain_transport.coordinator.ledger_writer import LedgerWriter
from swarmtrain_transport.coordinator.members.group_peers import GroupPeer
from swarmtrain_transport.coordinator.members.meetings import Meetings
from swarmtrain_transport.coordinator.members.roster import LiveRoster, PeerLine
from swarmtrain_transport.coordinator.members.validation import finite, shown
from swarmtrain_transport.coordinator.ops.agreement import disputed
from swarmtrain_transport.coordinator.ops.planning import RunTerms, needed_peers
from swarmtrain_transport.coordinator.stages.stage_rounds import StageRounds
from swarmtrain_transport.coordinator.status import (
    CoordinatorStatus,
    Exclusion,
    GroupPeerStatus,
    GroupStatus,
    PeerStatus,
    PipelineStatus,
    RelayStatus,
    RoundEvent,
    StageStatus,
)
from swarmtrain_transport.ledger.fold import GroupView, LedgerView
from swarmtrain_transport.ledger.standing import in_words
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import FIRST_GROUP

Told = TypeVar("Told", Exclusion, RoundEvent)
Sidelined = Mapping[int, AbstractSet[PeerId]]
"""Members that give nothing, by group."""

_PHASE_CHARS_MAX = 32
_NAMED_MAX = 5
_NO_LEDGER = "a peer that has a copy: the ledger is missing here, and only its keys are left"
_LEDGER_MAY_GROW = "peers that may have a longer copy of the ledger than the one that has come"
_COUNT_MAX = 2**63 - 1
"""Sums of what peers claim must still fit into what readers of JSON can hold."""


class Coordinator(Protocol):
    """The parts of the coordinator that its status is read from."""

    terms: RunTerms
    writer: LedgerWriter
    view: LedgerView
    live_roster: LiveRoster
    recovery: LedgerRecovery
    meetings: Meetings
    groups: dict[int, GroupCoordinator]
    stage_rounds: StageRounds | None
    linger_s: float

    @property
    def first(self) -> GroupCoordinator:
        """Group 0, which is all that most people know of."""

    @property
    def lines(self) -> Mapping[PeerId, PeerLine]:
        """A line per peer of the roster."""

    @property
    def is_finished(self) -> bool:
        """The run has all its rounds."""

    def missed(self) -> Mapping[PeerId, float]:
        """Members that a finished run still waits for."""


def describe(
    coordinator: Coordinator, now_s: float, among: Collection[PeerId] | None = None
) -> CoordinatorStatus:
    """A snapshot for `status`.

    Args:
        coordinator: is read.
        now_s: the time.
        among: only these of the peers are told of, None for all.
    """
    view = coordinator.view.first
    chronicle = coordinator.first.chronicle
    every = coordinator.groups.values()
    root = view.root_after(view.last_op)
    text, seen_s = _run_waits_for(coordinator, now_s)
    later = [group for group in coordinator.groups.values() if group is not coordinator.first]
    are_own = view.goes_by_pairs and view.commit_at(view.last_op) > 0
    lines = coordinator.lines
    told = lines.keys() if among is None else [peer for peer in among if peer in lines]
    ways = _ways(coordinator) if told else {}
    sidelined = {number: _sidelined(group.view) for number, group in coordinator.groups.items()}
    return CoordinatorStatus(
        run=coordinator.terms.run_id,
        term=coordinator.writer.term,
        round=max(0, view.last_op),
        committed=view.committed,
        rounds=coordinator.first.terms.rounds,
        phase=_phase(coordinator, coordinator.first, is_over=coordinator.is_finished),
        wanted_root=root.hex() if root and not are_own else "",
        num_values=view.genesis.num_values if view.genesis else 0,
        peers=tuple(
            _peer(peer, lines[peer], coordinator, ways.get(peer, {}), sidelined, now_s)
            for peer in told
        ),
        losses={str(op): loss for op, loss in chronicle.losses.items()},
        exclusions=tuple(
            _of_group(one, told) for one in every for told in one.chronicle.exclusions
        ),
        events=tuple(_of_group(one, told) for one in every for told in one.chronicle.events),
        checkpoint_op=view.checkpoint.op if view.checkpoint else -1,
        waiting_for=text,
        result=result_of(coordinator) if coordinator.is_finished else "",
        unit=coordinator.terms.unit,
        relayed=coordinator.meetings.own_carried,
        relays=tuple(_relays(coordinator.meetings)),
        timeline=tuple(chronicle.times.values()),
        groups=tuple(_group(coordinator, group, sidelined, now_s) for group in later)
        if later
        else msgspec.UNSET,
        waiting_seen_s=_ago(seen_s, now_s),
        pipeline=_pipeline(coordinator) if coordinator.stage_rounds is not None else msgspec.UNSET,
    )


def _pipeline(coordinator: Coordinator) -> PipelineStatus:
    view, groups = coordinator.view, coordinator.groups.values()
    counted = view.books.counted if view.books is not None else (0,) * len(groups)
    members = view.books.members if view.books is not None else ()
    return PipelineStatus(
        stages=tuple(
            StageStatus(
                peers=tuple(peer.hex() for peer in group.view.members),
                counted=count,
                keepers=tuple(peer.hex() for peer in _keepers_here(group)),
            )
            for group, count in zip(groups, counted, strict=True)
        ),
        suspects={one.peer.hex(): one.suspect.hex() for one in members if one.suspect},
        **view.booked,
    )


def _of_group(group: GroupCoordinator, told: Told) -> Told:
    """An entry of a group's chronicle with its group, if that is not the first."""
    if group.view.group == FIRST_GROUP:
        return told
    return msgspec.structs.replace(told, group=group.view.group)


def _sidelined(view: GroupView) -> set[PeerId]:
    """Members that give nothing to the next op, as T1 has it."""
    return view.standing.sidelined(view.last_op + 1, view.members.keys())


def _group(
    coordinator: Coordinator, group: GroupCoordinator, sidelined: Sidelined, now_s: float
) -> GroupStatus:
    view = group.view
    root = None if view.goes_by_pairs else view.root_after(view.last_op)
    text, seen_s = _waiting_for(coordinator, group)
    return GroupStatus(
        group=view.group,
        round=max(0, view.last_op),
        committed=view.committed,
        rounds=group.terms.rounds,
        wanted_root=root.hex() if root else "",
        num_values=view.genesis.num_values if view.genesis else 0,
        peers=tuple(
            _member(peer, coordinator, group, sidelined[view.group], now_s) for peer in view.members
        ),
        ops_under_way=tuple(op.plan.op for op in view.ops.values()),
        phase=_phase(coordinator, group, is_over=group.is_finished),
        losses={str(op): loss for op, loss in group.chronicle.losses.items()},
        waiting_for=text,
        waiting_seen_s=_ago(seen_s, now_s),
    )


def _member(
    peer: PeerId,
    coordinator: Coordinator,
    group: GroupCoordinator,
    sidelined: AbstractSet[PeerId],
    now_s: float,
) -> GroupPeerStatus:
    told = GroupPeerStatus(
        peer=peer.hex(),
        name=shown(coordinator.view.names[peer], limits.NAME_CHARS_MAX),
        state="disconnected",
        rests=_rests(peer, group.view, sidelined),
    )
    at = group.group_peers.here.get(peer)
    if at is None:  # not heard of in this term
        return told
    return msgspec.structs.replace(
        told,
        state=_state(at, now_s, is_behind=_is_behind(at, group)),
        round=at.applied_op,
        state_root=at.state_root.hex(),
        chain=at.chain.hex(),
    )


def _ago(seen_s: float | None, now_s: float) -> float | None:
    return None if seen_s is None else round(now_s - seen_s, 1)


def _phase(coordinator: Coordinator, group: GroupCoordinator, *, is_over: bool) -> str:
    if coordinator.recovery.is_missing:
        return "ledger missing"
    if is_over:
        return "finished"
    if group.operation is None and disputed(group.view, group.group_peers.here):
        return "disputed"
    if group.operation is None:
        return "training" if group.view.genesis else "waiting for the first peer"
    if group.operation.view.frozen is None:
        return "scatter"
    return "gather"


def _run_waits_for(coordinator: Coordinator, now_s: float) -> tuple[str, float | None]:
    """Say what the run waits for: its first group, or any stage, for micro-batches go through all
    of them. Of a finished run: whom it waits for with its last state."""
    if missed := coordinator.missed():
        minutes = coordinator.linger_s / 60.0
        text = f"{_named(coordinator, sorted(missed))} to come back and take the run's last state"
        return f"{text}, for {minutes:.3g} minutes at most; Ctrl+C ends that", None
    if coordinator.is_finished:
        groups = coordinator.groups.values()
        behind = sorted({peer for group in groups for peer in group.group_peers.behind(now_s)})
        text = f"{_named(coordinator, behind)} to take the run's last state" if behind else ""
        return text, None
    if coordinator.stage_rounds is None or coordinator.recovery.is_open:
        return _waiting_for(coordinator, coordinator.first)
    waits = {number: _waiting_for(coordinator, one) for number, one in coordinator.groups.items()}
    text, seen_s = next((one for one in waits.values() if one[0]), ("", None))
    alike = [str(number) for number, one in waits.items() if one[0] == text]
    if text:
        where = f"stage {alike[0]}" if len(alike) == 1 else f"each of the stages {_listed(alike)}"
        return f"{text} in {where}", seen_s
    rounds = coordinator.stage_rounds.rounds
    missing = rounds.least_members - len(coordinator.live_roster.connected())
    return ("" if rounds.has_begun or missing <= 0 else _more_peers(missing)), None


def _more_peers(count: int) -> str:
    return "1 more peer" if count == 1 else f"{count} more peers"


def _waiting_for(coordinator: Coordinator, group: GroupCoordinator) -> tuple[str, float | None]:
    """Describe what a group waits for, and, if that is a state, say when a peer that holds it was
    last here; empty while the group goes on."""
    view, terms = group.view, group.terms
    if coordinator.recovery.is_missing:
        return _NO_LEDGER, None
    if coordinator.recovery.takes_copies:
        return _LEDGER_MAY_GROW, None
    if group.is_finished or group.operation is not None:
        return "", None
    held = disputed(view, group.group_peers.here)
    if held:
        names = " against ".join(
            f"{', '.join(peer.hex()[:8] for peer in peers)} ({root.hex()[:8]})"
            for root, peers in held.items()
        )
        text = (
            f"a majority: {len(held)} different states after round {view.last_op}, {names}; "
            "stop the peer that is wrong, it will take the others' state when it comes back"
        )
        return text, None
    alive = [one for one in group.group_peers.here.values() if one.line.connected]
    holders = {
        peer: one
        for peer, one in group.group_peers.here.items()
        if one.line.connected and one.applied_op == view.last_op
    }
    if view.last_op >= 1 and holders and all(map(_is_out_of_reach, holders.values())):
        names = _named(coordinator, sorted(holders))
        text = f"the others to reach {names}: nobody else has the state after round {view.last_op}"
        return text, None
    if view.genesis is not None and view.last_op >= 1 and not holders:
        keepers = _keepers_here(group)
        if keepers:
            return _held_by_keepers(coordinator, group, keepers), None
        return _held_by_nobody(coordinator, group)
    needed = needed_peers(terms, view)
    here = group.group_peers.here.items()
    out = sorted(peer for peer, one in here if _is_out_of_reach(one))
    if len(alive) < needed:
        return _more_peers(needed - len(alive)), None
    if len(alive) - len(out) < needed:
        more = _more_peers(needed - len(alive) + len(out))
        return f"{more}: the others cannot reach {_named(coordinator, out)}", None
    return _first_state(coordinator, group, needed), None


def _is_out_of_reach(one: GroupPeer) -> bool:
    return one.line.life.unreached_s is not None


def _first_state(coordinator: Coordinator, group: GroupCoordinator, needed: int) -> str:
    """Say who lacks the first state, and who has it, while op 1 waits for that."""
    state, passed = group.first_state, group.view.passed_over
    if group.view.genesis is None and passed:
        return f"a first state: most peers did not get the one of {_named(coordinator, [*passed])}"
    lacking, holders = state.lacking(), state.holders()
    if not (state.is_open and lacking) or len(lacking) < len(holders) >= needed:
        return ""
    who = _named(coordinator, lacking)
    if not holders:
        return f"{who} to get the first state"
    has = "alone has" if len(holders) == 1 else "have"
    return f"{who} to get the first state, which {_named(coordinator, holders)} {has}"


def _keepers_here(group: GroupCoordinator) -> list[PeerId]:
    """Keepers that are here and hold the newest state."""
    lines, holding = group.keepers.lines, group.keepers.holding
    here = [peer for peer, line in lines.items() if line.connected and peer in holding]
    return sorted(here, key=lambda peer: (lines[peer].hello.name, peer))


def _held_by_keepers(
    coordinator: Coordinator, group: GroupCoordinator, keepers: Sequence[PeerId]
) -> str:
    """Say who may take the state over that no member has who is here."""
    here = group.group_peers.here.items()
    coming = sorted(peer for peer, one in here if one.line.connected)
    missing = sorted(group.view.members.keys() - set(coming))
    whom = _named(coordinator, coming) if coming else "a peer"
    if missing and not coming:
        whom = f"{_named(coordinator, missing)} to come back, or another peer"
    kept = f"its keepers ({_named(coordinator, keepers)})"
    return f"{whom} to take over from {kept} the state after round {group.view.last_op}"


def _held_by_nobody(coordinator: Coordinator, group: GroupCoordinator) -> tuple[str, float | None]:
    """Name the state that nobody has who is here, and with whom it was seen last: in this term,
    else who was in the round that made it, for the ledger knows no more."""
    view = group.view
    root = view.root_after(view.last_op)
    # Unattested: its contributors went before a majority of them had reported.
    state = f"state root {root.hex()[:16]}" if root else "the state, not attested yet,"
    if view.goes_by_pairs:
        state, root = "a state", None  # of its own
    text = f"a peer that holds {state} (round {view.last_op}), which nobody here does"
    holders, seen_s = group.group_peers.last_holders(view.last_op, root)
    if holders:
        return f"{text}; last seen with {_named(coordinator, holders)}", seen_s
    made = view.commits.get(view.commit_at(view.last_op))
    if made is None or made.frozen is None:
        return text, None
    return f"{text}; in that round: {_named(coordinator, made.frozen)}", None


def result_of(coordinator: Coordinator) -> str:
    """Describe the result of a finished run, and who has the model; of each stage or group, if it
    has several."""
    if len(coordinator.groups) == 1:
        return _result_of(coordinator, coordinator.first)
    kind = "group" if coordinator.stage_rounds is None else "stage"
    return "; ".join(
        f"{kind} {number}: {_result_of(coordinator, group)}"
        for number, group in coordinator.groups.items()
    )


def _result_of(coordinator: Coordinator, group: GroupCoordinator) -> str:
    view, losses = group.view, group.chronicle.losses
    told = [f"{view.committed} round{'' if view.committed == 1 else 's'}"]
    if losses:
        newest = max(losses)
        of = "" if newest == view.last_op else f" after round {newest}"
        told.append(f"loss {losses[newest]:.3f}{of}")
    root = None if view.goes_by_pairs else view.root_after(view.last_op)
    if root is not None:
        told.append(f"root {root.hex()[:16]}")
    here = [p for p, one in group.group_peers.here.items() if one.applied_op == view.last_op]
    holders = dict.fromkeys([*here, *group.group_peers.last_holders(view.last_op, root)[0]])
    made = view.commits.get(view.last_op)
    if holders:
        told.append(f"the model is with {_named(coordinator, list(holders))}")
    elif made is not None and made.frozen is not None:
        told.append(f"the last one made by {_named(coordinator, made.frozen)}")
    return ", ".join(told)


def _named(coordinator: Coordinator, peers: Sequence[PeerId]) -> str:
    """Some peers by their names: all of a few, some of many."""
    names = coordinator.view.names
    told = [shown(names[peer], limits.NAME_CHARS_MAX) for peer in peers[:_NAMED_MAX]]
    if len(peers) > _NAMED_MAX:
        told.append(f"{len(peers) - _NAMED_MAX} more")
    return _listed(told)


def _listed(told: Sequence[str]) -> str:
    return " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)


def _relays(meetings: Meetings) -> Iterator[RelayStatus]:
    for peer, name in meetings.names_of_relays().items():
        told = meetings.relays.describe(peer)
        yield RelayStatus(peer=peer.hex(), name=shown(name, limits.NAME_CHARS_MAX), **told)


def _ways(coordinator: Coordinator) -> dict[PeerId, dict[str, str | None]]:
    """By which way each peer sends to each other one, by names; of two with one name, with the
    beginning of the key."""
    names = {
        peer: shown(line.hello.name, limits.NAME_CHARS_MAX)
        for peer, line in coordinator.lines.items()
    }
    often = Counter(names.values())
    for peer, name in names.items():
        names[peer] = name if often[name] == 1 else f"{name} ({peer.hex()[:8]})"
    told = dict[PeerId, dict[str, str | None]]()
    for (sender, receiver), way in coordinator.meetings.ways().items():
        if sender in names and receiver in names:
            told.setdefault(sender, {})[names[receiver]] = way and way.value
    return told


def _peer(
    peer: PeerId,
    line: PeerLine,
    coordinator: Coordinator,
    ways: dict[str, str | None],
    sidelined: Sidelined,
    now_s: float,
) -> PeerStatus:
    progress = line.progress
    own = [group for group in coordinator.groups.values() if peer in group.view.members]
    first = own[0] if own else coordinator.first
    at = first.group_peers.here.get(peer) or GroupPeer(line)
    conduct = coordinator.view.conduct_of(peer)
    up = progress.bytes_out + progress.control_bytes_out if progress else 0
    down = progress.bytes_in + progress.control_bytes_in if progress else 0
    gauged = (group.chronicle.gauges.of(peer) for group in own)
    likeness = next((one for one in gauged if one is not None), None)
    is_behind = any(
        _is_behind(group.group_peers.here.get(peer) or GroupPeer(line), group) for group in own
    )
    return PeerStatus(
        peer=peer.hex(),
        name=shown(line.hello.name, limits.NAME_CHARS_MAX),
        state=_state(at, now_s, is_behind=is_behind),
        round=max(0, at.applied_op),
        step=progress.step if progress else 0,
        loss=finite(progress.loss) if progress else 0.0,
        tokens_per_s=finite(progress.tokens_per_s) if progress else 0.0,
        tokens=progress.tokens if progress else 0,
        bytes_up=min(up, _COUNT_MAX),
        bytes_down=min(down, _COUNT_MAX),
        replayed_ops=progress.replayed_ops if progress else 0,
        state_root=at.state_root.hex(),
        silent_s=round(max(0.0, now_s - line.life.heard_s), 1),
        chain=at.chain.hex(),
        rests=_rests_anywhere(peer, coordinator, own or [first], sidelined),
        norm=likeness.length if likeness else None,
        cosine=likeness.cosine if likeness else None,
        left_out=conduct.left_out.total(),
        waited_s=round(max(one.view.standing.lateness.seconds(peer) for one in own or [first]), 1),
        ways=ways,
        accused_by={owner.hex(): count for owner, count in conduct.accused_by.items()},
        stages=tuple(group.view.group for group in own)
        if coordinator.stage_rounds is not None
        else msgspec.UNSET,
    )


def _rests_anywhere(
    peer: PeerId,
    coordinator: Coordinator,
    own: Sequence[GroupCoordinator],
    sidelined: Sidelined,
) -> str:
    """Describe what a peer sits out in each of its groups."""
    kind = "group" if coordinator.stage_rounds is None else "stage"
    told = (
        (group.view.group, _rests(peer, group.view, sidelined[group.view.group])) for group in own
    )
    return "; ".join(
        rests if number == FIRST_GROUP else f"in {kind} {number}: {rests}"
        for number, rests in told
        if rests
    )


def _rests(peer: PeerId, view: GroupView, sidelined: AbstractSet[PeerId]) -> str:
    """Describe what a peer sits out for what it did, until when, and its odds with others."""
    standing, op = view.standing, view.last_op + 1
    told = []
    if (until := standing.barred_until(peer, op)) >= 0:
        told.append(f"gives nothing up to round {until}: at fault too often")
    elif peer in sidelined:
        told.append("gives nothing for a while: too many owners have lacked its part")
    if standing.lateness.is_beyond(peer):
        told.append(f"is not waited for: {in_words(standing.lateness, peer)}")
    if (until := standing.owns_nothing_until(peer, op)) >= 0:
        told.append(f"owns nothing up to round {until}: its slices had to be moved")
    apart = sorted(other.hex()[:8] for other in standing.at_odds_with(peer, op))
    if apart:
        told.append(f"at odds with {', '.join(apart[:_NAMED_MAX])}")
    return "; ".join(told)


def _is_behind(at: GroupPeer, group: GroupCoordinator) -> bool:
    """Return True if a peer of a group takes its state over, and no part yet."""
    return at.applied_op < group.view.last_op and not at.active


def _state(at: GroupPeer, now_s: float, *, is_behind: bool) -> str:
    """One word. Silence is drawn differently from being gone: gone peers are not listed."""
    line = at.line
    if not line.connected:
        return "disconnected"
    if line.life.unreached_s is not None:
        return "unreachable"
    if not line.life.is_alive(now_s):
        return "silent"
    if is_behind:
        return "syncing"
    return shown(line.progress.phase, _PHASE_CHARS_MAX) if line.progress else "connecting"
