"""Keepers of one group: what they hold, who is waited for, who has failed (protocol.md, KEEPERS).

MOVE says who they are; all else is volatile, and they say it again after a restart.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.group_peers import GroupPeers
from swarmtrain_transport.coordinator.members.roster import LiveRoster, PeerLine
from swarmtrain_transport.coordinator.ops.op_decider import OpDecider
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Kept
from swarmtrain_transport.wire.records import Commit


@dataclass(slots=True)
class _Keeper:
    """One peer that keeps the group's state, in this term.

    Attributes:
        boot: boot of its process.
        since_s: time when it was named, or had the newest state last.
        op: the state after this op is with it, as it says.
        is_awaited: COMMIT waits for it.
        has_failed: True if it lacked a result in time, or has no room: somebody else is to keep
            the state in its place.
    """

    boot: bytes
    since_s: float
    op: int = -1
    is_awaited: bool = True
    has_failed: bool = False


class GroupKeepers:
    """The keepers of one group.

    Args:
        view: the ledger's fold of the group.
        live_roster: peers that are here.
        group_peers: the group's members.
    """

    def __init__(self, view: GroupView, live_roster: LiveRoster, group_peers: GroupPeers) -> None:
        self._view, self._live_roster, self._group_peers = view, live_roster, group_peers
        self._known: dict[PeerId, _Keeper] = {}
        self._barred_s: dict[PeerId, float] = {}
        self._behind_s: dict[PeerId, float] = {}

    def heard(self, peer: PeerId, message: Kept, now_s: float) -> None:
        """A peer says what it keeps; void of one that is not to keep it, or of an op to come."""
        keeper = self._sorted(now_s).get(peer)
        if keeper is None or message.op > self._view.last_op:
            return
        keeper.op = message.op
        if not message.has_room:
            keeper.has_failed, keeper.is_awaited = True, False
        if keeper.op == self._view.last_op and not keeper.has_failed:
            keeper.since_s, keeper.is_awaited = now_s, True

    @property
    def newest(self) -> int:
        """Newest op after which a keeper says that it has the state, -1 for none."""
        return max(
            (one.op for p, one in self._known.items() if p in self._view.keepers), default=-1
        )

    @property
    def holding(self) -> set[PeerId]:
        """Keepers that say that they have the newest state."""
        known = self._known.items()
        return {p for p, one in known if p in self._view.keepers and one.op >= self._view.last_op}

    @property
    def lines(self) -> dict[PeerId, PeerLine]:
        """Lines of the keepers that are here."""
        lines = self._live_roster.lines
        return {peer: lines[peer] for peer in self._view.keepers if peer in lines}

    def staying(self) -> list[int]:
        """Return the newest op of each keeper that is here and does not leave."""
        here = [p for p, one in self.lines.items() if one.connected and not one.is_leaving]
        return [one.op if (one := self._known.get(peer)) else -1 for peer in here]

    def alive(self, now_s: float) -> set[PeerId]:
        """Keepers that the failure detector holds to be alive."""
        return self._live_roster.alive_of(self._view.keepers, now_s)

    def planned(self, now_s: float) -> dict[PeerId, PeerLine]:
        """The keepers that the next PLAN is to name: those that are here and waited for."""
        lines, named = self.lines, dict[PeerId, PeerLine]()
        for peer, keeper in self._sorted(now_s).items():
            line = lines.get(peer)
            is_here = line is not None and line.connected and line.life.is_alive(now_s)
            if line is not None and is_here and keeper.is_awaited:
                named[peer] = line
        return named

    def lacks(self, operation: OpDecider, commit: Commit, now_s: float) -> bool:
        """Return True if a keeper that lives has not all yet that it is waited for: the result, and
        the state before it. Nobody is waited for after D_gather."""
        if now_s >= operation.timers.gather_s:
            return False
        alive = self.alive(now_s)
        awaited = alive & set(operation.view.plan.keepers)
        return any(not self._holds(peer, operation, commit) for peer in awaited)

    def committed(self, operation: OpDecider, commit: Commit, now_s: float) -> None:
        """COMMIT: whoever has kept it waiting in vain is not waited for until it holds the newest
        state, and is replaced if it had nothing else to take."""
        for peer in self.alive(now_s) & set(operation.view.plan.keepers):
            keeper = self._sorted(now_s)[peer]
            if not self._holds(peer, operation, commit):
                keeper.is_awaited = False
                keeper.has_failed = keeper.has_failed or keeper.op >= commit.op - 1

    def _holds(self, peer: PeerId, operation: OpDecider, commit: Commit) -> bool:
        keeper = self._known.get(peer)
        is_here = keeper is not None and operation.view.boots.get(peer) == keeper.boot
        has_state = keeper is not None and keeper.op >= commit.op - 1
        return is_here and has_state and operation.is_with(peer, commit)

    # ---- who is to keep the state

    def failed(self, now_s: float) -> set[PeerId]:
        """Keepers in whose place others are to keep the state."""
        late_s = now_s - limits.HOLD_S
        failed = {
            peer
            for peer, one in self._sorted(now_s).items()
            if one.has_failed or (one.since_s <= late_s and one.op < self._view.last_op)
        }
        self._barred_s |= dict.fromkeys(failed, now_s + limits.HOLD_S)
        return failed

    def barred(self, now_s: float) -> set[PeerId]:
        """Keepers that have failed lately, as far as they are still to be known."""
        self._barred_s = {p: until_s for p, until_s in self._barred_s.items() if now_s < until_s}
        return set(self._barred_s)

    def sound_members(self, now_s: float) -> set[PeerId]:
        """Members who hold the newest state, or have not been without it for too long."""
        here, last = self._group_peers.here, self._view.last_op
        held = {peer for peer, one in here.items() if one.in_place and one.applied_op >= last - 1}
        behind = self._view.members.keys() - held
        self._behind_s = {peer: self._behind_s.get(peer, now_s) for peer in behind}
        return held | {
            p for p, since_s in self._behind_s.items() if now_s < since_s + limits.HOLD_S
        }

    def are_dispensable(self, wanted: int) -> bool:
        """Return True if so many members hold the newest state, and it is not about to change."""
        here, last = self._group_peers.here.values(), self._view.last_op
        holding = sum(one.in_place and one.applied_op == last for one in here)
        return holding >= wanted and not self._view.ops

    @property
    def next_wakeup_s(self) -> float:
        """Time at which somebody is overdue, if nothing is heard of it."""
        behind = [one.since_s for one in self._known.values() if one.op < self._view.last_op]
        return min([*behind, *self._behind_s.values()], default=math.inf) + limits.HOLD_S

    def _sorted(self, now_s: float) -> Mapping[PeerId, _Keeper]:
        """Keepers that the ledger names, as processes."""
        for peer in self._known.keys() - self._view.keepers.keys():
            del self._known[peer]
        for peer, boot in self._view.keepers.items():
            known = self._known.get(peer)
            if known is None or known.boot != boot:
                self._known[peer] = _Keeper(boot, now_s)
        return self._known
