"""A relay forwards, cuts, holds one direction, and heals; what was held is not lost."""

import socket
import threading
from collections.abc import Iterator

import pytest

from swarmtrain.local_run.relays import Line, Relay, Relays, Way

DEADLINE_S = 20.0


def echo(listener: socket.socket) -> None:
    """Answers every connection with what it hears, until the listener is closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    with connection:
        try:
            while data := connection.recv(65536):
                connection.sendall(data)
        except ConnectionError:
            return


@pytest.fixture
def relays() -> Iterator[Relays]:
    made = Relays()
    yield made
    made.close()


@pytest.fixture
def relay(relays) -> Iterator[Relay]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=echo, args=(listener,), daemon=True)
        thread.start()
        made = relays.add()
        relays.call(made.aim, listener.getsockname()[1])
        yield made
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE_S)


def dial(relay: Relay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.port), DEADLINE_S)


def received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        assert part, "the connection ended"
        data += part
    return data


def is_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_bytes_go_through_in_both_directions_and_so_does_the_end(relay):
    with dial(relay) as connection:
        data = bytes(range(256)) * 4096
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert received(connection, len(data)) == data
        sender.join(DEADLINE_S)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_a_cut_ends_what_is_open_and_what_comes_until_it_heals(relays, relay):
    with dial(relay) as connection:
        connection.sendall(b"a")
        assert received(connection, 1) == b"a"
        relays.call(relay.cut)
        assert is_ended(connection)
    with dial(relay) as connection:
        assert is_ended(connection)
    relays.call(relay.heal)
    with dial(relay) as connection:
        connection.sendall(b"b")
        assert received(connection, 1) == b"b"


@pytest.mark.parametrize("way", list(Way))
def test_what_is_held_in_one_direction_comes_when_it_heals(relays, relay, way):
    with dial(relay) as connection:
        connection.sendall(b"a")
        assert received(connection, 1) == b"a"
        relays.call(relay.hold, way)
        connection.sendall(b"bcd")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(DEADLINE_S)
        relays.call(relay.heal)
        assert received(connection, 3) == b"bcd"


def test_what_is_garbled_arrives_changed_until_it_heals(relays, relay):
    with dial(relay) as connection:
        connection.sendall(b"a")
        assert received(connection, 1) == b"a"
        relays.call(relay.garble)
        connection.sendall(b"b")
        assert received(connection, 1) not in (b"", b"b")
        relays.call(relay.heal)
        connection.sendall(b"c")
        assert received(connection, 1) == b"c"


def test_a_relay_that_leads_nowhere_ends_connections(relays):
    with dial(relays.add()) as connection:
        assert is_ended(connection)
    relays.close()
    relays.close()


def test_pieces_pass_a_line_one_after_the_other_and_arrive_later():
    line = Line(bytes_s=1000.0, delay_s=0.5)
    assert line.arrives_s(100, now_s=10.0) == pytest.approx(10.6)
    assert line.arrives_s(100, now_s=10.0) == pytest.approx(10.7)
    assert line.wait_s(10.0) == pytest.approx(0.1)
    assert line.arrives_s(100, now_s=20.0) == pytest.approx(20.6)
    assert line.wait_s(20.1) == 0.0
    assert Line(delay_s=0.5).arrives_s(10**9, now_s=1.0) == pytest.approx(1.5)
    assert line.piece_bytes == 1500 and Line(1e6).piece_bytes == 10_000


def test_what_goes_by_a_line_is_whole_and_so_is_its_end(relays, relay):
    slow = relays.add({Way.THERE: Line(20e6, 0.001), Way.BACK: Line(20e6)})
    relays.call(slow.aim, relay.port)
    with dial(slow) as connection:
        data = bytes(range(256)) * 4096
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert received(connection, len(data)) == data
        sender.join(DEADLINE_S)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
