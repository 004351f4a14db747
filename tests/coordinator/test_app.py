import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import pytest

from swarmtrain.coordinator import app as app_module
from swarmtrain.coordinator.app import seen_host
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.disk.store_errors import StoreFull
from swarmtrain.coordinator.door.admission import DoorClosed, add_invite
from swarmtrain.coordinator.shell import Keep, Outlet
from swarmtrain.foundation.control_lane import PEER_HEADER, SIGNATURE_HEADER, piece_payload
from swarmtrain.peer.network.control import DoorRefused
from swarmtrain_transport import limits
from swarmtrain_transport.actions import Append, SendToPeer
from swarmtrain_transport.credentials.identity import Identity, knock_payload
from swarmtrain_transport.wire.messages import (
    Challenge,
    Finished,
    Knock,
    LeaseGrant,
    LeaseRequest,
    Leave,
    Progress,
    Ready,
    Refused,
    Welcome,
    decode_from_coordinator,
    encode,
)
from swarmtrain_transport.wire.records import Record
from tests.coordinator.rig import (
    SECRET,
    Listener,
    Rig,
    client_of,
    connected,
    hello_of,
    join_body,
    run,
    serving,
)

ALICE, BOB = Identity.create(), Identity.create()
READY = Ready(1, 1, 0, bytes(32))

Talk = Callable[[aiohttp.ClientWebSocketResponse, Rig], Awaitable[None]]


class Text:
    """One training piece that compresses and one for validation."""

    plain = b"def main() -> None: ...\n" * 1000
    name = hashlib.sha256(plain).hexdigest()
    train = (name,)
    validation = (hashlib.sha256(b"v").hexdigest(),)

    def piece(self, piece_hash: str) -> bytes:
        return {self.name: self.plain, self.validation[0]: b"v"}[piece_hash]


async def talk_raw(tmp_path: Path, talk: Talk) -> None:
    """A client that says whatever the test wants."""
    async with serving(tmp_path) as rig, aiohttp.ClientSession() as session:
        pin = aiohttp.Fingerprint(rig.keys.cert_sha256)
        url = f"https://127.0.0.1:{rig.port}/control"
        async with session.ws_connect(url, ssl=pin) as socket:
            await talk(socket, rig)


async def refusal(socket: aiohttp.ClientWebSocketResponse) -> Refused:
    """The refusal, and that the connection ends after it."""
    message = decode_from_coordinator(await socket.receive_bytes())
    assert isinstance(message, Refused)
    assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
    return message


async def knock_well(socket: aiohttp.ClientWebSocketResponse, rig: Rig) -> None:
    challenge = decode_from_coordinator(await socket.receive_bytes())
    assert isinstance(challenge, Challenge) and len(challenge.nonce) == 32
    hello = encode(hello_of(ALICE))
    signature = ALICE.sign(knock_payload(challenge.nonce, rig.keys.cert_sha256, hello))
    await socket.send_bytes(
        encode(Knock(limits.PROTOCOL_VERSION, ALICE.peer_id, SECRET, hello, signature))
    )
    await socket.receive_bytes()


def test_a_peer_comes_in_talks_and_leaves(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            rig.machine.answer = lambda peer, message: (SendToPeer(peer, Finished(3)),)
            async with connected(rig.invite(), ALICE) as (client, listener):
                kind, peer, hello, invite_id = await rig.machine.hears("connected")
                assert (kind, peer) == ("connected", ALICE.peer_id)
                assert hello == hello_of(ALICE) and invite_id == rig.store.invites()[0].invite_id
                assert client.send(READY)
                assert await listener.hears(Finished) == Finished(3)
                assert (await rig.machine.hears("received"))[2] == READY
                assert client.send(Leave())
                await rig.machine.hears("disconnected")
            assert [record.index for record in rig.store.records()] == [0, 1]
            assert rig.store.invites()[0].uses == 1

    run(scene())


def test_the_last_use_of_an_invite_goes_to_one_of_two(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path, uses_max=1) as rig:
            async with connected(rig.invite(), ALICE):
                with pytest.raises(DoorRefused) as caught:
                    async with connected(rig.invite(), BOB):
                        pass
                assert (caught.value.code, caught.value.exit_status) == ("SWT-E311", 77)
            async with connected(rig.invite(), ALICE):
                assert rig.store.invites()[0].uses == 1

    run(scene())


@pytest.mark.parametrize(
    ("secret", "code"), [(b"f" * 16, "SWT-E313"), (b"revoked-revoked!", "SWT-E315")]
)
def test_a_forged_and_a_revoked_invite_are_refused_by_name(
    tmp_path: Path, secret: bytes, code: str
) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            row = add_invite(rig.store, b"revoked-revoked!", uses_max=0, expires_at=0.0, wall_s=0.0)
            rig.store.revoke_invite(row.invite_id)
            with pytest.raises(DoorRefused) as caught:
                async with connected(rig.invite(secret), ALICE):
                    pass
            assert caught.value.code == code and rig.machine.heard.empty()

    run(scene())


def test_a_second_process_of_a_connected_peer_is_refused_and_the_first_stays(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            rig.machine.elsewhere.add(ALICE.peer_id)  # counts only for who is connected
            async with connected(rig.invite(), ALICE) as (client, _):
                with pytest.raises(DoorRefused) as caught:
                    async with connected(rig.invite(), ALICE):
                        pass
                assert (caught.value.code, caught.value.exit_status) == ("SWT-E408", 75)
                assert client.send(READY)
                assert (await rig.machine.hears("received"))[2] == READY
            async with connected(rig.invite(), ALICE):
                pass

    run(scene())


def test_a_full_run_is_told_apart(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path, peers_max=1) as rig, connected(rig.invite(), ALICE):
            with pytest.raises(DoorRefused) as caught:
                async with connected(rig.invite(), BOB):
                    pass
            assert (caught.value.code, caught.value.exit_status) == ("SWT-E701", 75)

    run(scene())


def test_a_member_that_finds_the_run_full_waits_for_its_place(tmp_path: Path) -> None:
    async def scene() -> None:
        pauses: asyncio.Queue[float] = asyncio.Queue()

        async def pause(seconds: float) -> None:
            pauses.put_nowait(seconds)
            await asyncio.sleep(0.01)

        async with serving(tmp_path, peers_max=1) as rig:
            listener = Listener()
            async with connected(rig.invite(), ALICE):
                bob = client_of(rig.invite(), BOB, listener, pause=pause, waits=True)
                running = asyncio.create_task(bob.run())
                for _ in range(3):
                    await pauses.get()
                assert not running.done() and not bob.is_up
            rig.machine.members.clear()
            await listener.hears(Welcome)
            await bob.close()
            await running

    run(scene())


def test_a_peer_that_listens_everywhere_is_listed_where_it_came_from(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            serving(tmp_path) as rig,
            connected(rig.invite(), ALICE, hello=hello_of(ALICE, host="0.0.0.0")),
        ):
            event = await rig.machine.hears("connected")
            assert event[2].host == "127.0.0.1"

    run(scene())
    assert seen_host("", "192.0.2.1", "") == seen_host("::", "192.0.2.1", "") == "192.0.2.1"
    assert seen_host("198.51.100.7", "192.0.2.1", "") == "198.51.100.7"


@pytest.mark.parametrize("host", ["10.0.0.7", "192.168.1.7", "100.64.0.7", "fd00::7", "fe80::7"])
def test_a_private_address_is_told_to_everybody_only_where_it_was_seen(host: str) -> None:
    assert seen_host(host, "203.0.113.9", "203.0.113.1") == "203.0.113.9"
    assert seen_host(host, "192.168.1.7", "192.168.1.1") == host
    assert seen_host(host, "127.0.0.1", "127.0.0.1") == host
    assert seen_host("", "192.168.1.7", "192.168.1.1") == "192.168.1.7"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "127.9.9.9"])
def test_a_loopback_address_is_for_peers_of_the_coordinators_own_machine(host: str) -> None:
    assert seen_host(host, "127.0.0.1", "127.0.0.1") == host
    assert seen_host(host, "192.0.2.1", "192.0.2.1") == host
    with pytest.raises(DoorClosed, match="SWT-E205"):
        seen_host(host, "192.0.2.9", "192.0.2.1")


@pytest.mark.parametrize("first", [b"\xc1garbage", encode(Leave()), b""])
def test_a_stranger_who_does_not_knock_is_sent_away(tmp_path: Path, first: bytes) -> None:
    async def talk(socket: aiohttp.ClientWebSocketResponse, rig: Rig) -> None:
        await socket.receive_bytes()
        await socket.send_bytes(first)
        assert (await refusal(socket)).code == "SWT-E501"
        assert rig.machine.heard.empty()

    run(talk_raw(tmp_path, talk))


def test_a_stranger_who_says_nothing_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "KNOCK_TIMEOUT_S", 0.01)

    async def talk(socket: aiohttp.ClientWebSocketResponse, rig: Rig) -> None:
        await socket.receive_bytes()
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert rig.machine.heard.empty()

    run(talk_raw(tmp_path, talk))


@pytest.mark.parametrize(
    "data",
    [b"\xc1garbage", encode(hello_of(ALICE)), b"", "text"],
    ids=["garbage", "hello", "empty", "text"],
)
def test_nonsense_after_the_door_ends_the_connection_with_a_reason(
    tmp_path: Path, data: bytes | str
) -> None:
    async def talk(socket: aiohttp.ClientWebSocketResponse, rig: Rig) -> None:
        await knock_well(socket, rig)
        await (socket.send_str(data) if isinstance(data, str) else socket.send_bytes(data))
        assert (await refusal(socket)).code == "SWT-E501"
        await rig.machine.hears("disconnected")

    run(talk_raw(tmp_path, talk))


def test_a_message_over_the_limit_is_not_read(tmp_path: Path) -> None:
    async def talk(socket: aiohttp.ClientWebSocketResponse, rig: Rig) -> None:
        await knock_well(socket, rig)
        await socket.send_bytes(bytes(limits.CONTROL_BYTES_MAX + 1))
        await rig.machine.hears("disconnected")
        assert rig.machine.heard.empty() and not rig.shell.has_failed

    run(talk_raw(tmp_path, talk))


def test_leases_are_given_and_taken_back_at_the_end(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path, text=Text()) as rig:
            async with connected(rig.invite(), ALICE) as (client, listener):
                client.send(LeaseRequest(2))
                grant = await listener.hears(LeaseGrant)
                (leased,) = grant.train
                assert leased == (bytes.fromhex(Text.name), 0) and len(grant.validation) == 1
                assert await client.fetch_piece(leased.piece) == Text.plain
                assert list(rig.app._texts.leases[0].holders()) == [ALICE.peer_id]
            await rig.machine.hears("disconnected")
            assert not rig.app._texts.leases[0].holders()

    run(scene())


def test_pieces_are_for_members_who_prove_it(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path, text=Text()) as rig, aiohttp.ClientSession() as session:
            rig.machine.members.add(ALICE.peer_id)
            pin = aiohttp.Fingerprint(rig.keys.cert_sha256)
            digest = bytes.fromhex(Text.name)

            async def status(who: Identity, signed: bytes, path: str) -> int:
                headers = {PEER_HEADER: who.peer_id.hex(), SIGNATURE_HEADER: signed.hex()}
                url = f"https://127.0.0.1:{rig.port}/piece/{path}"
                async with session.get(url, headers=headers, ssl=pin) as answer:
                    return answer.status

            payload = piece_payload(rig.keys.cert_sha256, digest)
            other = piece_payload(rig.keys.cert_sha256, bytes(32))
            assert await status(ALICE, ALICE.sign(payload), Text.name) == 200
            assert await status(BOB, BOB.sign(payload), Text.name) == 403
            assert await status(ALICE, BOB.sign(payload), Text.name) == 403
            assert await status(ALICE, ALICE.sign(other), Text.name) == 403
            assert await status(ALICE, b"", Text.name) == 403
            assert await status(ALICE, ALICE.sign(other), bytes(32).hex()) == 404
            assert await status(ALICE, ALICE.sign(payload), "..%2f..%2fetc") == 404

    run(scene())


def test_health_is_told_and_a_coordinator_that_is_not_ready_lets_nobody_in(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, aiohttp.ClientSession() as session:
            pin = aiohttp.Fingerprint(rig.keys.cert_sha256)

            async def status(path: str) -> int:
                async with session.get(f"https://127.0.0.1:{rig.port}{path}", ssl=pin) as answer:
                    return answer.status

            assert (await status("/livez"), await status("/readyz")) == (200, 200)
            rig.app.is_ready = False
            assert (await status("/livez"), await status("/readyz")) == (200, 503)
            assert await status("/control") == 503

    run(scene())


def test_plain_http_and_old_tls_get_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://127.0.0.1:{rig.port}/livez")
            old = ssl.create_default_context()
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"https://127.0.0.1:{rig.port}/livez", ssl=old)

    run(scene())


def test_on_a_full_disk_the_peer_hears_nothing_of_the_decision(tmp_path: Path) -> None:
    # The decision is appended, then sent; the append fails, so the line is cut instead.
    def keep(store: Store) -> Keep:
        def until_full(*records: Record) -> None:
            if records[-1].index >= 2:
                store._db.connection.execute("PRAGMA max_page_count = 1")
            store.append(*records)

        return until_full

    async def scene() -> None:
        async with serving(tmp_path, keep=keep) as rig:
            big = "x" * 100_000
            rig.machine.answer = lambda peer, message: (
                Append(rig.machine.chain.next(join_body(bytes(32), big))),
                SendToPeer(peer, Finished(1)),
            )
            async with connected(rig.invite(), ALICE) as (client, listener):
                client.send(READY)
                await listener.hears("down")
                assert isinstance(rig.shell.failure.exception(), StoreFull)
                while not listener.events.empty():
                    assert not isinstance(listener.events.get_nowait(), Finished)
            assert len(rig.store.records()) == 2

    run(scene())


def test_many_messages_arrive_in_order(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, connected(rig.invite(), ALICE) as (client, listener):
            rig.machine.answer = lambda peer, message: (SendToPeer(peer, Finished(message.index)),)
            for number in range(500):
                assert client.send(Progress(number, 0, 0, "train"))
            for number in range(500):
                assert await listener.hears(Finished) == Finished(number)

    run(scene())


def test_a_coordinator_that_stops_ends_every_connection(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, connected(rig.invite(), ALICE) as (_, listener):
            rig.shell.stop()
            await listener.hears("down")

    run(scene())


@pytest.mark.parametrize(
    ("error", "is_refused"),
    [(aiohttp.ServerTimeoutError(), False), (aiohttp.WebSocketError(1009, "too long"), True)],
)
def test_a_peer_that_fell_silent_has_not_broken_the_protocol(
    tmp_path: Path, error: Exception, is_refused: bool
) -> None:
    async def ending() -> AsyncIterator[aiohttp.WSMessage]:
        yield aiohttp.WSMessage(aiohttp.WSMsgType.ERROR, error, None)

    async def scene() -> None:
        async with serving(tmp_path) as rig:
            outlet = Outlet(lambda: None)
            await rig.app._listen(ending(), ALICE.peer_id, outlet)
            outlet.finish()
            assert (await outlet.next() is not None) == is_refused

    run(scene())


def test_those_who_come_together_are_let_in_one_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member's message is heard between any two of them."""
    turns: list[int] = []

    async def scene() -> None:
        loop, turn = asyncio.get_running_loop(), 0

        def count() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count)

        async with serving(tmp_path) as rig:

            def let_in(*knock: Any) -> tuple[bytes, Outlet]:
                turns.append(turn)
                return bytes(32), Outlet(lambda: None)

            async def come(identity: Identity) -> None:
                knock = Knock(1, identity.peer_id, SECRET, encode(hello_of(identity)), bytes(64))
                await rig.app._at_the_door(*stranger(knock))

            async def no_wait(*knock: Any) -> None:
                return None

            monkeypatch.setattr(rig.app, "_let_in", let_in)
            monkeypatch.setattr(rig.app, "_slow_down", no_wait)
            loop.call_soon(count)
            await asyncio.gather(*(come(Identity.create()) for _ in range(5)))

    run(scene())
    assert len(turns) == len(set(turns)) == 5


def stranger(knock: Knock) -> tuple[Any, Any]:
    """A request, and a WebSocket by which a knock comes at once."""
    socket = mock.AsyncMock()
    socket.receive.return_value = aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, encode(knock), None)
    return mock.Mock(remote="127.0.0.1"), socket
