"""Words on the ways to the other peers: what people are told, and when.

A way takes a few seconds to be found. So a peer to which none stands is not mentioned before the
coordinator has had the time to try all that there are. Pure: time is an argument.
"""

from collections.abc import Callable, Mapping

from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.links.ways import Way

SOUGHT_S = 45.0
"""All kinds of ways are tried by then, and who is dead has been evicted."""

_NAMED = 4

_HOW = {
    Way.DIALLED: "directly",
    Way.TURNED: "over connections that come from there (turned)",
    Way.PUNCHED: "through both routers (punched)",
    Way.RELAYED: "over a relay (relayed)",
}


class WaysTold:
    """Words on the ways to the other peers.

    Args:
        name_of: tells the name of a peer.
    """

    def __init__(self, name_of: Callable[[PeerId], str]) -> None:
        self._name_of = name_of
        self._without: dict[PeerId, float] = {}
        self._said = self._said_lost = ""

    def look(self, ways: Mapping[PeerId, Way | None], now_s: float) -> list[str]:
        """Return the lines that are new: by which ways this peer sends, if any but the usual one,
        and to whom it has found none for SOUGHT_S.

        Args:
            ways: way to each peer, None where none stands.
            now_s: time.
        """
        without = [peer for peer, way in ways.items() if way is None]
        self._without = {peer: self._without.get(peer, now_s) for peer in without}
        lost = [peer for peer, since_s in self._without.items() if now_s >= since_s + SOUGHT_S]
        lines = list[str]()
        by_way = {way: names for way in Way if (names := self._some(ways, way))}
        said = "; ".join(f"to {names} {_HOW[way]}" for way, names in by_way.items())
        if not self._said and by_way.keys() <= {Way.DIALLED}:
            said = ""  # as everybody expects
        if said and said != self._said and len(lost) == len(without):
            lines.append(f"Sends {said}.")
            self._said = said
        said_lost = _some(sorted(map(self._name_of, lost)))
        if said_lost and said_lost != self._said_lost:
            lines.append(
                f"No way to {said_lost} was found so far; it is looked for again and again. "
                "`swarmtrain explain SWT-E206` says what helps."
            )
        self._said_lost = said_lost
        return lines

    def in_short(self, ways: Mapping[PeerId, Way | None]) -> str:
        """Say by which way this peer sends to each of the others; "" while there are none."""
        kinds: list[tuple[Way | None, str]] = [(way, str(way)) for way in Way]
        kinds.append((None, "not reached"))
        said = [(self._some(ways, way), word) for way, word in kinds]
        return "; ".join(f"{names} {word}" for names, word in said if names)

    def _some(self, ways: Mapping[PeerId, Way | None], way: Way | None) -> str:
        return _some(sorted(self._name_of(peer) for peer, one in ways.items() if one is way))


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= _NAMED else f"{len(names)} peers"
