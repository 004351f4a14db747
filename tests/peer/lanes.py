"""The data lane of a crowd, in memory or over sockets, behind one face.

Both deliver when they are pumped. The one of sockets sends real frames by CURVE over loopback, on
ports that the system chooses, and knows what is under way: it waits for frames, never for a time.
Two peers know each other's address only when both have been told of the other, so nothing is lost
but by death; what a refused handshake does is told in tests/transport.
"""

import asyncio
import dataclasses
import random
from collections import deque
from collections.abc import Callable

from swarmtrain.compare.crowd import Lane, LaneEnd, MemoryLane
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.links.link import Address, LinkHandler, LinkStats, PeerId
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.wire.frames import Frame

_DEADLINE_S = 20.0
"""Real seconds for a frame over loopback: only a failing test waits so long."""


class ZmqLane:
    """Links over sockets, whose loop runs only while frames are waited for."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ends: dict[PeerId, _ZmqEnd] = {}
        self._boots = 0

    def open(self, peer: PeerId, handler: LinkHandler) -> LaneEnd:
        self._boots += 1
        keys = Identity.create(random.Random(f"{peer.hex()} {self._boots}").randbytes)
        # The crowd's peers have names that a reader knows again; CURVE needs a real key.
        keys = dataclasses.replace(keys, peer_id=peer)
        end = _ZmqEnd(self, handler)
        end.link = self._loop.run_until_complete(ZmqLink.open(keys, "127.0.0.1", 0, end))
        self._ends[peer] = end
        return end

    def pump(self, max_frames: int) -> int:
        """Hand over what has arrived, and wait for what is under way until there is something."""
        count = 0
        while count < max_frames:
            if not any(end.heard for end in self._ends.values()):
                if not any(sum(end.under_way.values()) for end in self._ends.values()):
                    break
                self._loop.run_until_complete(self._hear())
            end = next(end for end in self._ends.values() if end.heard)
            end.handler.on_frame(*end.heard.popleft())
            count += 1
        return count

    async def _hear(self) -> None:
        self._has_heard = asyncio.Event()
        async with asyncio.timeout(_DEADLINE_S):
            await self._has_heard.wait()

    def heard(self) -> None:
        self._has_heard.set()

    def arrived(self, source: PeerId, target: PeerId) -> None:
        self._ends[source].under_way[target] -= 1

    def introduce(self, one: "_ZmqEnd") -> None:
        """Let those two hear of each other who both should."""
        for other in list(self._ends.values()):
            if one.knows.get(other.peer) == other.address and (
                other.knows.get(one.peer) == one.address
            ):
                for here, there in ((one, other), (other, one)):
                    if there.peer not in here.under_way:
                        here.under_way[there.peer] = 0
                        here.link.allow(there.address)

    def part(self, one: "_ZmqEnd", peer: PeerId) -> None:
        """These two are no longer to hear of each other, and what is under way is lost."""
        other = self._ends.get(peer)
        one.under_way.pop(peer, None)
        one.link.revoke(peer)
        if other is not None:
            other.under_way.pop(one.peer, None)
            other.link.revoke(one.peer)

    def kill(self, peer: PeerId) -> None:
        gone = self._ends.pop(peer, None)
        if gone is not None:
            gone.link.close()
            for end in self._ends.values():
                end.under_way.pop(peer, None)

    def close(self) -> None:
        for peer in list(self._ends):
            self.kill(peer)
        self._loop.close()


class _ZmqEnd:
    """One peer's link, which counts what is under way and keeps what has arrived until it is
    pumped, so that a failed assertion of its handler fails the test and not a callback."""

    link: ZmqLink

    def __init__(self, lane: ZmqLane, handler: LinkHandler) -> None:
        self.handler = handler
        self.knows: dict[PeerId, Address] = {}
        self.under_way: dict[PeerId, int] = {}
        self.heard: deque[tuple[PeerId, Frame]] = deque()
        self.on_fault = handler.on_fault
        self._lane = lane

    @property
    def address(self) -> Address:
        return self.link.address

    @property
    def peer(self) -> PeerId:
        return self.link.address.peer_id

    @property
    def stats(self) -> LinkStats:
        return self.link.stats

    def allow(self, address: Address) -> None:
        if self.knows.get(address.peer_id) != address:
            self.revoke(address.peer_id)
            self.knows[address.peer_id] = address
            self._lane.introduce(self)

    def revoke(self, peer: PeerId) -> None:
        if self.knows.pop(peer, None) is not None:
            self._lane.part(self, peer)

    def send(self, peer: PeerId, frame: Frame) -> bool:
        if peer not in self.under_way:
            return False
        assert self.link.send(peer, frame), "a queue over loopback is full"
        self.under_way[peer] += 1
        return True

    def on_frame(self, peer: PeerId, frame: Frame) -> None:
        self.heard.append((peer, frame))
        self._lane.arrived(peer, self.peer)
        self._lane.heard()


LANES: dict[str, Callable[[], Lane]] = {"memory": MemoryLane, "zmq": ZmqLane}
