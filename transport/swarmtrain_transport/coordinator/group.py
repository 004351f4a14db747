"""One group's side of the coordinator: its peers' states, its plans, its ops under way.

Ops are planned in the order of their numbers, and their outcomes are logged in that order too, so
that everybody applies them alike; an op that could end early waits for its turn. In between
ops go on side by side, as long as no two of them move the same values (protocol.md rule 9).
"""

import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.chronicle import Chronicle
from swarmtrain_transport.coordinator.ledger_writer import LedgerWriter
from swarmtrain_transport.coordinator.members.convictions import Convictions
from swarmtrain_transport.coordinator.members.group_peers import GroupPeers
from swarmtrain_transport.coordinator.members.roster import LiveRoster, PeerLine
from swarmtrain_transport.coordinator.members.validation import genesis_of
from swarmtrain_transport.coordinator.ops import announcing
from swarmtrain_transport.coordinator.ops.agreement import Agreement
from swarmtrain_transport.coordinator.ops.first_state import WHY, FirstState
from swarmtrain_transport.coordinator.ops.guard import leapt, told
from swarmtrain_transport.coordinator.ops.op_decider import OpDecider
from swarmtrain_transport.coordinator.ops.planning import (
    RunTerms,
    given_by,
    left_behind,
    may_plan,
    next_plan,
)
from swarmtrain_transport.coordinator.ops.reports import Report, check_signed
from swarmtrain_transport.coordinator.ops.sheets import sheets_for
from swarmtrain_transport.coordinator.ops.slicing import Detours, Slicing
from swarmtrain_transport.coordinator.ops.timers import Pace
from swarmtrain_transport.coordinator.stages.group_keepers import GroupKeepers
from swarmtrain_transport.kinds import CLOCKS, PAIRS_AT_ONCE
from swarmtrain_transport.ledger.fold import GroupView, OpDecision
from swarmtrain_transport.ledger.waits import Waits, add
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Applied, Offer, Ready, Sheet
from swarmtrain_transport.wire.records import Commit, Freeze, Plan, Reassign, Skip, Verify


class GroupCoordinator:
    """The coordinator of one group.

    Args:
        terms: part of the run file that concerns its exchange.
        view: the ledger's fold of the group.
        writer: appends records.
        live_roster: peers that are here.
        verify: checks a signature.
        now_s: the time; all timers start here.
        detours: tells, at a time, which pairs have no direct way.

    Attributes:
        group_peers: peers of the group.
        keepers: peers that keep its state for others.
        chronicle: memory of what people are told of it.
        operations: ops under way, oldest first, by plan id.
        convictions: accusations of wrong sums.
        first_state: first state of the group, and its giver.
        unheard: contributors without whose parts an op was frozen, and the owners that lack them,
            until somebody has looked at it.
        concerned: peers whom records concern that were appended, until they were sent them.
        givers: the peers that may give to the next op, and the most samples of each, 0 for any;
            where the group is a stage, of which books tell. None: all may.
    """

    def __init__(
        self, terms: RunTerms, view: GroupView, writer: LedgerWriter, live_roster: LiveRoster,
        verify: Verify, now_s: float, detours: Callable[[float], Detours],
    ) -> None:  # fmt: skip
        self._terms, self._detours = terms, detours
        self.view = view
        self.group_peers = GroupPeers(view, live_roster)
        self.keepers = GroupKeepers(view, live_roster, self.group_peers)
        self.chronicle = Chronicle()
        self.convictions = Convictions(writer, live_roster, self.chronicle, view)
        self.operations: dict[int, OpDecider] = {}
        self.givers: dict[PeerId, int] | None = None
        self._writer = writer
        self._live_roster = live_roster
        self._verify = verify
        self.first_state = FirstState(view, self.group_peers)
        self._agreement = Agreement(writer, view, self.group_peers, self.chronicle, self._went_back)
        self._pace = Pace()
        self._slicing = Slicing()
        self._ended_s = self._planned_s = now_s
        self._ready_waits: dict[int, Waits] = {}
        self._looked_s, self._is_look_due = -math.inf, False
        self._decided_s, self._is_decision_due = -math.inf, False
        self._named: tuple[int, frozenset[PeerId]] = (-1, frozenset())
        self.concerned = dict[PeerId, None]()
        self.unheard: set[tuple[PeerId, PeerId]] = set()
        self._sheets: list[tuple[PeerId, Sheet]] = []
        self._take_up(now_s)

    @property
    def terms(self) -> RunTerms:
        """The run file's, with the rounds that the organiser has added since."""
        rounds = self._writer.view.rounds
        if rounds > self._terms.rounds:
            self._terms = replace(self._terms, rounds=rounds)
        return self._terms

    def _take_up(self, now_s: float) -> None:
        """Go on with what the ledger says is under way. What members have reported of an op counts
        on: they say it once, and no record that is adopted makes it void."""
        self._ready_waits.clear()
        known = {plan_id: one.reports for plan_id, one in self.operations.items()}
        self.operations = {
            plan_id: OpDecider(op, now_s, known.get(plan_id))
            for plan_id, op in self.view.ops.items()
        }

    @property
    def operation(self) -> OpDecider | None:
        """The oldest op under way, if any."""
        return next(iter(self.operations.values()), None)

    @property
    def hurries(self) -> bool:
        """True if an op under way does not wait for somebody."""
        return any(operation.view.plan.unawaited for operation in self.operations.values())

    @property
    def is_finished(self) -> bool:
        """All its rounds are committed."""
        return self.view.committed >= self.terms.rounds

    @property
    def awaits_loss(self) -> bool:
        """True if losses are told, and that of the last op is not known yet."""
        losses = self.chronicle.losses
        return bool(losses) and self.view.last_op not in losses

    # ---- events

    def adopted(self, now_s: float) -> None:
        """The ledger has grown by records of earlier lives."""
        self.group_peers.reconcile()
        self._take_up(now_s)

    def enter(self, peer: PeerId, line: PeerLine) -> None:
        """A peer of the group, or a keeper, is here, for the first time or again."""
        if peer in self.view.members:
            self.group_peers.enter(peer, line)
        for operation in self.operations.values():
            returned = operation.reports.returned(peer, line.hello.boot)
            is_in_cells = operation.view.cells.count > 1
            for news in announcing.in_batches(returned) if is_in_cells else returned:
                self._writer.send(peer, news)

    def depart(self, peer: PeerId) -> None:
        """A peer has left the run or the group."""
        self.group_peers.depart(peer)
        for operation in self.operations.values():
            operation.reports.lose(peer)

    def on_offer(self, peer: PeerId, message: Offer) -> None:
        """A peer offers its state as the first one."""
        if self.view.genesis is None:
            genesis = genesis_of(
                message, self.terms.block, self.terms.layout, self.terms.first_root
            )
            self.first_state.offered(peer, genesis)

    def on_ready(self, peer: PeerId, message: Ready, now_s: float, *, may_attest: bool) -> None:
        """A peer has made the inner steps of an op."""
        group_peer = self.group_peers.here[peer]
        before, group_peer.ready = group_peer.ready, message
        group_peer.follow(peer, self.view)
        if before is None or before.op != group_peer.ready.op:
            group_peer.ready_s = now_s
        if not group_peer.active:
            group_peer.active_s = now_s
        group_peer.active = True
        state = Applied(message.applied_op, message.state_root, group=self.view.group)
        self._agreement.reported(peer, state, now_s, may_attest=may_attest and not self._is_crowd)

    def on_hello(self, peer: PeerId, state: Applied, now_s: float) -> None:
        """A peer has come with a state, which may be on its disk only."""
        self._agreement.reported(peer, state, now_s, may_attest=False)
        here = self.group_peers.here[peer]
        here.in_place = here.ready is not None  # a process that only reconnects trains from it

    def on_applied(self, peer: PeerId, message: Applied, now_s: float, *, may_attest: bool) -> None:
        """A peer has put a state in place."""
        self._agreement.reported(peer, message, now_s, may_attest=may_attest and not self._is_crowd)

    def on_report(self, peer: PeerId, message: Report, now_s: float) -> None:
        """A peer's word on an op under way; what comes of it goes to those whom it concerns."""
        operation = self.operations[message.plan_id]
        check_signed(operation.view, peer, message, self._verify)
        news = operation.reports.hear(peer, message, now_s)
        if news is not None:
            announcing.published(operation.reports, news, now_s)
            self._tell_hashes(operation, now_s)

    def _tell_hashes(self, operation: OpDecider, now_s: float) -> None:
        """Send HASHES that are due to whoever is here."""
        if now_s < announcing.due_s(operation.reports):
            return
        here = self.group_peers.here
        lines = {other: here[other].line for other in operation.view.boots if other in here}
        there = [p for p, line in {**lines, **self.keepers.lines}.items() if line.connected]
        for peer, news in announcing.take_due(operation.reports, there, now_s):
            self._writer.send(peer, news)

    def send_sheets(self) -> None:
        """Send the sheets of what was decided, after the records that name them."""
        for peer, sheet in self._sheets:
            if peer in self.group_peers.here and self.group_peers.here[peer].line.connected:
                self._writer.send(peer, sheet)
        self._sheets.clear()

    def names(self, peer: PeerId) -> bool:
        """Return True if a peer is in an op under way."""
        return any(peer in operation.view.boots for operation in self.operations.values())

    def may_owe(self, peer: PeerId) -> bool:
        """Return True if a peer is to give something to an op under way."""
        return any(peer in operation.view.weights for operation in self.operations.values())

    def owes(self, peer: PeerId, witnesses: set[PeerId]) -> bool:
        """Return True if enough owners wait for a peer's part of some op."""
        return any(
            operation.reports.owes(peer, witnesses) for operation in self.operations.values()
        )

    def pardon(self, absent_s: float) -> None:
        """This process was stopped for so long."""
        self.group_peers.pardon(absent_s)
        self.first_state.pardon(absent_s)
        self._ended_s += absent_s
        self._planned_s += absent_s
        for operation in self.operations.values():
            operation.timers.pardon(absent_s)

    def wakeups(self) -> list[float]:
        """List when something may fall due."""
        standing = self.view.standing
        times = [self.keepers.next_wakeup_s, self.look_s]
        times.append(self._planned_s + standing.pause_s({*standing.failed}))
        if not self._is_crowd:
            wait_s = self.terms.wait_ready_s
            for after_s in (wait_s, limits.AGAIN_WAITS * wait_s):
                times += self.group_peers.waits_until(after_s)
            times += self.first_state.wakeups()
        for operation in self.operations.values():
            times += [*operation.wakeups(), announcing.due_s(operation.reports)]
        return times

    # ---- decisions

    @property
    def _is_crowd(self) -> bool:
        return len(self.group_peers.here) > limits.CROWD_PEERS

    @property
    def look_s(self) -> float:
        """Time at which a crowd, or its ops, are to be looked at; infinity if nothing has come that
        may have changed anything."""
        decide_s = self._decided_s + limits.CROWD_DECIDE_S if self._is_decision_due else math.inf
        return min(self._crowd_look_s, decide_s)

    @property
    def _crowd_look_s(self) -> float:
        look_s = self._looked_s + self._live_roster.rarely_s(limits.CROWD_LOOK_S)
        return look_s if self._is_look_due else math.inf

    def settle(self, now_s: float, *, is_under_way: bool = False) -> None:
        """Decide what has fallen due.

        Args:
            now_s: The time.
            is_under_way: True if the state is in use before the first op, as a stage's is in rounds
                of a pipeline.
        """
        for operation in self.operations.values():
            self._tell_hashes(operation, now_s)
        is_soon = now_s < self._decided_s + limits.CROWD_DECIDE_S
        self._is_decision_due = self._is_crowd and is_soon and bool(self.operations)
        if not self._is_decision_due:
            self._decided_s = now_s
            self._decide(now_s)
        self._is_look_due = self._is_crowd
        if now_s < self._crowd_look_s and self._is_crowd:
            return
        self._looked_s = now_s
        self._agreement.attest(self.view.last_op, now_s)
        newest = self.view.last_op
        self._agreement.rewind(self.keepers.newest)
        if self.view.last_op != newest:  # the state that the run goes back to may not be attested
            self._agreement.attest(self.view.last_op, now_s)
        if not is_under_way:
            self._begin(now_s)
        self._is_look_due = self._is_crowd and self.first_state.is_pending
        while self._plan_next(now_s) and self.view.by_clocks:
            pass  # as many pairs as there are

    def _went_back(self, op: int) -> None:
        self.convictions.rewound(op)
        self.chronicle.rewound(op)

    def _begin(self, now_s: float) -> None:
        """Take a first state, or pass over those who give one that does not come through."""
        passing = self.first_state.passes_over(now_s)
        if passing is not None:
            self._agreement.go_back(passing)
            for peer in passing.passed_over:
                self.chronicle.event(0, peer, "passed over", WHY)
        genesis = self.first_state.next_genesis(now_s)
        if genesis is not None:
            self._writer.append(genesis)

    def _decide(self, now_s: float) -> None:
        if not self.operations:
            return
        named = self._members_named()
        alive: AbstractSet[PeerId] = self._live_roster.alive_among(named, now_s)
        if self.view.keepers:
            alive = alive | self.keepers.alive(now_s)
        if all(operation.is_unchanged(alive, now_s) for operation in self.operations.values()):
            return
        here = self.group_peers.here
        lives = {peer: here[peer].line.life for peer in named if peer in here}
        detours = partial(self._detours, now_s)
        for plan_id, operation in list(self.operations.items()):
            while plan_id in self.operations:
                decision = operation.decide(alive, now_s, lives, detours)
                if decision is None:
                    break
                is_in_turn = operation is self.operation or self.view.by_clocks
                if isinstance(decision, Commit | Skip) and not is_in_turn:
                    break  # asked again in its turn: who holds a result now may be gone then
                if isinstance(decision, Commit) and self.keepers.lacks(operation, decision, now_s):
                    break
                if isinstance(decision, Commit | Skip):
                    decision = self._timed(operation, decision, alive, now_s)
                self._log(operation, decision, now_s)

    def _members_named(self) -> frozenset[PeerId]:
        """Members that ops under way name, which only records change."""
        head, named = self._named
        if head != self._writer.head:
            boots = [operation.view.boots.keys() for operation in self.operations.values()]
            named = frozenset[PeerId]().union(*boots).intersection(self.view.members)
            self._named = self._writer.head, named
        return named

    def _timed(
        self, operation: OpDecider, outcome: Commit | Skip, alive: AbstractSet[PeerId], now_s: float
    ) -> Commit | Skip:
        """Add to an outcome how long the group has waited for whom since the last one."""
        waits = operation.waits(alive, now_s)
        for peer, seconds in self._ready_waits.pop(operation.view.plan_id, {}).items():
            add(waits, peer, seconds)
        waited = {p: ms for p, wait_s in sorted(waits.items()) if (ms := int(1000 * wait_s))}
        took, self._ended_s = int(1000 * (now_s - self._ended_s)), now_s
        return msgspec.structs.replace(outcome, waited=waited, took=max(0, took))

    def needs(self, peer: PeerId) -> bool:
        """Return True if the group would lose something with a peer that leaves: a state, or its
        part of an op under way, which would be committed with a holder that goes."""
        is_giving = any(peer in operation.view.weights for operation in self.operations.values())
        return is_giving or self.group_peers.needs(peer, self.keepers.staying())

    def _log(self, operation: OpDecider, decision: OpDecision, now_s: float) -> None:
        if self.view.group:
            decision = msgspec.structs.replace(decision, group=self.view.group)
        if isinstance(decision, Reassign):
            self.chronicle.moved(decision, operation.view.owners)
        self._writer.append(decision)
        self._sheets += sheets_for(operation.reports, decision)
        self.concerned |= dict.fromkeys(operation.view.boots)
        self.chronicle.decided(decision, now_s)
        if isinstance(decision, Freeze):
            self.unheard |= operation.unheard()
        if isinstance(decision, Freeze | Skip):
            for peer, reason in decision.excluded.items():
                by = decision.accusers.get(peer, ())
                self.chronicle.excluded(decision.op, peer, reason, by)
        if isinstance(decision, Commit | Skip):
            if isinstance(decision, Commit):
                self.keepers.committed(operation, decision, now_s)
            operation.teach(self._pace, now_s)
            self._live_roster.op_ended(self.view.members)
            del self.operations[operation.view.plan_id]

    def _judge(self, plan: Plan) -> PeerId:
        """Choose who evaluates a round of a run in stages: somebody who has all of them."""
        view = self._writer.view
        able = [m.peer for m in plan.members if len(view.groups_of(m.peer)) == len(view.groups)]
        return able[plan.op % len(able)] if able else plan.evaluate_by

    def _plan_next(self, now_s: float) -> bool:
        """Log the next PLAN if it falls due; return True if it did."""
        by_clocks = self.terms.graph == CLOCKS
        at_once = PAIRS_AT_ONCE if by_clocks else self.terms.ops_at_once
        if len(self.operations) >= min(at_once, self.view.most_ops) or self.has_all_planned:
            return False
        givers, here = self.givers, self.group_peers.here
        if givers is not None:
            here = given_by(here, givers)
        if not may_plan(self.terms, self.view, here):
            return False
        self._is_look_due = self._is_crowd  # until there is a PLAN, or nobody is ready any more
        if givers is None and self.first_state.holds_back(now_s):
            return False
        expected = self.group_peers.expected(now_s, None if givers is None else givers.keys())
        behind = left_behind(self.view, here) if self.terms.buffer and not by_clocks else set()
        limit_s = self._pace.deadline_s(self.terms.deadline_floor_s, self.terms.deadline_cap_s)
        plan = next_plan(
            self.terms, self.view, here, expected, limit_s, now_s, self._slicing,
            self._writer.view.join_index, self.keepers.planned(now_s), self._detours(now_s),
            self._planned_s,
        )  # fmt: skip
        if plan is None:
            return False
        if self.terms.guard.spike:
            guarded = self._guarded(plan, expected)
            if guarded is None:
                return False
            plan = guarded
        turns = len(self._writer.view.turns)
        plan = msgspec.structs.replace(plan, text=self._writer.text, turns=turns)
        if self.givers is not None:
            self.givers = {}
            plan = msgspec.structs.replace(plan, evaluate_by=self._judge(plan))
        if self.terms.buffer:  # whoever is at work is late for nothing
            expected &= behind
            givers = dict.fromkeys(expected, 0)
        gives = {member.peer for member in plan.members if member.weight}
        at = {peer: one.ready_s for peer, one in self.group_peers.here.items() if peer in gives}
        self.chronicle.planned(plan.op, self._ended_s, at, now_s)
        waits = self.group_peers.planned(
            plan, expected, now_s, self.terms.wait_ready_s, None if givers is None else {*givers}
        )
        self._writer.append(plan)
        self._planned_s = now_s
        op = self.view.op
        assert op is not None
        self._ready_waits[op.plan_id] = waits
        self.operations[op.plan_id] = OpDecider(op, now_s)
        self.concerned |= dict.fromkeys(op.boots)
        self._live_roster.called(op.boots, now_s)
        for peer, one in self.group_peers.here.items():
            one.follow(peer, self.view)
        self._decide(now_s)  # one that stands alone waits for nobody
        return True

    def _guarded(self, plan: Plan, expected: AbstractSet[PeerId]) -> Plan | None:
        """T22: note in a PLAN what its contributors lose; None where the loss has leapt, and the
        group goes back in its place, once nothing is under way."""
        guard, view = self.terms.guard, self.view
        ready = {peer: one.ready for peer, one in self.group_peers.here.items()}
        gives = [member.peer for member in plan.members if member.weight]
        back = leapt(guard, view, expected | set(gives), ready, self.terms.ops_at_once)
        if back is None:
            losses = tuple(told(gives, ready, plan.op).values())
            return msgspec.structs.replace(plan, losses=losses)
        if not self.operations:
            self._agreement.go_back(back)
        return None

    @property
    def has_all_planned(self) -> bool:
        """No more ops are needed, if those under way are committed."""
        return self.view.committed + len(self.operations) >= self.terms.rounds
