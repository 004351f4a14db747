"""Reception of frames: check the sender, count, hand over or refuse.

Both links do it here, so that the simulator's link and the real one cannot differ in what they let
through. Pure: it never sees a socket.
"""

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.allow_list import AllowList
from swarmtrain_transport.links.link import Address, LinkHandler, LinkStats, PeerId
from swarmtrain_transport.wire.frames import unpack


class Reception:
    """The receiving half of a link, without its sockets.

    Args:
        own_id: the link's own peer, who is never admitted.
        handler: hears of frames and faults.
    """

    def __init__(self, own_id: PeerId, handler: LinkHandler) -> None:
        self.stats = LinkStats()
        self.allowed = AllowList(own_id)
        self._handler = handler
        self._second = -1
        self._refusals = 0

    def admit(self, address: Address) -> bool:
        """Put a peer on the allow-list; True if the way to it must be made anew.

        An address that cannot be one, or another peer's key, is refused and counted.
        """
        if not self.allowed.is_news(address):
            return False
        try:
            self.allowed.admit(address)
        except RemoteFault as fault:
            self.refuse(address.peer_id, fault)
            return False
        return True

    def take(self, peer: PeerId, parts: list[Buffer]) -> None:
        """A message of an admitted peer: its frame goes to the handler, or the reason why not."""
        self.stats.frames_received += 1
        self.stats.bytes_received += sum(len(part) for part in parts)
        try:
            if len(parts) != 2:
                raise RemoteFault("frame", f"message of {len(parts)} parts, expected 2")
            frame = unpack(parts[0], parts[1])
        except RemoteFault as fault:
            self.refuse(peer, fault)
            return
        self._handler.on_frame(peer, frame)

    def refuse(self, peer: PeerId | None, fault: RemoteFault) -> None:
        """Count a fault and report it; `peer` is None when the sender is not known."""
        self._count(fault)
        self._handler.on_fault(peer, fault)

    def refuse_handshake(self, fault: RemoteFault, now_s: float) -> None:
        """Count a refused handshake; report the first few per second, so a flood fills no log."""
        if int(now_s) != self._second:
            self._second, self._refusals = int(now_s), 0
        self._refusals += 1
        if self._refusals <= limits.UNKNOWN_HANDSHAKES_PER_S:
            self.refuse(None, fault)
        else:
            self._count(fault)

    def _count(self, fault: RemoteFault) -> None:
        self.stats.refused[fault.reason] = self.stats.refused.get(fault.reason, 0) + 1
