"""A member that floods, over real sockets: it is held back, cut and named; nobody else notices."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from swarmtrain.coordinator.app import REQUEST_COST
from swarmtrain.coordinator.door import budget, listener
from swarmtrain.coordinator.door.budget import FEW, Budgets, Rate
from swarmtrain.foundation.control_lane import PEER_HEADER, SIGNATURE_HEADER, piece_payload
from swarmtrain.status import ask
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import Identity, knock_payload
from swarmtrain_transport.wire.messages import (
    Applied,
    Challenge,
    Got,
    Have,
    History,
    Knock,
    Leased,
    LeaseGrant,
    LeaseRequest,
    Leave,
    Message,
    Progress,
    Ready,
    Refused,
    SliceDone,
    Welcome,
    decode_from_coordinator,
    encode,
    weigh,
)
from tests.coordinator.rig import SECRET, Rig, connected, hello_of, run, serving
from tests.coordinator.test_app import Text
from tests.coordinator.test_service import Life, living

ALICE, MALLORY = Identity.create(), Identity.create()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates are the true ones, the patience is a test's."""
    monkeypatch.setattr(budget, "PATIENCE_S", 0.5)


async def come_in(
    session: aiohttp.ClientSession, place: Rig | Life, who: Identity
) -> aiohttp.ClientWebSocketResponse:
    """A hand-made client, which keeps to nothing."""
    invite = place.invite() if isinstance(place, Rig) else place.invite
    url = f"https://127.0.0.1:{invite.port}/control"
    socket = await session.ws_connect(url, ssl=aiohttp.Fingerprint(invite.cert_sha256))
    challenge = decode_from_coordinator(await socket.receive_bytes())
    assert isinstance(challenge, Challenge)
    hello = encode(hello_of(who))
    signature = who.sign(knock_payload(challenge.nonce, invite.cert_sha256, hello))
    await socket.send_bytes(
        encode(Knock(limits.PROTOCOL_VERSION, who.peer_id, invite.secret, hello, signature))
    )
    return socket


async def said(socket: aiohttp.ClientWebSocketResponse) -> object:
    """The next message, None at the end."""
    try:
        received = await socket.receive()
    except ConnectionError:
        return None
    if received.type is not aiohttp.WSMsgType.BINARY:
        return None
    return decode_from_coordinator(received.data)


async def flood(socket: aiohttp.ClientWebSocketResponse, message: Message | bytes) -> object:
    """The same without end, until the coordinator has cut the line; its last word."""

    async def send() -> None:
        data = message if isinstance(message, bytes) else encode(message)
        with contextlib.suppress(ConnectionError):
            while not socket.closed:
                for _ in range(100):
                    if isinstance(message, bytes):
                        await socket.ping(data)
                    else:
                        await socket.send_bytes(data)
                await asyncio.sleep(0)

    sending = asyncio.create_task(send())
    last: object = None
    while (word := await said(socket)) is not None:
        last = word
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    return last


LARGE = {
    "got": Got(7, 0, 0, {number.to_bytes(32, "big"): bytes(32) for number in range(800)}),
    "have": Have(7, 0, 0, 1, (True,) * 120_000),
    "slice_done": SliceDone(7, 0, 0, 1, (bytes(32),) * 100_000, bytes(32), bytes(64)),
    "history": History(0, (bytes(3 << 20),)),
    "lease_request": LeaseRequest(1, (Leased(bytes(32), 0),) * 8192),
    "leave": Leave("x" * 4000),
}


@pytest.mark.parametrize("kind", LARGE)
def test_few_large_messages_are_a_flood_too(kind: str) -> None:
    """One of the largest each second, or two MiB of those that are small, is more than it needs."""
    weight = weigh(encode(LARGE[kind]))
    assert weight.kind == kind
    one, now_s = budget.Budget(0.0), 0.0
    while not one.is_spent(now_s):
        now_s += min(1.0, weight.cost / (2 << 20)) + one.hear(kind, weight.cost, now_s)
        assert now_s < 60.0


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (encode(Got(7, 0, 0, {n.to_bytes(32, "big"): bytes(32) for n in range(60_000)})), "length"),
        (encode(Have(1, 0, 0, 1, (True,) * 131_072)), "length"),
        (b"\x81\xa1t\xa5leave" + b"\x90" * 900, "msgpack"),
        (encode(Ready(1, 1, 0, b"no hash")), "hash"),
    ],
)
def test_who_says_what_no_member_says_is_named_and_not_let_in_for_a_while(
    tmp_path: Path, message: bytes, reason: str
) -> None:
    async def scene() -> None:
        async with (
            living(tmp_path) as life,
            connected(life.invite, ALICE) as (client, _),
            aiohttp.ClientSession() as session,
        ):
            socket = await come_in(session, life, MALLORY)
            assert isinstance(await said(socket), Welcome)
            await socket.send_bytes(message)
            while (word := await said(socket)) is not None:
                last = word
            assert isinstance(last, Refused) and last.code == "SWT-E501"
            word = await said(await come_in(session, life, MALLORY))
            assert isinstance(word, Refused) and word.code == "SWT-E709" and client.is_up
            status = await asyncio.to_thread(ask, tmp_path)
            (event,) = [one for one in status["events"] if one["event"] == "fault"]
            assert (event["peer"], event["reason"]) == (MALLORY.peer_id.hex(), reason)

    run(scene())


def test_fragments_that_become_no_message_end_the_line_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "WORDLESS_BYTES_MAX", 1 << 18)

    async def scene() -> None:
        async with living(tmp_path) as life, aiohttp.ClientSession() as session:
            socket = await come_in(session, life, MALLORY)
            assert isinstance(await said(socket), Welcome)
            transport = socket._writer.transport
            empty = b"\x80\0\0\0\0"  # the rest of a frame's head
            transport.write(b"\x02" + empty)
            while not transport.is_closing():
                transport.write((b"\0" + empty) * 1000)
                await asyncio.sleep(0.001)
            word = await said(await come_in(session, life, MALLORY))
            assert isinstance(word, Refused) and word.code == "SWT-E709"
            status = await asyncio.to_thread(ask, tmp_path)
            (event,) = [one for one in status["events"] if one["event"] == "fault"]
            assert (event["peer"], event["reason"]) == (MALLORY.peer_id.hex(), "length")

    run(scene())


def test_a_ledger_that_was_asked_for_is_heard_however_long_it_is(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, connected(rig.invite(), ALICE) as (client, _):
            rig.machine.asked.add(ALICE.peer_id)
            for _ in range(80):
                assert client.send(History(0, (bytes(1 << 20),)))
                await rig.machine.hears("received")
            assert client.is_up

    run(scene())


FLOODS = {
    "lease_request": LeaseRequest(1),
    "applied": Applied(1, bytes(32)),
    "progress": Progress(0, 0, 0, "train"),
    "have": Have(1, 0, 0, 1, (True,) * 4000),
    "websocket ping": b"hear me",
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_is_cut_and_named_and_an_honest_member_is_heard_meanwhile(
    tmp_path: Path, kind: str
) -> None:
    async def scene() -> None:
        told: list[tuple[bytes, str, str]] = []
        async with (
            serving(tmp_path, text=Text()) as rig,
            connected(rig.invite(), ALICE) as (client, listener),
            aiohttp.ClientSession() as session,
        ):
            rig.app._complain = lambda *what: told.append(what)
            socket = await come_in(session, rig, MALLORY)
            flooding = asyncio.create_task(flood(socket, FLOODS[kind]))
            answers = 0
            while not flooding.done():
                assert client.send(LeaseRequest(1))
                await listener.hears(LeaseGrant)
                answers += 1
                await asyncio.sleep(1 / FEW.per_s)
            last = await flooding
            assert last is None or isinstance(last, LeaseGrant | Welcome | Refused)
            assert told == [(MALLORY.peer_id, "flood", kind)]
            assert answers >= 3 and client.is_up

    run(scene())


def test_the_flooder_is_not_let_in_for_a_while_and_status_names_it(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            living(tmp_path) as life,
            connected(life.invite, ALICE) as (client, _),
            aiohttp.ClientSession() as session,
        ):
            socket = await come_in(session, life, MALLORY)
            await flood(socket, LeaseRequest(1))
            word = await said(await come_in(session, life, MALLORY))
            assert isinstance(word, Refused) and word.code == "SWT-E709"
            assert re.search(r"Wait 1[0-5] s", word.text) and client.is_up
            status = await asyncio.to_thread(ask, tmp_path)
            (event,) = [one for one in status["events"] if one["event"] == "flood"]
            assert event["peer"] == MALLORY.peer_id.hex()
            assert event["reason"] == "lease_request"

    run(scene())


def test_a_peer_of_ours_that_was_asked_to_slow_down_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "BLOCKED_FIRST_S", 0.2)

    async def scene() -> None:
        async with (
            serving(tmp_path) as rig,
            connected(rig.invite(), ALICE, pause=asyncio.sleep) as (_, listener),
        ):
            rig.app._budgets.of(ALICE.peer_id, 0.0).cut(rig.shell.now_s())
            rig.shell._outlets[ALICE.peer_id].refuse("SWT-E709", "Too many messages (applied).")
            await listener.hears("down")
            await listener.hears(Welcome)

    run(scene())


def test_who_comes_again_and_again_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "HELLOS", Rate(0.01, 3))

    async def scene() -> None:
        async with serving(tmp_path) as rig, aiohttp.ClientSession() as session:
            words = []
            for _ in range(6):
                socket = await come_in(session, rig, MALLORY)
                words.append(await said(socket))
                await socket.close()
            kinds = [type(word) for word in words]
            assert kinds[:3] == [Welcome] * 3 and kinds[4:] == [Refused] * 2
            assert isinstance(words[-1], Refused) and words[-1].code == "SWT-E709"
            async with connected(rig.invite(), ALICE):
                pass

    run(scene())


def test_nobody_spends_the_tries_of_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "HELLOS", Rate(0.01, 3))

    async def scene() -> None:
        async with serving(tmp_path) as rig, aiohttp.ClientSession() as session:
            pin = aiohttp.Fingerprint(rig.keys.cert_sha256)
            for _ in range(8):
                async with session.ws_connect(
                    f"https://127.0.0.1:{rig.port}/control", ssl=pin
                ) as socket:
                    await socket.receive_bytes()
                    knock = Knock(
                        limits.PROTOCOL_VERSION,
                        ALICE.peer_id,
                        SECRET,
                        encode(hello_of(ALICE)),
                        bytes(64),
                    )
                    await socket.send_bytes(encode(knock))
                    word = await said(socket)
                    assert isinstance(word, Refused) and word.code == "SWT-E303"
            async with connected(rig.invite(), ALICE):
                pass

    run(scene())


def test_requests_that_fail_are_counted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a connection that has proved whose it is once, each further request costs its member."""
    rate = Rate(REQUEST_COST, 10 * REQUEST_COST)
    monkeypatch.setattr(budget, "BYTES_OUT", rate)
    waits: list[float] = []

    async def scene() -> None:
        async with serving(tmp_path, text=Text()) as rig, aiohttp.ClientSession() as session:
            rig.machine.members.add(MALLORY.peer_id)
            rig.app._charge = charged(rig, waits)  # type: ignore[method-assign]
            url = f"https://127.0.0.1:{rig.port}/piece/{Text.name}"
            payload = piece_payload(rig.keys.cert_sha256, bytes.fromhex(Text.name))
            headers = {PEER_HEADER: MALLORY.peer_id.hex()}
            good = {SIGNATURE_HEADER: MALLORY.sign(payload).hex(), **headers}
            for number in range(30):
                signed = good if not number else {SIGNATURE_HEADER: bytes(64).hex(), **headers}
                async with session.get(url, headers=signed, ssl=False) as answer:
                    assert answer.status == (403 if number else 200)

    run(scene())
    assert not any(waits[:9]) and min(waits[12:]) > 0


def charged(rig: Rig, waits: list[float]) -> Callable[[Budgets, bytes, int], Awaitable[None]]:
    """As the application does, without the waiting."""

    async def charge(books: Budgets, peer: bytes, num_bytes: int) -> None:
        now_s = rig.shell.now_s()
        waits.append(books.of(peer, now_s).answer(num_bytes, now_s))

    return charge
