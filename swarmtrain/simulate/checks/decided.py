"""Decisions of one group in the ledger of a simulated world, as far as checks ask for them."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain.simulate.processes.watched_driver import Learner
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Gone,
    Join,
    Move,
    Plan,
    Reassign,
    Record,
    Skip,
)


@dataclass(slots=True)
class Decided:
    """Everything that was logged of a group and is not cancelled.

    Attributes:
        group: number of the group.
        log: all records, where the group is the first.
        outcomes, plans, frozen: outcome, PLAN and FREEZE by op.
        cells: cell of each member, by op; nothing where there is one.
        plan_s: time when each op was planned.
        op_seconds: seconds from PLAN to outcome, by op.
        new_owners: peers that were given a slice of an op under way after its first owner.
        relieved: peers that have lost one.
        commits, skips: number of either.
        newest: the newest committed op and the roots of its slices.
        rewound_index: index of the newest REWIND.
        placed: the groups that each peer was moved to last.
        roster: peers that are in the group.
        elsewhere: peers that are in the run, and not in the group.
    """

    swarm: Swarm
    group: int = 0
    log: list[Record] = field(default_factory=list)
    outcomes: dict[int, Commit | Skip] = field(default_factory=dict)
    plans: dict[int, Plan] = field(default_factory=dict)
    frozen: dict[int, Freeze] = field(default_factory=dict)
    cells: dict[int, Mapping[PeerId, int]] = field(default_factory=dict)
    plan_s: dict[int, float] = field(default_factory=dict)
    op_seconds: dict[int, float] = field(default_factory=dict)
    new_owners: set[PeerId] = field(default_factory=set)
    relieved: set[PeerId] = field(default_factory=set)
    commits: int = 0
    skips: int = 0
    newest: tuple[int, tuple[bytes, ...]] = (0, ())
    extended: int = 0
    rewound_index: int = -1
    placed: dict[PeerId, tuple[int, ...]] = field(default_factory=dict)
    roster: set[PeerId] = field(default_factory=set)
    elsewhere: set[PeerId] = field(default_factory=set)
    keepers: set[PeerId] = field(default_factory=set)
    num_reassigned: Counter[int] = field(default_factory=Counter)
    _owners: dict[tuple[int, int], PeerId] = field(default_factory=dict)

    def peopled(self, body: Join | Move | Gone) -> None:
        """Note who is in the group: who joins is in those that its last MOVE named, also if it was
        gone since, and in the first one until it is moved."""
        if isinstance(body, Move):
            self.placed[body.peer] = body.groups
            keeps = self.group in body.keeps
            (self.keepers.add if keeps else self.keepers.discard)(body.peer)
        elif isinstance(body, Gone):
            self.keepers.discard(body.peer)
        is_in = self.group in self.placed.get(body.peer, (FIRST_GROUP,))
        is_gone = isinstance(body, Gone)
        (self.roster.add if is_in and not is_gone else self.roster.discard)(body.peer)
        (self.elsewhere.discard if is_in or is_gone else self.elsewhere.add)(body.peer)

    def begun(self, plan: Plan) -> None:
        """An op begins."""
        if self.plans.keys() <= self.outcomes.keys():
            self.new_owners.clear()
            self.relieved.clear()
            self._owners.clear()
        self.plans[plan.op] = plan
        self.cells[plan.op] = _dealt(plan)
        self.num_reassigned[plan.op] = 0
        self.plan_s[plan.op] = self.swarm.scene.clock.now_s

    def reassigned(self, body: Reassign) -> None:
        """A slice gets another owner."""
        place = body.op, body.slice_index
        first = self.plans[body.op].slices[body.slice_index].owner
        self.relieved.add(self._owners.get(place, first))
        self.new_owners.add(body.owner)
        self.num_reassigned[body.op] += 1
        self._owners[place] = body.owner

    def ended(self, outcome: Commit | Skip) -> None:
        """An op has ended."""
        self.outcomes[outcome.op] = outcome
        self.op_seconds[outcome.op] = self.swarm.scene.clock.now_s - self.plan_s[outcome.op]
        if isinstance(outcome, Skip):
            self.skips += 1
            return
        self.commits += 1
        if outcome.op > self.newest[0]:  # by clocks a younger one may have ended before
            self.newest = (outcome.op, tuple(piece.root for piece in outcome.slices))

    def rewound(self, index: int, op: int) -> None:
        """Cancel the decisions after `op` (T12); ops begin again with the next one."""
        self.rewound_index = index
        for store in (self.outcomes, self.plans, self.frozen):
            for later in [key for key in store if key > op]:
                del store[later]
        committed = [out for out in self.outcomes.values() if isinstance(out, Commit)]
        self.commits = len(committed)
        last = max(committed, key=lambda out: out.op, default=None)
        self.newest = (0, ()) if last is None else (last.op, tuple(p.root for p in last.slices))

    def planned(self, op: int) -> list[SimPeer]:
        """Live processes that the op's PLAN names: a peer that was started again is another, and
        one that was moved out of the group gives nothing any more."""
        boots = {member.peer: member.boot for member in self.plans[op].members}
        here = [peer for peer in self.swarm.survivors if peer.peer_id not in self.elsewhere]
        return [peer for peer in here if boots.get(peer.peer_id) == peer.machine.card.boot]

    def weights(self, op: int) -> dict[PeerId, int]:
        """Weights of the planned contributors."""
        return {member.peer: member.weight for member in self.plans[op].members if member.weight}

    def is_planned(self, learner: Learner, op: int) -> bool:
        """Return True if this very process is named by the op's PLAN. It may have been moved out of
        the group since the outcome, which it applies before it hears of that."""
        boots = {member.peer: member.boot for member in self.plans[op].members}
        return boots.get(learner.peer_id) == learner.machine.card.boot

    @property
    def rounds(self) -> int:
        """Commits after which the run is over, as far as is decided."""
        return self.extended or self.swarm.scene.conditions.rounds

    @property
    def is_over(self) -> bool:
        """True once the group's last op is committed."""
        return self.commits >= self.rounds

    @property
    def is_lost(self) -> bool:
        """True if it has trained, and nobody who is left holds a state of it."""
        left = [peer.machine for peer in self.swarm.survivors]
        held = [one.groups[self.group].place.applied_op for one in left if self.group in one.groups]
        held += [one.keepers[self.group].op for one in left if self.group in one.keepers]
        return self.commits > 0 and all(op < 0 for op in held)

    @property
    def late(self) -> dict[int, int]:
        """Applied ops of those who have not reached the group's end, by the peers' numbers; who
        was told that the run is over may have been moved here after that."""
        left = [peer for peer in self.swarm.survivors if not peer.is_finished]
        here = [peer for peer in left if self.group in peer.machine.groups]
        ops = {peer.number: peer.machine.groups[self.group].place.applied_op for peer in here}
        return {one: op for one, op in ops.items() if op < self.newest[0] or not self.is_over}

    def violated(self, invariant: str, story: str) -> None:
        """Report that something does not hold of the group."""
        name = f"group {self.group}: " if self.group else ""
        self.swarm.scene.violation(invariant, name + story)

    def is_past(self, learner: Learner) -> bool:
        """Return True if a peer acts on what a REWIND that it does not know yet has cancelled."""
        return learner.acts_on_index < self.rewound_index


def _dealt(plan: Plan) -> Mapping[PeerId, int]:
    """Deal the members of a PLAN into its cells: who gives first, each by lot."""
    if plan.cells == 1:
        return {}
    seed = plan.previous_outcome + plan.op.to_bytes(8, "little")
    lots = {m.peer: (not m.weight, hashlib.sha256(seed + m.peer).digest()) for m in plan.members}
    return {peer: rank % plan.cells for rank, peer in enumerate(sorted(lots, key=lots.__getitem__))}
