"""The control lane's client: one outbound WebSocket to the coordinator, over pinned TLS.

Outbound, so that it passes home routers; pinned, so that the first byte of a secret goes only to
whoever holds the certificate of the invite. It knocks, hands over what it hears, and keeps coming
back with growing pauses when the line or the coordinator goes away, to each of the run's
coordinators in turn if there are several: what must arrive is the machine's affair, which re-sends
it after every HELLO. Bulk never travels here.
"""

import asyncio
import contextlib
import logging
import random
import socket
from asyncio.trsock import TransportSocket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import aiohttp

from swarmtrain.foundation.control_lane import (
    CLOSE_TIMEOUT_S,
    CONTROL_PATH,
    HEARTBEAT_S,
    LENGTH_BYTES,
    MEMBERS_WAIT,
    PEER_HEADER,
    PIECE_PATH,
    SIGNATURE_HEADER,
    SLOW_DOWN,
    let_go,
    piece_payload,
)
from swarmtrain.foundation.errors import (
    UserError,
    cleaned,
    coordinator_unreachable,
    refused,
    wrong_key,
)
from swarmtrain.peer.network.patience import AskedToWait, Patience, in_words, pause_s
from swarmtrain.peer.network.probe import probe
from swarmtrain.peer.network.proxy import Proxy, ProxyFailed, options_of, proxy_for
from swarmtrain.peer.network.steadiness import outlive
from swarmtrain.peer.network.text_download import not_given, read_bounded, unpack_piece
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import Identity, knock_payload
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.links.tcp import is_stuck
from swarmtrain_transport.wire.messages import (
    Challenge,
    CoordinatorMessage,
    Hello,
    Knock,
    PeerMessage,
    Refused,
    StandsBy,
    decode_from_coordinator,
    encode,
)

logger = logging.getLogger(__name__)

WRONG_KEY_TRIES = 6
"""Wrong certificates in a row, after the right one was seen, before it is reported: a hotel's
login page answers for every address, but not for long."""

CONNECT_TIMEOUT_S = 10.0

CONNECT_TIMEOUT_FIRST_S = 4.0
"""Timeout of the first try where a run has several coordinators; each further round doubles it. A
coordinator that sleeps accepts connections and says nothing."""

DOOR_TIMEOUT_S = 10.0
"""For Challenge after the connection stands."""

OUTGOING_MAX = 4096
"""Messages waiting for a coordinator that does not read; then the connection is cut."""

PIECE_TIMEOUT_S = 60.0

PIECE_TRIES = 6

PIECE_BYTES_MAX = limits.FRAME_BYTES_MAX
"""Largest piece of text that is accepted, before and after unpacking."""

_ENDINGS = frozenset(
    {
        aiohttp.WSMsgType.CLOSE,
        aiohttp.WSMsgType.CLOSING,
        aiohttp.WSMsgType.CLOSED,
        aiohttp.WSMsgType.ERROR,
    }
)

FRAME_HEADER_BYTES = 2
MASK_BYTES = 4
"""A WebSocket frame's own bytes (RFC 6455 section 5.2); the length field is added when longer."""


class CoordinatorUnreachable(UserError):
    """The first connection did not come about in `patience.FIRST_TRIES` tries."""


class WrongKey(UserError):
    """The server has another certificate than the invite names. Nothing was sent."""


class DoorRefused(UserError):
    """The coordinator will not go on with this peer; `code` is the error id that it gave."""


def frame_bytes(payload_bytes: int, *, is_masked: bool) -> int:
    """Bytes of one WebSocket frame: clients mask, servers do not."""
    length_bytes = 0 if payload_bytes < 126 else 2 if payload_bytes < 1 << 16 else 8
    return FRAME_HEADER_BYTES + length_bytes + (MASK_BYTES if is_masked else 0) + payload_bytes


class ControlHandler(Protocol):
    """Receiver of all that happens on the control lane. Called on the client's event loop."""

    def on_up(self, *, is_first: bool) -> None:
        """The knock was sent; messages may be sent from now on."""

    def on_down(self) -> None:
        """The connection went away; a new one is being tried."""

    def on_message(self, message: CoordinatorMessage) -> None:
        """Take a message after the door. An exception from here ends `run`."""


class ControlClient:
    """One peer's control lane.

    Args:
        invite: the coordinator's address, its certificate's hash, and the secret.
        identity: signs the knock.
        make_hello: the newest HELLO, asked for at every connection.
        handler: hears of everything.
        rng: source of the pauses' jitter.
        prepare: awaited before every connection; what it raises ends `run`.
        pause: waits for so many seconds.
        find_proxy: finds the proxy by which a host and port are reached, None for directly.
        waits: True to try the first connection as long as it takes.
        holding: see Patience.
        forgotten: called when a connection is cut that led nowhere although the network is there.
    """

    def __init__(
        self,
        invite: Invite,
        identity: Identity,
        make_hello: Callable[[], Hello],
        handler: ControlHandler,
        *,
        rng: random.Random,
        prepare: Callable[[], Awaitable[None]] | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        find_proxy: Callable[[str, int], Proxy | None] = proxy_for,
        waits: bool = False,
        holding: Callable[[], str] = str,
        forgotten: Callable[[], None] | None = None,
    ) -> None:
        self._invite = invite
        self._identity = identity
        self._make_hello = make_hello
        self._handler = handler
        self._rng, self._prepare, self._forgotten = rng, prepare, forgotten
        self._pause = pause
        self._find_proxy = find_proxy
        self._proxy: Proxy | None = None
        self._trying = Patience(invite.host, invite.port, rng, is_endless=waits, holding=holding)
        self._aim(invite)
        self._fingerprint = aiohttp.Fingerprint(invite.cert_sha256)
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._patience: asyncio.Timeout | None = None
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue(OUTGOING_MAX)
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._hurried = asyncio.Event()
        self._is_running = False
        self._has_been_up = False
        self.bytes_in = 0
        """Bytes heard: messages with their WebSocket frames, and pieces; without TLS and TCP."""
        self.bytes_out = 0
        """Bytes sent, counted likewise."""

    def _aim(self, invite: Invite) -> None:
        """Try the first of these addresses next."""
        self._invite = invite
        first, *others = invite.places
        self._base_url = f"https://{first}"
        self._trying.where, self._trying.addresses = first, 1 + len(others)

    def _turn(self) -> None:
        """Try the next of the run's coordinators, if there is more than one."""
        first, *others = self._invite.addresses
        if others:
            self._aim(self._invite.at(*others, first))
            self._proxy = self._find_proxy(self._invite.host, self._invite.port)

    def _learn(self, news: StandsBy) -> None:
        """Hear of coordinators that stand by."""
        first, *others = self._invite.addresses
        try:
            self._aim(self._invite.at(first, *news.places, *others))
        except LocalFault as exc:
            raise RemoteFault("value", f"a coordinator's address is none: {exc}") from exc

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the coordinator that is talked with, or tried."""
        return self._invite.host, self._invite.port

    @property
    def other_end(self) -> tuple[str, int] | None:
        """Address of the other end of the present connection."""
        found = None if self._socket is None else self._socket.get_extra_info("peername")
        return None if found is None else (found[0], found[1])

    @property
    def by_proxy(self) -> bool:
        """True if the other end is a proxy's."""
        return self._proxy is not None

    def renew(self, gone: Collection[str] | None = None) -> None:
        """Connect anew now, if the present connection is known to be dead or there is none.

        Args:
            gone: addresses that this machine had until now; None for all of its own.
        """
        if self._socket is None:
            self._cut()
        else:
            own = self._socket.get_extra_info("sockname")
            if not (gone is None or own is None or own[0] in gone):
                return
            line = self._socket.get_extra_info("socket")
            with contextlib.suppress(OSError, AttributeError):
                line.shutdown(socket.SHUT_RDWR)  # nobody is there to say goodbye to
        self._hurried.set()

    @property
    def is_up(self) -> bool:
        """True if messages can be sent now."""
        return self._socket is not None

    def send(self, message: PeerMessage) -> bool:
        """Queue a message for the present connection; False, and dropped, while there is none."""
        if self._socket is None or self._closing.is_set():
            return False
        try:
            self._outgoing.put_nowait(encode(message))
        except asyncio.QueueFull:
            logger.warning("The coordinator does not read what it is sent; connecting anew.")
            self._cut()
            return False
        return True

    async def fetch_piece(self, piece_hash: bytes, *, bytes_max: int = PIECE_BYTES_MAX) -> bytes:
        """A piece of text by its SHA-256, asked for again when the line breaks.

        Raises:
            PieceRefused: the coordinator does not give it, or it is not what its name says.
            CoordinatorUnreachable: no answer after PIECE_TRIES tries.
        """
        began_s = asyncio.get_running_loop().time()
        for failed in range(1, PIECE_TRIES + 1):
            try:
                return await self._ask_for_piece(piece_hash, bytes_max)
            except (aiohttp.ClientError, OSError, TimeoutError) as exc:
                logger.info("A piece of text did not come (%s); asking again.", in_words(exc))
                await self._pause(pause_s(failed, self._rng))
        raise self._unreachable(PIECE_TRIES, asyncio.get_running_loop().time() - began_s)

    async def _ask_for_piece(self, piece_hash: bytes, bytes_max: int) -> bytes:
        if self._session is None:
            raise ConnectionError("the control lane is not open")
        payload = piece_payload(self._invite.cert_sha256, piece_hash)
        headers = {
            PEER_HEADER: self._identity.peer_id.hex(),
            SIGNATURE_HEADER: self._identity.sign(payload).hex(),
        }
        url = f"{self._base_url}{PIECE_PATH}{piece_hash.hex()}"
        async with (
            asyncio.timeout(PIECE_TIMEOUT_S),
            self._session.get(
                url,
                headers=headers,
                ssl=self._fingerprint,
                allow_redirects=False,
                **options_of(self._proxy),
            ) as answer,
        ):
            if answer.status in (401, 403, 404):
                raise not_given(answer.status)
            if answer.status != 200:
                raise ConnectionError(f"HTTP {answer.status}")
            # lz4 may lengthen text that does not compress, by less than 1 %.
            packed_max = LENGTH_BYTES + bytes_max + bytes_max // 64 + 64
            data = await read_bounded(answer.content.iter_any(), packed_max)
        self.bytes_in += len(data)
        return unpack_piece(data, piece_hash, bytes_max)

    async def run(self) -> None:
        """Connect, and stay connected until `close`. To be called once.

        Raises:
            CoordinatorUnreachable: nobody answered the first tries, and it is not to wait.
            WrongKey: not the coordinator of the invite.
            DoorRefused: the coordinator refused this peer, at the door or later.
            RemoteFault: the coordinator broke the protocol.
            UserError: SWT-E207, the environment names a proxy that cannot be used.
        """
        connector = aiohttp.TCPConnector(ssl=self._fingerprint)
        self._is_running = True
        try:
            self._proxy = self._find_proxy(self._invite.host, self._invite.port)
            # The environment is not trusted to aiohttp: it would send passwords of .netrc too.
            async with aiohttp.ClientSession(
                connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
            ) as session:
                self._session = session
                await self._stay_connected(session)
        finally:
            self._session = None
            self._ended.set()

    async def close(self) -> None:
        """Send what is queued, close, and wait until `run` has ended. Twice is allowed."""
        if not self._closing.is_set():
            self._closing.set()
            self._finish()
        if self._is_running:
            await self._ended.wait()

    async def _stay_connected(self, session: aiohttp.ClientSession) -> None:
        began_s = asyncio.get_running_loop().time()
        wrong_keys = 0
        while not self._closing.is_set():
            if self._prepare is not None:
                await _until(self._prepare(), self._closing)
            try:
                await self._one_connection(session)
                wrong_keys = 0
            except aiohttp.ServerFingerprintMismatch as exc:
                wrong_keys += 1
                if not self._has_been_up or wrong_keys >= WRONG_KEY_TRIES:
                    base = wrong_key(self._invite.host, self._invite.port)
                    raise WrongKey(*await self._seen(base)) from exc
                self._trying.failure(ConnectionError("it shows another key, as login pages do"))
            except (aiohttp.ClientError, OSError, TimeoutError) as exc:
                failed = self._by_proxy(exc)
                if self._trying.failure(failed):
                    seconds = asyncio.get_running_loop().time() - began_s
                    error = self._unreachable(self._trying.failed, seconds)
                    if isinstance(failed, TimeoutError):
                        raise error from exc
                    # What the proxy's error holds may be its password.
                    cause = None if isinstance(failed, ProxyFailed) else exc
                    raise CoordinatorUnreachable(*await self._seen(error)) from cause
            self._turn()
            await _until(self._rest(), self._closing)

    async def _rest(self) -> None:
        """Pause before the next try, until something has changed."""
        try:
            await _until(self._pause(self._trying.pause_s()), self._hurried)
        finally:
            self._hurried.clear()

    async def _one_connection(self, session: aiohttp.ClientSession) -> None:
        """One connection from its knock to its loss. Raises only if the door was not passed."""
        timeout_s = CONNECT_TIMEOUT_S
        if (count := self._trying.addresses) > 1:
            rounds = self._trying.failed // count
            timeout_s = min(timeout_s, CONNECT_TIMEOUT_FIRST_S * 2**rounds)
        async with self._patient(timeout_s):
            socket = await session.ws_connect(
                self._base_url + CONTROL_PATH, ssl=self._fingerprint, compress=0,
                max_msg_size=limits.CONTROL_BYTES_MAX, heartbeat=HEARTBEAT_S,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
                **options_of(self._proxy),
            )  # fmt: skip
        line: TransportSocket | None = socket.get_extra_info("socket")
        try:
            async with self._patient(DOOR_TIMEOUT_S):
                first = await self._knock(socket)
            if self._closing.is_set():
                return
            await self._converse(socket, first)
        finally:
            await socket.close()
            await let_go(line)

    @asynccontextmanager
    async def _patient(self, seconds: float | None) -> AsyncIterator[None]:
        """A part of a connection that lasts so long at most, or until `_cut`."""
        async with asyncio.timeout(seconds) as self._patience:
            try:
                yield
            finally:
                self._patience = None

    async def _knock(self, socket: aiohttp.ClientWebSocketResponse) -> CoordinatorMessage:
        """Answer the challenge; returns the coordinator's first words after that."""
        challenge = await self._receive(socket)
        if not isinstance(challenge, Challenge):
            raise RemoteFault("hello", f"{type(challenge).__name__} in place of Challenge")
        hello = encode(self._make_hello())
        payload = knock_payload(challenge.nonce, self._invite.cert_sha256, hello)
        knock = Knock(
            limits.PROTOCOL_VERSION, self._identity.peer_id, self._invite.secret, hello,
            self._identity.sign(payload),
        )  # fmt: skip
        await self._transmit(socket, encode(knock))
        return await self._receive(socket)

    async def _converse(
        self, socket: aiohttp.ClientWebSocketResponse, first: CoordinatorMessage
    ) -> None:
        self._outgoing = asyncio.Queue(OUTGOING_MAX)
        self._socket = socket
        is_first, self._has_been_up = not self._has_been_up, True
        self._trying.answered()
        sending = asyncio.create_task(self._send_all(socket, self._outgoing))
        watching = asyncio.create_task(self._outlive(socket))
        try:
            # Without end, until `_cut` moves it to now.
            async with self._patient(None):
                self._handler.on_up(is_first=is_first)
                self._handler.on_message(first)
                while True:
                    message = await self._receive(socket)
                    if isinstance(message, StandsBy):
                        self._learn(message)
                    else:
                        self._handler.on_message(message)
        except (ConnectionError, TimeoutError) as exc:
            if not self._closing.is_set():
                logger.info("The connection to the coordinator was lost (%s).", in_words(exc))
        finally:
            self._socket = None
            if self._closing.is_set():
                # Messages queued before `close`, such as Leave, are on their way out.
                await asyncio.wait([sending], timeout=CLOSE_TIMEOUT_S)
            for task in (sending, watching):
                task.cancel()
            await asyncio.gather(sending, watching, return_exceptions=True)
            self._handler.on_down()

    async def _outlive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Cut the connection as soon as it is dead while another one would stand."""
        line, there = socket.get_extra_info("socket"), self.other_end
        if line is None or there is None:
            return

        async def dial() -> None:
            _, writer = await asyncio.open_connection(*there)
            writer.transport.abort()

        await outlive(partial(is_stuck, line.fileno(), there[1]), dial)
        logger.info("Nothing answers on the connection to the coordinator; connecting anew.")
        self.renew()
        if self._forgotten is not None:
            self._forgotten()

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> CoordinatorMessage:
        """The next message. ConnectionError when there is none any more."""
        received = await socket.receive()
        if received.type in _ENDINGS:
            is_told = socket.close_code not in (None, aiohttp.WSCloseCode.ABNORMAL_CLOSURE)
            raise ConnectionError("it was closed" if is_told else "it broke off")
        if received.type is not aiohttp.WSMsgType.BINARY:
            raise RemoteFault(
                "type", f"no message that the control lane knows ({received.type.name.lower()})"
            )
        self.bytes_in += frame_bytes(len(received.data), is_masked=False)
        message = decode_from_coordinator(received.data)
        waits_for = MEMBERS_WAIT if self._trying.is_endless else (SLOW_DOWN,)
        if isinstance(message, Refused) and message.code in waits_for:
            raise AskedToWait(cleaned(message.text))
        if isinstance(message, Refused):
            base = refused(message.code, message.text)
            raise DoorRefused(base.code, base.what, base.meaning, base.remedy)
        return message

    async def _send_all(
        self, socket: aiohttp.ClientWebSocketResponse, outgoing: "asyncio.Queue[bytes | None]"
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while (data := await outgoing.get()) is not None:
                await self._transmit(socket, data)
        await socket.close()

    async def _transmit(self, socket: aiohttp.ClientWebSocketResponse, data: bytes) -> None:
        await socket.send_bytes(data)
        self.bytes_out += frame_bytes(len(data), is_masked=True)

    def _finish(self) -> None:
        """Close the present connection after what is queued."""
        try:
            self._outgoing.put_nowait(None)
        except asyncio.QueueFull:
            self._cut()

    def _cut(self) -> None:
        """Give up the present connection without waiting for what is queued."""
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())

    def _by_proxy(self, error: Exception) -> Exception:
        """The error as the proxy's, if it is."""
        if self._proxy is None:
            return error
        if isinstance(error, aiohttp.ClientHttpProxyError):
            return ProxyFailed.refused(self._proxy, error.status)
        if isinstance(error, aiohttp.ClientProxyConnectionError):
            return ProxyFailed(self._proxy, f"does not answer ({in_words(error)})")
        return error

    async def _seen(self, known: UserError) -> tuple[str, str, str, str]:
        """Parts of an error that says why, if a last look at who answers there can tell."""
        fault = (await probe(self._invite, self._proxy)).fault
        error = known if fault is None or fault.code == "SWT-E203" else fault
        return error.code, error.what, error.meaning, error.remedy

    def _unreachable(self, tries: int, seconds: float) -> CoordinatorUnreachable:
        base = coordinator_unreachable(self._invite.host, self._invite.port, tries, seconds)
        return CoordinatorUnreachable(base.code, base.what, base.meaning, base.remedy)


async def _until(work: Awaitable[None], event: asyncio.Event) -> None:
    """Wait for the work's end, or for the event; what the work raises is raised."""
    working = asyncio.ensure_future(work)
    waits = [working, asyncio.create_task(event.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
