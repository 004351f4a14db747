"""Promises of a group beside the first: as in the first group, and that its states are kept."""

from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.checks.demands import Demands
from swarmtrain.simulate.checks.group_checks import GroupChecks
from swarmtrain.simulate.checks.keeper_checks import Keeping
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain_transport.wire.records import AnyBody, Commit, Plan, Record, Rewind


class LaterGroup(GroupChecks):
    """Judges the records of one group beside the first.

    Args:
        swarm: coordinator and peers.
        group: number of the group.
        demands: peers with whom something was wrong.
    """

    def __init__(self, swarm: Swarm, group: int, demands: Demands) -> None:
        super().__init__(swarm, Decided(swarm, group), demands)
        self._keeping = Keeping(swarm, self.decided, demands)
        self._states: dict[tuple[int, int], bytes] = {}
        self._group = group

    def logged(self, record: Record, body: AnyBody) -> None:
        """A record of the group was appended."""
        self._decides(record, body)

    def rooted(self, peer: SimPeer, op: int, root: bytes) -> None:
        """I2: who has applied the same ops has the same state."""
        if not self.decided.is_past(peer.stages[self._group]):
            self.rules.rooted(peer, op, root)
        place = peer.machine.view.groups[self._group].rewinds, op
        if self._states.setdefault(place, root) != root:
            self._violated("I2", f"peer {peer.number} has another state root after op {op}")

    def _committed(self, commit: Commit, plan: Plan) -> None:
        self._keeping.committed(commit, plan)
        super()._committed(commit, plan)

    def _rewound(self, index: int, rewind: Rewind) -> None:
        self._keeping.rewound(rewind.op)
        super()._rewound(index, rewind)

    @property
    def is_stuck(self) -> bool:
        """True if it waits for ever, as it must: its states are at odds, or it has trained and
        nobody is left who holds one. (Where the first group is a stage, faults leave somebody.)"""
        if self.rules.is_undecided or not self.decided.is_lost:
            return self.rules.is_undecided
        self._keeping.rewound(-1)
        return True
