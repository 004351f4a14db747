"""Invariants of pair ops, where nothing is shared by all but who has exchanged what with whom.

COMMIT names pairs that were whole when it was logged; both of a pair apply the very half that the
other gave, and end with equal chains; nobody else applies anything, and nobody that COMMIT names
steps alone. Chains are made again here, plainly.
"""

import hashlib

import torch
from torch import Tensor

from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.checks.demands import Demands, partners_in
from swarmtrain.simulate.checks.holding import holds, state_of
from swarmtrain.simulate.checks.sums import NamedSums, same_bits
from swarmtrain.simulate.checks.work_balance import Books
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain.simulate.processes.watched_driver import Learner
from swarmtrain_optimizers.strategies.base import StepsAlone
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.kinds import CLOCKS
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.records import Commit, Plan


class PairChecks:
    """Checks the pair ops of one world.

    Args:
        swarm: coordinator and peers.
        decided: decisions that were logged.
        demands: peers that may be left out.
        sums: values that were given.

    Attributes:
        chains: per op the chain of each peer after it, as far as it has one.
    """

    def __init__(self, swarm: Swarm, decided: Decided, demands: Demands, sums: NamedSums) -> None:
        self.chains: dict[int, dict[PeerId, bytes]] = {0: {}}
        self._swarm = swarm
        self._scene = swarm.scene
        self._seen = decided
        self._demands = demands
        self._sums = sums
        self._given: dict[tuple[PeerId, bytes], Tensor] = {}
        self._unchanged: dict[PeerId, list[Tensor]] = {}
        self._due: dict[tuple[PeerId, bytes], int] = {}  # ops that name a process, till it has them

    # ---- the coordinator

    def begun(self, plan: Plan) -> None:
        """Rule 9: who gives to an op has the result of the one that named it last; by clocks it is
        in no other op under way, either."""
        for member in plan.members:
            op = self._due.get((member.peer, member.boot), plan.op)
            if op < plan.op and member.weight:
                story = f"gives to op {plan.op}, and has not the result of op {op}"
                self._violated("rule 9", f"{self._scene.name_of(member.peer)} {story}")
            if member.weight and plan.graph == CLOCKS:
                self._due[member.peer, member.boot] = plan.op

    def skipped(self, op: int) -> None:
        """SKIP: nobody gets anything."""
        self._due = {process: due for process, due in self._due.items() if due != op}

    def check_commit(self, commit: Commit, plan: Plan) -> None:
        """I6 and I8 of a pair op: whole pairs, enough of them, with what FREEZE says."""
        freeze, partners = self._seen.frozen[commit.op], partners_in(plan)
        named = set(commit.contributors)
        self._demands.check_fair(commit.op, set(freeze.contributors) - named)
        if len(named) < plan.min_contributors:
            self._violated("I6", f"op {commit.op}: too few contributors")
        boots = {member.peer: member.boot for member in plan.members}
        roots = {}
        for spec, outcome in zip(plan.slices, commit.slices, strict=True):
            name = self._scene.name_of(spec.owner)
            if outcome.contributors != (spec.owner,) * (spec.owner in named):
                self._violated("I6", f"op {commit.op}: {name}'s slice is not its own")
            if spec.owner not in named:
                self._due.pop((spec.owner, boots[spec.owner]), None)
                continue
            roots[spec.owner] = outcome.root
            self._due[spec.owner, boots[spec.owner]] = commit.op
            if spec.owner not in freeze.roots or freeze.roots[spec.owner].root != outcome.root:
                self._violated("I6", f"op {commit.op}: {name}'s half is not FREEZE's")
            partner = partners.get(spec.owner)
            if partner is None or partner not in named:
                self._violated("I6", f"op {commit.op}: {name} is in no pair")
                continue
            taker = self._swarm.processes[partner, boots[partner]]
            # A peer that was moved to another group since has dropped what it held.
            if taker.is_in_first and not holds(taker, outcome.root):
                story = f"peer {taker.number} does not hold {name}'s half"
                self._violated("I8", f"op {commit.op}: {story}")
        self._link(plan, roots)

    def _link(self, plan: Plan, roots: dict[PeerId, bytes]) -> None:
        """The chains after an op, from those after the newest one before it."""
        before = self.chains[max(op for op in self.chains if op < plan.op)]
        after = dict(before)
        members = [member.peer for member in plan.members if member.weight]
        for first, second in zip(members[::2], members[1::2], strict=False):
            if first in roots and second in roots:
                data = b"swarmtrain chain 1\0" + plan.op.to_bytes(8, "little")
                data += before.get(first, bytes(32)) + before.get(second, bytes(32))
                data += roots[first] + roots[second]
                after[first] = after[second] = hashlib.sha256(data).digest()
        self.chains[plan.op] = after
        # Ops by clocks that were committed before have none of these peers.
        new = {peer: chain for peer, chain in after.items() if peer in roots}
        for later in [op for op in self.chains if op > plan.op]:
            self.chains[later] |= new

    def rewound(self, op: int) -> None:
        """Later ops are cancelled; before op 0, too, nobody has exchanged anything."""
        for later in [key for key in self.chains if key > max(0, op)]:
            del self.chains[later]
        self._due = {process: due for process, due in self._due.items() if due <= op}

    # ---- the peers

    def loaded(self, learner: Learner) -> None:
        """A peer took over a state: what its own led to is of no account."""
        self._due.pop((learner.peer_id, learner.machine.card.boot), None)

    def contributed(self, learner: Learner) -> None:
        """A peer gave its half: the difference in it is what the weights are ahead."""
        ahead = learner.strategy.anchor - learner.trainer.read_weights()
        self._given[learner.peer_id, learner.machine.card.boot] = ahead

    def applying(self, learner: Learner, result: OpResult, commit: Commit) -> None:
        """Check that a peer that COMMIT names applies its partner's half, and that nobody else
        applies anything."""
        self._unchanged.pop(learner.peer_id, None)
        if self._due.get(process := (learner.peer_id, learner.machine.card.boot)) == result.op:
            del self._due[process]
        name, op = f"peer {learner.number}", result.op
        if not result.slices:
            if learner.peer_id in commit.contributors:
                self._violated("I2", f"{name} goes on from op {op} alone, though COMMIT names it")
            if not learner.driver.is_waiting or not isinstance(learner.strategy, StepsAlone):
                self._unchanged[learner.peer_id] = state_of(learner)
            return
        plan = self._seen.plans[op]
        partner = partners_in(plan).get(learner.peer_id)
        roots = {
            spec.owner: outcome.root
            for spec, outcome in zip(plan.slices, commit.slices, strict=True)
            if outcome.contributors
        }
        if partner is None or not {learner.peer_id, partner} <= roots.keys():
            self._violated("I2", f"{name} applies something in op {op}, and is in no whole pair")
            return
        (half,) = result.slices
        joined = b"".join(content_hash(chunk) for chunk in half.chunks)
        if content_hash(joined) != roots[partner]:
            self._violated("I2", f"{name} applies other bytes for op {op} than its partner gave")
        if set(half.contributors) != {learner.peer_id, partner}:
            self._violated("I2", f"{name}: the half of op {op} does not name its pair")
        if result.chain != self.chains[op].get(learner.peer_id):
            self._violated("chain", f"{name}: its chain after op {op} is not its pair's")

    def applied(self, learner: Learner, result: OpResult, books: Books | None) -> None:
        """I9: what was given, with a partner or alone, and what was kept add up to what was done;
        for whoever has given nothing, nothing has changed."""
        before = self._unchanged.pop(learner.peer_id, None)
        if before is not None:
            after = state_of(learner)
            if not all(same_bits(old, new) for old, new in zip(before, after, strict=True)):
                story = f"op {result.op} was none of its, and changed its state"
                self._violated("I7", f"peer {learner.number}: {story}")
            return
        boot = learner.machine.card.boot
        given = self._given.pop((learner.peer_id, boot), None)
        if books is None or given is None:
            return
        size = given.numel()
        if result.slices:
            plan = self._seen.plans[result.op]
            decoded = self._sums.decoded(result.op, learner.peer_id, plan)
            if decoded.numel() > size:  # else it gave its weights, and all its work stays in them
                given = decoded[:size]
        books.send(((0, size),), 0, size, given.to(torch.float64))

    def _violated(self, invariant: str, story: str) -> None:
        self._scene.violation(invariant, story)
