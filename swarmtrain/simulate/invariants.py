"""What must hold after every event (protocol.md part 2, INVARIANTS), checked as things happen.

The checker hears of every record that is logged, every result that is applied and every part that
is given, and recomputes with plain sums what the machines did with exact ones. It shares nothing
with them but the codec. Where a rule is not in protocol.md's list its name says so.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain.simulate.books import Books
from swarmtrain.simulate.demands import Demands
from swarmtrain.simulate.holding import holds
from swarmtrain.simulate.lies import Lies
from swarmtrain.simulate.pair_checks import PairChecks
from swarmtrain.simulate.sums import NamedSums, same_bits
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.kinds import GATHER, PAIR
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Gone,
    Plan,
    Reassign,
    Record,
    Rewind,
    Skip,
    SliceFreeze,
    body_of,
)

if TYPE_CHECKING:
    from swarmtrain.simulate.sim_peer import SimPeer
    from swarmtrain.simulate.world import World

_RETRY_S = 1.0
"""Beyond twice the deadline, an op may end this much later: reconnects and wake-ups."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold, and when."""

    invariant: str
    time_s: float
    boundary: int
    story: str


@dataclass(slots=True)
class Invariants:
    """Checks one world.

    Attributes:
        outcomes, plans, frozen: what was logged, by op.
        op_seconds: from PLAN to outcome, by op.
        excluded: reason per op and peer.
        commits, skips: how many.
        is_over: whether the run's last op is committed.
        newest: the newest committed op and the roots of its slices.
        rewound_index: index of the newest REWIND.
        restored: whether the coordinator's disk was restored from a backup.
        new_owners: who was given a slice of the open op after its first owner.
        sums: what results must be.
        lies: what a hostile owner has made of them.
        pairs: what must hold where ops go by pairs.
        limit_s: when the open op must have ended.
    """

    world: "World"
    outcomes: dict[int, Commit | Skip] = field(default_factory=dict)
    plans: dict[int, Plan] = field(default_factory=dict)
    plan_s: dict[int, float] = field(default_factory=dict)
    op_seconds: dict[int, float] = field(default_factory=dict)
    frozen: dict[int, Freeze] = field(default_factory=dict)
    excluded: dict[tuple[int, int], str] = field(default_factory=dict)
    log: list[Record] = field(default_factory=list)
    roots: dict[int, bytes] = field(default_factory=dict)
    results: dict[int, tuple[Buffer, ...]] = field(default_factory=dict)
    books: dict[PeerId, Books] = field(default_factory=dict)
    commits: int = 0
    skips: int = 0
    is_over: bool = False
    newest: tuple[int, tuple[bytes, ...]] = (0, ())
    new_owners: set[PeerId] = field(default_factory=set)
    rewound_index: int = -1
    restored: bool = False
    demands: Demands = field(init=False)
    sums: NamedSums = field(init=False)
    lies: Lies = field(init=False)
    pairs: PairChecks = field(init=False)
    limit_s: float = float("inf")
    _deadline_s: float = 0.0

    def __post_init__(self) -> None:
        self.demands = Demands(self.world, self)
        self.sums = NamedSums(self.world.decode)
        self.lies = Lies(self.world, self.demands)
        self.pairs = PairChecks(self.world, self)

    # ---- the coordinator

    def logged(self, record: Record) -> None:
        """A record was appended: I1, I6, I8, L3."""
        if self.world.is_abandoned:
            return  # one event may log several records; the rest stand on what nobody can judge
        if record.index < len(self.log):
            if self.restored and not self.is_told(record.index):
                # Whoever knew better died before it could say so: nothing can be held against it.
                self.world.abandon()
                return
            self._violated("I1", f"record {record.index} is decided a second time")
        self.log.append(record)
        body = body_of(record)
        if isinstance(body, Plan):
            self._begun(body)
        elif isinstance(body, Freeze):
            self._froze(body)
        elif isinstance(body, Reassign):
            self.new_owners.add(body.owner)
            self.lies.reassigned(body)
        elif isinstance(body, Rewind):
            self._rewound(record.index, body.op)
        elif isinstance(body, SliceFreeze):
            freeze = self.frozen.get(body.op)
            if freeze is None or not set(body.contributors) <= set(freeze.contributors):
                self._violated("I6", f"slice {body.slice_index}: contributors not in FREEZE")
            else:
                self.demands.check_fair(body.op, set(freeze.contributors) - set(body.contributors))
        elif isinstance(body, Commit | Skip):
            self._ended(body)
            if isinstance(body, Commit):
                self.lies.committed(record, body)
        elif isinstance(body, Gone) and body.conviction is not None:
            self.lies.convicts(body.peer, body.conviction)
        self.world.hearsay.logged(body)
        if self.world.weather is not None:
            self.world.weather.logged(body)

    def is_told(self, index: int) -> bool:
        """Whether somebody with whom nothing is wrong holds this record."""
        now_s = self.world.clock.now_s
        return any(
            peer.machine.ledger.head_index >= index and self.demands.is_sound(peer, now_s)
            for peer in self.world.survivors
        )

    def _rewound(self, index: int, op: int) -> None:
        """What was decided after `op` is cancelled (T12); ops begin again with the next one."""
        self.rewound_index = index
        for store in (self.outcomes, self.plans, self.frozen, self.results, self.roots):
            for later in [key for key in store if key > op]:
                del store[later]
        self.sums.rewound(op)
        self.lies.rewound(op)
        self.pairs.rewound(op)
        committed = [out for out in self.outcomes.values() if isinstance(out, Commit)]
        self.commits = len(committed)
        last = max(committed, key=lambda out: out.op, default=None)
        self.newest = (0, ()) if last is None else (last.op, tuple(p.root for p in last.slices))

    def is_past(self, peer: "SimPeer") -> bool:
        """Whether a peer acts on what a REWIND that it does not know yet has cancelled."""
        return peer.acts_on_index < self.rewound_index

    def coordinator_fell(self, seconds: float = 0.0) -> None:
        """Its timers begin again at full length when it is back (T14)."""
        if self.limit_s < float("inf"):
            self.limit_s = max(self.limit_s, self._late_s() + seconds)

    def too_late(self) -> None:
        """L1: every op ends within twice its deadline; it is later than `limit_s`."""
        self.limit_s = float("inf")
        self._violated("L1", f"op {max(self.plans)} does not end")

    def _late_s(self) -> float:
        """When an op whose clock begins now has not ended in time."""
        return self.world.clock.now_s + 2 * self._deadline_s + _RETRY_S

    def _begun(self, plan: Plan) -> None:
        self.plans[plan.op] = plan
        self.plan_s[plan.op] = self.world.clock.now_s
        self.new_owners.clear()
        self.sums.forget(self.newest[0] - 2 * limits.RESULT_KEEP_OPS)
        self.lies.begun(plan)
        self._deadline_s = plan.deadline_s
        self.limit_s = self._late_s()

    def _froze(self, freeze: Freeze) -> None:
        known = self.frozen.get(freeze.op)
        if known is not None:
            same = set(known.contributors) == set(freeze.contributors)
            kind = "the same" if same else "other"
            self._violated("I6", f"second FREEZE of op {freeze.op} with {kind} contributors")
        self.frozen[freeze.op] = freeze
        self.demands.check_fair(freeze.op, set(self.weights(freeze.op)) - set(freeze.contributors))
        for peer, reason in freeze.excluded.items():
            self.excluded[(freeze.op, self.world.peers[peer].number)] = reason

    def _ended(self, outcome: Commit | Skip) -> None:
        if outcome.op in self.outcomes:
            self._violated("I1", f"second outcome of op {outcome.op}")
        self.outcomes[outcome.op] = outcome
        self.op_seconds[outcome.op] = self.world.clock.now_s - self.plan_s[outcome.op]
        self.limit_s = float("inf")
        if isinstance(outcome, Commit):
            self.commits += 1
            self.newest = (outcome.op, tuple(piece.root for piece in outcome.slices))
            self.is_over = self.commits >= self.world.conditions.rounds
            self._check_commit(outcome)
        else:
            self.skips += 1
            self.demands.check_skip(outcome)

    def planned(self, op: int) -> list["SimPeer"]:
        """Live processes that the op's PLAN names: a peer that was started again is another."""
        boots = {member.peer: member.boot for member in self.plans[op].members}
        return [p for p in self.world.survivors if boots.get(p.peer_id) == p.machine.card.boot]

    def weights(self, op: int) -> dict[PeerId, int]:
        """Weights of the planned contributors."""
        return {member.peer: member.weight for member in self.plans[op].members if member.weight}

    def _check_commit(self, commit: Commit) -> None:
        """I6 and I8: enough contributors, enough live holders of every slice."""
        plan = self.plans[commit.op]
        if plan.kind == PAIR:
            self.pairs.check_commit(commit, plan)
            return
        # A live peer that is stopped or cut off may be held for dead: it need not be waited for.
        live = [
            peer
            for peer in self.planned(commit.op)
            if peer.peer_id in commit.contributors
            and self.demands.is_sound(peer, self.world.clock.now_s)
        ]
        if plan.kind == GATHER:
            self._check_gathered(commit, live)
            return
        needed = min(limits.RESULT_HOLDERS, max(1, len(live)))
        for index, outcome in enumerate(commit.slices):
            if len(outcome.contributors) < plan.min_contributors:
                self._violated("I6", f"op {commit.op} slice {index}: too few contributors")
            holders = [peer for peer in self.world.survivors if holds(peer, outcome.root)]
            if live and len(holders) < needed:
                numbers = [peer.number for peer in holders]
                self._violated("I8", f"op {commit.op} slice {index}: held by {numbers} alone")

    def _check_gathered(self, commit: Commit, live: list["SimPeer"]) -> None:
        """The same of a gather op: every contribution that is in is held by enough, by somebody
        besides its contributor, and is what FREEZE says."""
        plan, freeze = self.plans[commit.op], self.frozen[commit.op]
        self.demands.check_fair(commit.op, set(freeze.contributors) - set(commit.contributors))
        if len(commit.contributors) < plan.min_contributors:
            self._violated("I6", f"op {commit.op}: too few contributors")
        for spec, outcome in zip(plan.slices, commit.slices, strict=True):
            is_in = spec.owner in commit.contributors
            name = self.world.name_of(spec.owner)
            if outcome.contributors != (spec.owner,) * is_in:
                self._violated("I6", f"op {commit.op}: {name}'s slice is not its own")
            if not is_in:
                continue
            if spec.owner not in freeze.roots or freeze.roots[spec.owner].root != outcome.root:
                self._violated("I6", f"op {commit.op}: {name}'s contribution is not FREEZE's")
            holders = [peer for peer in self.world.survivors if holds(peer, outcome.root)]
            others = [peer for peer in live if peer.peer_id != spec.owner]
            is_alone = others and all(peer.peer_id == spec.owner for peer in holders)
            needed = min(limits.RESULT_HOLDERS, max(1, len(live)))
            if live and (len(holders) < needed or is_alone):
                numbers = [peer.number for peer in holders]
                self._violated("I8", f"op {commit.op}: {name}'s is held by {numbers} alone")

    # ---- the peers

    def accepted(self, peer: "SimPeer", record: Record) -> None:
        """A peer took a record into its ledger: it must be the coordinator's."""
        if record.index >= len(self.log) or self.log[record.index].hash != record.hash:
            self._violated("I1", f"peer {peer.number} holds record {record.index} that is not ours")
        self.lies.accepted(peer, record)

    def contributed(self, peer: "SimPeer", part: OwnPart) -> None:
        """A peer gave its part to an op."""
        self.sums.parts[(part.op, peer.peer_id, peer.machine.card.boot)] = part
        if peer.driver.is_paired:
            self.pairs.contributed(peer, part.op)
        self._check_books(peer)

    def loaded(self, peer: "SimPeer") -> None:
        """A peer took over shared state; its books begin anew."""
        is_lossy = peer.driver.is_paired or not self.world.error_feedback
        self.books[peer.peer_id] = Books(peer.trainer.moved, is_lossy=is_lossy)

    def state_of(self, peer: "SimPeer") -> list[Tensor]:
        """A copy of what no SKIP may change."""
        arrays = [*peer.strategy.state_arrays(), *peer.strategy.local_arrays()]
        return [*(array.clone() for _, array in arrays), peer.trainer.read_weights()]

    def skipped(self, peer: "SimPeer", op: int, before: list[Tensor]) -> None:
        """I1 and I7: SKIP changes nothing: neither what is shared nor what is kept."""
        if not isinstance(self.outcomes.get(op), Skip) and not self.is_past(peer):
            self._violated("I1", f"peer {peer.number} skips op {op} without a SKIP")
        after = self.state_of(peer)
        if not all(same_bits(old, new) for old, new in zip(before, after, strict=True)):
            self._violated("I7", f"peer {peer.number}: op {op} was skipped but changed state")
        self._check_books(peer)

    def applying(self, peer: "SimPeer", result: OpResult) -> None:
        """I1, I2, I3: the result is the commit's, the same everywhere, and the exact sum."""
        if self.is_past(peer):
            return
        commit = self.outcomes.get(result.op)
        if not isinstance(commit, Commit):
            self._violated("I1", f"peer {peer.number} applies op {result.op} without a COMMIT")
            return
        if result.kind == PAIR:
            self.pairs.applying(peer, result, commit)
            return
        content = tuple(chunk for piece in result.slices for chunk in piece.chunks)
        if result.op not in self.results:
            self.results[result.op] = content
            self._check_sum(commit, result)
        elif self.results[result.op] != content:
            self._violated("I2", f"peer {peer.number} applies other bytes for op {result.op}")

    def _check_sum(self, commit: Commit, result: OpResult) -> None:
        """I3, but for what a hostile owner has made of its slice: that is the audits' affair."""
        wrong = self.sums.wrong_chunks(commit, self.plans[commit.op], result)
        for index in sorted({place[0] for place in self.lies.unexplained(commit.op, wrong)}):
            self._violated("I3", f"op {commit.op} slice {index} is not its named sum")

    def applied(self, peer: "SimPeer", result: OpResult) -> None:
        """I9: what was sent and what was kept add up to what was done."""
        books = self.books.get(peer.peer_id)
        if books is None:
            return
        if self.is_past(peer):
            del self.books[peer.peer_id]  # it will load another state
            return
        if result.kind == PAIR:
            self.pairs.applied(peer, result, books)
            self._check_books(peer)
            return
        plan = self.plans[result.op]
        took_part = peer in self.planned(result.op)
        sent = [took_part and peer.peer_id in named for _, _, named in result.ranges]
        decoded = self.sums.decoded(result.op, peer.peer_id, plan) if any(sent) else None
        ranges = peer.strategy.exchange(result.op).ranges
        if decoded is not None and all(sent):
            books.send(ranges, 0, result.num_values, decoded)
        elif decoded is not None:
            for (start, stop, _), here in zip(result.ranges, sent, strict=True):
                if here:
                    books.send(ranges, start, stop, decoded)
        for start, stop in getattr(peer.strategy, "dropped", ()):
            books.write_off(start, stop, peer.trainer.moved, *self._kept(peer))
        self._check_books(peer)

    def _kept(self, peer: "SimPeer") -> tuple[Tensor, Tensor]:
        """What is still to be sent: the error feedback, and what the weights are ahead."""
        ahead = peer.strategy.anchor - peer.trainer.read_weights()
        residual = dict(peer.strategy.local_arrays()).get("error_feedback")
        return torch.zeros_like(ahead) if residual is None else residual, ahead

    def _check_books(self, peer: "SimPeer") -> None:
        books = self.books.get(peer.peer_id)
        if books is None or peer.handicap.nonfinite_op:
            return
        error = books.error(peer.trainer.moved, *self._kept(peer))
        if not error < books.tolerance:
            self._violated(
                "I9", f"peer {peer.number}: sent plus kept misses what was done by {error:.1e}"
            )

    def rooted(self, peer: "SimPeer", op: int, root: bytes) -> None:
        """I2: one state root per op, unless ops go by pairs."""
        if self.is_past(peer) or (peer.driver.is_paired and op > 0):
            return
        known = self.roots.setdefault(op, root)
        if known != root:
            self._violated("I2", f"peer {peer.number} has another state root after op {op}")

    def at_end(self) -> None:
        """L2: after the faults everybody reaches the end."""
        survivors = self.world.survivors
        late = {p.number: p.machine.applied_op for p in survivors if not p.is_finished}
        if late:
            self._violated("L2", f"not everybody reaches the end; applied ops are {late}")

    def _violated(self, invariant: str, story: str) -> None:
        self.world.violation(invariant, story)
