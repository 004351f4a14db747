"""Peers as they follow one group: which state each has, whether it is ready, who is waited for.

The ledger says who is in the group, and `roster` who is here at all. Everything here is
volatile: after a restart it is rebuilt from HELLO and from the messages that peers re-send.
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.roster import LiveRoster, PeerLine
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.ledger.standing import Score
from swarmtrain_transport.ledger.waits import Waits, add, most_s
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Ready
from swarmtrain_transport.wire.records import Commit, Plan


@dataclass(slots=True)
class GroupPeer:
    """One peer in one group, in this term.

    Attributes:
        line: line to the coordinator.
        applied_op, state_root: newest state that it reports.
        in_place: True if it has said so since HELLO, which tells of states on disk too. Others
            are no word for ATTEST.
        ready: newest READY; `ready_s` is when it came.
        active: True if it has sent a READY in this life, so the others wait for it.
        active_s: time when it sent the first.
        stranded_op: the op whose result it says that nobody has for it; -1 for none.
        chain: end of its chain of pair ops, by its own word; b"" for none.
        waits: score of READYs that ops have waited for in vain; who is waited for too often is not
            for a while.
    """

    line: PeerLine
    applied_op: int = -1
    state_root: bytes = b""
    in_place: bool = False
    ready: Ready | None = None
    ready_s: float = 0.0
    active: bool = False
    active_s: float = 0.0
    stranded_op: int = -1
    chain: bytes = b""
    waits: Score = field(default_factory=Score)

    def follow(self, peer: PeerId, view: GroupView) -> None:
        """Note what the peer does by itself where pairs meet by clocks: it passes the ops that have
        no part for it, and what it is ready to give goes to the next one."""
        self.applied_op = view.passed(peer, self.applied_op)
        ready = self.ready
        if ready is not None and (op := view.passed(peer, ready.op - 1) + 1) != ready.op:
            self.ready = msgspec.structs.replace(ready, op=op)

    def stranded(self, op: int) -> None:
        """The peer lacks the result of `op`. A state after it, of which its HELLO told, has turned
        out to be none of the run's."""
        self.stranded_op = op
        if op <= self.applied_op:
            self.applied_op, self.state_root, self.ready = -1, b"", None


class GroupPeers:
    """The peers of one group.

    Args:
        view: the ledger's fold of the group.
        live_roster: peers that are here.

    Attributes:
        here: peers of the group that said HELLO in this term and have not left.
    """

    def __init__(self, view: GroupView, live_roster: LiveRoster) -> None:
        self.here: dict[PeerId, GroupPeer] = {}
        self._view = view
        self._live_roster = live_roster
        self._gone: dict[PeerId, GroupPeer] = {}

    # ---- comings and goings

    def reconcile(self) -> None:
        """The ledger has changed who is in the group."""
        for peer in self.here.keys() - self._view.members.keys():
            self.depart(peer)
        for peer, line in self._live_roster.lines.items():
            if peer in self._view.members and peer not in self.here:
                self.enter(peer, line)

    def enter(self, peer: PeerId, line: PeerLine) -> None:
        """A member is in, for the first time or again; a process that only reconnects is the one
        that it was."""
        group_peer = GroupPeer(line)
        old = self.here.get(peer)
        if (gone := old or self._gone.get(peer)) is not None:
            group_peer.waits = gone.waits
        if old is not None:
            self._remember(peer, old)
        if old is not None and old.line.hello.boot == line.hello.boot:
            group_peer.ready, group_peer.ready_s = old.ready, old.ready_s
            group_peer.active, group_peer.active_s = old.active, old.active_s
            group_peer.chain = old.chain
        is_back = self.last_contributors().get(peer) == line.hello.boot
        group_peer.active = group_peer.active or is_back
        self.here[peer] = group_peer

    def depart(self, peer: PeerId) -> None:
        """The peer is in the group no more."""
        if (group_peer := self.here.pop(peer, None)) is not None:
            self._remember(peer, group_peer)

    def _remember(self, peer: PeerId, group_peer: GroupPeer) -> None:
        self._gone.pop(peer, None)
        self._gone[peer] = group_peer
        if len(self._gone) > limits.RUN_PEERS_MAX:
            del self._gone[next(iter(self._gone))]

    # ---- who takes part

    def connected(self) -> dict[PeerId, GroupPeer]:
        """Peers whose control connection stands."""
        return {peer: one for peer, one in self.here.items() if one.line.connected}

    @property
    def all_heard(self) -> bool:
        """True if nobody of the group is still to come back after a restart."""
        unseen = self._live_roster.unseen
        return not unseen or not unseen.keys() & self._view.holders.keys()

    def alive(self, now_s: float) -> set[PeerId]:
        """Members that the failure detector holds to be alive."""
        return self._live_roster.alive(now_s) & self._view.members.keys()

    def alive_of(self, peers: Iterable[PeerId], now_s: float) -> set[PeerId]:
        """Return those of some peers that are members and alive."""
        members = self._view.members
        return self._live_roster.alive_of((peer for peer in peers if peer in members), now_s)

    def last_contributors(self) -> dict[PeerId, bytes]:
        """Contributors of the newest PLAN and their boot ids."""
        op = self._view.op
        if op is None:
            return {}
        return {peer: boot for peer, boot in op.boots.items() if peer in op.weights}

    def expected(self, now_s: float, givers: AbstractSet[PeerId] | None = None) -> set[PeerId]:
        """Live peers that take part round by round, or that have something to give where that is
        known: also after a restart, before they are back. Not who was waited for in vain too
        often."""
        op = self._view.next_op
        patient = {p: one for p, one in self.here.items() if one.waits.until < op}
        if givers is not None:
            return self.alive(now_s) & givers & patient.keys()
        active = {p for p, one in patient.items() if one.active and not one.line.rests}
        returning = self._live_roster.unseen.keys() & self.last_contributors().keys()
        return self.alive(now_s) & (active | returning)

    def planned(
        self,
        plan: Plan,
        expected: AbstractSet[PeerId],
        now_s: float,
        wait_ready_s: float,
        givers: AbstractSet[PeerId] | None = None,
    ) -> Waits:
        """A PLAN has fallen due: of those who were expected some may have kept it waiting. Return
        for how long."""
        gives = {member.peer for member in plan.members if member.weight}
        late = expected - gives - self._view.standing.sidelined(plan.op, expected)
        if plan.cells > 1 or len(plan.members) == limits.CELL_PEERS_MAX:  # there may be no room
            late -= {p for p, one in self.here.items() if one.ready and one.ready.op == plan.op}
        for peer, group_peer in self.here.items():
            if peer in gives:
                group_peer.waits.good()
            elif peer in late:
                group_peer.waits.fault(plan.op)
        here = self.here
        if givers is not None:
            here = {peer: one for peer, one in here.items() if peer in givers}
        return self._waits(plan, here, now_s, wait_ready_s)

    def _waits(
        self, plan: Plan, here: Mapping[PeerId, GroupPeer], now_s: float, wait_ready_s: float
    ) -> Waits:
        """Return for how long the others' READY has waited for each one's, or for it to be held for
        dead."""
        standing, waits = self._view.standing, Waits()
        came_s = {}
        out = standing.sidelined(plan.op, self.here.keys()) | set(plan.unawaited)
        for peer, one in here.items():
            is_ready = one.ready is not None and one.ready.op == plan.op
            if is_ready or (one.active and not one.line.rests and one.waits.until < plan.op):
                until_s = min(now_s, one.line.life.suspect_at_s)
                came_s[peer] = one.ready_s if is_ready else until_s
        if len(came_s) > 1:
            due_s = most_s(came_s.values())
            for peer in came_s.keys() - out:
                late_s = came_s[peer] - max(due_s, self.here[peer].active_s)
                add(waits, peer, min(late_s, wait_ready_s))
        return waits

    def waits_until(self, wait_ready_s: float) -> Iterable[float]:
        """Yield when each that is ready has waited long enough for the others."""
        return (one.ready_s + wait_ready_s for one in self.here.values() if one.ready)

    def pardon(self, absent_s: float) -> None:
        """The coordinator was stopped for so long: nobody has waited meanwhile."""
        for group_peer in self.here.values():
            group_peer.ready_s += absent_s
            group_peer.active_s += absent_s

    # ---- who holds which state

    def behind(self, now_s: float) -> list[PeerId]:
        """Return the peers that have not the newest state and may still get it: they are connected,
        and the others can reach them. What was said of an earlier life of theirs takes a while to
        be unsaid."""
        return [
            peer
            for peer, one in self.connected().items()
            if one.applied_op < self._view.last_op
            and now_s < (one.line.life.unreached_s or now_s) + limits.UNREACHED_S
        ]

    def lacks(self, peer: PeerId) -> bool:
        """Return True if the peer gave something to one of the newest rounds, and has not said that
        it has the state after them."""
        newest, known = self._view.last_op, self.here.get(peer) or self._gone.get(peer)
        if known is not None and known.applied_op >= newest:
            return False
        commits = (self._view.commits.get(newest - ago) for ago in range(limits.RESULT_KEEP_OPS))
        outcomes = (commit.outcome for commit in commits if commit is not None)
        return any(isinstance(one, Commit) and peer in one.contributors for one in outcomes)

    def staying(self) -> list[PeerId]:
        """Return the peers that keep the newest state for who lacks it: STAYING of its holders."""
        connected = self.connected().items()
        holders = [peer for peer, one in connected if one.applied_op >= self._view.last_op]
        return sorted(holders)[: limits.STAYING]

    def needs(self, peer: PeerId, kept: Collection[int] = ()) -> bool:
        """Return True if none of the others who stay has a state in place as new as this peer's: it
        may not be able to go on from one on its disk.

        Args:
            peer: peer that leaves, or would.
            kept: newest op of each keeper that stays, -1 for one that has no state yet.
        """
        own, age = self.here.get(peer), self._view.age
        at_op = age(own.applied_op, own.state_root) if own is not None else -1
        if at_op < 0 or any(self._view.commit_at(op) >= at_op for op in kept):
            return False
        stays = bool(kept)
        for other, one in self.here.items():
            if other == peer or not one.line.connected or one.line.is_leaving:
                continue
            stays, op, root = True, one.applied_op, one.state_root
            if one.in_place and age(op, root) >= at_op and self._view.may_hold(op, root):
                return False
        return stays

    def last_holders(self, op: int, root: bytes | None) -> tuple[list[PeerId], float]:
        """Return the peers that had the state after `op` when last heard of in this term, and the
        newest time of that. If a root is given, the state must have it."""
        away = {peer: one for peer, one in self.here.items() if not one.line.connected}
        had = {
            peer: one.line.life.heard_s
            for peer, one in (self._gone | away).items()
            if one.applied_op == op and root in (None, one.state_root)
        }
        return list(had), max(had.values(), default=0.0)
