"""Room for connections: who opens many of them to us must not take the descriptors of our files.

A stranger needs no key to open a connection to a peer; it is closed after some seconds without a
handshake. The usual soft limit of 1024 descriptors can be filled in that time, the hard one hardly.
"""

import asyncio
import errno
import logging
import resource
from typing import Any

WANTED = 65_536

_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_QUIET_S = 10.0

logger = logging.getLogger(__name__)


def raise_limit() -> int:
    """Allow this process as many open files and connections as it may have, within reason.

    Returns:
        Number of files and connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def log_shortage_once(loop: asyncio.AbstractEventLoop) -> None:
    """Let the loop say now and then that it cannot accept connections, not thousands of times a
    second with a traceback each, as it does by itself."""
    said_s = -_QUIET_S

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal said_s
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _SHORT and "socket" in context):
            loop.default_exception_handler(context)
        elif loop.time() >= said_s + _QUIET_S:
            said_s = loop.time()
            logger.error("No new connection can be taken: %s.", error.strerror)

    loop.set_exception_handler(handle)
