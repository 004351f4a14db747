"""A headless Chromium, driven over its own DevTools protocol: no driver to install beside it."""

import asyncio
import base64
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_S = 40.0


def found() -> str | None:
    """The browser of this machine, None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.errors: list[str] = []

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Carry out a command, and note what the page complains of meanwhile."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            told = json.loads((await self._socket.receive()).data)
            if told.get("id") == number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']['message']}")
                result: dict[str, Any] = told["result"]
                return result
            self._note(told)

    def _note(self, told: dict[str, Any]) -> None:
        if told.get("method") == "Log.entryAdded":
            entry = told["params"]["entry"]
            # A page without a link, and one whose coordinator is gone, are answered so on purpose.
            if entry["level"] == "error" and entry["source"] != "network":
                self.errors.append(entry["text"])
        if told.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(told["params"]["exceptionDetails"]))

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        told = await self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in told:
            raise RuntimeError(str(told["exceptionDetails"]))
        return told["result"].get("value")

    async def open(self, url: str) -> None:
        await self.ask("Page.navigate", url=url)

    async def until(self, script: str, seconds: float = 20.0) -> Any:
        """Wait until an expression is true; its value."""
        async with asyncio.timeout(seconds):
            while not (value := await self.run(f"Boolean({script})")):
                await asyncio.sleep(0.05)
        return value

    async def shape(self, width: int, height: int = 900, *, is_dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip

    async def picture(self, file: Path) -> None:
        told = await self.ask("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(told["data"]))


@asynccontextmanager
async def browsing(program: str) -> AsyncIterator[Tab]:
    """Start the browser with a fresh profile; one page of it. It ends with the block."""
    with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--ignore-certificate-errors",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            port_file = Path(profile) / "DevToolsActivePort"
            async with asyncio.timeout(START_S):
                while not port_file.exists() or not port_file.read_text().strip():
                    await asyncio.sleep(0.05)
            port = port_file.read_text().split()[0]
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [one for one in await answer.json() if one["type"] == "page"]
                url = pages[0]["webSocketDebuggerUrl"]
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    tab = Tab(socket)
                    for domain in ("Page", "Runtime", "Log"):
                        await tab.ask(f"{domain}.enable")
                    await tab.ask("Emulation.setFocusEmulationEnabled", enabled=True)
                    yield tab
        finally:
            process.kill()
            await process.wait()
