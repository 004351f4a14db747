"""Questions of who has not joined: `swarmtrain doctor` asks if it would be let in and be reached.

It knocks as a peer does, with the same proof and the same judgement, and gets an answer in place of
a welcome: no use of the invite is taken, no record is written, and nothing is kept but when its
household was last dialled. Who would be refused is told why, as at the door, and costs it a try;
who would not is dialled once, where it comes from, and may measure the line. It stays a stranger
all the while: it has seconds, one request, and few bytes more than others.
"""

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable

import msgspec
from aiohttp import WSMsgType, web

from swarmtrain.coordinator.door.admission import VERSIONS, Admitted, Door, DoorClosed, network_of
from swarmtrain.coordinator.door.dialler import Dialler, Place
from swarmtrain.coordinator.door.listener import line_of
from swarmtrain.foundation.control_lane import (
    CHECK_AGAIN_S,
    CHECK_BYTES,
    CHECK_PART_BYTES,
    CHECK_S,
    CLOSE_TIMEOUT_S,
    PEERS_TRIED,
    Checked,
)
from swarmtrain.foundation.errors import cleaned
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Challenge, Knock, decode_from_peer, encode

KNOCK_TIMEOUT_S = 10.0

NONCE_BYTES = 32

MEASURED_AT_ONCE = 2
"""Lines measured at the same time, so that they do not measure each other, nor fill ours."""


class Checkup:
    """Answers such questions.

    Args:
        clock: monotonic seconds.
        near: lists the other members that a peer, at an IP address, could dial.
    """

    def __init__(
        self, door: Door, clock: Callable[[], float],
        near: Callable[[PeerId, str], list[tuple[str, str, int]]] = lambda peer, remote: [],
    ) -> None:  # fmt: skip
        self._door, self._near = door, near
        self._clock = clock
        self._dialler = Dialler(clock, again_s=CHECK_AGAIN_S)
        self._measured = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Serve one question."""
        socket = web.WebSocketResponse(
            max_msg_size=2 * CHECK_PART_BYTES, compress=False, timeout=CLOSE_TIMEOUT_S
        )
        try:
            await socket.prepare(request)
        except ConnectionError:
            return web.Response()  # to nobody
        nonce = secrets.token_bytes(NONCE_BYTES)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(KNOCK_TIMEOUT_S):
                await socket.send_bytes(encode(Challenge(nonce, VERSIONS)))
                message = await socket.receive()
            if message.type is WSMsgType.BINARY:
                await self._examine(request, socket, message.data, nonce)
        await socket.close()
        return socket

    async def _examine(
        self, request: web.Request, socket: web.WebSocketResponse, said: bytes, nonce: bytes
    ) -> None:
        remote = request.remote or ""
        place = request.transport.get_extra_info("peername") if request.transport else None
        port = int(place[1]) if place else 0
        try:
            knock = decode_from_peer(said)
            if not isinstance(knock, Knock):
                raise RemoteFault("hello", "the first message must be Knock")
            admitted = self._door.ask(knock, nonce, remote, self._clock())
        except RemoteFault as fault:
            told = Checked("SWT-E501", cleaned(str(fault)), False, remote, port, None, 0)
        except DoorClosed as closed:
            told = Checked(closed.code, closed.text, False, remote, port, None, 0)
        else:
            is_reached, num_bytes = await self._try(admitted, nonce, remote)
            near = self._near(admitted.peer, remote)
            peers = tuple(random.sample(near, min(PEERS_TRIED, len(near))))
            told = Checked(
                "", "", not admitted.invite_id, remote, port, is_reached, num_bytes, peers
            )
        await socket.send_str(msgspec.json.encode(told).decode())
        if told.num_bytes:
            try:
                self._measured += 1
                await self._measure(request, socket)
            finally:
                self._measured -= 1

    async def _try(self, admitted: Admitted, nonce: bytes, remote: str) -> tuple[bool | None, int]:
        """Dial the port that it tells, where it comes from; returns how that went, and how many
        bytes it may measure the line with."""
        # A household in a key's place: whoever asks draws as many keys as it likes. The nonce makes
        # each a new try of a port that was tried before.
        place = Place(nonce, remote, admitted.hello.port)
        if not self._dialler.wants(network_of(remote).encode(), place, remote):
            return None, 0
        is_reached = await self._dialler.reaches(place) if place.port else None
        return is_reached, CHECK_BYTES if self._measured < MEASURED_AT_ONCE else 0

    async def _measure(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        """Send bytes for a while, then take some. Each way ends with a word."""
        line = line_of(request.transport)
        if line is None:
            return
        line.allow(CHECK_BYTES + CHECK_BYTES // 64)
        part = secrets.token_bytes(CHECK_PART_BYTES)
        ends_s = self._clock() + CHECK_S
        for _ in range(CHECK_BYTES // CHECK_PART_BYTES):
            if self._clock() >= ends_s:
                break
            await socket.send_bytes(part)
        await socket.send_str("sent")
        async with asyncio.timeout(2 * CHECK_S):
            while (await socket.receive()).type is WSMsgType.BINARY:
                await asyncio.sleep(0)  # aiohttp hands over what it has without a pause
        await socket.send_str("got")
