"""Hostile members that sign right sums, and say what is not so of others or do nothing at all.

An owner may say that a contributor's part is illegal, or is not what was signed, or may never list
it; a contributor may send nothing to one owner. It is one's word against the other's, and must cost
a slice at most. And a peer may say READY and then give nothing, or give and never say that it holds
a result: then everybody waits for it, which must become rare (protocol.md T4 and STANDING).

What is promised is checked here from the ledger alone: `Demands` holds the rest against who was
left out. Where hostile members are not few nothing is promised.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from swarmtrain_transport import actions as do
from swarmtrain_transport.kinds import PAIR, WHOLE
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import FrameKind
from swarmtrain_transport.wire.messages import Got, Have, PeerMessage, Roots, SliceDone
from swarmtrain_transport.wire.records import AnyBody, Commit, Freeze, Plan, Rewind

if TYPE_CHECKING:
    from swarmtrain.simulate.sim_peer import SimPeer
    from swarmtrain.simulate.world import World

REFUSES, DENIES, OMITS, WITHHOLDS = "refuses", "denies", "omits", "withholds"
"""An owner says that a part is illegal, or not as it was signed, or says nothing of it; or a
contributor sends nothing to one owner."""

MUTE, UNSENT, GREEDY = "mute", "unsent", "greedy"
"""READY and nothing else; all but the parts; all but the word that a result is held."""

WORDS = (REFUSES, DENIES, OMITS, WITHHOLDS)
DRAGS = (MUTE, UNSENT, GREEDY)

_IN_ROW = 3
_GIVEN = (FrameKind.PART, FrameKind.RESULT, FrameKind.RANGES, FrameKind.CREDIT, FrameKind.AHEAD)
_SAID = (Roots, Got, SliceDone, Have)


@dataclass(frozen=True, slots=True)
class Deed:
    """Misbehaviour of a hostile member from now on.

    Attributes:
        kind: one of the above.
        wanders: in each op it is somebody else's turn.
    """

    kind: str
    wanders: bool = False


class Hearsay:
    """The hostile members of one world, and what must hold of them.

    Args:
        world: where.

    Attributes:
        deeds: what each of them does.
    """

    def __init__(self, world: "World") -> None:
        self.deeds: dict[PeerId, Deed] = {}
        self._world = world
        self._plan: Plan | None = None
        self._at_fault: set[PeerId] = set()
        self._row: Counter[PeerId] = Counter()

    def begin(self, peer: "SimPeer", deed: Deed) -> None:
        """From now on this peer does so, also in its later lives."""
        self.deeds[peer.peer_id] = deed
        self._world.hostile.add(peer.peer_id)

    @property
    def is_possible(self) -> bool:
        """True if a run with a hostile member can still go on."""
        conditions, least = self._world.conditions, 3
        if conditions.kind in WHOLE or conditions.rule:
            least = 4
        others = conditions.num_peers - (2 if conditions.kind == PAIR else 1)
        needed = conditions.terms(1).min_contributors
        return needed <= others and conditions.num_peers >= least

    def promises(self, op_kind: str, planned: int) -> bool:
        """Return True if anything is promised to the honest contributors of an op."""
        return not self.deeds or planned >= (4 if op_kind in WHOLE else 3)

    # ---- what it sends

    def told(self, peer: "SimPeer", actions: Iterable[do.PeerAction]) -> Iterator[do.PeerAction]:
        """A peer's actions, as a hostile member carries them out."""
        deed = self.deeds.get(peer.peer_id)
        if deed is None:
            yield from actions
            return
        victim = self._victim(peer, deed)
        for action in actions:
            if isinstance(action, do.SendControl):
                message = _said(deed.kind, action.message, victim)
                if message is not None:
                    yield do.SendControl(message)
            elif not (
                isinstance(action, do.SendFrame)
                and _keeps(deed.kind, action.frame.kind, is_victim=action.peer == victim)
            ):
                yield action

    def _victim(self, peer: "SimPeer", deed: Deed) -> PeerId:
        """Of whom it says so: the first of the honest in the plan, or another one each time."""
        op = peer.machine.view.first.op
        if op is None:
            return b""
        others = [one for one in sorted(op.weights) if one not in self.deeds]
        return others[op.plan.op * deed.wanders % len(others)] if others else b""

    # ---- what the ledger must say of it

    def logged(self, body: AnyBody) -> None:
        """A peer that was at fault three times in a row is not planned with for a while, unless the
        others are too few."""
        if isinstance(body, Plan):
            self._check_plan(body)
            self._plan, self._at_fault = body, set()
        elif isinstance(body, Freeze):
            silent = {p for p in body.excluded if p not in body.accusers}
            self._at_fault |= {p for p in silent if body.excluded[p] != "alone"}
        elif isinstance(body, Commit) and self._plan is not None:
            self._at_fault |= set(body.behind) if self._plan.kind != PAIR else set()
            self._row = Counter(
                {
                    member.peer: self._row[member.peer] + 1
                    for member in self._plan.members
                    if member.peer in self._at_fault
                }
            )
        elif isinstance(body, Rewind):
            self._row.clear()

    def _check_plan(self, plan: Plan) -> None:
        given = {member.peer for member in plan.members if member.weight}
        drags = {peer for peer in given if self._row[peer] >= _IN_ROW}
        if drags and len(given - drags) >= max(plan.min_contributors, 2):
            names = ", ".join(sorted(self._world.name_of(peer) for peer in drags))
            story = f"op {plan.op} waits for {names} after three faults in a row"
            self._world.violation("drag", story)


def _said(kind: str, message: PeerMessage, victim: PeerId) -> PeerMessage | None:
    """Return a hostile member's version of a message, or None if it sends nothing."""
    if kind == MUTE and isinstance(message, _SAID):
        return None
    if kind == GREEDY and isinstance(message, Have):
        return None
    if not isinstance(message, Got) or victim not in message.complete:
        return message
    complete = {peer: root for peer, root in message.complete.items() if peer != victim}
    if kind == OMITS:
        return msgspec.structs.replace(message, complete=complete)
    if kind == REFUSES:
        return msgspec.structs.replace(message, complete=complete, refused={victim: "scale"})
    if kind == DENIES:
        return msgspec.structs.replace(message, complete=complete | {victim: bytes(32)})
    return message


def _keeps(kind: str, frame: FrameKind, *, is_victim: bool) -> bool:
    """Return True if a frame is held back. Answers to hashes are sent: a peer that sends none is
    passed over, and a peer that alone holds a state and gives it to nobody stops any run."""
    if kind == MUTE:
        return frame in _GIVEN
    is_part = frame in (FrameKind.PART, FrameKind.AHEAD)
    return is_part and (kind == UNSENT or (kind == WITHHOLDS and is_victim))
