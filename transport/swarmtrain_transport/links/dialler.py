"""Makes the ways that the coordinator arranges: this side's part of each meeting.

The coordinator gives both sides a token for one connection (MEET). Nothing is dialled here but what
it names, each for MEET_S at most, and few at a time. How the sender's end fares is told as MET.
"""

import asyncio
import contextlib
import functools
import logging
import socket as sockets
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId, is_dialable
from swarmtrain_transport.links.ways import PREAMBLE_BYTES, Preamble, Side, Way
from swarmtrain_transport.wire.messages import LOST, Meet, Met

logger = logging.getLogger(__name__)

Endpoint = tuple[str, int]
Open = Callable[[], Awaitable[sockets.socket]]


class Ends(Protocol):
    """The link's part: what it does with a connection that is there.

    Attributes:
        closed: hears to whom it has closed its connections by itself, as nothing was sent.
    """

    closed: Callable[[PeerId], None]

    def adopt(self, far: sockets.socket, ended: Callable[[], None]) -> None:
        """Hear by it, until it has ended."""

    def send_by(
        self, peer: PeerId, far: sockets.socket, way: Way, token: bytes,
        told: Callable[[bool], None],
    ) -> None:  # fmt: skip
        """Send by it."""

    def redial(self, peer: PeerId, host: str = "", port: int = 0) -> None:
        """Dial a peer at another address; at that which it was allowed with, without one."""

    def part(self, token: bytes) -> None:
        """Close the connection of a token."""

    def ways(self) -> dict[PeerId, Way | None]:
        """Return by which way frames go to each peer now."""


@dataclass(slots=True)
class _Meeting:
    """One token's: what was asked, and what is under way."""

    asked: Meet
    task: asyncio.Task[None] | None = None
    ends: asyncio.TimerHandle | None = None
    mirror: sockets.socket | None = None

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
        if self.ends is not None:
            self.ends.cancel()
        if self.mirror is not None:
            self.mirror.close()


class Dialler:
    """One peer's part in meetings.

    Args:
        loop: event loop that it runs on.
        link: takes the connections.
        coordinator: tells the address of the coordinator, as this side reaches it; None if it does
            not.
        tell: sends a MET.
        detour: opens connections to an address where the network lets none out plainly, None where
            it does.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        link: Ends,
        coordinator: Callable[[], Endpoint | None],
        tell: Callable[[Met], None],
        detour: Callable[[Endpoint], Open | None] = lambda there: None,
    ) -> None:
        self._detour = detour
        self._loop, self._link, self._coordinator, self._tell = loop, link, coordinator, tell
        self._meetings: dict[bytes, _Meeting] = {}
        self._standing: dict[bytes, Met] = {}
        self._redialled: dict[PeerId, bytes] = {}
        self._heard_by: dict[bytes, Meet] = {}
        self._gone: dict[bytes, Met] = {}
        self._dialled: set[PeerId] = set()
        link.closed = self._dialled.discard  # what was idle is not lost, also if dialled again

    def __len__(self) -> int:
        """Meetings that are under way."""
        return len(self._meetings)

    def standing(self) -> tuple[Met, ...]:
        """Return what stands to send by, for a coordinator that may know of nothing, and what has
        ended since this was last asked."""
        gone, self._gone = self._gone, {}
        return (*self._standing.values(), *gone.values())

    def heard_by_relay(self) -> tuple[PeerId, ...]:
        """Return the peers whose bytes come over a relay."""
        return tuple(
            sorted({one.peer for one in self._heard_by.values() if one.way == Way.RELAYED})
        )

    def look(self) -> None:
        """Tell whose plain connection has ended since the last look and is not back."""
        for peer, way in self._link.ways().items():
            if way is Way.DIALLED:
                self._dialled.add(peer)
            elif peer in self._dialled:
                self._dialled.discard(peer)
                if way is None:
                    self._tell(Met(b"", False, LOST, peer, Way.DIALLED))

    def meet(self, asked: Meet) -> None:
        """Do this side's part of a meeting."""
        logger.debug("meet: %s", asked)
        if asked.sends and self._link.ways().get(asked.peer) is Way.DIALLED:
            self._tell(Met(asked.token, True, peer=asked.peer, way=Way.DIALLED))
            return
        known = self._meetings.get(asked.token)
        if known is None and len(self._meetings) >= limits.MEETINGS_MAX:
            self._tell(Met(asked.token, False, "too many at once"))
            return
        if asked.host and not (is_dialable(asked.host) and 0 < asked.port < 1 << 16):
            self._tell(Met(asked.token, False, "no address that could be dialled"))
            return
        meeting = known or _Meeting(asked)
        mirror, meeting.mirror = meeting.mirror, None
        meeting.stop()
        meeting.asked = asked
        self._meetings[asked.token] = meeting
        meeting.ends = self._loop.call_later(limits.MEET_S, self._fail, asked.token, "timeout")
        match asked.way, bool(asked.host):
            case (Way.DIALLED, True) if asked.sends:
                self._do(meeting, self._redial(asked))
            case (Way.TURNED, False) if asked.sends:
                pass  # `greeted` hears of the other side
            case (Way.TURNED, True) if not asked.sends:
                self._do(meeting, self._dial((asked.host, asked.port), asked))
            case (Way.PUNCHED, False):
                self._do(meeting, self._show(meeting))
            case (Way.PUNCHED, True) if mirror is not None:
                self._do(meeting, self._punch(mirror, asked))
            case (Way.RELAYED, _):
                there = (asked.host, asked.port) if asked.host else self._coordinator()
                if there is None:
                    self._fail(asked.token, "no coordinator")
                else:
                    self._do(meeting, self._dial(there, asked))
            case _:
                if mirror is not None:
                    mirror.close()
                self._fail(asked.token, "no part to do")

    def part(self, token: bytes) -> None:
        """Give up a meeting, and the connection that it made."""
        self._over(token)
        self._standing.pop(token, None)
        self._heard_by.pop(token, None)
        self._gone.pop(token, None)
        self._dial_as_told(token)
        self._link.part(token)

    def greeted(self, preamble: Preamble, far: sockets.socket) -> bool:
        """A connection to our port has brought this preamble; True if it is a meeting's."""
        meeting = self._meetings.get(preamble.token)
        if meeting is None or preamble.side is not Side.RECEIVER:
            return False
        asked = meeting.asked
        if not (asked.way == Way.TURNED and asked.sends):
            return False
        self._take(asked, far)
        return True

    def close(self) -> None:
        """Give up all meetings; connections that were made are the link's."""
        for token in list(self._meetings):
            self._over(token)

    # ---- what a meeting takes

    async def _redial(self, asked: Meet) -> None:
        """Dial another address of the receiver from now on."""
        self._redialled[asked.peer] = asked.token
        self._link.redial(asked.peer, asked.host, asked.port)
        while self._link.ways().get(asked.peer) is not Way.DIALLED:
            await asyncio.sleep(limits.DIAL_AGAIN_S)
        self._over(asked.token)
        self._tell(Met(asked.token, True, peer=asked.peer, way=Way.DIALLED))

    def _dial_as_told(self, token: bytes) -> None:
        """Dial the receiver's own address again, if another was dialled for this token."""
        for peer in [peer for peer, newest in self._redialled.items() if newest == token]:
            del self._redialled[peer]
            self._link.redial(peer)

    def _do(self, meeting: _Meeting, part: Coroutine[Any, Any, None]) -> None:
        meeting.task = self._loop.create_task(self._guarded(meeting.asked, part))
        meeting.task.add_done_callback(lambda task: part.close())  # it may not have begun

    async def _guarded(self, asked: Meet, part: Coroutine[Any, Any, None]) -> None:
        try:
            await part
        except OSError as exc:
            self._fail(asked.token, exc.strerror or type(exc).__name__)

    async def _dial(self, there: Endpoint, asked: Meet) -> None:
        """Dial the other side, or a relay, and say whose connection it is."""
        detour = self._detour(there)
        far = await (_connect(self._loop, there) if detour is None else detour())
        try:
            await self._loop.sock_sendall(far, _preamble(asked))
        except BaseException:
            far.close()
            raise
        self._take(asked, far)

    async def _show(self, meeting: _Meeting) -> None:
        """Show the coordinator a fresh port from outside, and keep the connection: it keeps the
        router's mapping."""
        there = self._coordinator()
        if there is None:
            raise ConnectionError("no coordinator")
        if self._detour(there) is not None:
            raise ConnectionError("what is seen from outside would be the detour's port")
        far = await _connect(self._loop, there)
        try:
            await self._loop.sock_sendall(far, _preamble(meeting.asked))
        except BaseException:
            far.close()
            raise
        meeting.mirror = far

    async def _punch(self, mirror: sockets.socket, asked: Meet) -> None:
        """Dial the other side's outside port from the port that was shown, while it does the same.

        The first SYN may be dropped, or refused, by a router that has not seen the other side dial
        yet. A listener on that port takes the connection where a SYN comes between two dials.
        """
        family, local = mirror.family, mirror.getsockname()
        there = (asked.host, asked.port)
        listener = _shared(family, local)
        try:
            listener.listen(4)
            far = await self._either(family, local, there, listener)
            logger.debug("a connection from %s to %s", local, there)
            await self._recognise(far, asked)
        finally:
            listener.close()
            mirror.close()
        self._take(asked, far)

    async def _either(
        self, family: int, local: Any, there: Endpoint, listener: sockets.socket
    ) -> sockets.socket:
        accepting = self._loop.create_task(self._accept_from(listener, there))
        dialling = taken = None
        try:
            while True:
                dialling = self._loop.create_task(self._dial_once(family, local, there))
                done, _ = await asyncio.wait(
                    (accepting, dialling), return_when=asyncio.FIRST_COMPLETED
                )
                taken = accepting if accepting in done else dialling
                try:
                    return taken.result()
                except OSError as exc:
                    if taken is accepting:
                        raise
                    logger.debug("a dial from %s to %s: %s", local, there, exc)
                await asyncio.sleep(limits.DIAL_AGAIN_S)
        finally:
            # Also where time is up: a dial that goes on alone would fail with nobody to hear it.
            for task in (accepting, dialling):
                if task is not None and task is not taken:
                    await _give_up(task)

    async def _dial_once(self, family: int, local: Any, there: Endpoint) -> sockets.socket:
        one = _shared(family, local)
        try:
            await self._loop.sock_connect(one, there)
        except BaseException:
            one.close()
            raise
        return one

    async def _accept_from(self, listener: sockets.socket, there: Endpoint) -> sockets.socket:
        while True:
            far, remote = await self._loop.sock_accept(listener)
            if remote[0] == there[0]:
                return far
            far.close()

    async def _recognise(self, far: sockets.socket, asked: Meet) -> None:
        """Say the token, and hear it: by chance somebody else may sit at that port."""
        try:
            await self._loop.sock_sendall(far, _preamble(asked))
            said = b""
            while len(said) < PREAMBLE_BYTES:
                more = await self._loop.sock_recv(far, PREAMBLE_BYTES - len(said))
                if not more:
                    raise ConnectionError("closed")
                said += more
            other = Side.RECEIVER if asked.sends else Side.SENDER
            if said != Preamble(other, asked.token).encode():
                raise ConnectionError("somebody else")
        except BaseException:
            far.close()
            raise

    # ---- outcomes

    def _take(self, asked: Meet, far: sockets.socket) -> None:
        """The connection is there: hear by it, or send by it."""
        self._over(asked.token)
        if asked.sends:
            stands = functools.partial(self._stands, asked)
            self._link.send_by(asked.peer, far, Way(asked.way), asked.token, stands)
        else:
            self._heard_by[asked.token] = asked
            self._link.adopt(far, functools.partial(self._unheard, asked.token))

    def _unheard(self, token: bytes) -> None:
        """Tell that what was heard by has ended: the sender's end may seem to stand for long, where
        a router has forgotten the connection."""
        if self._heard_by.pop(token, None) is not None:
            self._tell(self._lost(token))

    def _stands(self, asked: Meet, is_up: bool) -> None:
        """Tell that what is sent by stands, or is gone."""
        if is_up:
            met = Met(asked.token, True, peer=asked.peer, way=asked.way)
            self._standing[asked.token] = met
        else:
            self._standing.pop(asked.token, None)
            met = self._lost(asked.token)
        self._tell(met)

    def _lost(self, token: bytes) -> Met:
        """Words on a way that has ended, now and after the next WELCOME: there may be no
        coordinator to hear it now."""
        met = Met(token, False, LOST)
        if len(self._gone) < limits.MEETINGS_MAX:
            self._gone[token] = met
        return met

    def _fail(self, token: bytes, reason: str) -> None:
        logger.debug("a meeting fails: %s", reason)
        self._over(token)
        self._dial_as_told(token)
        self._tell(Met(token, False, reason))

    def _over(self, token: bytes) -> None:
        meeting = self._meetings.pop(token, None)
        if meeting is None:
            return
        if meeting.task is asyncio.current_task(self._loop):
            meeting.task = None
        meeting.stop()


def _preamble(asked: Meet) -> bytes:
    return Preamble(Side.SENDER if asked.sends else Side.RECEIVER, asked.token).encode()


async def _give_up(connecting: "asyncio.Task[sockets.socket]") -> None:
    connecting.cancel()
    with contextlib.suppress(OSError, asyncio.CancelledError):
        (await connecting).close()


async def _connect(loop: asyncio.AbstractEventLoop, there: Endpoint) -> sockets.socket:
    """A connection whose local port others of ours may share, so that it can be punched from."""
    family = sockets.AF_INET6 if ":" in there[0] else sockets.AF_INET
    one = _shared(family, ("::" if family == sockets.AF_INET6 else "0.0.0.0", 0))
    try:
        await loop.sock_connect(one, there)
    except BaseException:
        one.close()
        raise
    return one


def _shared(family: int, local: Any) -> sockets.socket:
    one = sockets.socket(family, sockets.SOCK_STREAM)
    try:
        one.setblocking(False)
        one.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        if hasattr(sockets, "SO_REUSEPORT"):
            one.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEPORT, 1)
        one.bind(local)
    except BaseException:
        one.close()
        raise
    return one
