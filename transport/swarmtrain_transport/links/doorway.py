"""Connections that have not said yet whose they are: a stranger's, or those of a meeting.

The first byte decides. A preamble has a fixed size, and no byte more is read of whoever sends one.
Nobody is answered, and nobody waits here for long.
"""

import asyncio
import socket as sockets
from collections.abc import Callable
from typing import TypeAlias

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.ways import PREAMBLE_BYTES, Preamble, may_be_preamble

Greet: TypeAlias = Callable[[Preamble, sockets.socket], bool]
"""Says whose a connection is, by its preamble, and takes it; False if it is nobody's."""


class Doorway:
    """Holds connections until their first bytes have come.

    Args:
        loop: event loop that it runs on.
        plain: takes a connection that begins with no preamble; nothing of it was read.
        greet: takes one by its preamble.
        refused: hears of each that was closed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        plain: Callable[[sockets.socket], None],
        greet: Greet,
        refused: Callable[[], None],
    ) -> None:
        self._loop, self._plain, self._greet, self._refused = loop, plain, greet, refused
        self._waiting: dict[sockets.socket, tuple[bytearray, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        """Connections that are here."""
        return len(self._waiting)

    def enter(self, far: sockets.socket) -> None:
        """Hold a connection. Beyond LINK_UNHEARD_MAX the oldest goes."""
        far.setblocking(False)
        leaves = self._loop.call_later(limits.PREAMBLE_S, self._refuse, far)
        self._waiting[far] = bytearray(), leaves
        self._loop.add_reader(far, self._read, far)
        if len(self._waiting) > limits.LINK_UNHEARD_MAX:
            self._refuse(next(iter(self._waiting)))

    def close(self) -> None:
        """Close all that are here."""
        for far in list(self._waiting):
            self._leave(far)
            far.close()

    def _read(self, far: sockets.socket) -> None:
        said, _ = self._waiting[far]
        try:
            if not said:
                first = far.recv(1, sockets.MSG_PEEK)
                if first and not may_be_preamble(first):
                    self._leave(far)
                    self._plain(far)
                    return
            more = far.recv(PREAMBLE_BYTES - len(said))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            more = b""
        if not more:
            if said:
                self._refuse(far)
            else:  # somebody looked whether the port is open
                self._leave(far)
                far.close()
            return
        said += more
        if len(said) < PREAMBLE_BYTES:
            return
        self._leave(far)
        try:
            is_known = self._greet(Preamble.decode(bytes(said)), far)
        except RemoteFault:
            is_known = False
        if not is_known:
            far.close()
            self._refused()

    def _leave(self, far: sockets.socket) -> None:
        _, leaves = self._waiting.pop(far)
        leaves.cancel()
        self._loop.remove_reader(far)

    def _refuse(self, far: sockets.socket) -> None:
        self._leave(far)
        far.close()
        self._refused()
