"""What may be demanded of whom: liveness holds only for those with whom nothing was wrong."""

import math
from typing import TYPE_CHECKING

from swarmtrain_transport import limits
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Skip

if TYPE_CHECKING:
    from swarmtrain.simulate.invariants import Invariants
    from swarmtrain.simulate.sim_peer import SimPeer
    from swarmtrain.simulate.world import World

GRACE_S = limits.SUSPECT_S + limits.FETCH_TIMEOUT_S
"""After its trouble a peer may still be suspected, and requests to it time out."""

RESEND_S = 6 * limits.NUDGE_S
"""A part that was lost is there again after so long: the owner asks after one or two nudges, the
contributor takes it to be under way for two more, is asked once more, and sends it."""


class Demands:
    """Who was in trouble, and until when.

    Args:
        world: its clock and peers.
        seen: what was logged.
    """

    def __init__(self, world: "World", seen: "Invariants") -> None:
        self._world = world
        self._seen = seen
        self._until_s: dict[PeerId, float] = {}
        self._apart_until_s: dict[PeerId, float] = {}
        self._lost_s: dict[PeerId, float] = {}
        self._all_until_s = 0.0

    def trouble(self, peer: PeerId, seconds: float, *, is_linked: bool = False) -> None:
        """Something is wrong with a peer or its links for so long from now on.

        Args:
            peer: whose.
            seconds: until then.
            is_linked: only its control connection suffers; the other peers reach it.
        """
        until_s = self._world.clock.now_s + seconds + GRACE_S
        for times in (self._until_s,) if is_linked else (self._until_s, self._apart_until_s):
            times[peer] = max(times.get(peer, 0.0), until_s)

    def lost(self, source: PeerId) -> None:
        """What this peer had sent to another is lost; nothing else is wrong with it."""
        self._lost_s[source] = self._world.clock.now_s

    def has_lost(self, source: "SimPeer", since_s: float) -> bool:
        """Whether something that this peer sent was lost since then."""
        return self._lost_s.get(source.peer_id, -math.inf) >= since_s

    def trouble_all(self, seconds: float) -> None:
        """Something is wrong with the coordinator."""
        self._all_until_s = max(self._all_until_s, self._world.clock.now_s + seconds + GRACE_S)

    def is_quiet(self, since_s: float) -> bool:
        """Whether the coordinator has been well since then."""
        return self._all_until_s < since_s

    def is_sound(self, peer: "SimPeer", since_s: float) -> bool:
        """Whether nothing but death could have kept this peer from an op that began then."""
        return peer.is_able and self._until_s.get(peer.peer_id, -1.0) < since_s

    def _is_linked(self, peer: "SimPeer", since_s: float) -> bool:
        """Whether the others could reach this peer since then; it may have been deaf."""
        return peer.is_able and self._apart_until_s.get(peer.peer_id, -1.0) < since_s

    def check_fair(self, op: int, left_out: set[PeerId]) -> None:
        """Not in protocol.md's list: nobody who is able is left out, unless some link is bad: the
        matrix rule may then take one end of it for the other. What was lost just before a deadline
        cannot be there again in time, and D_repair may be shorter than sending it again takes."""
        if any(peer.is_cut or peer.is_handicapped for peer in self._world.survivors):
            return
        begun_s = self._seen.plan_s[op]
        planned = self._seen.planned(op)
        liars = self._world.hearsay.deeds.keys()
        # Who has died, or begun anew, outvotes nobody: of few left, one's silence is half of all.
        boots = {peer.peer_id: peer.machine.card.boot for peer in self._world.survivors}
        members = self._seen.plans[op].members
        living = [one for one in members if one.weight and boots.get(one.peer) == one.boot]
        if not self._world.hearsay.promises(self._seen.plans[op].kind, len(living)):
            return
        if not self.is_quiet(begun_s):
            return
        if not all(self.is_sound(peer, begun_s) for peer in planned if peer.peer_id not in liars):
            return
        lost_s = self._world.clock.now_s - RESEND_S
        if self._seen.plans[op].kind == PAIR:
            left_out = self._seen.pairs.wronged(op, left_out, lost_s, liars)
        wronged = [
            peer.number
            for peer in planned
            if peer.peer_id in left_out - liars and not self.has_lost(peer, lost_s)
        ]
        if wronged:
            story = f"op {op} leaves out {wronged}, with whom nothing is wrong"
            self._world.violation("fair", story)

    def check_skip(self, skip: Skip) -> None:
        """L3: no SKIP while enough contributors live, nothing is wrong with them, and they are
        linked to those to whom slices were given. A deaf one among these is relieved."""
        seen = self._seen
        frozen = seen.frozen.get(skip.op)
        named = set(seen.weights(skip.op) if frozen is None else frozen.contributors)
        begun_s = seen.plan_s[skip.op]
        hearsay, weights = self._world.hearsay, seen.weights(skip.op)
        if not self.is_quiet(begun_s):
            return
        if not hearsay.promises(seen.plans[skip.op].kind, len(weights)):
            return
        planned = seen.planned(skip.op)
        owners = [peer for peer in planned if peer.peer_id in seen.new_owners]
        if not all(self._is_linked(peer, begun_s) for peer in owners):
            return
        sound = {peer.peer_id for peer in planned if self.is_sound(peer, begun_s)} & named
        sound -= hearsay.deeds.keys()
        if hearsay.deeds and len(sound) < limits.RESULT_HOLDERS:
            return  # one that never says that it holds a result makes its holders too few (T8)
        if seen.plans[skip.op].kind == PAIR:
            sound = seen.pairs.paired(skip.op, sound)
        able = [peer.number for peer in planned if peer.peer_id in sound]
        if len(able) >= seen.plans[skip.op].min_contributors:
            story = f"op {skip.op} is skipped ({skip.reason}) although {able} live"
            self._world.violation("L3", story)
