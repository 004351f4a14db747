"""Naming of keepers: who keeps the state of groups with few members (protocol.md, KEEPERS)."""

import hashlib
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.group import GroupCoordinator
from swarmtrain_transport.coordinator.members.roster import LiveRoster
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Move

Groups = Mapping[int, GroupCoordinator]


def moves_due(
    groups: Groups, view: LedgerView, live_roster: LiveRoster, now_s: float
) -> Iterator[Move]:
    """Yield the MOVE of each peer that is to keep other states than it does.

    Keepers make up the number of holders that a group is to have, and one there always is: the
    members may all die at once. One that has failed goes as soon as somebody else is there for it;
    all but one go when enough members hold the newest state.

    Args:
        groups: groups of the run.
        view: the ledger's fold.
        live_roster: peers that are here.
        now_s: the time.
    """
    kept = {number: set(group.view.keepers) for number, group in groups.items()}
    for number, group in groups.items():
        if group.terms.holders and group.view.genesis is not None:
            kept[number] = _keepers_of(number, groups, kept, live_roster, now_s)
    for peer in view.roster:
        keeps = tuple(number for number, keepers in kept.items() if peer in keepers)
        if keeps != view.keeps_of(peer):
            yield Move(peer, view.groups_of(peer), keeps)


def _keepers_of(
    number: int, groups: Groups, kept: dict[int, set[PeerId]], live_roster: LiveRoster, now_s: float
) -> set[PeerId]:
    group, keepers = groups[number], kept[number]
    wanted = group.terms.holders
    sound, failed = group.keepers.sound_members(now_s), group.keepers.failed(now_s)
    barred = group.keepers.barred(now_s)
    if group.keepers.are_dispensable(wanted):
        keepers = set(sorted(keepers & group.keepers.holding - failed)[:1]) or keepers
    while not keepers - failed or len(sound | keepers - failed) < wanted:
        able = {
            peer
            for peer, line in live_roster.connected().items()
            if peer not in keepers | barred
            and peer not in group.view.members
            and line.life.is_alive(now_s)
            and _has_room(peer, line.hello.brings.disk_bytes, number, groups, kept)
        }
        new = _next(number, able, kept)
        if new is None:
            return keepers  # one that has failed may still be better than none
        keepers.add(new)
    return keepers - failed


def _next(
    number: int, able: AbstractSet[PeerId], kept: Mapping[int, AbstractSet[PeerId]]
) -> PeerId | None:
    """The next keeper: who keeps least; ties are drawn."""

    def place(peer: PeerId) -> tuple[int, bytes]:
        load = sum(peer in keepers for keepers in kept.values())
        return load, hashlib.sha256(number.to_bytes(4, "big") + peer).digest()

    return min(able, key=place, default=None)


def _has_room(
    peer: PeerId, disk_bytes: int, number: int, groups: Groups, kept: Mapping[int, set[PeerId]]
) -> bool:
    """Return True if a peer has room for one more state beside those that it keeps."""
    numbers = [number, *(other for other, keepers in kept.items() if peer in keepers)]
    return sum(_bytes_of(groups[one]) for one in numbers) <= disk_bytes


def _bytes_of(group: GroupCoordinator) -> float:
    """Bytes that a keeper of the group may take: its snapshots, and the results after one."""
    genesis = group.view.genesis
    per_value = limits.KEPT_SNAPSHOTS_BYTES + limits.RESULT_KEEP_OPS * group.terms.value_bytes
    return per_value * genesis.num_values if genesis is not None else 0.0
