"""Asking a run's coordinator, with an invite and without joining: see its door/checkup.py.

The answer is that of the door itself. Meanwhile this machine listens, so that the coordinator can
try to reach it; whether it truly did is known here, as a router may answer in this machine's place.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from swarmtrain.config.options import Endpoint
from swarmtrain.foundation.control_lane import (
    CHECK_BYTES,
    CHECK_PART_BYTES,
    CHECK_PATH,
    CHECK_S,
    PEERS_TRIED,
    Checked,
)
from swarmtrain.foundation.errors import UserError, translate
from swarmtrain.peer.disk import identity_file
from swarmtrain.peer.network.patience import in_words
from swarmtrain.peer.network.proxy import Proxy, connect, options_of
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import Identity, knock_payload
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.errors import ListenFailed, RemoteFault
from swarmtrain_transport.links.link import is_dialable
from swarmtrain_transport.links.zmq_sockets import listen as listen_at
from swarmtrain_transport.links.zmq_sockets import resolve
from swarmtrain_transport.wire.messages import (
    Brings,
    Challenge,
    Hello,
    Knock,
    decode_from_coordinator,
    encode,
)

ASK_S = 20.0
"""Time that a coordinator gives a stranger."""

PEER_S = 5.0


@dataclass(slots=True)
class Answer:
    """All that was learnt.

    Attributes:
        checked: words of the coordinator, None if there were none.
        own: IP address and port of this end.
        port: port at which this machine listened, 0 for none.
        came: True if somebody came to it; None if another process has that port.
        down_bytes_per_s: rate of what came; 0 if it was not measured.
        up_bytes_per_s: rate of what went.
        fault: reason for which it knows no more.
    """

    checked: Checked | None = None
    own: tuple[str, int] = ("", 0)
    port: int = 0
    came: bool | None = False
    down_bytes_per_s: float = 0.0
    up_bytes_per_s: float = 0.0
    fault: UserError | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """A peer's name, and the seconds that a connection to it took; None if there was none."""

    name: str
    seconds: float | None


def identity_in(directory: Path) -> Identity:
    """The key of a peer that was in the run; else one that is used once and kept nowhere.

    Raises:
        UserError: SWT-E302, the file is damaged.
    """
    try:
        return identity_file.load(directory / identity_file.FILE_NAME)
    except FileNotFoundError:
        return Identity.create()
    except (OSError, identity_file.IdentityDamaged) as error:
        raise translate(error) or UserError("SWT-E302", str(error)) from error


async def ask(invite: Invite, identity: Identity, proxy: Proxy | None, listen: Endpoint) -> Answer:
    """Ask the coordinator if this key would be let in, and reached at this address."""
    found = Answer()
    server = None

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.came = True
        writer.transport.abort()

    try:
        numeric = await resolve(listen.host, listen.port)
        server = await asyncio.start_server(
            greet, sock=listen_at(listen.host, numeric, listen.port)
        )
        found.port = int(server.sockets[0].getsockname()[1])
    except ListenFailed as error:
        # A peer of this machine's may have that port: then it is reached in our place.
        found.port, found.came = listen.port, None
        if listen.port == 0:
            found.fault = translate(error)
    try:
        async with asyncio.timeout(ASK_S):
            await _ask(invite, identity, proxy, found)
    except aiohttp.WSServerHandshakeError as error:
        if error.status == 404:
            found.fault = UserError(
                "SWT-E703", "The coordinator is of a version that answers no such questions.",
                "It could not be asked about the invite and the way back.",
                "Join without; or ask the organiser to update.",
            )  # fmt: skip
        else:
            found.fault = UserError("SWT-E708", f"It cannot say yet (HTTP {error.status}).")
    except (aiohttp.ClientError, OSError, TimeoutError, RemoteFault) as error:
        found.fault = UserError(
            "SWT-E203", f"The coordinator broke off before it had said all: {in_words(error)}.",
            "The line is bad, or something on the way cuts connections that are no web pages.",
            "Try again; from another network, if it stays so.",
        )  # fmt: skip
    finally:
        if server is not None:
            server.close()
    return found


async def _ask(invite: Invite, identity: Identity, proxy: Proxy | None, found: Answer) -> None:
    host = f"[{invite.host}]" if ":" in invite.host else invite.host
    pin = aiohttp.Fingerprint(invite.cert_sha256)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=pin)) as session,
        session.ws_connect(
            f"https://{host}:{invite.port}{CHECK_PATH}", ssl=pin, compress=0,
            max_msg_size=2 * CHECK_PART_BYTES, **options_of(proxy),
        ) as socket,
    ):  # fmt: skip
        own = socket.get_extra_info("sockname")
        found.own = (str(own[0]), int(own[1])) if own else found.own
        challenge = decode_from_coordinator(await _heard(socket, aiohttp.WSMsgType.BINARY))
        if not isinstance(challenge, Challenge):
            raise RemoteFault("hello", f"{type(challenge).__name__} in place of Challenge")
        hello = encode(
            Hello(
                os.urandom(8), "doctor", identity.curve_key, "", found.port, -1, b"", 0,
                brings=Brings(run=invite.run),
            )
        )  # fmt: skip
        signature = identity.sign(knock_payload(challenge.nonce, invite.cert_sha256, hello))
        await socket.send_bytes(
            encode(
                Knock(limits.PROTOCOL_VERSION, identity.peer_id, invite.secret, hello, signature)
            )
        )
        try:
            found.checked = msgspec.json.decode(
                await _heard(socket, aiohttp.WSMsgType.TEXT), type=Checked
            )
        except ValueError as exc:
            raise RemoteFault("type", "no answer to a check") from exc
        if found.checked.num_bytes:
            await _measure(socket, found)


async def _heard(socket: aiohttp.ClientWebSocketResponse, kind: aiohttp.WSMsgType) -> Any:
    message = await socket.receive()
    if message.type is not kind:
        raise ConnectionError(f"it sent {message.type.name.lower()} in place of an answer")
    return message.data


async def _measure(socket: aiohttp.ClientWebSocketResponse, found: Answer) -> None:
    """Take what comes, then send as much; both end with a word."""
    began_s, num_bytes = 0.0, 0
    while (message := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
        if began_s:
            num_bytes += len(message.data)
        else:
            began_s = time.perf_counter()  # the first tells when the others begin to come
        if num_bytes > CHECK_BYTES:
            raise RemoteFault("length", "more than was said")
    if num_bytes:
        found.down_bytes_per_s = num_bytes / max(time.perf_counter() - began_s, 1e-6)
    part, sent = os.urandom(CHECK_PART_BYTES), 0
    began_s = time.perf_counter()
    while sent < CHECK_BYTES and time.perf_counter() - began_s < CHECK_S:
        await socket.send_bytes(part)
        sent += len(part)
    await socket.send_str("sent")
    if (await socket.receive()).type is aiohttp.WSMsgType.TEXT:
        found.up_bytes_per_s = sent / max(time.perf_counter() - began_s, 1e-6)


async def dial(others: Sequence[tuple[str, str, int]]) -> list[Tried]:
    """Open a connection to each, named and at an IP address and port, and close it."""
    return list(await asyncio.gather(*starmap(_dial, others[:PEERS_TRIED])))


async def _dial(name: str, host: str, port: int) -> Tried:
    began_s = time.perf_counter()
    try:
        if not is_dialable(host):
            raise ConnectionError("no address of a peer")
        async with asyncio.timeout(PEER_S):
            (await connect(host, port)).close()
    except (OSError, TimeoutError, OverflowError):
        return Tried(name, None)
    return Tried(name, time.perf_counter() - began_s)
