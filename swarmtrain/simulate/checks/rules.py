"""Rules of single records (protocol.md parts 1 and 2), made again here from what peers really did.

The coordinator decides by what it is told and by its clock. So each rule is held against it only
as far as nothing was wrong with those on whose word it went.
"""

import hashlib
import statistics
from collections import Counter
from collections.abc import Mapping

import msgspec

from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.checks.demands import GRACE_S, Demands
from swarmtrain.simulate.checks.holding import holds
from swarmtrain.simulate.checks.sums import NamedSums
from swarmtrain.simulate.ground.spikes import has_leapt
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain_transport import limits
from swarmtrain_transport.kinds import PAIR, WHOLE
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Attest, Commit, Member, Move, Plan, Rewind, Skip

_SLOW_DISK_S = 1.0
"""Seconds that a record takes at most to become durable."""

_WEIGHT_MAX = 255
_BELIEVED = 4
"""Samples count up to so many times the low median (rule 2)."""

_SUSPECT_S = limits.SUSPECT_S + 1.0
"""Time after its death for which a peer may still be held for alive."""

_SUM_BITS, _PRODUCT_BITS = 53, 15
"""Bits of a float64, and of a value times its scale (rule 1)."""


class Rules:
    """Judges PLAN, COMMIT, ATTEST and REWIND of one group.

    Args:
        swarm: coordinator and peers.
        decided: decisions of the group that were logged.
        demands: peers with whom something was wrong.
        sums: values that were given there.

    Attributes:
        states: the newest state of every process that ever was, by peer and boot: op and root.
    """

    def __init__(self, swarm: Swarm, decided: Decided, demands: Demands, sums: NamedSums) -> None:
        self.states: dict[tuple[PeerId, bytes], tuple[int, bytes]] = {}
        self._had: dict[int, dict[tuple[PeerId, bytes], bytes]] = {}
        self._swarm = swarm
        self._scene = swarm.scene
        self._decided = decided
        self._demands = demands
        self._sums = sums
        self._attested: dict[int, tuple[bytes, float]] = {}
        self._group = decided.group
        self._is_paired = not decided.group and swarm.scene.conditions.kind == PAIR

    # ---- what is true

    def moved(self, move: Move) -> None:
        """A state that a peer had is none of the group's once it has left: it may begin anew."""
        if self._group not in move.groups:
            self.states = {key: one for key, one in self.states.items() if key[0] != move.peer}

    def rooted(self, peer: SimPeer, op: int, root: bytes) -> None:
        """A peer has this state after an op."""
        if peer.peer_id in self._decided.elsewhere:
            return
        key = peer.peer_id, peer.machine.card.boot
        self.states[key] = (op, root)
        self._had.setdefault(op, {})[key] = root

    def _is_sound(self, peer: SimPeer, since_s: float) -> bool:
        return self._demands.is_sound(peer, since_s) and not self._demands.has_lost(peer, since_s)

    # ---- records

    def planned(self, plan: Plan) -> None:
        """Rules 1 and 2, and T15: nobody contributes whose state is known not to be the run's."""
        weights = {member.peer: member.weight for member in plan.members if member.weight}
        bits = (sum(weights.values()) - 1).bit_length() + _PRODUCT_BITS + plan.e_max - plan.e_min
        if plan.exact and bits > _SUM_BITS:
            self._violated("rule 1", f"sums of op {plan.op} need {bits} bits")
        boots = {member.peer: member.boot for member in plan.members}
        given = {peer: self._sums.parts.get((plan.op, peer, boots[peer])) for peer in weights}
        if not self._scene.hostile & weights.keys():  # who is hostile may say another number
            parts = {peer: part for peer, part in given.items() if part is not None}
            samples = {peer: part.samples for peer, part in parts.items()}
            stale = dict(zip(weights, plan.stale, strict=False))
            wanted = _weights(samples, stale, plan.staleness)
            slack = len(plan.staleness) > 0  # in floats here, in integers there
            if samples.keys() == weights.keys() and any(
                abs(weight - wanted[peer]) > slack for peer, weight in weights.items()
            ):
                self._violated("rule 2", f"weights of op {plan.op} are not those of the samples")
            for peer, told in stale.items():
                since = self._began(peer, boots[peer], parts[peer]) if peer in parts else -1
                if since >= 0 and told < (results := self._results_since(since)):
                    story = f"{told} results old in op {plan.op}, after {results}"
                    self._violated("rule 2", f"work of {self._scene.name_of(peer)} is {story}")
        for peer in weights:
            self._check_state(plan, peer, boots[peer])
        self._check_known({m.peer: m.boot for m in plan.members if m.peer not in plan.keepers})
        self._check_attested(plan, {(peer, boots[peer]) for peer in weights})

    def _check_known(self, boots: Mapping[PeerId, bytes]) -> None:
        """ZAP: each member has the keys of all others in its allow-list, or it would refuse what
        they send."""
        for peer in self._swarm.survivors:
            unknown = boots.keys() - peer.machine.view.roster.keys()
            if unknown and boots.get(peer.peer_id) == peer.machine.card.boot:
                names = ", ".join(sorted(map(self._scene.name_of, unknown)))
                self._violated("ZAP", f"{names} are planned with peer {peer.number}: no key there")

    def _check_state(self, plan: Plan, peer: PeerId, boot: bytes) -> None:
        if plan.kind == PAIR:
            return
        op, root = self.states.get((peer, boot), (-1, b""))
        attested, since_s = self._attested.get(op, (root, 0.0))
        if attested != root and since_s < self._scene.clock.now_s:
            name = self._scene.name_of(peer)
            self._violated("T15", f"op {plan.op}: {name} contributes with a state that differs")

    def _check_attested(self, plan: Plan, ready: set[tuple[PeerId, bytes]]) -> None:
        """T15: the state that an op begins with is attested, if more than half of the members of
        the op before it that still count have it. The dead count until they are suspected, and so
        do those whose goodbye the coordinator was too ill to hear; whom no way reaches does not."""
        op, now_s = plan.op - 1, self._scene.clock.now_s
        if plan.kind == PAIR or op != self._decided.newest[0] or op in self._attested or not op:
            return
        if not self._demands.is_quiet(now_s - _SUSPECT_S):
            return
        dead = {peer for peer, _ in self._demands.deaths_since(now_s - _SUSPECT_S)}
        living = {peer.peer_id for peer in self._swarm.survivors}
        members = {member.peer for member in self._decided.plans[op].members}
        lines = self._swarm.coordinator.lines
        lost = {peer for peer, line in lines.items() if line.life.unreached_s is not None}
        roots = Counter(
            self.states[key][1]
            for key in ready & self.states.keys()
            if key[0] in members - lost and self.states[key][0] == op
        )
        if 2 * max(roots.values(), default=0) > len(members & (living | dead)):
            self._violated("attest", f"op {op} is not attested, although most have its state")

    def committed(self, commit: Commit, plan: Plan) -> None:
        """The result's root, and T8: before D_gather every live contributor holds everything, but
        for those that PLAN does not wait for (T19)."""
        digest = hashlib.sha256(commit.plan_hash + b"".join(sorted(commit.contributors)))
        for outcome in commit.slices:
            digest.update(msgspec.msgpack.encode(outcome))
        if commit.result_root != digest.digest():
            self._violated("root", f"op {commit.op}: the result's root is not that of its slices")
        now_s, begun_s = self._scene.clock.now_s, self._decided.plan_s[commit.op]
        gather_s = begun_s + limits.D_GATHER * plan.deadline_s
        if plan.kind in WHOLE or now_s >= gather_s / (1 + self._scene.conditions.drift) - 1.0:
            return
        roots = [outcome.root for outcome in commit.slices]
        for peer in self._decided.planned(commit.op):
            is_named = peer.peer_id in set(commit.contributors) - set(plan.unawaited)
            if not is_named or peer.peer_id in self._scene.deeds or not self._is_sound(peer, now_s):
                continue
            if not all(holds(peer, root, self._group) for root in roots):
                story = f"op {commit.op} does not wait for peer {peer.number}"
                self._violated("T8", story)

    def attested(self, attest: Attest) -> None:
        """T15: more than half of the op's live members have the state that is attested, or of all
        where these are tied; one that was started again has caught up with it, or cannot."""
        now_s = self._scene.clock.now_s
        self._attested[attest.op] = (attest.state_root, now_s)
        if attest.roots or attest.op == 0 or attest.op not in self._decided.plans:
            return
        members = {member.peer for member in self._decided.plans[attest.op].members}
        members -= self._decided.elsewhere
        here = [peer for peer in self._swarm.survivors if peer.peer_id in members]
        had, op = dict(self._had.get(attest.op, {})), attest.op + 1
        while isinstance(self._decided.outcomes.get(op), Skip):  # these change no state
            had |= self._had.get(op, {})
            op += 1
        # Whoever is further by now has told it before.
        agree = {key for key, root in had.items() if root == attest.state_root}
        others = [p for p in here if (p.peer_id, p.machine.card.boot) not in agree]
        deaths = self._demands.deaths_since(now_s - GRACE_S)
        num_agree = len(here) - len(others) + len(deaths & agree)
        # Who has just come back was not here when this was decided; it is durable later.
        anew, voiceless = {peer for peer, _ in deaths}, self._voiceless(attest.op)
        silent = [
            one
            for one in others
            if self._is_sound(one, now_s) and one not in voiceless and one.peer_id not in anew
        ]
        most = [p for p in self._members if (p.peer_id, p.machine.card.boot) in agree]
        # Those with whom something is wrong may be suspected by now, and are not asked then.
        against = [p for p in self._members if p not in most and self._is_sound(p, now_s)]
        is_tie = num_agree == len(silent) and len(most) > len(against)
        if silent and num_agree <= len(silent) and not is_tie and self._demands.is_quiet(now_s):
            numbers = sorted(peer.number for peer in silent)
            story = f"op {attest.op} is attested although peers {numbers} do not have that state"
            self._violated("attest", story)

    def _voiceless(self, op: int) -> list[SimPeer]:
        """Members of an op that were started again since, and cannot get the state after it."""
        boots = {member.peer: member.boot for member in self._decided.plans[op].members}
        anew = [one for one in self._members if boots.get(one.peer_id) != one.machine.card.boot]
        parts = [(one, one.machine.groups.get(self._group)) for one in anew]
        return [
            one
            for one, part in parts
            if part is not None and 0 <= part.place.stranded_op <= op and part.place.applied_op < op
        ]

    @property
    def is_undecided(self) -> bool:
        """True if no state of the newest op has most of those who are here: then nothing is planned
        (T15)."""
        op = self._decided.newest[0]
        if op < 1 or op in self._attested or self._is_paired:
            return False
        states = [self.states.get((one.peer_id, one.machine.card.boot)) for one in self._members]
        roots = Counter(state[1] for state in states if state is not None and state[0] == op)
        return len(roots) > 1 and 2 * max(roots.values()) <= len(self._members)

    @property
    def _members(self) -> list[SimPeer]:
        elsewhere = self._decided.elsewhere
        return [peer for peer in self._swarm.survivors if peer.peer_id not in elsewhere]

    def rewound(self, rewind: Rewind) -> None:
        """T12: everybody of the roster is connected, and nobody in it has a newer state of the
        run's. A process that has been stopped for long lives, and is none of them."""
        for later in [op for op in self._attested if op > rewind.op]:
            del self._attested[later]
        if rewind.op < 0 or self._is_paired:
            return
        if rewind.losses:
            self._guarded(rewind)
            return
        newest = max(
            (
                self.states.get((peer.peer_id, peer.machine.card.boot), (-1, b""))[0]
                for peer in self._swarm.survivors
                if self._group in peer.machine.groups
                and peer.peer_id in self._decided.roster
                and (self._group or peer.peer_id not in self._scene.flipped)
                and not peer.is_leaving
            ),
            default=-1,
        )
        if newest > rewind.op:
            story = f"back to op {rewind.op}, although the state after op {newest} is here"
            self._violated("T12", story)
        away = [
            peer
            for peer in self._decided.roster
            if not self._swarm.peers[peer].is_alive
            or not self._swarm.is_connected(self._swarm.peers[peer])
        ]
        now_s = self._scene.clock.now_s
        lately = {peer for peer, _ in self._demands.deaths_since(now_s - GRACE_S)}
        # A record is decided before it is durable: whose line has broken since was heard.
        away = [
            peer
            for peer in away
            if peer not in lately
            and not self._demands.has_lost(self._swarm.peers[peer], now_s - _SLOW_DISK_S)
        ]
        if away and self._demands.is_quiet(now_s):
            names = ", ".join(sorted(map(self._scene.name_of, away)))
            self._violated("T12", f"back to op {rewind.op} without hearing {names}")

    def _guarded(self, rewind: Rewind) -> None:
        """T22: most have told so, by what PLANs told before; and unless liars are more than half,
        the loss has leapt indeed, in one of the newest states."""
        guard, told = self._scene.conditions.terms().guard, list(rewind.losses.values())
        ends = {op: one for op, one in self._decided.outcomes.items() if isinstance(one, Commit)}
        newest = sorted(ends)[-guard.window :]
        known = [[one for one in self._decided.plans[op].losses if one >= 0] for op in newest]
        usual = statistics.median([statistics.median_high(one) for one in known if one])
        high = [one for one in told if one > guard.spike * usual]
        if rewind.bound != guard.spike * usual or 2 * len(high) <= len(told):
            self._violated("T22", f"back to op {rewind.op} at {told}, usual is {usual}")
        plans = {op: one.plan_hash for op, one in ends.items()}
        honest = [p for p in rewind.losses if not self._swarm.peers[p].lies_of_loss]
        states = range(rewind.op, max(self._decided.outcomes) + 1)
        if 2 * len(honest) >= len(told) and not any(has_leapt(plans, op) for op in states):
            self._violated("T22", f"back to op {rewind.op}, although no loss has leapt")

    def _began(self, peer: PeerId, boot: bytes, part: OwnPart) -> int:
        """Return the op of the anchor that work began from; of a peer that boasts, the newest that
        has its part, which alone can be known, or -1."""
        if not self._swarm.peers[peer].handicap.boasts:
            return part.since
        return max(
            (
                op
                for op, one in self._decided.outcomes.items()
                if isinstance(one, Commit)
                and peer in one.contributors
                and Member(peer, boot, self._decided.weights(op)[peer])
                in self._decided.plans[op].members
            ),
            default=-1,
        )

    def _results_since(self, op: int) -> int:
        return sum(
            one > op and isinstance(outcome, Commit)
            for one, outcome in self._decided.outcomes.items()
        )

    def _violated(self, invariant: str, story: str) -> None:
        self._decided.violated(invariant, story)


def _weights(
    samples: Mapping[PeerId, int], stale: Mapping[PeerId, int], staleness: str
) -> dict[PeerId, int]:
    """The weights of these samples, by rule 2."""
    if not samples:
        return {}
    most = _BELIEVED * statistics.median_low(samples.values())
    share = {
        peer: min(count, most) * _share(stale.get(peer, 0), staleness)
        for peer, count in samples.items()
    }
    top = max(1, *share.values())
    return {peer: max(1, int(_WEIGHT_MAX * one / top)) for peer, one in share.items()}


def _share(stale: int, staleness: str) -> float:
    if staleness == "polynomial":
        return float((1 + stale) ** -0.5)
    return 1 / (1 + max(0, stale - 4) / 2) if staleness == "hinge" else 1.0
