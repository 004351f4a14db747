import asyncio
import hashlib
import socket
from pathlib import Path
from typing import Any

import lz4.block
import pytest
from aiohttp import WSMsgType, web

from swarmtrain.coordinator.disk.certificate import KeyFiles, load_or_create
from swarmtrain.peer.network import control, patience
from swarmtrain.peer.network.control import (
    CoordinatorUnreachable,
    DoorRefused,
    WrongKey,
    frame_bytes,
)
from swarmtrain.peer.network.text_download import PieceRefused, unpack_piece
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.messages import (
    Challenge,
    Finished,
    Leave,
    Refused,
    Welcome,
    encode,
)
from tests.coordinator.rig import (
    SECRET,
    Listener,
    client_of,
    connected,
    run,
    scripted,
    serving,
)

ALICE = Identity.create()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Pauses:
    """Remembers how long it should have waited, and waits for nothing."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


def test_a_coordinator_that_does_not_answer_is_reported_after_growing_pauses() -> None:
    async def scene() -> None:
        invite = Invite("127.0.0.1", free_port(), "demo", bytes(32), SECRET)
        pauses, listener = Pauses(), Listener()
        client = client_of(invite, ALICE, listener, pause=pauses)
        with pytest.raises(CoordinatorUnreachable) as caught:
            await client.run()
        assert (caught.value.code, caught.value.exit_status) == ("SWT-E203", 69)
        assert f"127.0.0.1:{invite.port}" in caught.value.what and "6 tries" in caught.value.what
        assert len(pauses.seconds) == patience.FIRST_TRIES - 1
        for number, seconds in enumerate(pauses.seconds):
            longest = patience.PAUSE_FIRST_S * 2**number
            assert longest / 2 <= seconds <= longest
        assert listener.events.empty()
        await client.close()

    run(scene())


def test_who_waits_comes_in_when_the_coordinator_is_started_and_says_what_it_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        port, keys = free_port(), load_or_create(KeyFiles(tmp_path), may_create=True, wall_s=0.0)
        invite = Invite("127.0.0.1", port, "demo", keys.cert_sha256, SECRET)
        tries, listener = Pauses(), Listener()
        client = client_of(
            invite, ALICE, listener, pause=tries, waits=True, holding=lambda: "It has a state."
        )
        running = asyncio.create_task(client.run())
        while len(tries.seconds) < 3 * patience.FIRST_TRIES:
            await asyncio.sleep(0)
            assert not running.done()
        said = [record.message for record in caplog.records if "does not answer" in record.message]
        assert len(said) == 3  # the 1st, 4th and 16th
        assert f"127.0.0.1:{port}" in said[0] and "Connection refused" in said[0]
        assert "Waiting until it does" in said[0]
        assert ["It has a state." in one for one in said] == [False, False, True]
        async with serving(tmp_path, port=port):
            await listener.hears(Welcome)
            assert caplog.records[-1].message.endswith("answers.")
            await client.close()
        await running

    with caplog.at_level("INFO"):
        run(scene())


def test_another_certificate_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async def scene() -> None:
        heard: list[str] = []

        async def handler(request: web.Request) -> web.StreamResponse:
            heard.append(request.path)
            return web.Response()

        async with scripted(tmp_path, handler) as (invite, _):
            other = Invite(invite.host, invite.port, "demo", b"o" * 32, SECRET)
            client = client_of(other, ALICE, Listener())
            with pytest.raises(WrongKey) as caught:
                await client.run()
            assert (caught.value.code, caught.value.exit_status) == ("SWT-E301", 77)
            assert heard == [] and client.bytes_out == 0

    run(scene())


def test_a_server_without_tls_counts_as_unreachable() -> None:
    async def scene() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail.example ESMTP\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            invite = Invite(
                "127.0.0.1", server.sockets[0].getsockname()[1], "demo", bytes(32), SECRET
            )
            with pytest.raises(CoordinatorUnreachable):
                await client_of(invite, ALICE, Listener()).run()

    run(scene())


def test_a_refusal_at_the_door_ends_the_client_with_the_coordinators_words(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            listener = Listener()
            with pytest.raises(DoorRefused) as caught:
                await client_of(rig.invite(b"f" * 16), ALICE, listener).run()
            assert caught.value.code == "SWT-E313" and "never gave out" in caught.value.what
            assert listener.events.empty()

    run(scene())


def test_it_comes_back_by_itself_when_the_coordinator_is_started_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            invite, port = rig.invite(), rig.port
            listener = Listener()
            client = client_of(invite, ALICE, listener)
            running = asyncio.create_task(client.run())
            assert await listener.hears("up") == ("up", True)
            assert (await listener.hears(Welcome)).term == 1
            assert client.is_up
        await listener.hears("down")
        assert not client.is_up and not client.send(Leave())
        async with serving(tmp_path, port=port) as rig:
            assert rig.invite() == invite
            assert await listener.hears("up") == ("up", False)
            assert (await listener.hears(Welcome)).term == 2
            assert (await rig.machine.hears("connected"))[3] == ""
            assert rig.store.invites()[0].uses == 1
            await client.close()
        await running
        await client.close()

    run(scene())


def test_what_was_queued_is_sent_before_it_closes(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, connected(rig.invite(), ALICE) as (client, listener):
            for _ in range(100):
                assert client.send(Leave("first"))
            client.send(Leave("last"))
            await client.close()
            assert not client.send(Leave())
            await listener.hears("down")
            assert (await rig.machine.hears("received"))[2] == Leave("first")

    run(scene())


def test_it_can_be_closed_before_it_was_ever_up() -> None:
    async def scene() -> None:
        asleep, forever = asyncio.Event(), asyncio.Event()

        async def pause(seconds: float) -> None:
            asleep.set()
            await forever.wait()

        invite = Invite("127.0.0.1", free_port(), "demo", bytes(32), SECRET)
        client = client_of(invite, ALICE, Listener(), pause=pause)
        running = asyncio.create_task(client.run())
        await asleep.wait()
        await client.close()
        await running
        assert len(asyncio.all_tasks()) <= 2

    run(scene())


def test_bytes_are_counted_with_their_frames(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, connected(rig.invite(), ALICE) as (client, _):
            before = client.bytes_out
            message = Leave("x" * 200)
            client.send(message)
            await rig.machine.hears("received")
            assert client.bytes_out - before == len(encode(message)) + 8
            assert client.bytes_in > len(encode(Welcome(1, "demo", bytes(32), b"", 0)))

    run(scene())
    assert [frame_bytes(n, is_masked=False) for n in (0, 125, 126, 65535, 65536)] == [
        2, 127, 130, 65539, 65546,
    ]  # fmt: skip


def conversation(*words: bytes | str) -> Any:
    async def handler(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for word in words:
            await (socket.send_str(word) if isinstance(word, str) else socket.send_bytes(word))
        while (await socket.receive()).type is WSMsgType.BINARY:
            pass
        return socket

    return handler


CHALLENGE = encode(Challenge(bytes(32), (1,)))
WELCOME = encode(Welcome(1, "demo", bytes(32), b"", 0))


@pytest.mark.parametrize(
    "words",
    [
        (b"\xc1",),
        (encode(Finished(1)),),
        ("text",),
        (CHALLENGE, b"junk"),
        (CHALLENGE, WELCOME, b""),
    ],
)
def test_a_coordinator_that_breaks_the_protocol_is_named(
    tmp_path: Path, words: tuple[bytes | str, ...]
) -> None:
    async def scene() -> None:
        async with scripted(tmp_path, conversation(*words)) as (invite, _):
            with pytest.raises(RemoteFault):
                await client_of(invite, ALICE, Listener()).run()

    run(scene())


def test_a_later_refusal_ends_the_client_and_unknown_codes_are_not_believed(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        later = conversation(CHALLENGE, WELCOME, encode(Refused("SWT-E702", "removed\x1b[2J")))
        async with scripted(tmp_path, later) as (invite, _):
            listener = Listener()
            with pytest.raises(DoorRefused) as caught:
                await client_of(invite, ALICE, listener).run()
            assert caught.value.code == "SWT-E702" and "\x1b" not in caught.value.what
            await listener.hears("down")
        unknown = conversation(CHALLENGE, encode(Refused("SWT-X1", "send money")))
        async with scripted(tmp_path, unknown) as (invite, _):
            with pytest.raises(DoorRefused) as caught:
                await client_of(invite, ALICE, Listener()).run()
            assert caught.value.code == "SWT-E501"

    run(scene())


def test_what_the_handler_raises_ends_the_client(tmp_path: Path) -> None:
    class Broken(Listener):
        def on_message(self, message: Any) -> None:
            raise ZeroDivisionError

    async def scene() -> None:
        async with serving(tmp_path) as rig:
            with pytest.raises(ZeroDivisionError):
                await client_of(rig.invite(), ALICE, Broken()).run()

    run(scene())


def test_a_wrong_key_later_is_weather_at_first_and_then_reported(tmp_path: Path) -> None:
    # A login page of a network may answer for a while; a coordinator made anew answers for good.
    async def scene() -> None:
        pauses, listener = Pauses(), Listener()
        async with serving(tmp_path / "one") as rig:
            port = rig.port
            client = client_of(rig.invite(), ALICE, listener, pause=pauses)
            running = asyncio.create_task(client.run())
            await listener.hears("up")
        async with serving(tmp_path / "two", port=port):
            with pytest.raises(WrongKey):
                await running
        assert len(pauses.seconds) >= control.WRONG_KEY_TRIES - 1

    run(scene())


def test_a_piece_is_asked_for_again_when_the_line_breaks(tmp_path: Path) -> None:
    plain = b"text " * 1000
    digest = hashlib.sha256(plain).digest()
    asked = 0

    async def scene() -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            nonlocal asked
            if request.path == "/control":
                return await conversation(CHALLENGE, WELCOME)(request)
            asked += 1
            if asked == 1:
                return web.Response(status=503)
            if asked == 2:
                assert request.transport is not None
                request.transport.abort()
            return web.Response(body=lz4.block.compress(plain))

        async with scripted(tmp_path, handler) as (invite, _):
            listener = Listener()
            client = client_of(invite, ALICE, listener)
            running = asyncio.create_task(client.run())
            await listener.hears("up")
            assert await client.fetch_piece(digest) == plain
            assert asked == 3
            with pytest.raises(PieceRefused, match="1 are allowed"):
                await client.fetch_piece(digest, bytes_max=1)
            with pytest.raises(PieceRefused, match="hash"):
                await client.fetch_piece(bytes(32))
            await client.close()
            await running
            with pytest.raises(CoordinatorUnreachable):
                await client.fetch_piece(digest)

    run(scene())


def test_a_piece_that_unpacks_to_more_than_it_may_is_refused_before_unpacking() -> None:
    bomb = lz4.block.compress(bytes(1 << 20))
    assert len(bomb) < 1 << 14
    with pytest.raises(PieceRefused, match="1048576 bytes long"):
        unpack_piece(bomb, bytes(32), 65_536)
    lying = (100).to_bytes(4, "little") + bomb[4:]
    for data in (lying, b"", b"\1", b"\5\0\0\0", b"\5\0\0\0\xff\xff"):
        with pytest.raises(PieceRefused):
            unpack_piece(data, bytes(32), 65_536)


def test_a_coordinator_that_does_not_read_is_given_up_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "OUTGOING_MAX", 2)

    async def scene() -> None:
        async with serving(tmp_path) as rig:
            listener = Listener()
            client = client_of(rig.invite(), ALICE, listener)
            running = asyncio.create_task(client.run())
            await listener.hears("up")
            assert [client.send(Leave()) for _ in range(3)] == [True, True, False]
            await listener.hears("down")
            assert await listener.hears("up") == ("up", False)
            await client.close()
            await running

    run(scene())


def test_the_next_coordinator_of_the_invite_is_tried_where_one_does_not_answer(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            pauses, listener = Pauses(), Listener()
            known = rig.invite()
            here = known.host, known.port
            invite = known.at(("127.0.0.1", free_port()), here)
            client = client_of(invite, ALICE, listener, pause=pauses)
            running = asyncio.create_task(client.run())
            await listener.hears(Welcome)
            assert client.address == here and pauses.seconds == [0.0]
            await client.close()
            await running

    run(scene())


def test_a_coordinator_that_stands_by_at_no_address_is_a_fault(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            listener = Listener()
            client = client_of(rig.invite(), ALICE, listener)
            running = asyncio.create_task(client.run())
            await listener.hears(Welcome)
            rig.shell.spread((("no host!", 1),))
            with pytest.raises(RemoteFault, match="address"):
                await running

    run(scene())


def test_a_coordinator_that_sleeps_is_left_for_the_next_one_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system takes connections for a process that is stopped, and nobody answers."""
    monkeypatch.setattr(control, "CONNECT_TIMEOUT_FIRST_S", 0.05)

    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as asleep:
            async with serving(tmp_path) as rig:
                known, listener = rig.invite(), Listener()
                here = known.host, known.port
                invite = known.at(asleep.getsockname(), here)
                client = client_of(invite, ALICE, listener)
                running = asyncio.create_task(client.run())
                await listener.hears(Welcome)
                assert client.address == here
                await client.close()
                await running

    run(scene())
