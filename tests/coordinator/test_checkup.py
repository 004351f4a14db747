"""Questions of who has not joined: judged as at the door, dialled where they come from, bounded."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from swarmtrain.coordinator.door.admission import FAILED_KNOCKS_MAX
from swarmtrain.coordinator.door.checkup import MEASURED_AT_ONCE
from swarmtrain.foundation.control_lane import CHECK_BYTES, CHECK_PART_BYTES, CHECK_PATH
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import Identity, knock_payload
from swarmtrain_transport.wire.messages import (
    Challenge,
    Hello,
    Knock,
    Leave,
    decode_from_coordinator,
    encode,
)
from tests.coordinator.rig import SECRET, Rig, run, serving

ALICE = Identity.create()
ENDS = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING,
        aiohttp.WSMsgType.ERROR)  # fmt: skip


@asynccontextmanager
async def asking(rig: Rig) -> AsyncIterator[tuple[aiohttp.ClientWebSocketResponse, bytes]]:
    """A connection that was challenged."""
    pin = aiohttp.Fingerprint(rig.keys.cert_sha256)
    url = f"https://127.0.0.1:{rig.port}{CHECK_PATH}"
    async with aiohttp.ClientSession() as session, session.ws_connect(url, ssl=pin) as socket:
        challenge = decode_from_coordinator(await socket.receive_bytes())
        assert isinstance(challenge, Challenge)
        yield socket, challenge.nonce


def knock(
    rig: Rig, nonce: bytes, *, port: int = 0, host: str = "", secret: bytes = SECRET,
    identity: Identity = ALICE,
) -> bytes:  # fmt: skip
    hello = encode(Hello(bytes(8), "doctor", identity.curve_key, host, port, -1, b"", 0))
    signature = identity.sign(knock_payload(nonce, rig.keys.cert_sha256, hello))
    return encode(Knock(limits.PROTOCOL_VERSION, identity.peer_id, secret, hello, signature))


async def answer(rig: Rig, **said: Any) -> dict[str, Any]:
    async with asking(rig) as (socket, nonce):
        await socket.send_bytes(knock(rig, nonce, **said))
        told: dict[str, Any] = json.loads(await socket.receive_str())
        return told


def tries(rig: Rig) -> list[tuple[str, int]]:
    """Have the coordinator note whom it dials, and reach nobody."""
    dialled: list[tuple[str, int]] = []

    async def opens(host: str, port: int) -> None:
        dialled.append((host, port))
        raise OSError

    rig.app._checkup._dialler._opens = opens
    return dialled


def test_only_the_address_that_a_question_comes_from_is_dialled_and_seldom(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            dialled = tries(rig)
            told = await answer(rig, host="192.0.2.7", port=4242)
            assert dialled == [("127.0.0.1", 4242)]
            assert (told["code"], told["is_reached"], told["host"]) == ("", False, "127.0.0.1")
            for number in range(5):
                told = await answer(rig, port=number + 1, identity=Identity.create())
                assert (told["is_reached"], told["num_bytes"]) == (None, 0)
            assert len(dialled) == 1
            assert rig.machine.heard.empty() and not rig.app._door._promised

    run(scene())


def test_who_would_be_refused_is_not_dialled_and_has_used_a_try(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            dialled = tries(rig)
            for _ in range(FAILED_KNOCKS_MAX):
                told = await answer(rig, port=4242, secret=b"f" * 16)
                assert (told["code"], told["num_bytes"]) == ("SWT-E313", 0)
            assert (await answer(rig, port=4242))["code"] == "SWT-E704"
            assert dialled == []

    run(scene())


@pytest.mark.parametrize("said", [b"", b"\x81\xa1t\xa5knock", encode(Leave()), bytes(9000)])
def test_what_is_no_knock_is_refused(tmp_path: Path, said: bytes) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, asking(rig) as (socket, _):
            await socket.send_bytes(said)
            assert json.loads(await socket.receive_str())["code"] == "SWT-E501"
            assert (await socket.receive()).type in ENDS

    run(scene())


def test_a_signature_over_another_nonce_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, asking(rig) as (socket, _):
            await socket.send_bytes(knock(rig, bytes(32)))
            assert json.loads(await socket.receive_str())["code"] == "SWT-E303"

    run(scene())


async def pour(socket: aiohttp.ClientWebSocketResponse, num_bytes: int) -> None:
    for _ in range(num_bytes // CHECK_PART_BYTES):
        await socket.send_bytes(bytes(CHECK_PART_BYTES))


def test_a_stranger_may_send_no_more_than_it_was_told(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            async with asking(rig) as (socket, nonce):
                await socket.send_bytes(knock(rig, nonce))
                assert json.loads(await socket.receive_str())["num_bytes"] == CHECK_BYTES
                came = 0
                while (message := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
                    came += len(message.data)
                assert came <= CHECK_BYTES and message.data == "sent"
                with pytest.raises(ConnectionError):
                    await pour(socket, 4 * CHECK_BYTES)
                    await socket.send_str("sent")
                    if (await socket.receive()).type in ENDS:
                        raise ConnectionError
            # Another, which may measure nothing, is cut as any stranger is.
            async with asking(rig) as (socket, nonce):
                await socket.send_bytes(knock(rig, nonce))
                assert json.loads(await socket.receive_str())["num_bytes"] == 0
                assert (await socket.receive()).type in ENDS
            while rig.app._checkup._measured:  # its turn comes; `run` bounds it
                await asyncio.sleep(0)

    run(scene())


def test_few_lines_are_measured_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            rig.app._checkup._measured = MEASURED_AT_ONCE
            assert (await answer(rig))["num_bytes"] == 0

    run(scene())


def test_nothing_is_answered_before_the_coordinator_is_ready(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            rig.app.is_ready = False
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                async with asking(rig):
                    pass
            assert caught.value.status == 503
            await asyncio.sleep(0)

    run(scene())
