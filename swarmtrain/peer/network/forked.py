"""Sockets of a peer in the processes that its program forks off, as data loaders do.

Such a process has copies of all descriptors, and none of the threads that use them. As long as it
holds one, the peer's port stays taken and its connections stay up, however dead the peer is: the
others would wait for silence in place of an end. So it lets go of them at once. Each descriptor is
pointed at nowhere and not closed: objects that were copied too may close its number later, which
must not be somebody else's by then. To close on exec helps only who execs.
"""

import contextlib
import os
import socket
from collections.abc import Collection
from typing import Protocol
from weakref import WeakSet

Name = tuple[str, int] | str
"""Address of one end of a socket: host and port, or a path."""

_DESCRIPTORS = "/dev/fd"


class Holder(Protocol):
    """A part of this process that has sockets."""

    def ends(self) -> tuple[Collection[int], Collection[Name]]:
        """Return the ports on this machine, and the names of either end, by which its sockets are
        known."""


holders: WeakSet[Holder] = WeakSet()
"""Parts of this process that have sockets now."""


def _let_go() -> None:
    known = [holder.ends() for holder in list(holders)]
    holders.clear()
    ports = {port for found, _ in known for port in found}
    names = {name for _, found in known for name in found}
    if not (ports or names):
        return
    with contextlib.suppress(OSError):  # a system without /dev/fd, or without a descriptor left
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in map(int, os.listdir(_DESCRIPTORS)):
            if _is_known(descriptor, ports, names):
                os.dup2(nowhere, descriptor, inheritable=False)
        os.close(nowhere)


def _is_known(descriptor: int, ports: Collection[int], names: Collection[Name]) -> bool:
    try:
        one = socket.socket(fileno=descriptor)
    except OSError:
        return False  # no socket
    try:
        here = _name(one.getsockname())
        is_port = isinstance(here, tuple) and here[1] in ports
        return is_port or here in names or _name(one.getpeername()) in names
    except OSError:
        return False  # not connected
    finally:
        one.detach()


def _name(found: object) -> Name | None:
    """The name of an end as Python tells it; None of families that nothing here uses."""
    if isinstance(found, str):
        return found
    return (found[0], found[1]) if isinstance(found, tuple) and len(found) >= 2 else None


os.register_at_fork(after_in_child=_let_go)
