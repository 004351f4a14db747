"""Every message of a process, with the time at which it was sent or heard, as lines of a file.

    traced.py SCRIPT ARGUMENTS      # a coordinator
    traced.watch_peer()             # in a peer's process, before it comes in

A line is [seconds, "sent" or "heard", name, bytes]. The namespaces of one machine have one clock,
so lines of several processes can be laid beside each other (`timeline.py`). A message to several
peers is a line for each. Bulk is `put` when the machine gives it, `sent` when the link gets it.
"""

import functools
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from swarmtrain_transport.actions import SendToPeer
from swarmtrain_transport.wire.messages import Records
from swarmtrain_transport.wire.records import outline_of, record_from_bytes

_file = open(os.path.join(os.environ["TRACE"], f"{os.getpid()}.jsonl"), "w", 1)  # noqa: SIM115


def note(direction: str, name: str, num_bytes: int = 0) -> None:
    """Write one line."""
    _file.write(json.dumps([time.monotonic(), direction, name, num_bytes]) + "\n")


def names_of(message: Any) -> list[str]:
    """A message's name; of RECORDS those of its records."""
    if isinstance(message, Records):
        return [outline_of(record_from_bytes(raw)).kind.upper() for raw in message.records]
    return [type(message).__name__]


def before(owner: type, name: str, look: Callable[..., Iterator[tuple[str, str, int]]]) -> None:
    """Note what `look` finds in the arguments of a method, each time before it is called."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        for line in look(*arguments, **named):
            note(*line)
        return method(*arguments, **named)

    setattr(owner, name, called)


def _of(direction: str, message: Any) -> Iterator[tuple[str, str, int]]:
    return ((direction, name, 0) for name in names_of(message))


def _of_frame(direction: str, frame: Any) -> Iterator[tuple[str, str, int]]:
    yield direction, frame.kind.name, len(frame.body)


def watch_peer() -> None:
    """Note all that this process says and hears as a peer."""
    from swarmtrain.peer.network.bandwidth import Bandwidth
    from swarmtrain.peer.network.shell import PeerShell
    from swarmtrain_transport.links.zmq_link import ZmqLink

    before(PeerShell, "send", lambda _, message: _of("sent", message))
    before(PeerShell, "on_message", lambda _, message: _of("heard", message))
    before(PeerShell, "on_frame", lambda _, peer, frame: _of_frame("heard", frame))
    before(Bandwidth, "send", lambda _, peer, frame: _of_frame("put", frame))
    before(ZmqLink, "send", lambda _, peer, frame: _of_frame("sent", frame))


def watch_coordinator() -> None:
    """Note all that this process says and hears as the coordinator."""
    from swarmtrain.coordinator.shell import Shell

    def told(_: Any, actions: Any) -> Iterator[tuple[str, str, int]]:
        for action in actions:
            if isinstance(action, SendToPeer):
                yield from _of("sent", action.message)

    before(Shell, "receive", lambda _, peer, outlet, message: _of("heard", message))
    before(Shell, "_carry_out", told)


if __name__ == "__main__":
    note("is", "coordinator")
    watch_coordinator()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
