"""Pictures of the page in each of its states: python -m tests.browser.pictures FOLDER"""

import asyncio
import sys
from pathlib import Path

from tests.browser.chromium import browsing, found
from tests.browser.scenes import STATES, served
from tests.browser.test_page_states import opened_at


async def draw(folder: Path) -> None:
    program = found()
    assert program is not None, "no Chromium here: apt install chromium"
    folder.mkdir(parents=True, exist_ok=True)
    async with browsing(program) as tab:
        for name, (make, _) in STATES.items():
            async with served(make()) as (url, _):
                for width, is_dark in ((1280, False), (1280, True), (390, False), (390, True)):
                    await tab.shape(width, 1000, is_dark=is_dark)
                    await opened_at(tab, url)
                    await asyncio.sleep(1.5)
                    scheme = "dark" if is_dark else "light"
                    await tab.picture(folder / f"{name}-{width}-{scheme}.png")


if __name__ == "__main__":
    asyncio.run(draw(Path(sys.argv[1])))
