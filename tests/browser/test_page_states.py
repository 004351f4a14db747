"""The page in a real browser: each state at both widths, in light and in dark, and by keyboard.

Skipped where no Chromium is installed: `apt install chromium`.
"""

import asyncio

import pytest

from tests.browser.chromium import Tab, browsing, found
from tests.browser.scenes import LOSSES, STATES, Scene, served, trained
from tests.transport.hall import Hall
from tests.transport.rig import A

BROWSER = found()
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt install chromium"),
    pytest.mark.timeout(180),
]

READY = "document.getElementById('updated')?.textContent.startsWith('As of')"


async def opened_at(tab: Tab, url: str) -> None:
    await tab.open("about:blank")
    await tab.open(url)
    await tab.until(READY)


def test_each_state_is_told_in_words_and_fits_a_phone():
    async def scene() -> None:
        assert BROWSER is not None
        async with browsing(BROWSER) as tab:
            for name, (make, words) in STATES.items():
                async with served(make()) as (url, _):
                    for width, is_dark in ((1280, False), (390, True)):
                        await tab.shape(width, is_dark=is_dark)
                        await opened_at(tab, url)
                        headline = await tab.run("document.getElementById('headline').textContent")
                        assert headline.endswith(words), name
                        wide = await tab.run("document.documentElement.scrollWidth")
                        assert wide <= width, f"{name} is wider than {width}"
                    is_empty = name == "empty"
                    hidden = await tab.run("document.getElementById('join').hidden")
                    assert hidden is not is_empty, "how to join is shown where nobody is"
            assert not tab.errors

    asyncio.run(scene())


def test_a_lost_coordinator_leaves_the_last_data_and_their_time():
    async def scene() -> None:
        assert BROWSER is not None
        async with browsing(BROWSER) as tab:
            await tab.shape(1280)
            async with served(Scene(trained(), LOSSES)) as (url, _):
                await opened_at(tab, url)
            await tab.until("!document.getElementById('lost').hidden")
            told = await tab.run("document.getElementById('lost').textContent")
            assert "does not answer" in told and "what was known at" in told
            assert await tab.run("document.querySelectorAll('#peers tbody tr').length") == 3

    asyncio.run(scene())


def test_a_round_is_told_by_keyboard_and_the_past_is_scrubbed():
    async def scene() -> None:
        assert BROWSER is not None
        async with browsing(BROWSER) as tab:
            await tab.shape(1280)
            async with served(Scene(trained(), LOSSES)) as (url, _):
                await opened_at(tab, url)
                await tab.until("document.querySelector('#timeline [role=button]')")
                await tab.run("document.querySelector('#timeline [role=button]').focus()")
                for kind in ("keyDown", "keyUp"):
                    await tab.ask("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter")
                await tab.until("document.querySelectorAll('#story li').length > 1")
                await tab.until("Number(document.getElementById('scrub').max) >= 8")
                await tab.run(
                    "(() => { const s = document.getElementById('scrub'); s.value = 3;"
                    " s.dispatchEvent(new Event('input')); })()"
                )
                told = await tab.run("document.getElementById('scrub-words').textContent")
                assert told.startswith("merged, 3 peers")
                await tab.until("document.querySelector('#plot .main-svg')")
            assert not tab.errors

    asyncio.run(scene())


def test_names_of_peers_are_text_whatever_they_say():
    async def scene() -> None:
        assert BROWSER is not None
        name = "<img src=x onerror=alert(1)>"
        hall = Hall(start_peers=3)
        hall.join(A, name=name)
        async with browsing(BROWSER) as tab:
            await tab.shape(1280)
            async with served(Scene(hall, LOSSES)) as (url, _):
                await opened_at(tab, url)
                cell = await tab.run("document.querySelector('#peers tbody td').textContent")
                assert cell == name
                assert await tab.run("document.querySelectorAll('main img:not(#qr)').length") == 0

    asyncio.run(scene())
