"""What a sender may put into a listener's memory with a message that does not end."""

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.zmq_link_tcp import Unread, can_tell
from tests.transport.link_rig import World, ZmqWorld, honest, reach, run_in

pytestmark = pytest.mark.skipif(not can_tell(), reason="only Linux tells what TCP has taken in")


class Line:
    """A listener of ours and one connection to it."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.far = socket.create_connection(("127.0.0.1", self.port))
        self.near, _ = self.listener.accept()

    def take_in(self, num_bytes: int) -> None:
        self.far.sendall(bytes(num_bytes))
        while num_bytes:
            num_bytes -= len(self.near.recv(num_bytes))


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.setattr(limits, "LINK_UNREAD_BYTES_MAX", 1000)
    made = Line()
    yield made
    for end in (made.far, made.near, made.listener):
        end.close()


def test_only_what_came_since_the_last_message_counts(line: Line) -> None:
    unread, descriptor = Unread(line.port), line.near.fileno()
    for _ in range(5):
        line.take_in(900)
        unread.read(descriptor)
        assert unread.overfull() == []
    line.take_in(1000)
    assert unread.overfull() == []
    line.take_in(1)
    assert unread.overfull() == [descriptor]


def test_other_connections_of_the_process_are_not_looked_at(line: Line) -> None:
    line.take_in(5000)
    assert Unread(line.far.getsockname()[1]).overfull() == []


def test_many_connections_share_what_all_may_hold_but_one_frame_always_passes(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINK_UNREAD_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(limits, "LINK_UNREAD_BYTES_ALL", 8000)
    monkeypatch.setattr(limits, "FRAME_BYTES_MAX", 1500)
    unread, descriptor = Unread(line.port), line.near.fileno()
    line.take_in(4000)
    assert unread.overfull() == []
    with socket.create_connection(("127.0.0.1", line.port)) as far:
        near, _ = line.listener.accept()
        assert unread.overfull() == [descriptor]
        near.close()
        assert far.recv(1) == b""


def test_such_a_connection_is_broken_and_counted_and_the_peer_may_come_again() -> None:
    async def scenario(world: World) -> None:
        ada, ben = await honest(world)
        await reach(world, ada, ben)
        (descriptor,) = ben.link._unread._read or ben.link._unread._marks
        ben.link._unread.overfull = lambda: [descriptor]
        ben.link._watch_timer.cancel()
        ben.link._watch()
        assert ben.link.stats.refused == {"flood": 1}
        ben.link._unread.overfull = list
        await reach(world, ada, ben)

    run_in(ZmqWorld, scenario)


def test_without_a_descriptor_left_nothing_is_told_and_nothing_fails(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files", path)

    unread = Unread(line.port)
    line.take_in(5000)
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refuse)
        assert unread.overfull() == []
    assert unread.overfull() == [line.near.fileno()]
