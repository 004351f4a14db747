"""Joins two connections that bring the same token, and passes their bytes on unread.

The coordinator says which tokens are expected (CARRY). What passes is encrypted from peer to peer.
"""

import asyncio
import contextlib
import functools
import socket as sockets
from collections.abc import Callable

from swarmtrain_transport import limits
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.tcp import suit_to_path
from swarmtrain_transport.links.ways import Preamble, Side
from swarmtrain_transport.links.zmq_proxy import watch
from swarmtrain_transport.links.zmq_pump import BufferPool, Pump


class Relay:
    """All connections that one process relays.

    Args:
        loop: event loop that it runs on.
        told: hears a token, how many bytes were moved for it since it was last told, and True once
            that is over.
        gate: cap on what all of them move together, None without one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        told: Callable[[bytes, int, bool], None],
        gate: TokenBucket | None = None,
    ) -> None:
        self._loop, self._told, self._gate = loop, told, gate
        self._pool = BufferPool()
        self._carried: dict[bytes, _Pair] = {}

    def __len__(self) -> int:
        """Tokens that are expected or carried."""
        return len(self._carried)

    def expect(self, token: bytes) -> None:
        """Join the connections that bring this token, both within MEET_S; told at once that this is
        ready for them."""
        if token not in self._carried:
            self._carried[token] = _Pair(self._loop, self._pool, self._gate, self._over_for(token))
            self._told(token, 0, False)

    def greeted(self, preamble: Preamble, far: sockets.socket) -> bool:
        """A connection has brought this preamble; True if its token is expected from that side."""
        pair = self._carried.get(preamble.token)
        return pair is not None and pair.enter(preamble.side, far)

    def part(self, token: bytes) -> None:
        """End what is carried for a token."""
        pair = self._carried.get(token)
        if pair is not None:
            pair.end()

    def look(self) -> None:
        """Tell what was moved since the last look, and suit the connections to their paths."""
        for token, pair in list(self._carried.items()):
            pair.suit()
            if moved := pair.take_moved():
                self._told(token, moved, False)

    def close(self) -> None:
        """End all."""
        for pair in list(self._carried.values()):
            pair.end()
        self._pool.close()

    def _over_for(self, token: bytes) -> Callable[[int], None]:
        def over(moved: int) -> None:
            del self._carried[token]
            self._told(token, moved, True)

        return over


class _Pair:
    """Two connections of one token, the first of which may still wait for the second."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: BufferPool,
        gate: TokenBucket | None,
        over: Callable[[int], None],
    ) -> None:
        self._loop, self._pool, self._gate, self._over = loop, pool, gate, over
        self._ends: dict[Side, sockets.socket] = {}
        self._unsuited: list[sockets.socket] = []
        self._pumps: tuple[Pump, ...] = ()
        self._moved = 0
        self._is_over = False
        self._timer = loop.call_later(limits.MEET_S, self.end)

    def enter(self, side: Side, far: sockets.socket) -> bool:
        """Take one side's connection; False if that side is here."""
        if side in self._ends:
            return False
        try:
            watch(far)
        except OSError:
            far.close()
            return True
        self._ends[side] = far
        self._unsuited.append(far)
        if len(self._ends) == len(Side):
            self._timer.cancel()
            one, other = self._ends.values()
            pump = functools.partial(Pump, self._loop, self._pool, gate=self._gate)
            self._pumps = (
                pump(one, other, self._took, functools.partial(self._ended, other), self.end),
                pump(other, one, self._took, functools.partial(self._ended, one), self.end),
            )
        return True

    def take_moved(self) -> int:
        """Bytes moved since this was last asked."""
        moved, self._moved = self._moved, 0
        return moved

    def suit(self) -> None:
        """Let both choose what suits their ways, see `suit_to_path`. Over a short one little is
        taken in ahead: acknowledgements of what goes out would wait behind a queue of what comes
        in, and the line would be idle the other way."""
        for far in self._unsuited[:]:
            with contextlib.suppress(OSError):  # it has just ended
                if suit_to_path(far.fileno(), far.getpeername()[1]):
                    far.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, limits.RELAY_NEAR_BYTES)
                    self._unsuited.remove(far)

    def end(self) -> None:
        """Close both."""
        if self._is_over:
            return
        self._is_over = True
        self._timer.cancel()
        for pump in self._pumps:
            pump.stop()
        for far in self._ends.values():
            far.close()
        self._over(self.take_moved())

    def _took(self, num_bytes: int) -> None:
        self._moved += num_bytes

    def _ended(self, sink: sockets.socket) -> None:
        """One side has said all: nobody of ours half closes, so it has gone."""
        with contextlib.suppress(OSError):
            sink.shutdown(sockets.SHUT_WR)
        self.end()
