"""Promises of a group beside the first, checked as its records are logged.

Single records are judged by `Rules`, its results and its peers' work by `TrainingChecks`, its
audits by `Lies`, as in the first group. Here is what the ledger and the holdings of its peers show
besides: one outcome per op, its contributors and holders, whom it leaves out, that it is not
skipped without need, that it ends, and that its peers have the same states.
"""

from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.checks.demands import Demands
from swarmtrain.simulate.checks.holding import holds
from swarmtrain.simulate.checks.keeper_checks import Keeping
from swarmtrain.simulate.checks.lies import Lies
from swarmtrain.simulate.checks.rules import Rules
from swarmtrain.simulate.checks.training_checks import TrainingChecks
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import (
    AnyBody,
    Attest,
    Commit,
    Freeze,
    Gone,
    Plan,
    Reassign,
    Record,
    Rewind,
    Skip,
    SliceFreeze,
)

_RETRY_S = 1.0


class LaterGroup:
    """Judges the records of one group beside the first.

    Args:
        swarm: coordinator and peers.
        group: number of the group.
        demands: peers with whom something was wrong.

    Attributes:
        decided: decisions of the group that were logged.
        lies: deeds of a hostile owner in the group.
        training: checks of its results and of each peer's work.
        rules: rules of its records.
        limit_s: time by which its open op must have ended.
    """

    def __init__(self, swarm: Swarm, group: int, demands: Demands) -> None:
        self.decided = Decided(swarm, group)
        self.lies = Lies(swarm, self.decided, demands)
        self.training = TrainingChecks(swarm, self.decided, demands, self.lies)
        self.rules = Rules(swarm, self.decided, demands, self.training.sums)
        self.keeping = Keeping(swarm, self.decided, demands)
        self.limit_s = float("inf")
        self._states: dict[tuple[int, int], bytes] = {}
        self._swarm, self._group, self._demands = swarm, group, demands
        self._deadline_s = 0.0

    def logged(self, record: Record, body: AnyBody) -> None:
        """A record of the group was appended."""
        if isinstance(body, Plan):
            self._planned(body)
        elif isinstance(body, Freeze):
            self._froze(body)
        elif isinstance(body, Reassign):
            self.decided.reassigned(body)
            self.lies.reassigned(body)
        elif isinstance(body, SliceFreeze):
            freeze = self.decided.frozen.get(body.op)
            if freeze is None or not set(body.contributors) <= set(freeze.contributors):
                self._violated("I6", f"slice {body.slice_index}: contributors not in FREEZE")
            else:
                self._check_fair(body.op, set(freeze.contributors) - set(body.contributors))
        elif isinstance(body, Commit | Skip):
            self._over(body)
            if isinstance(body, Commit):
                self.lies.committed(record, body)
        elif isinstance(body, Gone) and body.conviction is not None:
            self.lies.convicts(body.peer, body.conviction)
        elif isinstance(body, Attest):
            self.rules.attested(body)
        elif isinstance(body, Rewind):
            self._rewound(record.index, body)

    def rooted(self, peer: SimPeer, op: int, root: bytes) -> None:
        """I2: who has applied the same ops has the same state."""
        if not self.decided.is_past(peer.stages[self._group]):
            self.rules.rooted(peer, op, root)
        place = peer.machine.view.groups[self._group].rewinds, op
        if self._states.setdefault(place, root) != root:
            self._violated("I2", f"peer {peer.number} has another state root after op {op}")

    def _planned(self, plan: Plan) -> None:
        self.rules.planned(plan)
        self.decided.begun(plan)
        self.training.begun()
        self.lies.begun(plan)
        self._deadline_s = plan.deadline_s
        self.limit_s = self.late_s()

    def late_s(self) -> float:
        """Return when an op whose clock begins now has not ended in time."""
        return self._swarm.scene.clock.now_s + 2 * self._deadline_s + _RETRY_S

    def _froze(self, freeze: Freeze) -> None:
        if freeze.op in self.decided.frozen:
            self._violated("I6", f"second FREEZE of op {freeze.op}")
        self.decided.frozen[freeze.op] = freeze
        self._check_fair(freeze.op, set(self.decided.weights(freeze.op)) - set(freeze.contributors))

    def _check_fair(self, op: int, left_out: set[PeerId]) -> None:
        self._demands.check_fair(op, left_out, self.decided)

    def _over(self, outcome: Commit | Skip) -> None:
        if outcome.op in self.decided.outcomes:
            self._violated("I1", f"second outcome of op {outcome.op}")
        self.decided.ended(outcome)
        self.limit_s = float("inf")
        if isinstance(outcome, Commit):
            self._committed(outcome)
        else:
            self._demands.check_skip(outcome, self.decided)

    def _committed(self, commit: Commit) -> None:
        """I6 and I8: enough contributors, enough live holders of every slice."""
        plan, now_s = self.decided.plans[commit.op], self._swarm.scene.clock.now_s
        self.rules.committed(commit, plan)
        self.keeping.committed(commit, plan)
        live = [
            peer
            for peer in self.decided.planned(commit.op)
            if peer.peer_id in commit.contributors and self._demands.is_sound(peer, now_s)
        ]
        for index, outcome in enumerate(commit.slices):
            if len(outcome.contributors) < plan.min_contributors:
                self._violated("I6", f"op {commit.op} slice {index}: too few contributors")
            holders = [
                peer for peer in self._swarm.survivors if holds(peer, outcome.root, self._group)
            ]
            if live and 2 * len(holders) <= len(live):
                numbers = [peer.number for peer in holders]
                self._violated("I8", f"op {commit.op} slice {index}: held by {numbers} alone")

    def _rewound(self, index: int, rewind: Rewind) -> None:
        self.rules.rewound(rewind)
        self.keeping.rewound(rewind.op)
        self.decided.rewound(index, rewind.op)
        self.training.rewound(rewind.op)
        self.lies.rewound(rewind.op)

    @property
    def is_stuck(self) -> bool:
        """True if it waits for ever, as it must: its states are at odds, or it has trained and
        nobody is left who holds one. (Of the first group faults leave somebody.)"""
        places = [peer.machine.groups[self._group].place for peer in self._members]
        is_lost = all(place.applied_op < 0 for place in places)
        if self.rules.is_undecided or not is_lost or not self.decided.outcomes:
            return self.rules.is_undecided
        self.keeping.rewound(-1)
        return True

    @property
    def _members(self) -> list[SimPeer]:
        return [peer for peer in self._swarm.survivors if self._group in peer.machine.groups]

    def _violated(self, invariant: str, story: str) -> None:
        self.decided.violated(invariant, story)
