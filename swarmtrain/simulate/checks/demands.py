"""Demands on peers: liveness holds only for those with whom nothing was wrong."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain_transport import limits
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Plan, Skip

GRACE_S = limits.SUSPECT_S + limits.FETCH_TIMEOUT_S
"""After its trouble a peer may still be suspected, and requests to it time out."""

_SLOW_DISK_S = 2.0
"""The coordinator's time of an op begins when PLAN is decided, which is durable so much later."""

RESEND_S = 6 * limits.NUDGE_S
"""A part that was lost is there again after so long: the owner asks after one or two nudges, the
contributor takes it to be under way for two more, is asked once more, and sends it."""


class Demands:
    """Book of the peers that were in trouble, and until when.

    Args:
        swarm: coordinator and peers.
        decided: the decisions that were logged.
    """

    def __init__(self, swarm: Swarm, decided: Decided) -> None:
        self._swarm = swarm
        self._scene = swarm.scene
        self._seen = decided
        self._until_s: dict[PeerId, float] = {}
        self._apart_until_s: dict[PeerId, float] = {}
        self._lost_s: dict[PeerId, float] = {}
        self._all_until_s = 0.0
        self._death_s: dict[tuple[PeerId, bytes], float] = {}

    def trouble(self, peer: PeerId, seconds: float, *, is_linked: bool = False) -> None:
        """Note that a peer or its links are in trouble for so long from now on.

        Args:
            peer: peer that is in trouble.
            seconds: duration of the trouble.
            is_linked: only its control connection suffers; the other peers reach it.
        """
        until_s = self._scene.clock.now_s + seconds + GRACE_S
        for times in (self._until_s,) if is_linked else (self._until_s, self._apart_until_s):
            times[peer] = max(times.get(peer, 0.0), until_s)

    def died(self, peer: SimPeer) -> None:
        """A process is gone: the coordinator counts on it for a while still."""
        self._death_s[peer.peer_id, peer.machine.card.boot] = self._scene.clock.now_s

    def deaths_since(self, since_s: float) -> set[tuple[PeerId, bytes]]:
        """Return which processes, by peer and boot, have died since then."""
        return {key for key, death_s in self._death_s.items() if death_s >= since_s}

    def lost(self, source: PeerId) -> None:
        """Note that something that this peer had sent is lost; nothing else is wrong with it."""
        self._lost_s[source] = self._scene.clock.now_s

    def has_lost(self, source: SimPeer, since_s: float) -> bool:
        """Return True if something that this peer sent was lost since then."""
        return self._lost_s.get(source.peer_id, -math.inf) >= since_s

    def trouble_all(self, seconds: float) -> None:
        """Note that the coordinator is in trouble."""
        self._all_until_s = max(self._all_until_s, self._scene.clock.now_s + seconds + GRACE_S)

    def is_quiet(self, since_s: float) -> bool:
        """Return True if the coordinator has been well since then."""
        return self._all_until_s < since_s

    def is_sound(self, peer: SimPeer, since_s: float) -> bool:
        """Return True if nothing but death could have kept this peer from an op that began then."""
        return peer.is_able and self._until_s.get(peer.peer_id, -1.0) < since_s

    def _is_linked(self, peer: SimPeer, since_s: float) -> bool:
        """Return True if the others could reach this peer since then; it may have been deaf."""
        return peer.is_able and self._apart_until_s.get(peer.peer_id, -1.0) < since_s

    def check_fair(self, op: int, left_out: set[PeerId], seen: Decided | None = None) -> None:
        """Not in protocol.md's list: no able peer is left out, unless some link is bad: the matrix
        rule may then take one end of it for the other. A frame that was lost just before a deadline
        cannot be there again in time, and D_repair may be shorter than sending it again takes.

        Args:
            op: number of the op.
            left_out: peers that the decision at hand leaves out.
            seen: the decisions of its group; of the first one if None.
        """
        seen = seen or self._seen
        if any(peer.is_cut or peer.is_handicapped for peer in self._swarm.survivors):
            return
        begun_s = seen.plan_s[op]
        planned = seen.planned(op)
        liars = self._scene.deeds.keys()
        # A peer that has died, or begun anew, outvotes nobody: of few left, one's silence is half
        # of all.
        boots = {peer.peer_id: peer.machine.card.boot for peer in self._swarm.survivors}
        members = seen.plans[op].members
        living = [one for one in members if one.weight and boots.get(one.peer) == one.boot]
        cells = seen.cells[op]
        least = min(Counter(cells[one.peer] for one in living).values(), default=0) if cells else 0
        if not self.promises(seen.plans[op].kind, least or len(living)):
            return
        if not self.is_quiet(begun_s):
            return
        if not all(self.is_sound(peer, begun_s) for peer in planned if peer.peer_id not in liars):
            return
        lost_s = self._scene.clock.now_s - RESEND_S
        left_out = left_out - set(seen.plans[op].unawaited)  # T19: for these nobody waits
        if seen.plans[op].kind == PAIR:
            left_out = self._wronged(op, left_out, lost_s, liars)
        wronged = [
            peer.number
            for peer in planned
            if peer.peer_id in left_out - liars and not self.has_lost(peer, lost_s)
        ]
        if wronged:
            story = f"{_name_of(op, seen)} leaves out {wronged}, with whom nothing is wrong"
            self._scene.violation("fair", story)

    def check_skip(self, skip: Skip, seen: Decided | None = None) -> None:
        """L3: no SKIP while enough contributors live, nothing is wrong with them, and they are
        linked to those to whom slices were given. A deaf one among these is relieved."""
        seen = seen or self._seen
        frozen = seen.frozen.get(skip.op)
        named = set(seen.weights(skip.op) if frozen is None else frozen.contributors)
        begun_s = seen.plan_s[skip.op]
        weights, deeds = seen.weights(skip.op), self._scene.deeds
        if not self.is_quiet(begun_s):
            return
        self._check_time(skip, seen)
        cells = seen.cells[skip.op]
        if not self.promises(seen.plans[skip.op].kind, len(weights) // seen.plans[skip.op].cells):
            return
        planned = seen.planned(skip.op)
        left = [peer.peer_id for peer in planned if peer.peer_id in weights]
        if cells and _has_half(cells, left, deeds.keys()):
            return  # T4: there its word is as good as theirs, and a slice at odds goes to it
        owners = [peer for peer in planned if peer.peer_id in seen.new_owners]
        if not all(self._is_linked(peer, begun_s) for peer in owners):
            return
        sound = {peer.peer_id for peer in planned if self.is_sound(peer, begun_s)} - deeds.keys()
        has_no_owner = skip.reason.startswith("no owner")
        may_own = sound - seen.relieved if has_no_owner else sound
        if {cells[peer] for peer in may_own if cells} < set(cells.values()):
            return  # in such a cell nobody is left who could own a piece
        sound &= named
        if len(sound) <= len(deeds):
            return  # who never says that it holds a result is no minority of so few (T8)
        if 2 * len(sound) <= sum(peer.peer_id in named for peer in planned):
            return  # T8: a result is with more than half of them, or is none
        if has_no_owner and sound <= seen.relieved:
            return  # they were at odds with one who lied, or was deaf, or has died since
        if seen.plans[skip.op].kind == PAIR:
            sound = paired(seen.plans[skip.op], sound)
        able = [peer.number for peer in planned if peer.peer_id in sound]
        if len(able) >= seen.plans[skip.op].min_contributors:
            story = f"{_name_of(skip.op, seen)} is skipped ({skip.reason}) although {able} live"
            self._scene.violation("L3", story)

    def _check_time(self, skip: Skip, seen: Decided) -> None:
        """T9: an op that runs out of time had D_op, and half of it more for each new owner, twice
        as much at most."""
        deadline_s = seen.plans[skip.op].deadline_s
        shares = min(limits.DEADLINE_EXTENSION_MAX, 1 + seen.num_reassigned[skip.op] / 2)
        due_s = shares * deadline_s / (1 + self._scene.conditions.drift)
        spent_s = self._scene.clock.now_s - seen.plan_s[skip.op]
        if skip.reason == "deadline" and spent_s < due_s - _SLOW_DISK_S:
            story = f"{_name_of(skip.op, seen)} had {spent_s:.1f} of {due_s:.1f} s"
            self._scene.violation("T9", story)

    def _wronged(
        self, op: int, left_out: set[PeerId], since_s: float, liars: AbstractSet[PeerId]
    ) -> set[PeerId]:
        """Peers that are left out and had a live partner that is none of the liars, while nothing
        that either of the two had sent was lost."""
        partners = partners_in(self._seen.plans[op])
        here = {peer.peer_id: peer for peer in self._seen.planned(op)}
        lost = {p for p, peer in here.items() if self.has_lost(peer, since_s)}
        lost |= liars
        return {
            peer
            for peer in left_out
            if peer in partners and partners[peer] in here and not {peer, partners[peer]} & lost
        }

    def promises(self, op_kind: str, planned: int) -> bool:
        """Return True if anything is promised to the honest contributors of an op: where hostile
        members are not few nothing is."""
        num_hostile = len(self._scene.deeds)
        return not num_hostile or planned > 2 * num_hostile + (op_kind == PAIR)


def _name_of(op: int, seen: Decided) -> str:
    return f"op {op} of group {seen.group}" if seen.group else f"op {op}"


def _has_half(
    cells: Mapping[PeerId, int], left: Iterable[PeerId], liars: AbstractSet[PeerId]
) -> bool:
    """Return True if liars are half, or more, of those who are left in some cell."""
    peers = list(left)
    lying = Counter(cells[peer] for peer in peers if peer in liars)
    living = Counter(cells[peer] for peer in peers)
    return any(2 * lying[cell] >= living[cell] for cell in lying)


def partners_in(plan: Plan) -> dict[PeerId, PeerId]:
    """Return the pairs that were drawn; an odd one is not in them."""
    named = [member.peer for member in plan.members if member.weight]
    pairs = list(zip(named[::2], named[1::2], strict=False))
    return dict(pairs) | {second: first for first, second in pairs}


def paired(plan: Plan, able: set[PeerId]) -> set[PeerId]:
    """Return these peers whose partner is among them, too."""
    partners = partners_in(plan)
    return {peer for peer in able if partners.get(peer) in able}
