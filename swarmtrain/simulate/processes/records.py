"""The records that the simulated coordinator sends: to each peer within its window (T16)."""

from collections import deque

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import CoordinatorMessage, PeerMessage, Progress, Records

_SLACK = 1.25
"""The coordinator counts a record's bytes about."""


class WatchedRecords:
    """What each peer was sent of the newest records and has not acknowledged."""

    def __init__(self) -> None:
        self._under_way: dict[PeerId, deque[tuple[int, int]]] = {}
        self._newest: dict[PeerId, int] = {}

    def greeted(self, peer: PeerId) -> None:
        """A new connection begins."""
        self._under_way[peer] = deque()
        self._newest[peer] = -1

    def heard(self, peer: PeerId, message: PeerMessage) -> None:
        """A peer tells how far it is."""
        under_way = self._under_way.get(peer)
        while isinstance(message, Progress) and under_way and under_way[0][0] <= message.index:
            under_way.popleft()

    def sent(self, peer: PeerId, message: CoordinatorMessage) -> bool:
        """Note a batch of records; False if the peer's window was full before it."""
        under_way = self._under_way.setdefault(peer, deque())
        if not isinstance(message, Records) or message.first_index <= self._newest.get(peer, -1):
            return True  # nothing new, or what it has asked for
        num_bytes = sum(size for _, size in under_way)
        last = message.first_index + len(message.records) - 1
        self._newest[peer] = last
        under_way.append((last, sum(map(len, message.records))))
        return num_bytes <= _SLACK * limits.RECORDS_WINDOW_BYTES
