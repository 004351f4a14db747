"""P7: with any two deaths no state of a group with keepers is lost (protocol.md, KEEPERS)."""

from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.checks.demands import Demands
from swarmtrain.simulate.checks.holding import holds
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain_transport import limits
from swarmtrain_transport.wire.records import Commit, Plan


class Keeping:
    """Judges who holds a group's states, where keepers are wanted.

    Args:
        swarm: coordinator and peers.
        decided: decisions of the group that were logged.
        demands: peers with whom something was wrong.
    """

    def __init__(self, swarm: Swarm, decided: Decided, demands: Demands) -> None:
        self._swarm, self._decided, self._demands = swarm, decided, demands
        self._wanted = swarm.scene.conditions.stage_holders
        self._holders: tuple[int, list[SimPeer]] = (0, [])

    def committed(self, commit: Commit, plan: Plan) -> None:
        """K2: before D_gather every keeper that PLAN names holds the result, and the state before
        it. Remember who does."""
        if not self._wanted:
            return
        holding = [peer for peer in self._swarm.survivors if self._holds(peer, commit)]
        self._holders = commit.op, holding
        now_s, begun_s = self._swarm.scene.clock.now_s, self._decided.plan_s[commit.op]
        gather_s = begun_s + limits.D_GATHER * plan.deadline_s
        if now_s >= gather_s / (1 + self._swarm.scene.conditions.drift) - 1.0:
            return
        boots = {m.peer: m.boot for m in plan.members if m.peer in plan.keepers}
        for peer in self._swarm.survivors:
            is_awaited = boots.get(peer.peer_id) == peer.machine.card.boot
            is_awaited = is_awaited and peer.peer_id in self._decided.keepers
            if is_awaited and self._demands.is_sound(peer, now_s) and peer not in holding:
                story = f"op {commit.op} does not wait for keeper {peer.number}"
                self._decided.violated("P7", story)

    def rewound(self, op: int) -> None:
        """The group goes back behind a result: three of its holders at least have died."""
        newest, holders = self._holders
        left = sum(peer.is_alive for peer in holders)
        if newest > op and len(holders) >= self._wanted and left > len(holders) - self._wanted:
            numbers = [peer.number for peer in holders]
            self._decided.violated("P7", f"op {newest} is lost, which was held by {numbers}")

    def _holds(self, peer: SimPeer, commit: Commit) -> bool:
        machine, group = peer.machine, self._decided.group
        if group in machine.groups:
            op = machine.groups[group].place.applied_op
        elif group in machine.keepers:
            op = machine.keepers[group].op
        else:
            return False
        roots = [outcome.root for outcome in commit.slices]
        return op >= commit.op - 1 and all(holds(peer, root, group) for root in roots)
