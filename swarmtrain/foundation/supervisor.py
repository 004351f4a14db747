"""Words to the supervisor of a service: systemd's notification protocol (sd_notify(3)).

A process that nobody supervises says nothing.
"""

import contextlib
import os
import socket


def say(text: str) -> None:
    """Send words as READY=1, STATUS=..., WATCHDOG=1 or STOPPING=1 to whoever supervises us."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    name = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(name)
        sender.sendall(text.encode())


def watchdog_s() -> float:
    """Return how often to say WATCHDOG=1, in seconds: half of what is allowed. 0 for never."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
    except ValueError:
        return 0.0
