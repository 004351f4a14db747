"""A bare zmq socket that keeps to none of our rules, and what its monitor says of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.links.link import Address
from tests.transport.links.link_rig import (
    DEADLINE_S,
)


class Stranger:
    """A DEALER that keeps to none of our rules, and what its monitor says."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context(context).socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self.monitor: zmq.asyncio.Socket = context.socket(zmq.PAIR)
        self.events: list[int] = []
        self.socket.monitor("inproc://stranger", zmq.EVENT_ALL)
        self.monitor.connect("inproc://stranger")

    def use_keys(self, identity: Identity, server_key: bytes) -> None:
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, identity.curve_secret)
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, identity.curve_key)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, server_key)

    def connect(self, address: Address) -> None:
        self.socket.connect(f"tcp://{address.host}:{address.port}")

    def send(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts, zmq.NOBLOCK)

    async def until(self, event: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.events or self.events[-1] != event:
                parts = await self.monitor.recv_multipart()
                self.events.append(parse_monitor_message(parts)["event"])

    def close(self) -> None:
        self.socket.disable_monitor()
        self.socket.close(linger=0)
        self.monitor.close(linger=0)


@asynccontextmanager
async def stranger() -> AsyncIterator[Stranger]:
    context = zmq.asyncio.Context()
    someone = Stranger(context)
    try:
        yield someone
    finally:
        someone.close()
        context.destroy(linger=0)
