"""A hostile owner: it signs wrong sums, and what the exchange promises of them must come true.

The protocol does not keep a wrong sum out of a result. It promises that all have the same bits
whatever an owner publishes; that after COMMIT one drawn chunk is summed again; that a wrong sum in
that chunk becomes a proof, and the proof a conviction, if enough of the others live to look at it;
and that nobody is convicted who has summed rightly. A wrong sum that was not drawn stays, and an
audit that the next COMMIT overtakes finds nothing.

The draw is made again here, from the ledger's hash alone. A world has one hostile owner at most:
where most peers are hostile nothing is promised.

In cells it is not said who made a chunk wrong: its owner, or one of those who gave it sums. There
it is checked that only the drawn owner is convicted, and only of its own; that what it has made
wrong is found, whether it answers auditors or not; and that the others of its cell convict it.
"""

import random
from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.checks.demands import GRACE_S, Demands
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain_transport import limits
from swarmtrain_transport.ledger.cells import Cells
from swarmtrain_transport.ledger.fold import num_chunks
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import (
    Commit,
    Conviction,
    Plan,
    Reassign,
    Record,
    outline_of,
    tag_of,
)

_ASK_S = limits.AUDIT_RETRY_S + limits.AUDIT_PAUSE_S
"""An auditor needs so long at most for a contributor with whom nothing is wrong."""

_CONVICT_S = limits.FETCH_TIMEOUT_S
"""From a proof to its conviction, where nothing is wrong with anybody: others fetch it first."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A committed op.

    Attributes:
        plan: PLAN of the op.
        owners: owners of its slices at the end.
        makers: peers whose sums may be in each slice: its owner, in cells also whoever has owned
            another piece of its range, or was relieved.
        auditor: peer that the ledger has drawn, b"" for nobody.
        place: slice and chunk that are looked at.
        audited: peer that has made it, or its cell's sum for it.
        asked: peers that have what the auditor needs.
        judges: peers that may check a proof, None for all.
        term: term of the coordinator that has committed it: a later one tells no auditor anything.
    """

    plan: Plan
    owners: tuple[PeerId, ...]
    makers: tuple[AbstractSet[PeerId], ...]
    auditor: PeerId
    place: tuple[int, int]
    audited: PeerId
    asked: tuple[PeerId, ...]
    judges: AbstractSet[PeerId] | None
    term: int


@dataclass(frozen=True, slots=True)
class _Look:
    """An audit that may be under way: whose, of which op, since when, and how many of its audits
    had found a right sum before."""

    peer: SimPeer
    op: int
    since_s: float
    right: int


class Lies:
    """Deeds of a hostile owner in one group, and the peers that have found it out.

    Args:
        swarm: coordinator and peers; its scene knows who sums wrongly, or has done so.
        decided: the decisions of the group that were logged.
        demands: the peers with whom something was wrong.

    Attributes:
        counts: ops with a wrong sum (``told``), with one in the ``drawn`` chunk, with a proof
            (``proved``), and how many were ``convicted``.
    """

    def __init__(self, swarm: Swarm, decided: Decided, demands: Demands) -> None:
        self.counts: Counter[str] = Counter()
        self._swarm = swarm
        self._group = decided.group
        self._scene = swarm.scene
        self._decided = decided
        self._demands = demands
        self._under_way: dict[int, tuple[Plan, list[PeerId]]] = {}
        self._relieved: dict[tuple[int, int], set[PeerId]] = {}
        self._ended: dict[int, _Ended] = {}
        self._wrong: dict[int, set[tuple[int, int]]] = {}
        self._proved: set[int] = set()
        self._looks: dict[PeerId, _Look] = {}
        self._death_s = float("-inf")

    def begin(self, peer: SimPeer) -> None:
        """From now on this peer's sums are wrong, also in its later lives. In cells it answers no
        auditor in every other world."""
        self._scene.liar = peer.peer_id
        conditions = self._scene.conditions
        draw = random.Random(f"silent {conditions.seed}")
        self._scene.is_liar_silent = conditions.cells > 1 and draw.random() < 0.5
        peer.arithmetic.sums_wrongly = True
        self._scene.hostile.add(peer.peer_id)

    def died(self) -> None:
        """A process is gone: the coordinator counts on it for a while still."""
        self._death_s = self._scene.clock.now_s

    # ---- the ledger

    def begun(self, plan: Plan) -> None:
        """An op begins."""
        self._under_way[plan.op] = plan, [spec.owner for spec in plan.slices]

    def reassigned(self, body: Reassign) -> None:
        """A slice has another owner."""
        owners = self._under_way[body.op][1]
        relieved = self._relieved.setdefault((body.op, body.slice_index), set())
        relieved.add(owners[body.slice_index])
        owners[body.slice_index] = body.owner

    def committed(self, record: Record, commit: Commit) -> None:
        """An op was committed: its audit is drawn."""
        plan, owners = self._under_way[commit.op]
        if self._scene.liar is None:
            return
        lots = [int.from_bytes(record.hash[at : at + 8], "little") for at in (0, 8, 16, 24)]
        index, cells = lots[0] % len(commit.slices), Cells.in_plan(plan)
        near = [cells.among(commit.slices[index].contributors, c) for c in range(plan.cells)]
        cell = index % plan.cells
        given = [one for one, peers in enumerate(near) if peers]
        is_of_sum = plan.cells > 1 and lots[3] % 2 == 1
        if is_of_sum:
            cell = given[lots[3] // 2 % len(given)]
        audited = owners[cells.owned(cell, index)]
        asked = set(near[cell] if plan.cells == 1 or is_of_sum else ())
        for one in [cell] if is_of_sum else given if plan.cells > 1 else ():
            asked |= {owners[cells.owned(one, index)], owners[cells.taker(one, index)]}
        if plan.cells > 1:
            asked.discard(audited)
        auditors = [p for p in cells.among(commit.contributors, cell) if p != audited]
        self._ended[commit.op] = _Ended(
            plan,
            tuple(owners),
            tuple(self._makers(commit.op, place) for place in range(len(owners))),
            auditors[lots[2] % len(auditors)] if auditors else b"",
            (index, lots[1] % num_chunks(plan, index)),
            audited,
            tuple(sorted(asked)),
            None if plan.cells == 1 else {p for p, one in cells.of.items() if one == cell},
            record.term,
        )

    def _makers(self, op: int, index: int) -> AbstractSet[PeerId]:
        plan, owners = self._under_way[op]
        if plan.cells == 1:
            return {owners[index]}
        first = index - index % plan.cells
        pieces = range(first, first + plan.cells)
        relieved = [self._relieved.get((op, piece), set[PeerId]()) for piece in pieces]
        return {owners[piece] for piece in pieces}.union(*relieved)

    def rewound(self, op: int) -> None:
        """Later ops are cancelled, and their sums with them."""
        self._proved = {key for key in self._proved if key <= op}
        self._looks = {peer: look for peer, look in self._looks.items() if look.op <= op}
        for later in [key for key in self._ended if key > op]:
            del self._ended[later]
            self._wrong.pop(later, None)

    def convicts(self, peer: PeerId, why: Conviction) -> None:
        """Somebody is evicted for a wrong sum: it must have made it, where the draw looked."""
        ended = self._ended.get(why.op)
        place = (why.slice_index, why.chunk)
        name = self._scene.name_of(peer)
        if self._scene.liar is None and self._swarm.peers[peer].arithmetic.forges_results:
            self._scene.liar = peer  # it was alone, and has signed what nobody can decode
        elif peer != self._scene.liar or ended is None or ended.audited != peer:
            self._violated(f"{name} is convicted of a sum that it has not made wrong")
        elif ended.place != place:
            self._violated(f"{name} is convicted of what was not drawn")
        self._scene.convicted.add(peer)
        self.counts["convicted"] += 1
        self._demands.trouble(peer, self._scene.end_s)  # it is thrown out, whatever it does

    # ---- results and proofs

    def unexplained(self, op: int, wrong: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return those of the wrong (slice, chunk) of a result that no hostile owner has made.

        Called once per result, when it is first applied.
        """
        ended = self._ended.get(op)
        if ended is None:
            return wrong
        told = {place for place in wrong if self._scene.liar in ended.makers[place[0]]}
        self._wrong[op] = told
        self.counts["told"] += bool(told)
        self.counts["drawn"] += ended.place in told
        self._check_proof(op)
        return [place for place in wrong if place not in told]

    def proved(self, peer: SimPeer, op: int) -> None:
        """A peer keeps a proof: as auditor, or because it agrees with the auditor."""
        if peer.peer_id == self._scene.liar or op not in self._ended:
            return  # its word is worth nothing; or the op is cancelled, which the peer may not know
        if op not in self._proved:
            self._proved.add(op)
            self.counts["proved"] += 1
            now_s = self._scene.clock.now_s
            judges = self._judges(op)
            self._scene.clock.after(_CONVICT_S, partial(self._check_convicted, op, now_s, judges))
        self._check_proof(op)

    def _judges(self, op: int) -> tuple[SimPeer, ...]:
        members = (one for one in self._swarm.survivors if self._group in one.machine.groups)
        able = self._ended[op].judges
        judges = (one for one in members if able is None or one.peer_id in able)
        return tuple(one for one in judges if one.peer_id != self._scene.liar)

    def _check_proof(self, op: int) -> None:
        """Check that a proof is of a wrong sum; it is known once somebody has applied it."""
        wrong = self._wrong.get(op)
        if op in self._ended and self._ended[op].plan.cells > 1:
            return  # a sum may be wrong and its mean be rounded to what is right
        if op in self._proved and wrong is not None and self._ended[op].place not in wrong:
            self._violated(f"a right sum of op {op} is proved wrong")

    def _check_convicted(self, op: int, since_s: float, judges: tuple[SimPeer, ...]) -> None:
        """A proof that enough peers could look at has convicted its owner by now."""
        swarm, demands = self._swarm, self._demands
        if self._scene.convicted or op not in self._ended or self._decided.is_over:
            return
        is_quiet = demands.is_quiet(since_s) and self._death_s < since_s - GRACE_S
        is_quiet = is_quiet and swarm.coordinator.sync_s <= swarm.scene.conditions.sync_s
        are_all = set(judges) == set(self._judges(op))
        if not (is_quiet and are_all and all(self._is_well(one, since_s) for one in judges)):
            return
        boots = {member.peer: member.boot for member in self._ended[op].plan.members}
        able = [one for one in judges if boots.get(one.peer_id) == one.machine.card.boot]
        if len(able) >= 2 and 2 * len(able) > len(judges):
            numbers = [one.number for one in able]
            self._violated(f"a wrong sum of op {op} is proved, {numbers} live, nobody is convicted")

    def _is_well(self, peer: SimPeer, since_s: float) -> bool:
        return self._demands.is_sound(peer, since_s) and not self._demands.has_lost(peer, since_s)

    # ---- auditors

    def accepted(self, peer: SimPeer, record: Record) -> None:
        """A peer has read a record: with a COMMIT its next audit begins, and its last one ended."""
        if self._scene.liar is None or peer.peer_id == self._scene.liar:
            return
        kind, group, op = outline_of(record)
        if kind != tag_of(Commit) or group != self._group:
            return
        look = self._looks.pop(peer.peer_id, None)
        if look is not None and look.peer is peer:
            self._look_back(look)
        ended = self._ended.get(op)
        if ended is not None and ended.auditor == peer.peer_id:
            look = _Look(peer, op, self._scene.clock.now_s, self._found_right(peer))
            self._looks[peer.peer_id] = look

    def _look_back(self, look: _Look) -> None:
        """A drawn wrong sum is not found right; and it is found, if nothing was in the way."""
        ended, wrong = self._ended.get(look.op), self._wrong.get(look.op, set())
        if ended is None or ended.place not in wrong or look.op in self._proved:
            return
        if ended.audited != self._scene.liar:
            return  # somebody else has made it wrong
        name = self._scene.name_of(look.peer.peer_id)
        if self._found_right(look.peer) > look.right:
            self._violated(f"{name} finds a wrong sum of op {look.op} right")
            return
        if ended.plan.cells > 1 and self._swarm.coordinator.term != ended.term:
            return  # it told the auditor nothing, maybe
        boots = {member.peer: member.boot for member in ended.plan.members}
        asked = [self._swarm.peers[peer] for peer in ended.asked]
        are_there = all(
            one.is_alive
            and boots[one.peer_id] == one.machine.card.boot
            and self._group in one.machine.groups
            for one in asked
        )
        are_there = are_there and self._group in look.peer.machine.groups
        is_long = self._scene.clock.now_s >= look.since_s + _ASK_S * (1 + len(asked))
        if (
            is_long
            and are_there
            and all(self._is_well(o, look.since_s) for o in (*asked, look.peer))
        ):
            self._violated(f"{name} does not find the wrong sum of op {look.op}")

    def _found_right(self, peer: SimPeer) -> int:
        """Count a peer's audits that have found a right sum."""
        part = peer.machine.groups.get(self._group)
        return 0 if part is None else part.audits.counts["right"]

    def _violated(self, story: str) -> None:
        group = f"group {self._group}: " if self._group else ""
        self._scene.violation("audit", group + story)
