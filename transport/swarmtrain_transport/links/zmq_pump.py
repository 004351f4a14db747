"""Moves bytes from one socket to another, on the loop, as fast as the slower of them takes them."""

import asyncio
import contextlib
import os
import socket as sockets
import sys
from collections.abc import Callable

from swarmtrain_transport.links.outbox import TokenBucket

if sys.platform == "linux":
    import fcntl

_COPIED_BYTES = 64 << 10
_PIPE_BYTES = 256 << 10
_IDLE_MAX = 8
_REST_MIN_S = 0.001
_REST_MAX_S = 0.005
_BULK_BYTES_PER_S = 1 << 20
"""Rate from which on small pieces are gathered for a while: at 100 Mbit/s each piece would else
wake the loop, thousands of times a second. Single small frames are passed on at once."""


class CopyBuffer:
    """Holds what was read from one socket until another takes it."""

    in_kernel = False

    def __init__(self) -> None:
        self._space = memoryview(bytearray(_COPIED_BYTES))
        self._rest = self._space[:0]

    @property
    def is_empty(self) -> bool:
        """True if nothing is left."""
        return not self._rest

    def fill(self, source: sockets.socket) -> int:
        """Read what is there, 0 at its end."""
        count = source.recv_into(self._space)
        self._rest = self._space[:count]
        return count

    def drain(self, sink: sockets.socket) -> None:
        """Write all of it, or as much as is taken before BlockingIOError."""
        while self._rest:
            self._rest = self._rest[sink.send(self._rest) :]

    def close(self) -> None:
        """Drop what is left."""
        self._rest = self._space[:0]


class PipeBuffer(CopyBuffer):
    """Does so through a pipe in the kernel, without a copy: a quarter of the CPU time (Linux)."""

    in_kernel = True

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        self._count = 0
        with contextlib.suppress(OSError):  # a user may have no more of such a size
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def is_empty(self) -> bool:
        """See `CopyBuffer`."""
        return self._count == 0

    def fill(self, source: sockets.socket) -> int:
        """See `CopyBuffer`."""
        self._count = os.splice(source.fileno(), self._in, _PIPE_BYTES, flags=os.SPLICE_F_NONBLOCK)
        return self._count

    def drain(self, sink: sockets.socket) -> None:
        """See `CopyBuffer`."""
        while self._count:
            self._count -= os.splice(
                self._out, sink.fileno(), self._count, flags=os.SPLICE_F_NONBLOCK
            )

    def close(self) -> None:
        """Drop what is left, and the pipe."""
        os.close(self._out)
        os.close(self._in)


class BufferPool:
    """Buffers that nobody uses; a pump whose sink is full keeps its own."""

    def __init__(self) -> None:
        self._idle: dict[bool, list[CopyBuffer]] = {False: [], True: []}

    def get(self, *, in_kernel: bool) -> CopyBuffer:
        """An empty one, of the kernel's if that is wanted and there are such."""
        in_kernel = in_kernel and sys.platform == "linux"
        if self._idle[in_kernel]:
            return self._idle[in_kernel].pop()
        return PipeBuffer() if in_kernel else CopyBuffer()

    def put(self, buffer: CopyBuffer) -> None:
        """Take one back."""
        idle = self._idle[buffer.in_kernel]
        if buffer.is_empty and len(idle) < _IDLE_MAX:
            idle.append(buffer)
        else:
            buffer.close()

    def close(self) -> None:
        """Close all that are idle."""
        for buffer in self._idle[False] + self._idle[True]:
            buffer.close()


class Pump:
    """One direction of a connection.

    Args:
        loop: event loop that it runs on.
        pool: buffers of the pump.
        source: socket that is read.
        sink: socket that is written to.
        took: hears how much was read.
        on_end: the source has ended, or failed, and all of it was passed on.
        on_broken: the sink takes no more.
        gate: while it is shut nothing is read, and TCP holds the sender back.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: BufferPool,
        source: sockets.socket,
        sink: sockets.socket,
        took: Callable[[int], None],
        on_end: Callable[[], None],
        on_broken: Callable[[], None],
        gate: TokenBucket | None = None,
    ) -> None:
        self._loop = loop
        self._pool = pool
        self._source = source
        self._sink = sink
        self._took = took
        self._on_end = on_end
        self._on_broken = on_broken
        self._gate = gate
        self._is_bulk = False
        self._read_s = 0.0
        self._rest: asyncio.TimerHandle | None = None
        self._waiting: CopyBuffer | None = None
        self._is_over = False
        self._is_dropping = False
        self._loop.add_reader(source, self._read)

    def stop(self) -> None:
        """Pass nothing on any more."""
        if not self._is_over:
            self._is_over = True
            self._let_go()
            if self._rest is not None:
                self._rest.cancel()
            self._loop.remove_reader(self._source)
            if not self._is_dropping:  # else the sink is closed, and its number somebody else's
                self._loop.remove_writer(self._sink)

    def drop(self) -> None:
        """Read on, so that the source is not held up, but pass nothing on."""
        if not self._is_over and not self._is_dropping:
            self._is_dropping = True
            self._let_go()
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self._source, self._read)

    def _read(self) -> None:
        if self._gate is not None and not self._gate.is_open(self._loop.time()):
            self._loop.remove_reader(self._source)
            self._rest = self._loop.call_at(self._gate.opens_s, self._go_on)
            return
        try:
            buffer = self._pool.get(in_kernel=self._is_bulk)
        except OSError:  # no descriptor is left for a pipe
            buffer = self._pool.get(in_kernel=False)
        try:
            count = buffer.fill(self._source)
        except (BlockingIOError, InterruptedError):
            self._pool.put(buffer)
            return
        except OSError:
            count = 0
        if count == 0:
            self._pool.put(buffer)
            self._on_end()
            return
        # Of what comes in small pieces the kernel would keep a page each.
        self._is_bulk = count >= _COPIED_BYTES
        self._waiting = buffer
        self._took(count)
        if self._gate is not None:
            self._gate.spend(count)
        rest_s = self._time_to_rest(count)
        if not self._pass_on():
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._write)
        elif rest_s and not self._is_over:
            self._loop.remove_reader(self._source)
            self._rest = self._loop.call_later(rest_s, self._go_on)

    def _time_to_rest(self, count: int) -> float:
        """Until a buffer's worth has come, if so much came since the last look that it is soon."""
        now_s, before_s = self._loop.time(), self._read_s
        self._read_s = now_s
        rate = count / max(now_s - before_s, 1e-6)
        if self._is_bulk or rate < _BULK_BYTES_PER_S:
            return 0.0
        rest_s = min(_COPIED_BYTES / rate, _REST_MAX_S)
        return rest_s if rest_s >= _REST_MIN_S else 0.0

    def _go_on(self) -> None:
        self._rest = None
        self._loop.add_reader(self._source, self._read)

    def _write(self) -> None:
        if self._pass_on() and not (self._is_over or self._is_dropping):
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self._source, self._read)

    def _pass_on(self) -> bool:
        """Write what waits; True if nothing of it is left, or nobody wants it."""
        if self._waiting is None or self._is_over or self._is_dropping:
            self._let_go()
            return True
        try:
            self._waiting.drain(self._sink)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._on_broken()
        self._let_go()
        return True

    def _let_go(self) -> None:
        if self._waiting is not None:
            self._pool.put(self._waiting)
            self._waiting = None
