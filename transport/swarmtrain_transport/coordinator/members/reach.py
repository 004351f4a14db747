"""Peers that the others cannot reach: whose word counts, and for how much (protocol.md T20).

A peer to which no way leads hears nothing. So it never gets a state, and what it alone holds is
lost. Nobody's word alone is believed on that: a peer that reaches few others may be the one with
the broken line. A word counts once meetings have found no way between the two.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ledger_writer import LedgerWriter
from swarmtrain_transport.coordinator.members.meetings import Meetings
from swarmtrain_transport.coordinator.members.roster import LiveRoster, PeerLine
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Progress, Unreached


class Reach:
    """Judge who can be reached.

    Args:
        live_roster: The peers that are here.
        writer: Sends peers what they hear of themselves.
        meetings: Knows which ways there are.
        note: Hears, for people, what is found of a peer.
        fellows: Those with whom a peer was in its newest op, none if it has been in none.

    Attributes:
        is_due: True if something has changed since the last judgement.
    """

    def __init__(
        self,
        live_roster: LiveRoster,
        writer: LedgerWriter,
        meetings: Meetings,
        note: Callable[[PeerId, str, str], None],
        fellows: Callable[[PeerId], AbstractSet[PeerId]],
    ) -> None:
        self.is_due = False
        self._live_roster, self._writer, self._note = live_roster, writer, note
        self._meetings, self._fellows = meetings, fellows
        self._is_watching = False
        self._known: dict[PeerId, AbstractSet[PeerId]] = {}
        self._told: dict[PeerId, tuple[PeerLine, Unreached]] = {}
        """Last word to each that is not well."""
        self._next_s = -math.inf

    def progressed(self, line: PeerLine, message: Progress) -> None:
        """A peer says whom it cannot reach."""
        is_first = line.progress is None
        before = line.progress.unreached if line.progress is not None else ()
        self.is_due = self.is_due or is_first or message.unreached != before

    def is_ready(self, now_s: float) -> bool:
        """Return True if something has changed, and it is time to judge."""
        return (self.is_due or self._meetings.has_news) and now_s >= self._next_s

    def settle(self, now_s: float) -> None:
        """Judge, if anything may have changed, and tell those whom it concerns."""
        if now_s < self._next_s:
            return
        if not (self.is_due or self._is_watching or self._meetings.has_news):
            return
        self.is_due = self._meetings.has_news = False
        if len(self._live_roster.lines) > limits.CROWD_PEERS:
            self._next_s = now_s + self._live_roster.rarely_s(limits.CROWD_REACH_S)
        for peer, told in self._judge(now_s):
            self._writer.send(peer, told)
            if told.peers:
                by = "1 peer" if told.peers == 1 else f"{told.peers} peers"
                by += " and the coordinator" * told.by_coordinator
                where = f"{told.host} port {told.port}"
                self._note(peer, "unreachable", f"no connection to {where} for {by}")

    def _judge(self, now_s: float) -> list[tuple[PeerId, Unreached]]:
        """Mark the peers that most others cannot reach; return what peers are to be told of
        themselves, where that has changed."""
        self._live_roster.look_again()
        here = {
            peer: line
            for peer, line in self._live_roster.connected().items()
            if now_s < line.life.silent_at_s
        }
        words = self._words(here)
        news = list[tuple[PeerId, Unreached]]()
        for gone in self._told.keys() - here.keys():
            del self._told[gone]
        for peer, line in here.items():
            is_refused = line.is_dialled is False
            if not (is_refused or peer in words or peer in self._told):
                line.life.unreached_s = None
                continue
            by = words.get(peer, 0)
            is_marked = (
                by > 0 and 2 * by > len(self._witnesses(peer, here)) - 1 and (by > 1 or is_refused)
            )
            if not is_marked:
                line.life.unreached_s = None
            elif line.life.unreached_s is None:
                line.life.unreached_s = now_s
            # Who takes part in meetings need not be dialled, so a try from here says nothing yet.
            # That it does it says before its first PROGRESS.
            is_left_alone = self._meetings.knows(peer) or line.progress is None
            told = Unreached(
                line.hello.host, line.hello.port, by if is_marked else 0,
                by_coordinator=is_refused and (is_marked or not is_left_alone),
            )  # fmt: skip
            before_on, before = self._told.pop(peer, (line, None))
            if before_on is not line:
                before = None  # a new connection has heard nothing
            is_well = told.peers == 0 and not told.by_coordinator
            if told != before and not (is_well and before is None):
                news.append((peer, told))
            if not is_well:
                self._told[peer] = (line, told)
        self._is_watching = bool(words)
        return news

    def _witnesses(self, peer: PeerId, here: dict[PeerId, PeerLine]) -> AbstractSet[PeerId]:
        """Return those whose word on a peer counts, and itself: who is here. Of more than exchange
        directly most have never sent anything to it, and cannot know; then those of its newest
        op."""
        if peer not in self._known:
            is_many = len(here) > limits.CELL_PEERS_MAX
            # Not copied without the peer: of thousands each may be named.
            known = self._fellows(peer) & here.keys() if is_many else set[PeerId]()
            self._known[peer] = known or here.keys()
        return self._known[peer]

    def _words(self, here: dict[PeerId, PeerLine]) -> dict[PeerId, int]:
        """Count who says of each that it cannot be reached. A peer that cannot reach most others
        is no witness, unless the coordinator could not reach these either."""
        self._known.clear()
        words = defaultdict[PeerId, int](int)
        for peer in self._meetings.complainers() & here.keys():
            said = self._meetings.misses(peer) if here[peer].progress is not None else ()
            named = {other for other in said if other in here and other != peer}
            if not named:
                continue
            others = self._witnesses(peer, here)
            is_odd = 2 * len(named & others) > len(others) - 1
            if is_odd and any(here[other].is_dialled is not False for other in named):
                continue
            for other in named:
                words[other] += peer in self._witnesses(other, here)
        return words
