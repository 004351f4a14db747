"""Rules of the records of a group beside the first, checked as they are logged.

Its states are compared by `Invariants.staged`. Here is what the ledger and the holdings of its
peers show: one outcome per op, its contributors and holders, how far it goes back, and that it
ends.
"""

from swarmtrain.simulate.checks.demands import GRACE_S, Demands
from swarmtrain.simulate.checks.holding import holds
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain_transport.wire.records import (
    AnyBody,
    Commit,
    Freeze,
    Plan,
    Rewind,
    Skip,
    SliceFreeze,
)

_RETRY_S = 1.0

_SUM_BITS, _PRODUCT_BITS = 53, 15
"""As in `rules`."""


class LaterGroup:
    """Judges the records of one group beside the first.

    Args:
        swarm: its peers.
        group: its number.
        demands: with whom something was wrong.

    Attributes:
        limit_s: when its open op must have ended.
        newest: the newest committed op and the roots of its slices.
    """

    def __init__(self, swarm: Swarm, group: int, demands: Demands) -> None:
        self.limit_s = float("inf")
        self.newest: tuple[int, tuple[bytes, ...]] = (0, ())
        self._swarm, self._group, self._demands = swarm, group, demands
        self._plans: dict[int, Plan] = {}
        self._frozen: dict[int, Freeze] = {}
        self._ended: dict[int, Commit | Skip] = {}
        self._deadline_s = 0.0

    def logged(self, body: AnyBody) -> None:
        """A record of the group was appended."""
        if isinstance(body, Plan):
            self._planned(body)
        elif isinstance(body, Freeze):
            if body.op in self._frozen:
                self._violated("I6", f"second FREEZE of op {body.op}")
            self._frozen[body.op] = body
        elif isinstance(body, SliceFreeze):
            freeze = self._frozen.get(body.op)
            if freeze is None or not set(body.contributors) <= set(freeze.contributors):
                self._violated("I6", f"slice {body.slice_index}: contributors not in FREEZE")
        elif isinstance(body, Commit | Skip):
            if body.op in self._ended:
                self._violated("I1", f"second outcome of op {body.op}")
            self._ended[body.op], self.limit_s = body, float("inf")
            if isinstance(body, Commit):
                self._committed(body)
        elif isinstance(body, Rewind):
            self._rewound(body)

    def _planned(self, plan: Plan) -> None:
        self._plans[plan.op] = plan
        weight = sum(member.weight for member in plan.members)
        bits = (weight - 1).bit_length() + _PRODUCT_BITS + plan.e_max - plan.e_min
        if plan.exact and bits > _SUM_BITS:
            self._violated("rule 1", f"sums of op {plan.op} need {bits} bits")
        self._deadline_s = plan.deadline_s
        self.limit_s = self.late_s()

    def late_s(self) -> float:
        """When an op whose clock begins now has not ended in time."""
        return self._swarm.scene.clock.now_s + 2 * self._deadline_s + _RETRY_S

    def _committed(self, commit: Commit) -> None:
        """I6 and I8: enough contributors, enough live holders of every slice."""
        self.newest = (commit.op, tuple(piece.root for piece in commit.slices))
        plan, now_s = self._plans[commit.op], self._swarm.scene.clock.now_s
        boots = {member.peer: member.boot for member in plan.members}
        members = self._members
        live = [
            peer
            for peer in members
            if peer.peer_id in commit.contributors
            and boots[peer.peer_id] == peer.machine.card.boot
            and self._demands.is_sound(peer, now_s)
        ]
        for index, outcome in enumerate(commit.slices):
            if len(outcome.contributors) < plan.min_contributors:
                self._violated("I6", f"op {commit.op} slice {index}: too few contributors")
            holders = [peer for peer in members if holds(peer, outcome.root, self._group)]
            if live and 2 * len(holders) <= len(live):
                numbers = [peer.number for peer in holders]
                self._violated("I8", f"op {commit.op} slice {index}: held by {numbers} alone")

    def _rewound(self, rewind: Rewind) -> None:
        """T12: nobody who is sound has a newer state of the run's."""
        lately = self._swarm.scene.clock.now_s - GRACE_S
        newest = max(
            (
                peer.machine.groups[self._group].place.applied_op
                for peer in self._members
                if not peer.is_leaving and self._demands.is_sound(peer, lately)
            ),
            default=-1,
        )
        if newest > rewind.op >= 0:
            story = f"back to op {rewind.op}, although the state after op {newest} is here"
            self._violated("T12", story)
        for store in (self._plans, self._frozen, self._ended):
            for later in [op for op in store if op > rewind.op]:
                del store[later]
        done = [one for one in self._ended.values() if isinstance(one, Commit)]
        last = max(done, key=lambda one: one.op, default=None)
        self.newest = (0, ()) if last is None else (last.op, tuple(p.root for p in last.slices))

    @property
    def _members(self) -> list[SimPeer]:
        return [peer for peer in self._swarm.survivors if self._group in peer.machine.groups]

    def _violated(self, invariant: str, story: str) -> None:
        self._swarm.scene.violation(invariant, f"group {self._group}: {story}")
