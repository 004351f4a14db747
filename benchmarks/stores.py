"""The log on SQLite and on PostgreSQL of the same machine: time to make a decision durable.

    python benchmarks/stores.py [--records 600] [--kills 200] [--json]

Appends records of an op's sizes to both in turn, each in one synced transaction. With `--kills` a
process that appends is killed at random moments so often, and what it had confirmed is looked for
in the log. Bars, written down before the first run: an op has about six records, which take at most
10 ms longer on PostgreSQL than on SQLite; nothing confirmed is lost or there twice. Exit status 1
beyond a bar.
"""

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / one) for one in (".", "transport", "optimizers")]

from benchmarks.figures import parser_of, told  # noqa: E402  the paths come first

LONGER_MS, RECORDS_PER_OP = 10.0, 6

APPENDS = """
import sys
sys.path[:0] = {path!r}
from benchmarks.stores import opened
from tests.coordinator.rig import Chain
from swarmtrain_transport.wire.records import Skip
store = opened({place!r})
records = store.records()
chain = Chain(store.term, records)
number = len(records)
print(number, flush=True)
while True:
    store.append(chain.next(Skip(number + 1, "late" * 100)))
    number += 1
    print(number, flush=True)
"""


def opened(place: str) -> Any:
    """The store of a directory, or of a database's address."""
    from swarmtrain.coordinator.disk.store import Store

    if "://" not in place:
        return Store.open(Path(place))
    from swarmtrain.coordinator.disk.postgres import PostgresDatabase

    database = PostgresDatabase(place, "stores")
    end_s = time.monotonic() + 10.0
    while not database.leads():
        assert time.monotonic() < end_s, "the server still holds the lock of who was killed"
        time.sleep(0.01)
    return Store.begin(database)


def appended_ms(places: list[str], count: int) -> list[list[float]]:
    """Milliseconds of each append, by place; in turn, so that all meet the same load."""
    from swarmtrain_transport.wire.records import Skip
    from tests.coordinator.rig import Chain

    stores = [opened(place) for place in places]
    chains = [Chain(store.term, store.records()) for store in stores]
    taken: list[list[float]] = [[] for _ in stores]
    for number in range(count):
        for store, chain, times in zip(stores, chains, taken, strict=True):
            record = chain.next(Skip(number + 1, "late" * 100))
            began_s = time.perf_counter()
            store.append(record)
            times.append(1000.0 * (time.perf_counter() - began_s))
    for store in stores:
        store.close()
    return taken


def killed(place: str, kills: int, seed: int) -> dict[str, int]:
    """Kill a process that appends, again and again; count what it confirmed and is not there."""
    rng, lost, confirmed = random.Random(seed), 0, 0
    script = APPENDS.format(path=sys.path[:3], place=place)
    for _ in range(kills):
        with subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.2))
            process.kill()
            said = process.stdout.read().split()
        if said:
            confirmed = max(confirmed, int(said[-1]))
        with contextlib.closing(opened(place)) as store:
            # Reading checks the chain; the table has one row per index and one outcome per op.
            lost += len(store.records()) < confirmed
    return {"confirmed": confirmed, "lost": lost}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from tests.coordinator.postgres_rig import server

    with server(is_safe=True) as running:
        places = [str(folder / "sqlite"), running.url()]
        lite, large = appended_ms(places, options.records)
        found: dict[str, Any] = {}
        if options.kills:
            for name, place in zip(("sqlite", "postgres"), places, strict=True):
                found[name] = killed(place, options.kills, options.seed)
    longer = RECORDS_PER_OP * (median(large) - median(lite))
    lost = sum(one["lost"] for one in found.values())
    return {
        "append_ms": {
            name: {"median": median(times), "p99": quantiles(times, n=100)[98]}
            for name, times in (("sqlite", lite), ("postgres", large))
        },
        "longer_ms_an_op": longer, "kills": options.kills, **found,
        "holds": longer <= LONGER_MS and not lost,
    }  # fmt: skip


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--records", type=int, default=600)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="swarmtrain-stores-") as folder:
        figures = measure(options, Path(folder))
    return told(figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
