"""The coordinator's one port: control WebSockets, pieces of text, and two health questions.

    GET /control        one WebSocket per peer: Challenge, Knock, then msgpack messages
    GET /piece/{hex}    a piece of text for members, lz4-compressed
    GET /check          would this peer be let in, and be reached? (door/checkup.py)
    GET /livez /readyz  for whoever supervises the process
    GET / and others    the run for who may look (page/server.py)

It translates between bytes and the shell's events and decides nothing. All of it is behind TLS
with the run's own certificate, which peers pin.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from functools import partial

import msgspec
from aiohttp import WSMessage, WSMsgType, web
from aiohttp.typedefs import Handler

from swarmtrain.console.repeats import Repeats
from swarmtrain.coordinator.corpus_service import CorpusService
from swarmtrain.coordinator.door.admission import VERSIONS, Door, DoorClosed
from swarmtrain.coordinator.door.budget import CONTROL_FRAME, HELLO_WAIT_MAX_S, Budgets
from swarmtrain.coordinator.door.checkup import Checkup
from swarmtrain.coordinator.door.dialler import Dialler, Place
from swarmtrain.coordinator.door.listener import ServerLog, line_of
from swarmtrain.coordinator.door.mapped import MappedPorts
from swarmtrain.coordinator.shell import BROKEN, Outlet, Shell
from swarmtrain.foundation.control_lane import (
    CHECK_PATH,
    CLOSE_TIMEOUT_S,
    CONTROL_PATH,
    HEARTBEAT_S,
    PEER_HEADER,
    PIECE_PATH,
    SIGNATURE_HEADER,
    SLOW_DOWN,
    piece_payload,
)
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain.page.server import Page
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import verify
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId, is_dialable, is_local, is_loopback
from swarmtrain_transport.wire.messages import (
    Challenge,
    Hello,
    History,
    Knock,
    LeaseRequest,
    Leave,
    Older,
    PeerMessage,
    Places,
    Progress,
    Ready,
    Refused,
    Tried,
    Weight,
    decode_from_peer,
    decode_weighed,
    encode,
    weigh,
)

logger = logging.getLogger(__name__)

NONCE_BYTES = 32

KNOCK_TIMEOUT_S = 10.0
"""A stranger who says nothing for this long is sent away: two round trips on the worst link."""

REQUEST_COST = 32 << 10
"""Bytes charged for a request of a member besides its answer: there is a signature to check."""

TURN_BYTES = 16 << 10
"""Messages of one peer, by what they cost to decode, that are heard in one turn of the loop: four
of the usual ones, which are some hundred bytes, take half a millisecond."""

_HISTORY = str(History.__struct_config__.tag)

WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "::", "*"})
"""Hosts by which a peer says that it listens everywhere."""


def seen_host(host: str, remote: str, own: str) -> str:
    """Return the address at which others reach a peer: the one that it says, or the one it came
    from when it says everywhere, or a private one of another network than this.

    Args:
        remote: address that the peer's connection comes from.
        own: this machine's address on that connection.

    Raises:
        DoorClosed: SWT-E205, it names the reader's own machine and does not live on this one.
    """
    if host.strip() in WILDCARD_HOSTS:
        return remote
    is_neighbour = remote == own or is_loopback(remote)
    if is_loopback(host) and not is_neighbour:
        raise DoorClosed(
            "SWT-E205",
            f"The peer listens on {host}, which is every reader's own machine. Start it with"
            " --listen 0.0.0.0:0, or with --advertise HOST:PORT as others reach it.",
        )
    # A private address means another machine wherever else it is dialled. Peers of the same house
    # are told it as one of PLACES.
    is_elsewhere = is_dialable(host) and is_local(host) and not (is_local(remote) or is_neighbour)
    return remote if is_elsewhere else host


class CoordinatorApp:
    """Serves one run.

    Args:
        cert_sha256: SHA-256 of the certificate that peers see.
        complain: hears what people should know of a member: what it does, and with what.
        page: shows the run; None where nobody may look.
    """

    def __init__(
        self,
        shell: Shell,
        door: Door,
        texts: CorpusService,
        cert_sha256: bytes,
        complain: Callable[[PeerId, str, str], None] = lambda peer, event, reason: None,
        page: Page | None = None,
    ) -> None:
        self._shell = shell
        self._door = door
        self._texts = texts
        self._cert_sha256 = cert_sha256
        self._complain = complain
        self._budgets, self._viewing = Budgets(), Budgets()
        self._page = page
        if page is not None:
            page.opened_by(_show, partial(self._charge, self._viewing))
        self._dialler = Dialler(shell.now_s)
        self._dialling = set[asyncio.Task[None]]()
        self._checkup = Checkup(door, shell.now_s, lambda *who: shell.machine.near(*who))
        self._mapped = MappedPorts(self._dialler, shell.now_s)
        self._repeats = Repeats(logger, shell.now_s)
        self._turnstile, self._has_turned = asyncio.Lock(), False
        shell.machine.reads(texts.progress)
        self.is_ready = False
        """Answer /readyz: True if peers may come."""

    def runner(self) -> web.AppRunner:
        """Make the runner of the web server that serves the run over HTTP."""
        app = web.Application(client_max_size=limits.CONTROL_BYTES_MAX, middlewares=[self._meter])
        app.router.add_get(CONTROL_PATH, self._control)
        app.router.add_get(PIECE_PATH + "{hash:[0-9a-f]{64}}", self._piece)
        app.router.add_get(CHECK_PATH, self._check)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        if self._page is not None:
            self._page.add_to(app)
        return web.AppRunner(
            app, access_log=None, shutdown_timeout=2 * CLOSE_TIMEOUT_S,
            logger=ServerLog(self._repeats), auto_decompress=False,
        )  # fmt: skip

    # ---- what a request may cost

    @web.middleware
    async def _meter(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A member has a budget for its requests; anybody else has one request per connection."""
        line = line_of(request.transport)
        if line is not None and line.member is not None:
            line.heard()
            books = self._viewing if line.is_viewer else self._budgets
            await self._charge(books, line.member, REQUEST_COST)
            return await handler(request)
        try:
            answer = await handler(request)
        except web.HTTPException as refusal:
            refusal.force_close()
            raise
        if line is None or line.member is None:
            answer.force_close()
        return answer

    async def _charge(self, books: Budgets, reader: bytes, num_bytes: int) -> None:
        """Have a member wait that reads much, or a viewer: as there may be many, viewers have books
        of their own."""
        now_s = self._shell.now_s()
        await asyncio.sleep(books.of(reader, now_s).answer(num_bytes, now_s))

    # ---- health

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        if self.is_ready and not self._shell.has_failed:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not ready\n")

    # ---- pieces

    async def _piece(self, request: web.Request) -> web.Response:
        piece_hash = bytes.fromhex(request.match_info["hash"])
        try:
            peer = bytes.fromhex(request.headers.get(PEER_HEADER, ""))
            signature = bytes.fromhex(request.headers.get(SIGNATURE_HEADER, ""))
        except ValueError:
            return web.Response(status=400, text="headers are not hex\n")
        payload = piece_payload(self._cert_sha256, piece_hash)
        is_theirs = verify(peer, signature, payload)
        if not (is_theirs and self._shell.machine.is_member(peer)):
            return web.Response(status=403, text="only members read the text\n")
        _welcome(request, peer)
        packed = self._texts.packed_piece(piece_hash)
        if packed is None:
            return web.Response(status=404, text="no such piece\n")
        await self._charge(self._budgets, peer, len(packed))
        return web.Response(body=packed, content_type="application/octet-stream")

    # ---- control

    async def _check(self, request: web.Request) -> web.StreamResponse:
        if not self.is_ready:
            return web.Response(status=503, text="try again later\n")
        return await self._checkup.answer(request)

    async def _control(self, request: web.Request) -> web.StreamResponse:
        if not self.is_ready:
            return web.Response(status=503, text="try again later\n")
        socket = web.WebSocketResponse(
            max_msg_size=limits.CONTROL_BYTES_MAX, heartbeat=HEARTBEAT_S, compress=False,
            timeout=CLOSE_TIMEOUT_S, autoping=False,
        )  # fmt: skip
        try:
            await socket.prepare(request)
        except ConnectionError:
            return web.Response()  # to nobody; aiohttp logs tracebacks of what is not prepared
        guest = await self._at_the_door(request, socket)
        if guest is not None:
            await self._converse(socket, request.transport, *guest)
        return socket

    async def _at_the_door(
        self, request: web.Request, socket: web.WebSocketResponse
    ) -> tuple[PeerId, Outlet] | None:
        """Challenge, Knock, judgement. None after sending the stranger away."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        try:
            async with asyncio.timeout(KNOCK_TIMEOUT_S):
                await socket.send_bytes(encode(Challenge(nonce, VERSIONS)))
                message = await socket.receive()
            if message.type is not WSMsgType.BINARY:
                raise ConnectionError("the stranger left")
            knock = decode_from_peer(message.data)
            if not isinstance(knock, Knock):
                raise RemoteFault("hello", "the first message must be Knock")
            await self._slow_down(request, knock, nonce)
            return await self._in_turn(request, knock, nonce)
        except RemoteFault as fault:
            refusal = Refused("SWT-E501", cleaned(str(fault)))
        except DoorClosed as closed:
            refusal = Refused(closed.code, closed.text)
        except (TimeoutError, ConnectionError):
            await socket.close()
            return None
        self._repeats.say(
            logging.INFO, (request.remote, refusal.code),
            f"Somebody at {request.remote} was not let in: {refusal.text} ({refusal.code})",
        )  # fmt: skip
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(encode(refusal))
        await socket.close()
        return None

    async def _in_turn(
        self, request: web.Request, knock: Knock, nonce: bytes
    ) -> tuple[PeerId, Outlet]:
        """Let in one in a turn of the loop. That may take milliseconds, if its record goes to the
        disk at once: many that come would keep the members waiting."""
        line = line_of(request.transport)
        if line is not None and not line.expect():
            self._door.forget(knock.peer_id)
            raise ConnectionError("too many wait for their turn")
        async with self._turnstile:
            while self._has_turned:
                await asyncio.sleep(0)
            self._has_turned = True
            asyncio.get_running_loop().call_soon(self._turn)
            return self._let_in(request, knock, nonce)

    def _turn(self) -> None:
        self._has_turned = False

    async def _slow_down(self, request: web.Request, knock: Knock, nonce: bytes) -> None:
        """Let a key that comes again and again wait, or for longer than that come back later."""
        now_s = self._shell.now_s()
        # Judged before it is counted: whoever only names another's key must not spend its tries.
        peer = self._door.judge(knock, nonce, request.remote or "", now_s).peer
        wait_s = self._budgets.of(peer, now_s).knock(now_s)
        if wait_s > HELLO_WAIT_MAX_S:
            self._door.forget(peer)
            raise DoorClosed(
                SLOW_DOWN, f"This key came too often, or said too much. Wait {wait_s:.0f} s."
            )
        await asyncio.sleep(wait_s)

    def _let_in(self, request: web.Request, knock: Knock, nonce: bytes) -> tuple[PeerId, Outlet]:
        """Judge and tell the machine without awaiting, so that no two take an invite's last use."""
        remote = request.remote or ""
        transport = request.transport
        if transport is None or transport.is_closing():
            self._door.forget(knock.peer_id)
            raise ConnectionError("it has left, or had to, while it waited")
        admitted = self._door.judge(knock, nonce, remote, self._shell.now_s())
        own = transport.get_extra_info("sockname")
        if self._shell.is_elsewhere(admitted.peer, admitted.hello.boot):
            raise DoorClosed("SWT-E408", "Another process with this peer's key is in the run.")
        try:
            host = seen_host(admitted.hello.host, remote, own[0] if own else "")
        except DoorClosed:
            self._door.forget(admitted.peer)
            raise
        hello = msgspec.structs.replace(admitted.hello, host=host)
        _welcome(request, admitted.peer)
        outlet = Outlet(transport.abort)
        self._shell.connect(admitted.peer, outlet, hello, admitted.invite_id, remote)
        place = Place(hello.boot, hello.host, hello.port)
        tell = partial(self._tried, admitted.peer, outlet, place)
        self._mapped.came(admitted.peer, remote, tell)
        if self._dialler.wants(admitted.peer, place, remote):
            task = asyncio.create_task(self._dial(admitted.peer, place))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)
        return admitted.peer, outlet

    def _tried(self, peer: PeerId, outlet: Outlet, told: Place, tried: Tried) -> None:
        """Tell a peer of its mapped port. That may be what HELLO told, before the router agreed."""
        outlet.put(encode(tried))
        if (tried.host, tried.port) == (told.host, told.port):
            self._shell.dialled(peer, is_open=tried.is_open)

    async def _dial(self, peer: PeerId, place: Place) -> None:
        """Tell the machine whether a peer can be reached from here."""
        is_open = await self._dialler.reaches(place)
        self._shell.dialled(peer, is_open=is_open)

    async def _converse(
        self,
        socket: web.WebSocketResponse,
        transport: asyncio.Transport | None,
        peer: PeerId,
        outlet: Outlet,
    ) -> None:
        """Hear the peer until its connection ends, while its own task sends what waits for it."""
        sending = asyncio.create_task(_send_all(socket, outlet))
        try:
            await self._listen(socket, peer, outlet, transport)
        finally:
            self._charge_welcome(peer, outlet)
            if self._shell.disconnect(peer, outlet):
                self._texts.release(peer)
                self._mapped.gone(peer)
                self._door.forget(peer)
            outlet.finish()
            _, late = await asyncio.wait([sending], timeout=CLOSE_TIMEOUT_S)
            if late:
                outlet.abort()
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _listen(
        self,
        socket: web.WebSocketResponse,
        peer: PeerId,
        outlet: Outlet,
        transport: asyncio.Transport | None = None,
    ) -> None:
        line, cost_at_once = line_of(transport), 0
        async for received in socket:
            if isinstance(received.data, OSError):
                break  # no answer to a heartbeat: the line is gone, which is nobody's fault
            if line is not None:
                line.heard()
            try:
                kind, cost = _weighed(received)
                if not await self._has_budget(peer, kind, cost, transport):
                    outlet.refuse(SLOW_DOWN, f"Too many messages ({kind}). Wait before you return.")
                    return
                if kind != CONTROL_FRAME:
                    self._hear(peer, outlet, decode_weighed(received.data))
                elif received.type is WSMsgType.PING:
                    await socket.pong(received.data)
            except RemoteFault as fault:
                self._repeats.say(
                    logging.WARNING, (peer, fault.reason), BROKEN % (peer.hex()[:8], fault)
                )
                self._broke(peer, fault)
                outlet.refuse("SWT-E501", cleaned(str(fault)))
                return
            except ConnectionError:
                return
            # aiohttp hands over what it has without a pause: the next turn is another peer's.
            cost_at_once += max(cost, TURN_BYTES // 4)
            if cost_at_once >= TURN_BYTES:
                cost_at_once = 0
                await asyncio.sleep(0)
        if line is not None and line.is_wordless:
            self._broke(peer, RemoteFault("length", "bytes without end are no message"))

    def _broke(self, peer: PeerId, fault: RemoteFault) -> None:
        """Name whoever breaks the protocol, and keep it out for a while: or it would come in again
        at once, and say the same."""
        now_s = self._shell.now_s()
        self._budgets.of(peer, now_s).cut(now_s)
        self._complain(peer, "fault", fault.reason)

    async def _has_budget(
        self, peer: PeerId, kind: str, cost: int, transport: asyncio.Transport | None
    ) -> bool:
        """Hold a member back that says too much; False when it has been held back for too long."""
        now_s = self._shell.now_s()
        budget = self._budgets.of(peer, now_s)
        if kind == _HISTORY and self._shell.machine.awaits_history(peer):
            return True
        wait_s = budget.hear(kind, cost, now_s)
        if not wait_s:
            return True
        self._repeats.say(
            logging.WARNING, (peer, "flood"),
            f"The peer {peer.hex()[:8]} says too much ({kind}): it is heard more slowly.",
        )  # fmt: skip
        if budget.is_spent(now_s):
            budget.cut(now_s)
            self._complain(peer, "flood", kind)
            return False
        # While nothing is read here, TCP holds the sender back.
        if transport is None or transport.is_closing() or not transport.is_reading():
            await asyncio.sleep(wait_s)
            return True
        transport.pause_reading()
        await asyncio.sleep(wait_s)
        if not transport.is_closing():
            transport.resume_reading()
        return True

    def _charge_welcome(self, peer: PeerId, outlet: Outlet) -> None:
        """Count, once, what its HELLO has made us send. That may have waited for others' JOINs."""
        if not outlet.is_heard:
            outlet.is_heard, now_s = True, self._shell.now_s()
            self._budgets.of(peer, now_s).answer(outlet.welcome_bytes, now_s)

    def _hear(self, peer: PeerId, outlet: Outlet, message: PeerMessage) -> None:
        self._charge_welcome(peer, outlet)
        if isinstance(message, Knock | Hello):
            raise RemoteFault("hello", f"{type(message).__name__} after the door")
        if isinstance(message, LeaseRequest):
            self._lease(peer, outlet, message)
            return
        if isinstance(message, Ready):
            message = self._texts.believed(peer, message)
        if isinstance(message, Places):
            self._mapped.heard(peer, message.places)
        waited = outlet.waiting_bytes
        if (fault := self._shell.receive(peer, outlet, message)) is not None:
            self._broke(peer, fault)
        if isinstance(message, Progress | Older):
            # Records that it asks for by acknowledging others; all at once they would be counted
            # when it comes in.
            now_s = self._shell.now_s()
            self._budgets.of(peer, now_s).answer(outlet.waiting_bytes - waited, now_s)
        if isinstance(message, Leave):
            outlet.finish()

    def _lease(self, peer: PeerId, outlet: Outlet, request: LeaseRequest) -> None:
        try:
            grant = self._texts.grant(peer, request)
        except UserError as error:
            # Uses were not kept, and must not be forgotten: as with a record.
            self._shell.fail(error)
            return
        self._shell.machine.reads(self._texts.progress)
        outlet.put(encode(grant))


def _weighed(received: WSMessage) -> Weight:
    """Kind and cost of a message that is not decoded yet, or of WebSocket's own ping or pong."""
    if received.type in (WSMsgType.PING, WSMsgType.PONG):
        return Weight(CONTROL_FRAME, len(received.data))
    if received.type is not WSMsgType.BINARY:
        raise RemoteFault(
            "type", f"no message that the control lane knows ({received.type.name.lower()})"
        )
    return weigh(received.data)


async def _send_all(socket: web.WebSocketResponse, outlet: Outlet) -> None:
    """Send what is queued, in order, then close. A lost connection ends it."""
    with contextlib.suppress(ConnectionError):
        while (data := await outlet.next()) is not None:
            await socket.send_bytes(data)
    await socket.close()


def _show(request: web.Request, viewer: bytes) -> None:
    line = line_of(request.transport)
    if line is not None:
        line.is_viewer = line.is_viewer or line.member is None
        line.welcome(viewer)


def _welcome(request: web.Request, peer: PeerId) -> None:
    line = line_of(request.transport)
    if line is not None:
        line.welcome(peer)
