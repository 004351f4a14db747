"""The roster as the coordinator lives it: who was heard of in this term, or is still to come back.

The ledger says who is in; a restarted coordinator knows nothing else, and rebuilds the rest from
HELLO and from the messages that peers re-send. A peer that it has not heard of yet counts as alive
until silence says otherwise, so that nobody is left out because the coordinator died (protocol.md
T14).
"""

import math
import sys
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.failure_detector import LifeLine
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import PAUSED, Hello, Keep, Progress


@dataclass(slots=True)
class PeerLine:
    """One peer's line in this term.

    Attributes:
        hello: newest HELLO.
        life: evidence for the failure detector.
        connected: True while its control connection is open.
        sent_index: newest ledger record that was sent on this connection.
        acked_index: newest ledger record that the peer says it has consumed.
        dismissed: True once it was told that the run is finished.
        progress: newest PROGRESS, for people; who says there that it rests is waited for by nobody.
        older_from: records from this one on were sent on this connection because it asked for them.
        keeps: order to keep so much of older records, None before that.
        is_leaving: True if it goes as soon as somebody else holds what it holds.
        is_released: True once it was told that it may go.
        is_dialled: True if the coordinator itself could open a connection to the peer's address,
            None if it has not tried.
        told_s: time when it was sent records last.
    """

    hello: Hello
    life: LifeLine
    connected: bool = True
    sent_index: int = -1
    acked_index: int = -1
    dismissed: bool = False
    progress: Progress | None = None
    older_from: int = sys.maxsize
    keeps: Keep | None = None
    is_leaving: bool = False
    is_released: bool = False
    is_dialled: bool | None = None
    told_s: float = -math.inf
    _awaited_index: int = -1
    _under_way: deque[tuple[int, int]] = field(default_factory=deque)
    _under_way_bytes: int = 0

    @property
    def rests(self) -> bool:
        """True if the peer gives nothing for now, by its own word: it leaves, or is paused."""
        is_paused = self.progress is not None and self.progress.phase == PAUSED
        return self.is_leaving or is_paused

    @property
    def has_room(self) -> bool:
        """True if the peer may be sent records beyond those that it has not acknowledged."""
        return self._under_way_bytes < limits.RECORDS_WINDOW_BYTES

    def sent(self, index: int, now_s: float, num_bytes: int) -> None:
        """Records up to this one are on their way; they are to be acknowledged in time."""
        self.sent_index = index
        self._under_way.append((index, num_bytes))
        self._under_way_bytes += num_bytes
        if self.life.awaited_s is None and self.acked_index < index:
            self.life.awaited_s, self._awaited_index = now_s, index

    def is_still(self, message: Progress) -> bool:
        """Return True if the peer has moved no byte since its last PROGRESS."""
        before = self.progress
        return before is not None and (before.bytes_in, before.bytes_out) == (
            message.bytes_in, message.bytes_out,
        )  # fmt: skip

    def acknowledged(self, index: int, now_s: float) -> None:
        """The peer holds the ledger up to this record."""
        self.acked_index = max(self.acked_index, index)
        while self._under_way and self._under_way[0][0] <= index:
            self._under_way_bytes -= self._under_way.popleft()[1]
        if self.acked_index >= self.sent_index:
            self.life.awaited_s = None
        elif self.acked_index >= self._awaited_index:
            self.life.awaited_s, self._awaited_index = now_s, self.sent_index


class LiveRoster:
    """The roster as it lives: lines of those heard of, life lines of those who are not.

    Args:
        view: the ledger's fold.
        now_s: start of the term.

    Attributes:
        lines: a line per peer that said HELLO in this term and has not left.
        unseen: roster members that have not.
        closes_s: once the run is over, when peers are kept no longer for those who are behind.
        last_loss_s: longest time that the last round's loss is waited for.
    """

    def __init__(self, view: LedgerView, now_s: float) -> None:
        self.lines: dict[PeerId, PeerLine] = {}
        self.unseen = {peer: LifeLine(now_s) for peer in view.roster}
        self._view = view
        self._silent_s = self._change_s = now_s
        self._looked_s = -math.inf
        self.closes_s = self._served_s = math.inf
        self.last_loss_s = limits.LAST_LOSS_S
        self._buried: dict[PeerId, float] = {}
        self._missed_until_s = -math.inf
        self._alive: dict[frozenset[PeerId], frozenset[PeerId]] = {}
        self._alive_until_s = math.inf

    def silent(self, now_s: float) -> list[PeerId]:
        """Return the peers that have been silent for so long that they leave the roster."""
        if now_s < self._silent_s:
            return []
        lives = self.lives()
        # Any peer that is heard of, or comes, until then only makes this moment later.
        self._silent_s = min((life.evict_at_s for life in lives.values()), default=now_s)
        return [peer for peer, life in lives.items() if life.is_gone(now_s)]

    def bury(self, peer: PeerId) -> None:
        """The peer leaves the roster without a word; it may come back yet."""
        life = self.lines[peer].life if peer in self.lines else self.unseen[peer]
        self._buried[peer] = life.heard_s
        if len(self._buried) > limits.RUN_PEERS_MAX:
            del self._buried[next(iter(self._buried))]

    def away(self) -> dict[PeerId, float]:
        """Return who went without a word, and when each was heard of last."""
        silent = {p: line.life.heard_s for p, line in self.lines.items() if not line.connected}
        unseen = {peer: life.heard_s for peer, life in self.unseen.items()}
        return self._buried | silent | unseen

    def lives(self) -> dict[PeerId, LifeLine]:
        """Life lines of everybody in the roster."""
        if not self.unseen:
            return {peer: line.life for peer, line in self.lines.items()}
        return {peer: line.life for peer, line in self.lines.items()} | self.unseen

    def adopted(self, now_s: float) -> None:
        """The roster was found to be another: those who left are not waited for, those who came
        are.

        A peer that is back already, and is out in the records that were adopted, must come anew: as
        long as it has a line it would be heard, and be in nobody's roster.
        """
        self.look_again()
        for peer in self.lines.keys() - self._view.roster.keys():
            del self.lines[peer]  # its next message closes its connection
        absent = [peer for peer in self._view.roster if peer not in self.lines]
        self.unseen = {peer: self.unseen.get(peer, LifeLine(now_s)) for peer in absent}

    @property
    def is_crowd(self) -> bool:
        """True if there are so many that nothing is done for each of them at every message."""
        return len(self.lines) > limits.CROWD_PEERS

    def rarely_s(self, interval_s: float) -> float:
        """Return an interval of looks at all of a crowd: a large one is looked at more rarely."""
        return interval_s * max(1.0, len(self.lines) / limits.CROWD_LOOK_PEERS)

    def alive_of(self, peers: Iterable[PeerId], now_s: float) -> set[PeerId]:
        """Return those of some peers that the failure detector holds to be alive."""
        lines, unseen, alive = self.lines, self.unseen, set[PeerId]()
        for peer in peers:
            line = lines.get(peer)
            life = line.life if line is not None else unseen.get(peer)
            if life is not None and now_s < life.suspect_at_s:
                alive.add(peer)
        return alive

    def alive_among(self, peers: frozenset[PeerId], now_s: float) -> frozenset[PeerId]:
        """Return what `alive_of` does, for peers that are asked for at every message: it is
        remembered until somebody may have become another."""
        if now_s >= self._alive_until_s:
            self.look_again()
        known = self._alive.get(peers)
        if known is None:
            known = self._alive[peers] = frozenset(self.alive_of(peers, now_s))
            suspect_s = [self._life_of(peer).suspect_at_s for peer in known]
            self._alive_until_s = min([self._alive_until_s, *suspect_s])
        return known

    def _life_of(self, peer: PeerId) -> LifeLine:
        line = self.lines.get(peer)
        return self.unseen[peer] if line is None else line.life

    def look_again(self) -> None:
        """Somebody may be alive who was not, or suspected before its time."""
        self._alive.clear()
        self._alive_until_s = math.inf

    def alive(self, now_s: float) -> set[PeerId]:
        """Return the peers that the failure detector holds to be alive."""
        alive = {p for p, line in self.lines.items() if now_s < line.life.suspect_at_s}
        if self.unseen:
            alive.update(p for p, life in self.unseen.items() if now_s < life.suspect_at_s)
        return alive

    def witnesses(self, now_s: float) -> set[PeerId]:
        """Return peers heard of lately: only these can say that somebody owes them something."""
        return {p for p, life in self.lives().items() if now_s < life.heard_s + limits.WITNESS_S}

    def op_ended(self, members: Iterable[PeerId]) -> None:
        """An op of these has its outcome: they owe nothing any more. A peer that owes another op
        something is found idle again."""
        self.look_again()
        for peer in members:
            if (line := self.lines.get(peer)) is not None:
                line.life.idle_s = None

    @property
    def patience_s(self) -> float:
        """Silence after which a peer is suspected that is in no op."""
        return limits.SUSPECT_PROGRESS * self._view.progress_s

    def called(self, members: Iterable[PeerId], now_s: float) -> None:
        """A PLAN names these."""
        self.look_again()
        for peer in members:
            if (line := self.lines.get(peer)) is not None:
                line.life.called(now_s)
                self.stirs(line.life)

    def connected(self) -> dict[PeerId, PeerLine]:
        """Lines whose control connection stands."""
        return {peer: line for peer, line in self.lines.items() if line.connected}

    def enter(self, peer: PeerId, hello: Hello, now_s: float) -> PeerLine:
        """The peer is in, for the first time or again."""
        self.look_again()
        line = PeerLine(hello, LifeLine(now_s), sent_index=max(-1, hello.head_index))
        line.acked_index = hello.head_index
        old = self.lines.get(peer)
        if old is not None and old.hello.boot == hello.boot:
            line.progress = old.progress
            if (old.hello.host, old.hello.port) == (hello.host, hello.port):
                line.is_dialled = old.is_dialled
        self.lines[peer] = line
        self.stirs(line.life)
        self.unseen.pop(peer, None)
        self._buried.pop(peer, None)
        return line

    def wakeups(self, now_s: float) -> list[float]:
        """List when somebody falls silent for too long, or a run that is over ends. In a crowd only
        the first of these times is looked for again, once it has come."""
        looks_s = -math.inf
        if self.is_crowd:
            # Who is suspected already, and speaks, would have all looked at with each message.
            looks_s = self._looked_s + self.rarely_s(limits.CROWD_LOOK_S)
        if now_s >= max(self._change_s, looks_s) or not self.is_crowd:
            lives = self.lives().values()
            times = [life.suspect_at_s for life in lives] + [life.evict_at_s for life in lives]
            self._change_s = min([time for time in times if time > now_s], default=math.inf)
            self._looked_s = now_s
        loss_s = self.closes_s - limits.FINISH_S + self.last_loss_s
        return [
            max(self._change_s, looks_s),
            loss_s,
            self.closes_s,
            self._missed_until_s,
            self._ends_s,
        ]

    def stirs(self, life: LifeLine) -> None:
        """Note that something has come forward in one's life line."""
        suspect_s = life.suspect_at_s
        if suspect_s < self._change_s:
            self._change_s = suspect_s
        if suspect_s < self._alive_until_s:
            self.look_again()

    @property
    def _ends_s(self) -> float:
        """Time at which a finished run ends although somebody stays: once nobody has been behind
        for long enough to leave, or when whoever is behind has had its time."""
        left_s = self._served_s + limits.FINISH_S + limits.EVICT_S
        return min(left_s, self._patient_until_s)

    @property
    def _patient_until_s(self) -> float:
        """Time until which whoever is behind has to take the last state."""
        return max(self.closes_s, self._missed_until_s) + limits.LINGER_S

    def lingering(self, now_s: float) -> list[PeerId]:
        """Return the peers still here although the run is over and they had their time to leave."""
        return list(self._view.roster) if now_s >= self._ends_s else []

    def pardon(self, now_s: float) -> None:
        """The coordinator itself was stopped for so long: nobody was silent meanwhile, and as
        after a restart everybody has the full time to be heard of."""
        self.look_again()
        for life in self.lives().values():
            life.pardon(now_s)

    def dismissed(
        self, now_s: float, *, are_behind: bool, awaits_loss: bool,
        missed_until_s: float = -math.inf, staying: Collection[PeerId] = (),
    ) -> list[PeerId]:  # fmt: skip
        """Return the peers to tell now, once, that the run is over: everybody, when nobody is
        behind or missing.

        Args:
            now_s: the time.
            are_behind: True if somebody who is here lacks a last state.
            awaits_loss: True if the last round's loss may still come.
            missed_until_s: time until which members that are away are waited for.
            staying: peers that stay for them, and for those that are behind.
        """
        self.closes_s = min(self.closes_s, now_s + limits.FINISH_S)
        is_missed = now_s < missed_until_s
        self._missed_until_s = max(self._missed_until_s, missed_until_s)
        self._served_s = math.inf if are_behind or is_missed else min(self._served_s, now_s)
        if awaits_loss and now_s < self.closes_s - limits.FINISH_S + self.last_loss_s:
            return []
        # After a restart nobody knows yet what those who are to come back still need.
        if (are_behind or self.unseen) and now_s < self.closes_s:
            return []
        present = self.connected()
        stay = is_missed or (are_behind and now_s < self._patient_until_s)
        kept = staying if stay else ()
        told = [p for p, line in present.items() if not line.dismissed and p not in kept]
        for peer in told:
            present[peer].dismissed = True
        return told

    def depart(self, peer: PeerId) -> None:
        """The peer left or was evicted."""
        self.look_again()
        self.lines.pop(peer, None)
        self.unseen.pop(peer, None)
