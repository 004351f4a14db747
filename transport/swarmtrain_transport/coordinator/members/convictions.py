"""Accusations: from the drawn auditor's word to a conviction that most of the others have checked.

The coordinator has no arithmetic and so cannot see that a sum is wrong. It knows which auditor was
drawn, asks everybody (in cells: the owner's cell) to check the proof, and convicts when more than
half of those who could judge agree, two at least: one peer's word alone convicts nobody. A
convicted peer is evicted, and its key never comes back. Accusations that were not settled when a
coordinator restarts are said again by the peers that have found or checked them.
"""

from dataclasses import dataclass, field

from swarmtrain_transport.coordinator.chronicle import Chronicle
from swarmtrain_transport.coordinator.ledger_writer import LedgerWriter
from swarmtrain_transport.coordinator.members.roster import LiveRoster
from swarmtrain_transport.ledger.audit import Drawn, draw, may_judge
from swarmtrain_transport.ledger.fold import GroupView, OpView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Accuse, Accused
from swarmtrain_transport.wire.records import Conviction

VOICES_MIN = 2
_CASES_MAX = 16


@dataclass(slots=True)
class _Case:
    drawn: Drawn
    proof_hash: bytes
    voices: set[PeerId] = field(default_factory=set)


class Convictions:
    """Open accusations in one group.

    Args:
        writer: relays them.
        live_roster: peers that could judge.
        chronicle: memory of what people are shown.
        view: the ledger's fold of the group.
    """

    def __init__(
        self, writer: LedgerWriter, live_roster: LiveRoster, chronicle: Chronicle, view: GroupView
    ) -> None:
        self._writer = writer
        self._live_roster = live_roster
        self._chronicle = chronicle
        self._view = view
        self._cases: dict[int, _Case] = {}
        self._early: dict[int, dict[PeerId, bytes]] = {}

    def hear(self, peer: PeerId, message: Accuse, now_s: float) -> dict[PeerId, Conviction]:
        """Somebody accuses, or agrees; the answer is who is convicted by it, and of what."""
        view = self._view.commits.get(message.op)
        drawn = draw(view) if view is not None else None
        if (
            view is None
            or drawn is None
            or peer == drawn.owner
            or drawn.owner in self._writer.view.convicted
        ):
            return {}
        if peer == drawn.auditor:
            self._open(message, view, drawn)
        case = self._cases.get(message.op)
        if case is None:  # after a restart others may speak before the auditor does
            self._early.setdefault(message.op, {})[peer] = message.proof_hash
            self._early.pop(message.op - _CASES_MAX, None)
            return {}
        if message.proof_hash != case.proof_hash:
            return {}
        case.voices.add(peer)
        alive = (self._live_roster.alive(now_s) & self._view.members.keys()) - {drawn.owner}
        judges = {one for one in alive if may_judge(view, drawn, one)}
        agreed = len(case.voices & judges)
        if agreed < VOICES_MIN or 2 * agreed <= len(judges):
            return {}
        del self._cases[message.op]
        place = (drawn.slice_index, drawn.chunk)
        return {drawn.owner: Conviction(message.op, *place, case.proof_hash)}

    def rewound(self, op: int) -> None:
        """Later ops were cancelled, and what was said of them is of no op that comes."""
        self._cases = {number: one for number, one in self._cases.items() if number <= op}
        self._early = {number: one for number, one in self._early.items() if number <= op}

    def _open(self, message: Accuse, view: OpView, drawn: Drawn) -> None:
        if message.op in self._cases:
            return
        case = self._cases[message.op] = _Case(drawn, message.proof_hash)
        early = self._early.pop(message.op, {})
        case.voices |= {peer for peer, digest in early.items() if digest == case.proof_hash}
        while len(self._cases) > _CASES_MAX:
            del self._cases[min(self._cases)]
        where = f"slice {drawn.slice_index}, chunk {drawn.chunk}"
        by = drawn.auditor.hex()[:8]
        self._chronicle.event(message.op, drawn.owner, "accused", f"wrong sum in {where}, by {by}")
        told = Accused(message.op, message.proof_hash, message.group)
        for peer in self._live_roster.connected():
            is_judge = peer in self._view.members and may_judge(view, drawn, peer)
            if is_judge and peer not in (drawn.auditor, drawn.owner):
                self._writer.send(peer, told)
