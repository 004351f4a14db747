"""Pictures of the page in each of its states: python -m tests.browser.pictures FOLDER [STATE]"""

import asyncio
import sys
from pathlib import Path

from tests.browser.chromium import browsing, found
from tests.browser.scenes import LOSSES, STATES, Scene, served, trained
from tests.browser.test_page_states import opened_at

SHAPES = ((1280, False), (1280, True), (390, False), (390, True))


async def draw(folder: Path, only: str = "") -> None:
    program = found()
    assert program is not None, "no Chromium here: apt install chromium"
    folder.mkdir(parents=True, exist_ok=True)
    async with browsing(program) as tab:
        for name, (make, _) in STATES.items():
            if only not in ("", name):
                continue
            async with served(make()) as (url, _):
                for width, is_dark in SHAPES:
                    await tab.shape(width, 1000, is_dark=is_dark)
                    await opened_at(tab, url)
                    await asyncio.sleep(1.5)
                    if name == "stages":
                        await tab.run("document.getElementById('timeline-title').scrollIntoView()")
                    await tab.picture(folder / named(name, width, is_dark=is_dark))
        for width, is_dark in SHAPES if only in ("", "lost") else ():
            await tab.shape(width, 1000, is_dark=is_dark)
            async with served(Scene(trained(), LOSSES)) as (url, _):
                await opened_at(tab, url)
                await asyncio.sleep(1.5)
            await tab.until("!document.getElementById('lost').hidden")
            await tab.picture(folder / named("lost", width, is_dark=is_dark))


def named(state: str, width: int, *, is_dark: bool) -> str:
    return f"{state}-{width}-{'dark' if is_dark else 'light'}.png"


if __name__ == "__main__":
    asyncio.run(draw(Path(sys.argv[1]), *sys.argv[2:3]))
