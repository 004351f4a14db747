"""TCP's own counts of libzmq's connections, read by their descriptors.

A frame that was handed over may wait in libzmq and in the system for seconds; only TCP knows what
has arrived at the other end. Linux tells (TCP_INFO); elsewhere nothing is known, and nothing is
guessed. A descriptor belongs to libzmq's thread: it may be closed, and given to something else, at
any moment, so it is asked for its port first, and a count that falls begins anew.
"""

import contextlib
import math
import socket as sockets
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from swarmtrain_transport import limits
from swarmtrain_transport.links.parallel_flows import Path

_COUNTERS = struct.Struct("=QQ")
_COUNTERS_AT = 120
"""tcpi_bytes_acked and tcpi_bytes_received in linux/tcp.h; both since Linux 4.1."""

_WORD = struct.Struct("=I")
_RTT_AT, _UNSENT_AT, _LEAST_RTT_AT = 68, 144, 148
_PATH_BYTES = _LEAST_RTT_AT + _WORD.size
"""tcpi_rtt, tcpi_notsent_bytes and tcpi_min_rtt; all of them since Linux 4.6."""

_RETRIES_AT, _UNACKED_AT = 2, 24
"""tcpi_retransmits and tcpi_unacked."""

_SO_MAX_PACING_RATE = 47
"""As in asm-generic/socket.h of Linux; Python has no name for it."""
_PACE = struct.Struct("=Q")
_NO_PACE = (1 << 64) - 1

_NEAR_CONTROL = b"cubic"
_BY_RATE = b"bbr"
_NAME_BYTES = 16


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes since the link was opened, with encryption and framing, without TCP's own headers.

    Attributes:
        up: acknowledged by the other ends.
        down: arrived here, read or not.
    """

    up: int
    down: int


def can_tell() -> bool:
    """True if this system tells how much its connections have moved."""
    return sys.platform.startswith("linux")


def acknowledged(descriptor: int, port: int) -> int | None:
    """Bytes that the other end of a connection to this port has acknowledged, None without one."""
    counts = _counts(descriptor, port) if can_tell() else None
    return counts[0] if counts is not None else None


def received(descriptor: int, port: int) -> int | None:
    """Bytes that have come back by a connection to this port, None without one."""
    counts = _counts(descriptor, port) if can_tell() else None
    return counts[1] if counts is not None else None


def is_stuck(descriptor: int, port: int) -> bool:
    """Return True if nothing is heard on a connection to this port, although the oldest bytes under
    way were sent again LINK_RETRIES times in a row; False where the system does not tell."""
    info = _info(descriptor, port, _RETRIES_AT + 1) if can_tell() else None
    return info is not None and info[_RETRIES_AT] >= limits.LINK_RETRIES


def has_arrived(descriptor: int, port: int) -> bool:
    """Return True if the other end of a connection to this port has acknowledged all that the
    system was given; False without one, and where the system does not tell."""
    info = _info(descriptor, port, _UNSENT_AT + _WORD.size) if can_tell() else None
    if info is None:
        return False
    return not any(_WORD.unpack_from(info, at)[0] for at in (_UNACKED_AT, _UNSENT_AT))


def local_host(descriptor: int, port: int) -> str:
    """Return our own address on a connection to this port, "" without one."""
    connection = _connection(descriptor, port)
    if connection is None:
        return ""
    try:
        return own_host(connection)
    finally:
        connection.detach()


def own_host(connection: sockets.socket) -> str:
    """Return our own address on a connection, "" if it has ended. A socket that listens in both
    families says IPv4 addresses in IPv6's words."""
    try:
        return str(connection.getsockname()[0]).removeprefix("::ffff:")
    except OSError:
        return ""


def path_of(descriptor: int, port: int) -> Path | None:
    """Return TCP's counts of a connection to this port, None without one."""
    connection = _connection(descriptor, port) if can_tell() else None
    if connection is None:
        return None
    try:
        info = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _PATH_BYTES)
        name = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_CONGESTION, _NAME_BYTES)
    except OSError:
        return None  # it has just ended
    finally:
        connection.detach()
    if len(info) < _PATH_BYTES:
        return None
    rtt_us, unsent, least_us = (
        _WORD.unpack_from(info, at)[0] for at in (_RTT_AT, _UNSENT_AT, _LEAST_RTT_AT)
    )
    acked = _COUNTERS.unpack_from(info, _COUNTERS_AT)[0]
    by_loss = not name.startswith(_BY_RATE)
    return Path(acked, rtt_us / 1e6, least_us / 1e6, unsent, yields_to_loss=by_loss)


def suit_to_path(descriptor: int, port: int) -> bool:
    """Choose congestion control for a connection to this port, where the system lets us.

    To be asked again while False: only a busy connection's shortest round trip is the path's.

    To a peer that is near, cubic, every desktop's default. bbr, some servers' default, keeps two
    round trips' worth of bytes under way, and where a shaper holds bytes back at a round trip of
    nearly nothing, connections that share it starve in turn. To one that is far, bbr, where the
    system has it and allows it: it takes no lost packet for a full link, and remembers the path's
    rate while a connection rests between two exchanges. Others begin anew after a second's rest:
    1 MB then takes cubic twice as long at 50 ms and 100 Mbit/s (`benchmarks/lab/rested.py`).
    """
    connection = _connection(descriptor, port) if can_tell() else None
    if connection is None:
        return False
    try:
        info = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _PATH_BYTES)
        if len(info) < _PATH_BYTES:
            return False
        rtt_s = float(_WORD.unpack_from(info, _LEAST_RTT_AT)[0]) / 1e6
        has_moved = int(_COUNTERS.unpack_from(info, _COUNTERS_AT)[0]) >= limits.FAR_BYTES
        near, far = 0 < rtt_s < limits.NEAR_RTT_S, rtt_s >= limits.FLOW_RTT_MIN_S and has_moved
        if near or far:
            # A kernel without it goes on with what it has.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                control = _NEAR_CONTROL if near else _BY_RATE
                connection.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_CONGESTION, control)
    except OSError:
        return False  # it has just ended
    else:
        return bool(near or far)
    finally:
        connection.detach()


def pace(descriptor: int, port: int, bytes_per_s: float) -> bool:
    """Let a connection to this port send no faster; return False without one, and where it does not
    go by the measured rate: where losses hold it back, a rate says nothing of the link.

    Args:
        descriptor, port: the connection.
        bytes_per_s: the pace; `math.inf` for none.
    """
    connection = _connection(descriptor, port) if can_tell() else None
    if connection is None:
        return False
    try:
        name = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_CONGESTION, _NAME_BYTES)
        if not name.startswith(_BY_RATE):
            return False
        value = _PACE.pack(_NO_PACE if math.isinf(bytes_per_s) else int(bytes_per_s))
        connection.setsockopt(sockets.SOL_SOCKET, _SO_MAX_PACING_RATE, value)
    except OSError:
        return False  # it has just ended
    else:
        return True
    finally:
        connection.detach()


class Connections:
    """Adds up what the connections of one link have moved, those that are gone included."""

    def __init__(self) -> None:
        self._up = 0
        self._down = 0
        self._seen: dict[int, tuple[int, int]] = {}

    def moved(self, sending: Iterable[tuple[int, int]]) -> Moved | None:
        """Return the bytes moved so far, None where the system does not tell.

        Args:
            sending: descriptor and remote port of the connections that we send by.
        """
        if not can_tell():
            return None
        seen: dict[int, tuple[int, int]] = {}
        for descriptor, port in sending:
            self._count(seen, descriptor, port)
        self._seen = seen
        return Moved(self._up, self._down)

    def _count(self, seen: dict[int, tuple[int, int]], descriptor: int, port: int) -> None:
        counts = _counts(descriptor, port)
        if counts is None:
            return
        before = self._seen.get(descriptor, (0, 0))
        if counts[0] < before[0] or counts[1] < before[1]:
            before = (0, 0)
        self._up += counts[0] - before[0]
        self._down += counts[1] - before[1]
        seen[descriptor] = counts


def _counts(descriptor: int, port: int) -> tuple[int, int] | None:
    """Bytes acknowledged and received by one connection, None if it is not ours any more."""
    info = _info(descriptor, port, _COUNTERS_AT + _COUNTERS.size)
    return _COUNTERS.unpack_from(info, _COUNTERS_AT) if info is not None else None


def _info(descriptor: int, port: int, size: int) -> bytes | None:
    """First bytes of TCP_INFO, None if the connection is not ours any more or the system knows
    less."""
    connection = _connection(descriptor, port)
    if connection is None:
        return None
    try:
        info = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, size)
        return info if len(info) == size else None
    except OSError:
        return None
    finally:
        connection.detach()


def _connection(descriptor: int, port: int) -> sockets.socket | None:
    """A connection to this port by its descriptor, to be detached; None if it is something else."""
    if descriptor < 0:
        return None
    try:
        # Family and type are named because Python would ask the kernel for them, two calls more
        # each time; the address below tells whether it is a connection of ours.
        connection = sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:
        return None
    try:
        if connection.getpeername()[1] == port:
            return connection
    except (OSError, IndexError):
        pass  # not connected (any more), or another kind of socket
    connection.detach()
    return None
