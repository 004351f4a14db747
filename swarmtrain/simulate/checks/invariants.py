"""Invariants that hold after every event (protocol.md part 2, INVARIANTS), checked as things
happen.

The checker hears of every record that is logged, every result that is applied and every part that
is given, and recomputes with plain sums the results that the machines made with exact ones. It
shares the codec with them, the records, and the bounds of `limits`; no decision of theirs. Where a
rule is not in protocol.md's list its name says so.
"""

from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.checks.demands import GRACE_S, Demands
from swarmtrain.simulate.checks.holding import holds
from swarmtrain.simulate.checks.idle_members import IdleMembers
from swarmtrain.simulate.checks.later_group import LaterGroup
from swarmtrain.simulate.checks.lease_checks import LeaseChecks
from swarmtrain.simulate.checks.lies import Lies
from swarmtrain.simulate.checks.rules import Rules
from swarmtrain.simulate.checks.training_checks import TrainingChecks
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.reading import WINDOWS
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain_transport import actions as do
from swarmtrain_transport.coordinator.members.departures import REMOVED
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import GATHER, PAIR
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Leased
from swarmtrain_transport.wire.records import (
    BANNED,
    AnyBody,
    Attest,
    BodyReader,
    Commit,
    Extend,
    Freeze,
    Gone,
    Join,
    Move,
    Plan,
    Reassign,
    Record,
    Rewind,
    Skip,
    SliceFreeze,
    Unban,
)

_RETRY_S = 1.0
"""Beyond twice the deadline, an op may end this much later: reconnects and wake-ups."""


class Invariants:
    """Checks one world.

    Args:
        swarm: coordinator and peers.

    Attributes:
        decided: decisions that were logged.
        excluded: reason per op and peer.
        restored: the coordinator's disk was restored from a backup.
        demands: peers that may be left out.
        lies: deeds of a hostile owner in the first group.
        rules: rules of single records.
        limit_s: time by which the first of the ops under way must have ended.
        later: checks of each group beside the first.
        leases: checks of the text's leases.
        sent_away: peers that the organiser has removed or banned once.
    """

    def __init__(self, swarm: Swarm) -> None:
        self.decided = Decided(swarm)
        self.excluded: dict[tuple[int, int], str] = {}
        self.restored = False
        self.demands = Demands(swarm, self.decided)
        self.lies = Lies(swarm, self.decided, self.demands)
        self._training = TrainingChecks(swarm, self.decided, self.demands, self.lies, self._heals)
        self.rules = Rules(swarm, self.decided, self.demands, self._training.sums)
        self.limit_s = float("inf")
        self.leases = LeaseChecks(WINDOWS, self._violated)
        numbers = range(1, swarm.scene.conditions.groups)
        self.later = {group: LaterGroup(swarm, group, self.demands) for group in numbers}
        every: tuple[Invariants | LaterGroup, ...] = (self, *self.later.values())
        self._all_decided = [group.decided for group in every]
        self._all_lies = [group.lies for group in every]
        self._all_rules = [group.rules for group in every]
        self._limits: dict[int, float] = {}
        self._swarm = swarm
        self._scene = swarm.scene
        self._idle_members = IdleMembers(swarm.scene)
        self._reader = BodyReader()
        self._roots: dict[int, bytes] = {}
        self._flipped: set[tuple[PeerId, int, bytes]] = set()
        self._overruled: set[int] = set()
        self._banned: set[PeerId] = set()
        self.sent_away: set[PeerId] = set()
        self._deadline_s = 0.0

    # ---- the coordinator

    def logged(self, record: Record) -> None:
        """A record was appended: I1, I6, I8, L3."""
        if self._scene.is_abandoned:
            return  # one event may log several records; the rest stand on what nobody can judge
        if record.index < len(self.decided.log):
            if self.restored and not self.is_told(record.index):
                # A peer that knew better died before it could say so: nothing can be held against
                # it.
                self._scene.abandon()
                return
            self._violated("I1", f"record {record.index} is decided a second time")
        self.decided.log.append(record)
        body = self._reader.read(record)
        self._admitted(body)
        if isinstance(body, Join | Move | Gone):
            for decided in self._all_decided:
                decided.peopled(body)
        if isinstance(body, Move):
            for rules in self._all_rules:
                rules.moved(body)
        if group := getattr(body, "group", 0):
            self.later[group].logged(record, body)
            return
        if isinstance(body, Plan):
            self._begun(body)
        elif isinstance(body, Freeze):
            self._froze(body)
        elif isinstance(body, Reassign):
            self.decided.reassigned(body)
            self.lies.reassigned(body)
        elif isinstance(body, Rewind):
            self.rules.rewound(body)
            self._rewound(record.index, body.op)
        elif isinstance(body, Attest):
            self.rules.attested(body)
            self._attested(body)
        elif isinstance(body, SliceFreeze):
            freeze = self.decided.frozen.get(body.op)
            if freeze is None or not set(body.contributors) <= set(freeze.contributors):
                self._violated("I6", f"slice {body.slice_index}: contributors not in FREEZE")
            else:
                self.demands.check_fair(body.op, set(freeze.contributors) - set(body.contributors))
        elif isinstance(body, Commit | Skip):
            self._ended(body)
            if isinstance(body, Commit):
                self.lies.committed(record, body)
        elif isinstance(body, Extend):
            self._extended(body)
        elif isinstance(body, Gone) and body.conviction is not None:
            self.lies.convicts(body.peer, body.conviction)
        self._idle_members.logged(body)
        if self._scene.weather is not None:
            self._scene.weather.logged(body)

    def staged(self, peer: SimPeer, group: int, op: int, root: bytes) -> None:
        """A peer has this state root after an op of a group beside the first."""
        self.later[group].rooted(peer, op, root)

    def _admitted(self, body: AnyBody) -> None:
        """Note whom the organiser does not want: nobody who is banned joins."""
        if isinstance(body, Gone) and body.reason in (BANNED, REMOVED):
            self.sent_away.add(body.peer)
            if body.reason == BANNED:
                self._banned.add(body.peer)
        elif isinstance(body, Unban):
            self._banned.discard(body.peer)
        elif isinstance(body, Join) and body.peer in self._banned:
            self._violated("ban", f"{self._scene.name_of(body.peer)} joins, and is banned")

    def released(self, peer: PeerId) -> None:
        """RELEASED: of those who stay somebody holds what this one holds, or nobody stays. A peer
        that has died just now may have held it."""
        leaver, now_s = self._swarm.peers[peer], self._scene.clock.now_s
        lines = self._swarm.coordinator.lines
        stay = {one for one, line in lines.items() if not line.is_leaving} - {peer}
        staying = [one for one in self._swarm.survivors if one.peer_id in stay]
        staying = [one for one in staying if self._swarm.is_connected(one)]
        if self.demands.deaths_since(now_s - GRACE_S) or leaver.peer_id in self._scene.hostile:
            return
        for number, group in leaver.machine.groups.items():
            view = group.view
            here = [one.machine.groups.get(number) for one in staying]
            states = [view.commit_at(one.place.applied_op) for one in here if one is not None]
            own = view.commit_at(group.place.applied_op)
            if states and max(states) < own:
                story = f"peer {leaver.number} may go, which alone holds the state after op {own}"
                self._violated("RELEASED", story if not number else f"group {number}: {story}")

    def is_told(self, index: int) -> bool:
        """Return True if somebody with whom nothing is wrong holds this record."""
        now_s = self._scene.clock.now_s
        return any(
            peer.machine.ledger.hash_at(index) is not None and self.demands.is_sound(peer, now_s)
            for peer in self._swarm.survivors
        )

    def _attested(self, attest: Attest) -> None:
        """A flipped state becomes the run's, where all other members of the op have died: whoever
        else has replayed the op must heal then."""
        state = attest.op, attest.state_root
        ours = {one for one in self._flipped if one[1:] == state}
        if peers := {peer for peer, *_ in ours} & self._scene.flipped:
            self._scene.flipped -= peers
            self._flipped -= ours
            self._roots[attest.op] = attest.state_root
            self._overruled.add(attest.op)

    def _rewound(self, index: int, op: int) -> None:
        """Cancel the decisions after `op` (T12); ops begin again with the next one."""
        self.decided.rewound(index, op)
        for later in [key for key in self._roots if key > op]:
            del self._roots[later]
        self._training.rewound(op)
        self.lies.rewound(op)

    def coordinator_fell(self, seconds: float = 0.0) -> None:
        """Begin its timers again at full length when it is back (T14)."""
        for op, limit_s in self._limits.items():
            self._limits[op] = max(limit_s, self._late_s() + seconds)
        self._limit()
        for group in self.later.values():
            if group.limit_s < float("inf"):
                group.limit_s = max(group.limit_s, group.late_s() + seconds)

    def too_late(self) -> None:
        """L1: every op ends within twice its deadline; it is later than `limit_s`."""
        late = [str(number) for number, one in self.later.items() if self._is_late(one.limit_s)]
        if self._is_late(self.limit_s):
            self._violated("L1", f"op {min(self._limits)} does not end")
        if late:
            self._violated("L1", f"the open op of group {', '.join(late)} does not end")

    def _is_late(self, limit_s: float) -> bool:
        return self._scene.clock.now_s > limit_s

    @property
    def first_limit_s(self) -> float:
        """Time by which the first of the open ops must have ended."""
        if not self.later:  # asked after every event
            return self.limit_s
        return min(self.limit_s, *[group.limit_s for group in self.later.values()])

    def _limit(self) -> None:
        self.limit_s = min(self._limits.values(), default=float("inf"))

    def _late_s(self) -> float:
        """Return when an op whose clock begins now has not ended in time."""
        return self._scene.clock.now_s + 2 * self._deadline_s + _RETRY_S

    def _begun(self, plan: Plan) -> None:
        if self.decided.is_over:
            self._violated("EXTEND", f"op {plan.op} is planned after the last round")
        self.rules.planned(plan)
        self.leases.planned(plan.text)
        self.decided.begun(plan)
        self._training.begun()
        self.lies.begun(plan)
        self._deadline_s = plan.deadline_s
        self._limits[plan.op] = self._late_s()
        self._limit()

    def _extended(self, extend: Extend) -> None:
        if extend.rounds <= self.decided.rounds:
            self._violated("EXTEND", f"{extend.rounds} rounds are no more than there were")
        for decided in self._all_decided:
            decided.extended = extend.rounds
        self._swarm.extended()

    def _froze(self, freeze: Freeze) -> None:
        known = self.decided.frozen.get(freeze.op)
        if known is not None:
            same = set(known.contributors) == set(freeze.contributors)
            kind = "the same" if same else "other"
            self._violated("I6", f"second FREEZE of op {freeze.op} with {kind} contributors")
        self.decided.frozen[freeze.op] = freeze
        self.demands.check_fair(
            freeze.op, set(self.decided.weights(freeze.op)) - set(freeze.contributors)
        )
        for peer, reason in freeze.excluded.items():
            self.excluded[(freeze.op, self._scene.numbers[peer])] = reason

    def _ended(self, outcome: Commit | Skip) -> None:
        if outcome.op in self.decided.outcomes:
            self._violated("I1", f"second outcome of op {outcome.op}")
        self.decided.ended(outcome)
        self._swarm.committed(self.decided.commits)
        self._limits.pop(outcome.op, None)
        self._limit()
        if isinstance(outcome, Commit):
            self._check_commit(outcome)
        else:
            self.demands.check_skip(outcome)

    def _check_commit(self, commit: Commit) -> None:
        """I6 and I8: enough contributors, enough live holders of every slice."""
        plan = self.decided.plans[commit.op]
        self.rules.committed(commit, plan)
        if plan.kind == PAIR:
            self._training.pairs.check_commit(commit, plan)
            return
        # A live peer that is stopped or cut off may be held for dead: it need not be waited for.
        planned, now_s = self.decided.planned(commit.op), self._scene.clock.now_s
        members = [peer for peer in planned if self.demands.is_sound(peer, now_s)]
        live = [peer for peer in members if peer.peer_id in commit.contributors]
        sound = len(members)
        if plan.kind == GATHER:
            self._check_gathered(commit, live)
            return
        for index, outcome in enumerate(commit.slices):
            if len(outcome.contributors) < plan.min_contributors:
                self._violated("I6", f"op {commit.op} slice {index}: too few contributors")
            holders = [peer for peer in self._swarm.survivors if holds(peer, outcome.root)]
            if (live and 2 * len(holders) <= len(live)) or 2 * len(holders) < sound:
                numbers = [peer.number for peer in holders]
                self._violated("I8", f"op {commit.op} slice {index}: held by {numbers} alone")

    def _check_gathered(self, commit: Commit, live: list[SimPeer]) -> None:
        """Check COMMIT of a gather op: every contribution that is in is held by enough, by somebody
        besides its contributor, and is what FREEZE says."""
        plan, freeze = self.decided.plans[commit.op], self.decided.frozen[commit.op]
        self.demands.check_fair(commit.op, set(freeze.contributors) - set(commit.contributors))
        if len(commit.contributors) < plan.min_contributors:
            self._violated("I6", f"op {commit.op}: too few contributors")
        for spec, outcome in zip(plan.slices, commit.slices, strict=True):
            is_in = spec.owner in commit.contributors
            name = self._scene.name_of(spec.owner)
            if outcome.contributors != (spec.owner,) * is_in:
                self._violated("I6", f"op {commit.op}: {name}'s slice is not its own")
            if not is_in:
                continue
            if spec.owner not in freeze.roots or freeze.roots[spec.owner].root != outcome.root:
                self._violated("I6", f"op {commit.op}: {name}'s contribution is not FREEZE's")
            holders = [peer for peer in self._swarm.survivors if holds(peer, outcome.root)]
            others = [peer for peer in live if peer.peer_id != spec.owner]
            is_alone = others and all(peer.peer_id == spec.owner for peer in holders)
            if live and (2 * len(holders) <= len(live) or is_alone):
                numbers = [peer.number for peer in holders]
                self._violated("I8", f"op {commit.op}: {name}'s is held by {numbers} alone")

    # ---- the peers

    def accepted(self, peer: SimPeer, record: Record) -> None:
        """A peer took a record into its ledger: it must be the coordinator's."""
        if (
            record.index >= len(self.decided.log)
            or self.decided.log[record.index].hash != record.hash
        ):
            self._violated("I1", f"peer {peer.number} holds record {record.index} that is not ours")
        for lies in self._all_lies:
            lies.accepted(peer, record)

    def training(self, group: int) -> TrainingChecks:
        """Checks of the training in a group."""
        return self.later[group].training if group else self._training

    def _heals(self, peer: PeerId) -> None:
        """A peer takes over shared state: a bit that was another is no more, unless that state is
        its own from its disk, as `rooted` will see."""
        self._scene.flipped.discard(peer)

    def rooted(self, peer: SimPeer, op: int, root: bytes) -> None:
        """I2: one state root per op, unless ops go by pairs."""
        if self.decided.is_past(peer) or (peer.driver.is_paired and op > 0):
            return
        self.rules.rooted(peer, op, root)
        if peer.peer_id in self._scene.flipped or (peer.peer_id, op, root) in self._flipped:
            self._scene.flipped.add(peer.peer_id)
            self._flipped.add((peer.peer_id, op, root))
            return  # it must be healed
        known = self._roots.setdefault(op, root)
        if known != root and op not in self._overruled:
            self._violated("I2", f"peer {peer.number} has another state root after op {op}")

    def proved(self, peer: SimPeer, group: int, op: int) -> None:
        """A peer keeps a proof."""
        self._all_lies[group].proved(peer, op)

    def read(self, peer: PeerId, boot: bytes, leased: Leased, first: int) -> None:
        """A peer's process has read a window of a piece of text."""
        self.leases.read(boot, leased, first)

    def died(self, peer: SimPeer) -> None:
        """A process is gone."""
        for lies in self._all_lies:
            lies.died()
        self.demands.died(peer)

    def blamed(self, fault: do.PeerFault) -> None:
        """A peer finds another at fault: it must have been."""
        handicap = self._swarm.peers[fault.peer].handicap
        is_forger = handicap.forges_scales or handicap.forges_results
        if fault.peer not in self._scene.hostile and not is_forger:
            name = self._scene.name_of(fault.peer)
            self._violated("fault", f"{name}: {fault.reason}: {fault.detail}")

    def refused(self, peer: PeerId, fault: RemoteFault) -> None:
        """The coordinator refuses a peer's message: it must have been hostile."""
        if peer not in self._scene.hostile:
            name = self._scene.name_of(peer)
            self._violated("fault", f"the coordinator refuses {name}: {fault}")

    def halted(self, peer: SimPeer, halt: do.Halt) -> bool:
        """Only who came, or came back, after the end may be sent away, who was convicted, whom the
        organiser does not want, and who has no copy of a ledger that is lost: for these somebody
        else comes."""
        is_convicted = self._scene.is_convicted and peer.peer_id == self._scene.liar
        if halt.code == "SWT-E563" and is_convicted:
            return True
        is_out = halt.code == "SWT-E702" and peer.peer_id in self.sent_away
        is_early = halt.code == "SWT-E706" and self._swarm.coordinator.has_lost_ledger
        if is_out or is_early:
            return True
        was_over = self.decided.commits >= self._scene.conditions.rounds
        if halt.code != "SWT-E705" or not was_over:
            self._violated("halt", f"peer {peer.number} halts: {halt.text}")
        return False

    def at_end(self) -> None:
        """L2: after the faults everybody reaches the end of each group, unless there states are at
        odds, or nobody has one, or the newest one has a flipped bit and its peer alone holds it:
        nobody else can make it."""
        survivors = self._swarm.survivors
        stuck = {number for number, group in self.later.items() if group.is_stuck}
        if self.rules.is_undecided or self.decided.newest[0] in self._overruled:
            stuck.add(self.decided.group)
        for decided in self._all_decided:
            if decided.group not in stuck and (late := decided.late):
                story = f"not everybody reaches the end; applied ops are {late}"
                decided.violated("L2", story)
        deaf = [peer.number for peer in survivors if not peer.is_finished]
        if deaf and not stuck:
            self._violated("L2", f"peers {deaf} do not hear that the run is over")
        for peer in survivors:
            is_informed = peer.machine.ledger.head_index == len(self.decided.log) - 1
            if is_informed and peer.machine.view.banned != self._banned:
                self._violated("ban", f"peer {peer.number} knows of other bans than were decided")
        ill = [peer.peer_id for peer in survivors if peer.peer_id in self._scene.flipped]
        if ill and self.decided.group not in stuck:
            names = ", ".join(sorted(map(self._scene.name_of, ill)))
            self._violated("T15", f"at the end the states of {names} differ, and are not healed")

    def _violated(self, invariant: str, story: str) -> None:
        self._scene.violation(invariant, story)
