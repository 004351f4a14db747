"""The mapped ports of this process: sockets and timers around a `Mapping` for each family.

It runs on the loop of whoever wants a port, and starts anew when this machine's address or router
changes. Not here: any decision about one port.
"""

import asyncio
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any

from swarmtrain.port_mapping import gateway as routes
from swarmtrain.port_mapping.answers import ANSWER_BYTES_MAX
from swarmtrain.port_mapping.gateway import Gateway
from swarmtrain.port_mapping.machine import (
    Actions,
    Exchange,
    MapByUpnp,
    Mapping,
    MappingProtocol,
    Send,
    UnmapByUpnp,
)
from swarmtrain.port_mapping.nat_pmp import NatPmp
from swarmtrain.port_mapping.pcp import NONCE_BYTES, Pcp
from swarmtrain.port_mapping.upnp import Upnp
from swarmtrain_transport.wire.messages import Place

logger = logging.getLogger(__name__)

LOOK_S = 15.0
"""Pause between two looks whether this machine is in another network now."""

LEAVE_S = 3.0
"""Longest wait for routers that take a port back."""

NO_ROUTER = "this system names no router that leads out of the network"


def families(host: str, both: Collection[str]) -> tuple[int, ...]:
    """Return the families of addresses in which a port on `host` listens; on those of `both` it
    listens in both."""
    return (4, 6) if host in both else (6,) if ":" in host else (4,)


class Mapper:
    """Have one TCP port forwarded, in each family of addresses for which there is a router.

    Args:
        port: TCP port at which this process listens.
        on_change: called, on the loop, when `places` has changed or was decided for the first time.
        versions: families of addresses, 4 and 6, in which this process listens.
        gateways: finds the routers.
        own_host: finds this machine's address in a family.
    """

    def __init__(
        self,
        port: int,
        on_change: Callable[[], None] = lambda: None,
        *,
        versions: Sequence[int] = (4, 6),
        gateways: Callable[[], Awaitable[Sequence[Gateway]]] = routes.gateways,
        own_host: Callable[[int], str] = routes.own_host,
    ) -> None:
        self._port = port
        self._on_change = on_change
        self._versions = versions
        self._gateways = gateways
        self._own_host = own_host
        self._lines: list[_Line] = []
        self._decided = asyncio.Event()
        self._told: tuple[Place, ...] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Give the ports back, and end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end_lines()

    def places(self) -> tuple[Place, ...]:
        """Return the addresses that routers forward to this process, as of now."""
        found = [line.mapping.granted for line in self._lines]
        return tuple(Place("mapped", one.host, one.port) for one in found if one is not None)

    def reached(self, host: str, port: int, *, is_open: bool | None) -> None:
        """Take in whether somebody got in through one of `places`; None says nothing."""
        for line in self._lines:
            granted = line.mapping.granted
            if granted is not None and (granted.host, granted.port) == (host, port):
                line.do(lambda mapping, now_s: mapping.told(is_open, now_s))

    @property
    def why(self) -> str:
        """Reasons for which no port is forwarded, in words; "" if one is or it is not decided."""
        if self.places() or not self._decided.is_set():
            return ""
        return (
            "; ".join(f"IPv{line.version} by {line.mapping.why}" for line in self._lines)
            or NO_ROUTER
        )

    async def decided(self) -> None:
        """Wait until it is known whether a port is forwarded; that takes 45 s at most."""
        await self._decided.wait()

    async def _run(self) -> None:
        while True:
            known = [self._own_host(version) for version in self._versions]
            found = [one for one in await self._gateways() if one.version in self._versions]
            self._lines = [_Line(one, self._port, self._look) for one in found]
            for line in self._lines:
                line.start()
            self._look()
            while known == [self._own_host(version) for version in self._versions]:
                await asyncio.sleep(LOOK_S)
            await self._end_lines()

    async def _end_lines(self) -> None:
        lines, self._lines = self._lines, []
        await asyncio.gather(*(line.close() for line in lines))

    def _look(self) -> None:
        """Tell of a change once it is decided."""
        if any(line.mapping.is_asking for line in self._lines):
            return
        places = self.places()
        self._decided.set()
        if places != self._told:
            self._told = places
            logger.info(self._words())
            self._on_change()

    def _words(self) -> str:
        if why := self.why:
            return f"No router forwards a port to this machine: {why}."
        where = " and ".join(f"{one.host} port {one.port}" for one in self.places())
        return f"The router forwards {where} to port {self._port} of this machine."


class _Line:
    """One `Mapping`, its socket to the router, and its timer."""

    def __init__(self, gateway: Gateway, port: int, on_change: Callable[[], None]) -> None:
        self.version = gateway.version
        self._loop = asyncio.get_running_loop()
        self._gateway = gateway
        self._on_change = on_change
        rng = random.SystemRandom()
        self._upnp = Upnp(gateway, port, self._loop.time)
        exchanges: dict[MappingProtocol, Exchange | None] = {
            MappingProtocol.PCP: Pcp(gateway.own_host, port, rng.randbytes(NONCE_BYTES))
        }
        if gateway.version == 4:  # a hole in a firewall of IPv6 is PCP's alone
            exchanges[MappingProtocol.NAT_PMP] = NatPmp(port)
            exchanges[MappingProtocol.UPNP] = None
        self.mapping = Mapping(exchanges, rng)
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to ask."""
        self.do(lambda mapping, now_s: mapping.start(now_s))

    def do(self, event: Callable[[Mapping, float], Actions]) -> None:
        """Give the machine an event, and do what it asks."""
        for action in event(self.mapping, self._loop.time()):
            match action:
                case Send():
                    self._send(action.data)
                case MapByUpnp():
                    self._spawn(self._map(action))
                case UnmapByUpnp():
                    self._spawn(self._upnp.unmap_port(action.granted))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self.mapping.next_wakeup_s, self._wake)
        self._on_change()

    async def close(self) -> None:
        """Give the port back, and end."""
        for task in self._tasks:
            task.cancel()
        self._on_change = lambda: None  # the end is no news
        self.do(lambda mapping, now_s: mapping.leave())
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=LEAVE_S)
            for task in late:
                task.cancel()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _wake(self) -> None:
        self.do(lambda mapping, now_s: mapping.tick(now_s))

    def _send(self, data: bytes) -> None:
        try:
            if self._socket is None:
                self._socket = self._open()
            self._socket.send(data)
        except ConnectionRefusedError:  # the answer to what was sent before
            self._loop.call_soon(self._refused)
        except OSError as error:  # no line for now: the timer goes on
            logger.debug("to the router: %s", error)

    def _open(self) -> socket.socket:
        """Open a socket to the router alone: the kernel drops what comes from elsewhere."""
        router, own = self._gateway, self._gateway.own_host
        family = socket.AF_INET if router.version == 4 else socket.AF_INET6
        opened = socket.socket(family, socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            opened.bind((own, 0))
            scope = (0, router.scope) if router.version == 6 else ()
            opened.connect((router.host, router.port, *scope))
        except OSError:
            opened.close()
            raise
        self._loop.add_reader(opened, self._hear)
        return opened

    def _hear(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(ANSWER_BYTES_MAX + 1)
        except ConnectionRefusedError:
            self._refused()
        except OSError as error:
            logger.debug("from the router: %s", error)
        else:
            self.do(lambda mapping, now_s: mapping.heard(data, now_s))

    def _refused(self) -> None:
        self.do(lambda mapping, now_s: mapping.unreachable(now_s))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _map(self, action: MapByUpnp) -> None:
        answer = await self._upnp.map_port(action.granted)
        self.do(lambda mapping, now_s: mapping.answered(answer, now_s))
