"""Viewers in numbers: their connections are bounded, and members notice nothing."""

import asyncio
from pathlib import Path

import aiohttp

from swarmtrain.coordinator.door import listener
from swarmtrain_transport.credentials.invite import Invite
from tests.coordinator.rig import connected, run
from tests.coordinator.test_orders import obeyed
from tests.coordinator.test_page import look, shown, status_of
from tests.coordinator.test_service import ALICE


def test_viewers_have_so_many_connections_and_the_oldest_goes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(listener, "VIEWER_CONNECTIONS_MAX", 5)

    async def scene() -> None:
        async with shown(tmp_path, "public") as (base, _, browser):
            invite = Invite.parse((await obeyed(tmp_path, "invite-create"))["invite"])
            async with connected(invite, ALICE) as (_, heard):
                streams = []
                for _ in range(12):  # each is another viewer
                    browser.cookie_jar.clear()
                    assert await look(base, "", browser) == 200
                    streams.append(await browser.get(f"{base}/api/v1/stream"))
                ended = 0
                for stream in streams[:6]:
                    try:
                        async with asyncio.timeout(10):
                            while await stream.content.readline():
                                pass
                    except (OSError, aiohttp.ClientError):
                        pass
                    ended += 1
                assert ended == 6, "the oldest were let go"
                assert await status_of(browser, f"{base}/api/v1/run") == 200
                assert heard is not None  # the member's line stands
                told = await obeyed(tmp_path, "peers-ls")
                assert told["peers"][0]["state"] != "gone"
                for stream in streams:
                    stream.close()

    run(scene())


def test_a_body_that_comes_in_pieces_is_whole(tmp_path: Path) -> None:
    async def scene() -> None:
        async with shown(tmp_path, "public") as (base, _, browser):

            async def pieces():
                for piece in (b'{"sec', b'ret"', b': ""}'):
                    yield piece
                    await asyncio.sleep(0.01)

            async with browser.post(f"{base}/api/v1/look", data=pieces()) as answer:
                assert answer.status == 200

    run(scene())
