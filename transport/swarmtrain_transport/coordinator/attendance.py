"""Who of the roster is here in this term: heard of, or still to come back after a restart.

The ledger says who is in; a restarted coordinator knows nothing else. Everybody whom it has not
heard of yet counts as alive until silence says otherwise, so that nobody is left out because the
coordinator died (protocol.md T14).
"""

import math
from collections.abc import Set as AbstractSet

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.failure import LifeLine
from swarmtrain_transport.coordinator.membership import PeerLine
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Hello, Progress
from swarmtrain_transport.wire.records import Plan


class Attendance:
    """Lines of those heard of, life lines of those who are not.

    Args:
        view: the ledger's fold.
        now_s: start of the term.

    Attributes:
        lines: a line per peer that said HELLO in this term and has not left.
        unseen: roster members that have not.
        closes_s: once the run is over, when peers are kept no longer for those who are behind.
    """

    def __init__(self, view: LedgerView, now_s: float) -> None:
        self.lines: dict[PeerId, PeerLine] = {}
        self.unseen = {peer: LifeLine(now_s) for peer in view.roster}
        self._view = view
        self._silent_s = now_s
        self._gone: dict[PeerId, PeerLine] = {}
        self.closes_s = self._served_s = math.inf

    def silent(self, now_s: float) -> list[PeerId]:
        """Who has been silent for so long that it leaves the roster."""
        if now_s < self._silent_s:
            return []
        lives = self.lives()
        # Whoever is heard of, or comes, until then only makes this moment later.
        self._silent_s = min((life.evict_at_s for life in lives.values()), default=now_s)
        return [peer for peer, life in lives.items() if life.is_gone(now_s)]

    def lives(self) -> dict[PeerId, LifeLine]:
        """Life lines of everybody in the roster."""
        if not self.unseen:
            return {peer: line.life for peer, line in self.lines.items()}
        return {peer: line.life for peer, line in self.lines.items()} | self.unseen

    def adopted(self, now_s: float) -> None:
        """The roster was found to be another: who left is not waited for, who came is.

        Whoever is back already, and is out in the records that were adopted, must come anew: as
        long as it has a line it would be heard, and be in nobody's roster.
        """
        for peer in self.lines.keys() - self._view.roster.keys():
            del self.lines[peer]  # its next message closes its connection
        absent = [peer for peer in self._view.roster if peer not in self.lines]
        self.unseen = {peer: self.unseen.get(peer, LifeLine(now_s)) for peer in absent}

    def alive(self, now_s: float) -> set[PeerId]:
        """Whom the failure detector holds to be alive."""
        alive = {p for p, line in self.lines.items() if now_s < line.life.suspect_at_s}
        if self.unseen:
            alive.update(p for p, life in self.unseen.items() if now_s < life.suspect_at_s)
        return alive

    def witnesses(self, now_s: float) -> set[PeerId]:
        """Return peers heard of lately: only these can say that somebody owes them something."""
        return {p for p, life in self.lives().items() if now_s < life.heard_s + limits.WITNESS_S}

    def progressed(self, line: PeerLine, message: Progress, now_s: float, *, owes: bool) -> None:
        """PROGRESS: a peer that owes parts, and says again and again that it has moved no byte,
        is idle.

        Args:
            line: whose.
            message: what it says.
            now_s: the time.
            owes: whether enough owners wait for its part.
        """
        before, line.progress = line.progress, message
        is_still = before is not None and (before.bytes_in, before.bytes_out) == (
            message.bytes_in, message.bytes_out,
        )  # fmt: skip
        line.life.moved(now_s, message.up_bytes_per_s, is_idle=owes and is_still)

    def op_ended(self) -> None:
        """Nobody owes anything any more."""
        for line in self.lines.values():
            line.life.idle_s = None

    def connected(self) -> dict[PeerId, PeerLine]:
        """Lines whose control connection stands."""
        return {peer: line for peer, line in self.lines.items() if line.connected}

    def expected(self, now_s: float) -> set[PeerId]:
        """Live peers that take part round by round: also after a restart, before they are back.
        Not who was waited for in vain too often."""
        op = self._view.first.last_op + 1
        active = {p for p, line in self.lines.items() if line.active and line.waits.until < op}
        returning = set(self.unseen) & set(self.last_contributors())
        return self.alive(now_s) & (active | returning)

    def planned(self, plan: Plan, expected: AbstractSet[PeerId]) -> None:
        """A PLAN has fallen due: of those who were expected some may have kept it waiting."""
        gives = {member.peer for member in plan.members if member.weight}
        late = expected - gives - self._view.first.standing.sidelined(plan.op, expected)
        for peer, line in self.lines.items():
            if peer in gives:
                line.waits.good()
            elif peer in late:
                line.waits.fault(plan.op)

    def last_contributors(self) -> dict[PeerId, bytes]:
        """Contributors of the newest PLAN and their boot ids."""
        if self._view.first.op is None:
            return {}
        weights = self._view.first.op.weights
        return {peer: boot for peer, boot in self._view.first.op.boots.items() if peer in weights}

    def enter(self, peer: PeerId, hello: Hello, now_s: float) -> PeerLine:
        """The peer is in, for the first time or again; a process that only reconnects is the one
        that it was."""
        line = PeerLine(hello, LifeLine(now_s), sent_index=max(-1, hello.head_index))
        line.acked_index = hello.head_index
        old = self.lines.get(peer)
        if (gone := old or self._gone.get(peer)) is not None:
            line.waits = gone.waits
        if old is not None:
            self._remember(peer, old)
        if old is not None and old.hello.boot == hello.boot:
            line.ready, line.ready_s = old.ready, old.ready_s
            line.active, line.progress, line.chain = old.active, old.progress, old.chain
        line.active = line.active or self.last_contributors().get(peer) == hello.boot
        self.lines[peer] = line
        self.unseen.pop(peer, None)
        return line

    def wakeups(self, wait_ready_s: float) -> list[float]:
        """When somebody falls silent for too long, or has waited long enough for the others."""
        times = [line.ready_s + wait_ready_s for line in self.lines.values() if line.ready]
        for life in self.lives().values():
            times += [life.suspect_at_s, life.evict_at_s]
        loss_s = self.closes_s - limits.FINISH_S + limits.LAST_LOSS_S
        return [*times, loss_s, self.closes_s, self._ends_s]

    @property
    def _ends_s(self) -> float:
        """When a finished run ends although somebody stays: once nobody has been behind for long
        enough to leave, or when whoever is behind has had its time."""
        left_s = self._served_s + limits.FINISH_S + limits.EVICT_S
        return min(left_s, self.closes_s + limits.LINGER_S)

    def lingering(self, now_s: float) -> list[PeerId]:
        """Return the peers still here although the run is over and they had their time to leave."""
        return list(self._view.roster) if now_s >= self._ends_s else []

    def pardon(self, absent_s: float, now_s: float) -> None:
        """The coordinator itself was stopped for so long: nobody was silent meanwhile, and as
        after a restart everybody has the full time to be heard of."""
        for life in self.lives().values():
            life.pardon(now_s)
        for line in self.lines.values():
            line.ready_s += absent_s

    def dismissed(self, last_op: int, now_s: float, *, awaits_loss: bool) -> list[PeerId]:
        """Whom to tell now, once, that the run is over: everybody, when nobody is behind.

        Args:
            awaits_loss: whether the last round's loss may still come.
        """
        self.closes_s = min(self.closes_s, now_s + limits.FINISH_S)
        present = self.connected()
        behind = any(line.applied_op < last_op for line in present.values())
        self._served_s = math.inf if behind else min(self._served_s, now_s)
        if awaits_loss and now_s < self.closes_s - limits.FINISH_S + limits.LAST_LOSS_S:
            return []
        # After a restart nobody knows yet what those who are to come back still need.
        if (behind or self.unseen) and now_s < self.closes_s:
            return []
        told = [peer for peer, line in present.items() if not line.dismissed]
        for peer in told:
            present[peer].dismissed = True
        return told

    def depart(self, peer: PeerId) -> None:
        """The peer left or was evicted."""
        if (line := self.lines.pop(peer, None)) is not None:
            self._remember(peer, line)
        self.unseen.pop(peer, None)

    def _remember(self, peer: PeerId, line: PeerLine) -> None:
        self._gone.pop(peer, None)
        self._gone[peer] = line
        if len(self._gone) > limits.PEERS_MAX:
            del self._gone[next(iter(self._gone))]

    def last_holders(self, op: int, root: bytes | None) -> tuple[list[PeerId], float]:
        """Return the peers that had the state after `op` when last heard of in this term, and the
        newest time of that. If a root is given, the state must have it."""
        away = {peer: line for peer, line in self.lines.items() if not line.connected}
        had = {
            peer: line.life.heard_s
            for peer, line in (self._gone | away).items()
            if line.applied_op == op and root in (None, line.state_root)
        }
        return list(had), max(had.values(), default=0.0)
