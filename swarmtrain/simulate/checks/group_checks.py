"""Promises of one group, checked as its records are logged.

Single records are judged by `Rules`, its results and its peers' work by `TrainingChecks`, its
audits by `Lies`. Here is what the ledger and the holdings of its peers show besides: one outcome
per op, its contributors and holders, whom it leaves out, that it is not skipped without need, and
that it ends.
"""

from collections.abc import Callable

from swarmtrain.simulate.checks.cell_checks import CellChecks
from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.checks.demands import GRACE_S, Demands
from swarmtrain.simulate.checks.holding import holders_of_rarest
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
"""Beyond twice the deadline, an op may end this much later: reconnects and wake-ups."""


class GroupChecks:
    """Judges the records of one group.

    Args:
        swarm: coordinator and peers.
        decided: decisions of the group that were logged.
        demands: peers that may be left out.
        healed: hears of each peer that takes over the group's state.

    Attributes:
        decided: decisions of the group that were logged.
        lies: deeds of a hostile owner in the group.
        work: checks of its results and of each peer's work.
        rules: rules of its records.
        cells: checks of its ops in cells.
        limit_s: time by which the first of its ops under way must have ended.
    """

    def __init__(
        self, swarm: Swarm, decided: Decided, demands: Demands,
        healed: Callable[[PeerId], None] = lambda peer: None,
    ) -> None:  # fmt: skip
        self.decided, self.demands = decided, demands
        self.lies = Lies(swarm, decided, demands)
        self.work = TrainingChecks(swarm, decided, demands, self.lies, healed)
        self.rules = Rules(swarm, decided, demands, self.work.sums)
        self.cells = CellChecks(swarm.scene, decided, self.work.sums)
        self.limit_s = float("inf")
        self._limits: dict[int, float] = {}
        self._swarm, self._scene = swarm, swarm.scene
        self._deadline_s = 0.0

    def _decides(self, record: Record, body: AnyBody) -> None:
        """A record of the group was appended."""
        if isinstance(body, Plan):
            self._planned(body)
            self.cells.planned(body, int.from_bytes(record.hash[:8], "little"))
        elif isinstance(body, Freeze):
            self._froze(body)
        elif isinstance(body, Reassign):
            self.decided.reassigned(body)
            self.lies.reassigned(body)
            self.cells.reassigned(body)
        elif isinstance(body, SliceFreeze):
            freeze = self.decided.frozen.get(body.op)
            if freeze is None or not set(body.contributors) <= set(freeze.contributors):
                self._violated("I6", f"slice {body.slice_index}: contributors not in FREEZE")
            else:
                self.cells.slice_frozen(body)
                given = self.cells.of_cell(body.op, body.slice_index, freeze.contributors)
                self._check_fair(body.op, given - set(body.contributors))
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

    def _planned(self, plan: Plan) -> None:
        self.work.begun(plan)
        self.rules.planned(plan)
        self.decided.begun(plan)
        self.lies.begun(plan)
        self._deadline_s = plan.deadline_s
        self._limits[plan.op] = self._late_s()
        self._limit()

    def _froze(self, freeze: Freeze) -> None:
        known = self.decided.frozen.get(freeze.op)
        if known is not None:
            same = set(known.contributors) == set(freeze.contributors)
            kind = "the same" if same else "other"
            self._violated("I6", f"second FREEZE of op {freeze.op} with {kind} contributors")
        self.decided.frozen[freeze.op] = freeze
        self.cells.froze(freeze)
        self._check_fair(freeze.op, set(self.decided.weights(freeze.op)) - set(freeze.contributors))

    def _over(self, outcome: Commit | Skip) -> None:
        if outcome.op in self.decided.outcomes:
            self._violated("I1", f"second outcome of op {outcome.op}")
        self.decided.ended(outcome)
        self._limits.pop(outcome.op, None)
        self._limit()
        if isinstance(outcome, Commit):
            self._committed(outcome, self.decided.plans[outcome.op])
        else:
            self.demands.check_skip(outcome, self.decided)
            self.work.pairs.skipped(outcome.op)

    def _committed(self, commit: Commit, plan: Plan) -> None:
        """I6 and I8: enough contributors, enough live holders of every slice."""
        self.rules.committed(commit, plan)
        self.cells.committed(commit, self.decided.frozen[commit.op])
        sound = self._sound(commit.op)
        live = [peer for peer in sound if peer.peer_id in commit.contributors]
        # The coordinator counts on who has just gone, and COMMIT is decided before it is durable.
        lately = self.demands.deaths_since(self._scene.clock.now_s - GRACE_S)
        gone = len(lately & {(member.peer, member.boot) for member in plan.members})
        for index, outcome in enumerate(commit.slices):
            if len(outcome.contributors) < plan.min_contributors:
                self._violated("I6", f"op {commit.op} slice {index}: too few contributors")
            holders = self._holders(outcome.root)
            if self._are_few(len(holders) + gone, len(live), len(sound)):
                numbers = [peer.number for peer in holders]
                self._violated("I8", f"op {commit.op} slice {index}: held by {numbers} alone")

    def _sound(self, op: int) -> list[SimPeer]:
        """Members of an op with whom nothing is wrong. A live peer that is stopped or cut off may
        be held for dead: it need not be waited for."""
        now_s = self._scene.clock.now_s
        return [one for one in self.decided.planned(op) if self.demands.is_sound(one, now_s)]

    def _holders(self, root: bytes) -> list[SimPeer]:
        return holders_of_rarest(self._swarm.survivors, root, self.decided.group)

    def _are_few(self, holders: int, live: int, sound: int) -> bool:
        """Return True if more peers should hold a slice of a result."""
        return live > 0 and 2 * holders <= live

    def _rewound(self, index: int, rewind: Rewind) -> None:
        """Cancel the decisions after an op (T12); ops begin again with the next one."""
        self.rules.rewound(rewind)
        self.decided.rewound(index, rewind.op)
        self.work.rewound(rewind.op)
        self.lies.rewound(rewind.op)

    def _check_fair(self, op: int, left_out: set[PeerId]) -> None:
        self.demands.check_fair(op, left_out, self.decided)

    def extend_limits(self, seconds: float) -> None:
        """Let the clocks of all ops under way begin again, after a pause of so many seconds."""
        for op, limit_s in self._limits.items():
            self._limits[op] = max(limit_s, self._late_s() + seconds)
        self._limit()

    def _limit(self) -> None:
        self.limit_s = min(self._limits.values(), default=float("inf"))

    def _late_s(self) -> float:
        """Return when an op whose clock begins now has not ended in time."""
        return self._scene.clock.now_s + 2 * self._deadline_s + _RETRY_S

    def _violated(self, invariant: str, story: str) -> None:
        self.decided.violated(invariant, story)
