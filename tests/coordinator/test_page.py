"""The page over real TLS: who may look, what is answered, and what is refused."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from swarmtrain.config.settings import AdmissionSection
from swarmtrain.page.server import COOKIE
from swarmtrain_transport.credentials.invite import Invite
from tests.coordinator.rig import connected, run
from tests.coordinator.test_orders import obeyed, sent_away
from tests.coordinator.test_service import ALICE, CONFIG, living

BOUNDLESS = aiohttp.ClientTimeout(total=15)


@asynccontextmanager
async def shown(directory: Path, page: str = "link") -> AsyncIterator[tuple[str, str, Any]]:
    """Serve a run; its address, its link's secret, and a browser's session without a cookie."""
    config = msgspec.structs.replace(CONFIG, admission=AdmissionSection(page=page))
    links: list[str] = []
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with living(directory, config, on_page=links.append) as life:
        jar = aiohttp.CookieJar(unsafe=True)
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(
            connector=connector, cookie_jar=jar, timeout=BOUNDLESS
        ) as it:
            link = links[0] if links else f"https://127.0.0.1:{life.invite.port}/"
            base, _, secret = link.partition("#")
            yield base.rstrip("/"), secret, it


async def look(base: str, secret: str, browser: Any, **more: Any) -> int:
    async with browser.post(f"{base}/api/v1/look", json={"secret": secret}, **more) as answer:
        return int(answer.status)


async def status_of(browser: Any, url: str, **more: Any) -> int:
    async with browser.get(url, **more) as answer:
        return int(answer.status)


def test_a_stranger_sees_the_empty_page_and_nothing_of_the_run(tmp_path: Path) -> None:
    async def scene() -> None:
        async with shown(tmp_path) as (base, _, browser):
            async with browser.get(f"{base}/") as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "script-src 'self';" in policy and "default-src 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert "tests" not in await answer.text()
            for path in ("run", "peers", "rounds", "rounds/1", "events", "stream", "qr.svg"):
                assert await status_of(browser, f"{base}/api/v1/{path}") == 401, path
            for path in ("/metrics", "/plots.js"):
                assert await status_of(browser, base + path) == 401, path

    run(scene())


def test_a_link_opens_the_page_until_it_is_withdrawn(tmp_path: Path) -> None:
    async def scene() -> None:
        async with shown(tmp_path) as (base, secret, browser):
            assert await look(base, secret, browser) == 200
            (cookie,) = browser.cookie_jar
            assert cookie.key.startswith(f"{COOKIE}_") and cookie["httponly"] and cookie["secure"]
            assert cookie["samesite"] == "Strict" and secret not in cookie.value
            async with browser.get(f"{base}/api/v1/run") as answer:
                view = await answer.json()
            assert view["run"] == "tests" and view["state"] == "empty"
            bearer = {"Authorization": f"bearer  {secret}"}
            browser.cookie_jar.clear()
            assert await status_of(browser, f"{base}/api/v1/peers", headers=bearer) == 200
            assert await look(base, secret, browser) == 200
            await obeyed(tmp_path, "invite-revoke", invite="page")
            assert await status_of(browser, f"{base}/api/v1/run") == 401
            assert await look(base, secret, browser) == 401

    run(scene())


def test_neither_opens_the_others_door(tmp_path: Path) -> None:
    async def scene() -> None:
        async with shown(tmp_path) as (base, secret, browser):
            made = await obeyed(tmp_path, "invite-create", name="bob")
            invite = Invite.parse(made["invite"])
            assert await look(base, invite.secret.hex(), browser) == 401
            link = Invite(
                invite.host, invite.port, invite.run, invite.cert_sha256, bytes.fromhex(secret)
            )
            refusal = await sent_away(link, ALICE)
            assert refusal.code == "SWT-E313" and "lets no peer in" in str(refusal)

    run(scene())


def test_forged_cookies_and_guesses_open_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with shown(tmp_path) as (base, secret, browser):
            assert await look(base, secret, browser) == 200
            (cookie,) = browser.cookie_jar
            number, invite, seal = cookie.value.split(".")
            flipped = f"{int(seal[0], 16) ^ 1:x}{seal[1:]}"
            forged = (f"{number}.{invite}.{flipped}", f"{number}.public.{seal}", "..", "x" * 4000,
                      f"{number[::-1]}.{invite}.{seal}", "é.ü.ö", "a.b.\udcff")  # fmt: skip
            browser.cookie_jar.clear()
            for value in forged:
                headers = {"Cookie": f"{cookie.key}={value}"}
                assert await status_of(browser, f"{base}/api/v1/run", headers=headers) == 401
            for _ in range(11):
                assert await look(base, "00" * 16, browser) == 401
            assert await look(base, secret, browser) == 200, "guesses lock out nobody"

    run(scene())


def test_other_sites_and_malformed_requests_are_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with shown(tmp_path) as (base, secret, browser):
            far = {"Origin": "https://evil.example"}
            assert await look(base, secret, browser, headers=far) == 403
            assert await look(base, secret, browser) == 200
            assert await status_of(browser, f"{base}/api/v1/run", headers=far) == 403
            for data in (b"{", b"[]", b'{"secret": 1}', b'{"secret": "\xff"}', b"[" * 900,
                         b'{"secret": "' + b"0" * 5000 + b'"}'):  # fmt: skip
                async with browser.post(f"{base}/api/v1/look", data=data) as answer:
                    assert answer.status == 400
            for query in (
                "rounds?first=x",
                "rounds?points=1e9",
                "events?count=",
                "events?after=0x1",
            ):
                assert await status_of(browser, f"{base}/api/v1/{query}") == 400, query
            assert await status_of(browser, f"{base}/api/v1/rounds/7") == 404
            async with browser.post(f"{base}/api/v1/run") as answer:
                assert answer.status == 405, "nothing is changed from here"

    run(scene())


def test_the_stream_tells_who_comes(tmp_path: Path) -> None:
    async def scene() -> None:
        async with shown(tmp_path, "public") as (base, secret, browser):
            assert secret == "" and await look(base, "", browser) == 200
            invite = Invite.parse((await obeyed(tmp_path, "invite-create"))["invite"])
            async with browser.get(f"{base}/api/v1/stream") as stream:
                assert stream.content_type == "text/event-stream"
                assert (await told(stream))["peers"] == []
                async with connected(invite, ALICE):
                    while not (view := await told(stream))["peers"]:
                        pass
                    assert view["peers"][0]["name"] == "otter"
                    async with browser.get(f"{base}/api/v1/peers?format=csv") as answer:
                        rows = (await answer.text()).splitlines()
                        assert rows[0].startswith("peer,name,state") and len(rows) == 2

    run(scene())


async def told(stream: aiohttp.ClientResponse) -> dict[str, Any]:
    while True:
        line = await stream.content.readline()
        if line.startswith(b"data: "):
            found: dict[str, Any] = msgspec.json.decode(line[6:])
            return found


def test_so_many_pages_may_be_live_and_no_more(tmp_path: Path) -> None:
    async def scene() -> None:
        async with shown(tmp_path) as (base, secret, browser):
            await look(base, secret, browser)
            streams = [await browser.get(f"{base}/api/v1/stream") for _ in range(4)]
            assert {one.status for one in streams} == {200}
            assert await status_of(browser, f"{base}/api/v1/stream") == 503
            for one in streams:
                one.close()
            async with asyncio.timeout(10):
                while await status_of_stream(browser, base) != 200:
                    pass

    run(scene())


async def status_of_stream(browser: Any, base: str) -> int:
    answer = await browser.get(f"{base}/api/v1/stream")
    answer.close()
    return int(answer.status)


def test_a_run_may_be_shown_to_nobody(tmp_path: Path) -> None:
    async def scene() -> None:
        async with shown(tmp_path, "off") as (base, _, browser):
            assert await status_of(browser, f"{base}/") == 404
            assert await status_of(browser, f"{base}/livez") == 200

    run(scene())
