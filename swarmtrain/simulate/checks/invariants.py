"""Invariants that hold after every event (protocol.md part 2, INVARIANTS), checked as things
happen.

The checker hears of every record that is logged, every result that is applied and every part that
is given, and recomputes with plain sums the results that the machines made with exact ones. It
shares the codec with them, the records, and the bounds of `limits`; no decision of theirs. Where a
rule is not in protocol.md's list its name says so.
"""

import reprlib
from collections.abc import Iterator

from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.checks.demands import GRACE_S, Demands
from swarmtrain.simulate.checks.group_checks import GroupChecks
from swarmtrain.simulate.checks.idle_members import IdleMembers
from swarmtrain.simulate.checks.later_group import LaterGroup
from swarmtrain.simulate.checks.lease_checks import LeaseChecks
from swarmtrain.simulate.checks.training_checks import TrainingChecks
from swarmtrain.simulate.checks.way_checks import WayChecks
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.reading import WINDOWS
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain_transport import actions as do
from swarmtrain_transport.coordinator.members.departures import REMOVED
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import GATHER, PAIR
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame
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
    Record,
    Rewind,
    Skip,
    Unban,
)

_SHORT = reprlib.Repr()
"""A story names so many peers at most: of hundreds nobody reads more."""
_SHORT.maxlist = _SHORT.maxdict = 40

WAYS_LOOK_S = 1.0
"""Pause between two looks at who lacks a way to whom."""

WAYS_S = 300.0
"""Time after the last fault in which everybody is met: a try may have failed for many reasons
before, and who comes last comes after a minute."""


class Invariants(GroupChecks):
    """Checks one world; of its records those of the first group by itself.

    Args:
        swarm: coordinator and peers.

    Attributes:
        excluded: reason per op and peer.
        restored: the coordinator's disk was restored from a backup.
        later: checks of each group beside the first.
        leases: checks of the text's leases.
        ways: checks of meetings, where peers are behind routers.
        are_met: a way led from everybody to everybody when that was last looked at.
        sent_away: peers that the organiser has removed or banned once.
    """

    def __init__(self, swarm: Swarm) -> None:
        decided = Decided(swarm)
        super().__init__(swarm, decided, Demands(swarm, decided), self._heals)
        self.excluded: dict[tuple[int, int], str] = {}
        self.restored = False
        self.leases = LeaseChecks(WINDOWS, self._violated)
        self.ways = WayChecks(self._violated)
        numbers = range(1, swarm.scene.conditions.groups)
        self.later = {group: LaterGroup(swarm, group, self.demands) for group in numbers}
        every: tuple[GroupChecks, ...] = (self, *self.later.values())
        self._all_decided = [group.decided for group in every]
        self._all_lies = [group.lies for group in every]
        self._all_rules = [group.rules for group in every]
        self._idle_members = IdleMembers(swarm.scene)
        self._reader = BodyReader()
        self._roots: dict[int, bytes] = {}
        self._flipped: set[tuple[PeerId, int, bytes]] = set()
        self._overruled: set[int] = set()
        self._banned: set[PeerId] = set()
        self._trains: dict[PeerId, tuple[int, ...]] = {}
        self.sent_away: set[PeerId] = set()
        self.are_met = True
        self._calm_s = float("inf")

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
            if self._scene.conditions.are_experts:
                self._assigned(body)
        if group := getattr(body, "group", 0):
            self.later[group].logged(record, body)
            return
        self._decides(record, body)
        if isinstance(body, Attest):
            self._attested(body)
        elif isinstance(body, Extend):
            self._extended(body)
        self._idle_members.logged(body)
        if self._scene.weather is not None:
            self._scene.weather.logged(body)

    def staged(self, peer: SimPeer, group: int, op: int, root: bytes) -> None:
        """A peer has this state root after an op of a group beside the first."""
        self.later[group].rooted(peer, op, root)

    def _admitted(self, body: AnyBody) -> None:
        """Note whom the organiser does not want: nobody who is banned joins."""
        if isinstance(body, Gone):
            self.ways.gone(body.peer, self._scene.clock.now_s)
        if isinstance(body, Gone) and body.reason in (BANNED, REMOVED):
            self.sent_away.add(body.peer)
            if body.reason == BANNED:
                self._banned.add(body.peer)
        elif isinstance(body, Unban):
            self._banned.discard(body.peer)
        elif isinstance(body, Join) and body.peer in self._banned:
            self._violated("ban", f"{self._scene.name_of(body.peer)} joins, and is banned")

    def released(self, peer: PeerId) -> None:
        """RELEASED: of those who stay, or have not been told yet that they may go, somebody holds
        what this one holds, or nobody stays. A peer that has died just now may have held it. The
        first state holds no work: another is given."""
        leaver, now_s = self._swarm.peers[peer], self._scene.clock.now_s
        lines = self._swarm.coordinator.lines
        stay = {one for one, line in lines.items() if not line.is_released} - {peer}
        staying = [one for one in self._swarm.survivors if one.peer_id in stay]
        staying = [one for one in staying if self._swarm.is_connected(one)]
        if self.demands.deaths_since(now_s - GRACE_S) or leaver.peer_id in self._scene.hostile:
            return
        for number, group in leaver.machine.groups.items():
            view = group.view
            # In place, or on the disk of who has just come back.
            states = [
                view.age(s.op, s.state_root)
                for one in staying
                for s in one.machine.hello().states
                if s.group == number
            ]
            states += [-1 for one in staying if number in one.machine.groups]
            own = view.age(group.place.applied_op, group.place.state_root)
            if states and max(states) < own and own > 0:
                story = f"peer {leaver.number} may go, which alone holds the state after op {own}"
                self._violated("RELEASED", story if not number else f"group {number}: {story}")

    def _assigned(self, move: Move) -> None:
        """E1 and E2: a peer trains one expert, and an expert's last one is not sent away."""
        if len(move.groups) != 1 or move.keeps:
            self._violated("E1", f"a peer is in {move.groups} and keeps {move.keeps}")
        before, self._trains[move.peer] = self._trains.get(move.peer, ()), move.groups
        coordinator = self._swarm.coordinator.machine
        if before in ((), move.groups) or coordinator is None:
            return
        group = coordinator.groups[before[0]]
        is_back = move.why.startswith("0 others")  # a newcomer's own choice, after GONE
        if not group.view.members and not group.is_finished and not is_back:
            self._violated("E2", f"expert {before[0]} has lost its last peer to {move.groups[0]}")

    def is_told(self, index: int) -> bool:
        """Return True if somebody with whom nothing is wrong holds this record."""
        now_s = self._scene.clock.now_s
        return any(
            peer.machine.ledger.hash_at(index) is not None and self.demands.is_sound(peer, now_s)
            for peer in self._swarm.survivors
        )

    def is_held_from(self, length: int) -> bool:
        """Return True if peers together hold all that any of them has beyond so many records. Who
        began with an image of later ones does not have those before it."""
        ledgers, reach = [peer.machine.ledger for peer in self._swarm.survivors], 0
        while reach < length:
            reach = length
            length = max([reach, *(len(one) for one in ledgers if one.first <= reach)])
        return all(len(one) <= reach for one in ledgers)

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

    def _rewound(self, index: int, rewind: Rewind) -> None:
        super()._rewound(index, rewind)
        for later in [key for key in self._roots if key > rewind.op]:
            del self._roots[later]

    def coordinator_fell(self, seconds: float = 0.0) -> None:
        """Begin its timers again at full length when it is back (T14)."""
        for group in (self, *self.later.values()):
            group.extend_limits(seconds)

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

    def _planned(self, plan: Plan) -> None:
        if self.decided.is_over:
            self._violated("EXTEND", f"op {plan.op} is planned after the last round")
        self.leases.planned(plan.text)
        super()._planned(plan)

    def _extended(self, extend: Extend) -> None:
        if extend.rounds <= self.decided.rounds:
            self._violated("EXTEND", f"{extend.rounds} rounds are no more than there were")
        for decided in self._all_decided:
            decided.extended = extend.rounds
        self._swarm.extended()

    def _froze(self, freeze: Freeze) -> None:
        super()._froze(freeze)
        for peer, reason in freeze.excluded.items():
            self.excluded[(freeze.op, self._scene.numbers[peer])] = reason

    def _over(self, outcome: Commit | Skip) -> None:
        super()._over(outcome)
        self._swarm.committed(self.decided.commits)

    def _committed(self, commit: Commit, plan: Plan) -> None:
        if plan.kind == PAIR:
            self.rules.committed(commit, plan)
            self.work.pairs.check_commit(commit, plan)
        elif plan.kind == GATHER:
            self.rules.committed(commit, plan)
            self._check_gathered(commit, plan)
        else:
            super()._committed(commit, plan)

    def _are_few(self, holders: int, live: int, sound: int) -> bool:
        return super()._are_few(holders, live, sound) or 2 * holders < sound

    def _check_gathered(self, commit: Commit, plan: Plan) -> None:
        """Check COMMIT of a gather op: every contribution that is in is held by enough, by somebody
        besides its contributor, and is what FREEZE says."""
        freeze = self.decided.frozen[commit.op]
        live = [one for one in self._sound(commit.op) if one.peer_id in commit.contributors]
        self._check_fair(commit.op, set(freeze.contributors) - set(commit.contributors))
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
            holders = self._holders(outcome.root)
            others = [peer for peer in live if peer.peer_id != spec.owner]
            is_alone = others and all(peer.peer_id == spec.owner for peer in holders)
            if live and (2 * len(holders) <= len(live) or is_alone):
                numbers = [peer.number for peer in holders]
                self._violated("I8", f"op {commit.op}: {name}'s is held by {numbers} alone")

    # ---- the peers

    def accepted(self, peer: SimPeer, record: Record) -> None:
        """A peer took a record into its ledger: it must be the coordinator's."""
        log, index = self.decided.log, record.index
        is_ours = index < len(log) and (log[index] == record or log[index].hash == record.hash)
        if not is_ours:
            self._violated("I1", f"peer {peer.number} holds record {index} that is not ours")
        for lies in self._all_lies:
            lies.accepted(peer, record)

    def sends(self, peer: PeerId, target: PeerId, frame: Frame) -> None:
        """A peer sends a frame of an op in cells."""
        self.cells.sends(peer, target, frame)
        for later in self.later.values():
            later.cells.sends(peer, target, frame)

    def training(self, group: int) -> TrainingChecks:
        """Checks of the training in a group."""
        return self.later[group].work if group else self.work

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
        if halt.code == "SWT-E563" and peer.peer_id in self._scene.convicted:
            return True
        is_out = halt.code == "SWT-E702" and peer.peer_id in self.sent_away
        is_early = halt.code == "SWT-E706" and self._swarm.coordinator.has_lost_ledger
        if is_out or is_early:
            return True
        was_over = self.decided.commits >= self._scene.conditions.rounds
        if halt.code != "SWT-E705" or not was_over:
            self._violated("halt", f"peer {peer.number} halts: {halt.text}")
        return False

    def look_at_ways(self) -> None:
        """W2: some time after the last fault a way leads from everybody to everybody. Nothing can
        be held against who lacks one."""
        apart = [*self._apart()]
        for ends in apart:
            for peer in ends:
                self.demands.trouble(peer.peer_id, WAYS_LOOK_S)
        self.are_met = not apart
        if apart and self._scene.clock.now_s > self._calm_s + WAYS_S:
            numbers = [(one.number, other.number) for one, other in apart]
            story = f"after {WAYS_S:.0f} s no way leads from one to the other of {numbers}"
            self._violated("W2", story)
        self._scene.clock.after(WAYS_LOOK_S, self.look_at_ways)

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self._calm_s = self._scene.clock.now_s

    def _apart(self) -> Iterator[tuple[SimPeer, SimPeer]]:
        """Yield the pairs of which the first has no way to the second."""
        routers, survivors = self._swarm.network.routers, self._swarm.survivors
        if routers is None:
            return
        for source in survivors:
            for target in survivors:
                if source is not target and not routers.carries(source.peer_id, target.peer_id):
                    yield source, target

    def at_end(self) -> None:
        """L2: after the faults everybody reaches the end of each group, unless there states are at
        odds, or nobody has one, or the newest one has a flipped bit and its peer alone holds it:
        nobody else can make it."""
        survivors = self._swarm.survivors
        stuck = {number for number, group in self.later.items() if group.is_stuck}
        is_lost = self._scene.conditions.are_experts and self.decided.is_lost
        if is_lost or self.rules.is_undecided or self.decided.newest[0] in self._overruled:
            stuck.add(self.decided.group)
        for decided in self._all_decided:
            if decided.group not in stuck and (late := decided.late):
                story = f"{len(late)} do not reach the end; applied ops are {_SHORT.repr(late)}"
                decided.violated("L2", story)
        deaf = [peer.number for peer in survivors if not peer.is_finished]
        if deaf and not stuck:
            self._violated("L2", f"peers {_SHORT.repr(deaf)} do not hear that the run is over")
        for peer in survivors:
            is_informed = peer.machine.ledger.head_index == len(self.decided.log) - 1
            if is_informed and peer.machine.view.banned != self._banned:
                self._violated("ban", f"peer {peer.number} knows of other bans than were decided")
        ill = [peer.peer_id for peer in survivors if peer.peer_id in self._scene.flipped]
        if ill and self.decided.group not in stuck:
            names = ", ".join(sorted(map(self._scene.name_of, ill)))
            self._violated("T15", f"at the end the states of {names} differ, and are not healed")
