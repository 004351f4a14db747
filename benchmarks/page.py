"""The run's page at its largest: 64 peers and 10 000 rounds, in a real browser.

    python benchmarks/page.py [--rounds 10000] [--json]      # in the browser
    python benchmarks/page.py --viewers 10 [--json]          # at the coordinator, no browser

Bars, written down before the first run: an update, and a plot drawn anew, take at most 100 ms of
the page's own time, and its script holds at most 100 MB after a minute; ten viewers take at most
0.02 of a core from the coordinator. The browser is Chromium (`apt install chromium`). Exit status 1
beyond a bar.
"""

import asyncio
import sys
import time
from pathlib import Path
from statistics import median

from figures import parser_of, told

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / one) for one in (".", "transport", "optimizers")]

UPDATE_MS, HEAP_MB, CORES = 100.0, 100.0, 0.02
AXES = ("seconds", "round", "bytes", "tokens")


async def measure(rounds: int, seconds: float) -> dict[str, object]:
    from tests.browser.chromium import browsing, found
    from tests.browser.scenes import many, served

    program = found()
    if program is None:
        raise SystemExit("No Chromium here: apt install chromium")
    async with browsing(program) as tab, served(many(), rounds) as (url, _):
        await tab.ask("Performance.enable")
        await tab.shape(1280)
        await tab.open(url)
        await tab.until("window.lastUpdateMs")
        await tab.until("document.querySelector('#plot .main-svg')")
        updates, draws = [], []
        for number in range(int(seconds)):
            await asyncio.sleep(1.0)
            axis = AXES[number % len(AXES)]
            await tab.run(f"document.querySelector('#axis [value={axis}]').click()")
            await asyncio.sleep(0.3)
            updates.append(float(await tab.run("window.lastUpdateMs")))
            draws.append(float(await tab.run("window.lastDrawMs")))
        await tab.ask("HeapProfiler.collectGarbage")
        told = await tab.ask("Performance.getMetrics")
        heap = next(one["value"] for one in told["metrics"] if one["name"] == "JSHeapUsedSize")
    worst, heap_mb = max(*updates, *draws), heap / 1e6
    return {
        "update_ms": {"median": median(updates), "worst": max(updates)},
        "draw_ms": {"median": median(draws), "worst": max(draws)}, "heap_mb": heap_mb,
        "bars": {"ms": UPDATE_MS, "heap_mb": HEAP_MB},
        "holds": worst <= UPDATE_MS and heap_mb <= HEAP_MB,
    }  # fmt: skip


async def watched_by(viewers: int, rounds: int, seconds: float) -> dict[str, object]:
    """Cores that so many open pages take from the process that serves them."""
    from tests.browser.scenes import many, served

    async with served(many(), rounds) as (url, _):
        watching = [
            await asyncio.create_subprocess_exec(
                "curl", "-sN", "-H", f"Authorization: Bearer {number}", f"{url}api/v1/stream",
                stdout=asyncio.subprocess.DEVNULL,
            )
            for number in range(viewers)  # each a viewer of its own, who may have few streams
        ]  # fmt: skip
        await asyncio.sleep(2.0)
        begun = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        cores = (time.process_time() - begun[0]) / (time.monotonic() - begun[1])
        alive = sum(one.returncode is None for one in watching)
        for one in watching:
            one.kill()
            await one.wait()
    return {"viewers": alive, "cores": cores, "bar": CORES, "holds": cores <= CORES}


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--viewers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    if options.viewers:
        figures = asyncio.run(watched_by(options.viewers, options.rounds, options.seconds))
    else:
        figures = asyncio.run(measure(options.rounds, options.seconds))
    return told(figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
