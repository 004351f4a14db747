"""Peers that the others cannot reach: whose word counts, and for how much (protocol.md T19).

A peer that nobody can dial hears nothing: what others send goes by connections that they open. So
it never gets a state, and what it alone holds is lost. Nobody's word alone is believed on that: a
peer that reaches few others may be the one with the broken line.
"""

from collections import defaultdict

from swarmtrain_transport.coordinator.members.roster import LiveRoster, PeerLine
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Unreached


class Reach:
    """Judge who can be reached.

    Args:
        live_roster: The peers that are here.

    Attributes:
        is_watching: True if somebody says that it cannot reach another.
    """

    def __init__(self, live_roster: LiveRoster) -> None:
        self._live_roster = live_roster
        self.is_watching = False
        self._told: dict[PeerId, tuple[PeerLine, Unreached]] = {}

    def judge(self, now_s: float) -> list[tuple[PeerId, Unreached]]:
        """Mark the peers that most others cannot reach; return what peers are to be told of
        themselves, where that has changed."""
        here = {
            peer: line
            for peer, line in self._live_roster.connected().items()
            if now_s < line.life.silent_at_s
        }
        words = self._words(here)
        news = list[tuple[PeerId, Unreached]]()
        for peer, line in here.items():
            by, others = words.get(peer, 0), len(here) - 1
            is_marked = 2 * by > others and (by > 1 or line.is_dialled is False)
            if not is_marked:
                line.life.unreached_s = None
            elif line.life.unreached_s is None:
                line.life.unreached_s = now_s
            told = Unreached(
                line.hello.host, line.hello.port, by if is_marked else 0,
                by_coordinator=line.is_dialled is False,
            )  # fmt: skip
            before_on, before = self._told.get(peer, (line, None))
            if before_on is not line:
                before = None  # a new connection has heard nothing
            is_well = told.peers == 0 and not told.by_coordinator
            if told != before and not (is_well and before is None):
                news.append((peer, told))
            self._told[peer] = (line, told)
        for gone in self._told.keys() - here.keys():
            del self._told[gone]
        self.is_watching = bool(words)
        return news

    def _words(self, here: dict[PeerId, PeerLine]) -> dict[PeerId, int]:
        """Count who says of each that it cannot be reached. A peer that cannot reach most others
        is no witness, unless the coordinator could not reach these either."""
        words = defaultdict[PeerId, int](int)
        for peer, line in here.items():
            said = line.progress.unreached if line.progress is not None else ()
            named = {other for other in said if other in here and other != peer}
            if not named:
                continue
            is_odd = 2 * len(named) > len(here) - 1
            if is_odd and any(here[other].is_dialled is not False for other in named):
                continue
            for other in named:
                words[other] += 1
        return words
