"""Coordinators that are killed at random moments: is a decision lost, and how long is nobody there?

    python benchmarks/takeover.py --store sqlite [--kills 200] [--seed 0] [--json]
    python benchmarks/takeover.py --store postgres [--kills 200] [--json]
    python benchmarks/takeover.py --store postgres --fault sleep --kills 2    # SIGSTOP for a minute
    python benchmarks/takeover.py --store postgres --fault database --kills 20   # it crashes

A run of three peers on loopback. On SQLite one coordinator is started again after each kill; on
PostgreSQL (Debian's, started here with full sync) two share the database, and whoever is killed is
started again to stand by. Each fault comes up to two seconds after all peers are connected again.

Bars, written down before the first run: every record that a peer has is in the log with the same
hash, in one chain; no op has two outcomes; all peers end with one state root; and with two
coordinators the time from a kill until all peers are connected is at most 5 s at the 99th
percentile. Exit status 1 beyond a bar.
"""

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from figures import parser_of, told

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / one) for one in (".", "transport", "optimizers")]

GAP_S = 5.0
SLEEP_S = 60.0
PEERS = ("ann", "bob", "cat")
RUN = """
[run]
name = "takeover"
rounds = 1000000
[model]
layers = 1
width = 32
heads = 2
context = 32
[inner]
batch = 4
[outer]
inner_steps = 20
[exchange]
start_peers = 3
wait_ready_s = 120.0
"""


class Coordinators:
    """One coordinator of a directory, or two of a database.

    Args:
        url: address of the database, "" for none.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._ports: dict[str, int] = {}
        self.running = {name: self._start(name) for name in (("a", "b") if url else ("a",))}

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        words = ["up", str(self._folder / "run.toml"), "--state-dir", str(self._folder / name)]
        if self._url:
            words += ["--store", self._url, "--key-file", str(self._folder / "key")]
        port = self._ports.setdefault(name, _free_port())
        words += ["--listen", f"127.0.0.1:{port}", "--json-events"]
        return started(*words, log=self._folder / name)

    @property
    def leader(self) -> str:
        from swarmtrain import status

        for name in self.running:
            with contextlib.suppress(Exception):
                if status.ask(self._folder / name)["term"]:
                    return name
        raise ValueError("nobody leads")

    def invite(self) -> str:
        for name in self.running:
            found = re.search(r'"(swarm://[^"]+)"', (self._folder / f"{name}.out").read_text())
            if found:
                return found[1]
        raise ValueError("no invite yet")

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait()
        self.running[name] = self._start(name)


def started(*words: object, log: Path) -> subprocess.Popen[bytes]:
    """A command of swarmtrain whose output is added to two files, log with .out and .err."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:3])}
    with log.with_suffix(".out").open("ab") as out, log.with_suffix(".err").open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "swarmtrain", *map(str, words)], stdout=out, stderr=errors,
            stdin=subprocess.DEVNULL, env=env,
        )  # fmt: skip


def joined(folder: Path) -> list[subprocess.Popen[bytes]]:
    """All peers, started with the invite of the folder."""
    words = ("join", "--invite-file", folder / "invite", "--name")
    return [
        started(*words, name, "--state-dir", folder / name, log=folder / name) for name in PEERS
    ]


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def waited(found: Callable[[], Any], seconds: float = 180.0, pause_s: float = 0.02) -> Any:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        with contextlib.suppress(Exception):
            if value := found():
                return value
        time.sleep(pause_s)
    raise SystemExit(f"the run did not come so far in {seconds:.0f} s: {found}")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        server = None
        if options.store == "postgres":
            from tests.coordinator.postgres_rig import server as opened

            server = stack.enter_context(opened(is_safe=True))
        (folder / "run.toml").write_text(RUN)
        (folder / "key").write_text(random.Random(options.seed).randbytes(32).hex())
        all_of = Coordinators(folder, server.url() if server is not None else "")
        peers: list[subprocess.Popen[bytes]] = []
        try:
            (folder / "invite").write_text(waited(all_of.invite))
            peers += joined(folder)
            gaps = list(_faults(options, folder, all_of, server))
            rounds, roots = _committed(folder), waited(lambda: _roots(folder))
            for name in PEERS:
                _order(folder / name, "finish")
            ends = [one.wait(120) for one in peers]
        finally:
            for one in (*peers, *all_of.running.values()):
                one.send_signal(signal.SIGCONT)
                one.terminate()
            for one in (*peers, *all_of.running.values()):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.wait(30)
                one.kill()
        found = _checked(options, folder, server.url() if server is not None else "")
    late = quantiles(gaps, n=100)[98] if len(gaps) > 1 else gaps[0]
    is_in_time = not _has_two(options) or late <= GAP_S
    return {
        "store": options.store, "fault": options.fault, "faults": len(gaps), "rounds": rounds,
        "gap_s": {"median": median(gaps), "p99": late, "worst": max(gaps)},
        "exits": ends, "roots": len(roots), **found,
        "holds": found["is_whole"] and len(roots) == 1 and not any(ends) and is_in_time,
    }  # fmt: skip


def _has_two(options: argparse.Namespace) -> bool:
    """True if another coordinator takes over at once, within the bar."""
    return bool(options.store == "postgres" and options.fault == "kill")


def _faults(
    options: argparse.Namespace, folder: Path, all_of: Coordinators, server: Any
) -> Iterator[float]:
    """Do one fault after the other, and tell for how long not all peers had a coordinator."""
    rng = random.Random(options.seed)
    waited(lambda: _committed(folder) >= 3)
    for _ in range(options.kills):
        time.sleep(rng.uniform(0.0, 2.0))
        leader = waited(lambda: all_of.leader)
        began_s = time.monotonic()
        if options.fault == "kill":
            all_of.kill(leader)
        elif options.fault == "sleep":
            all_of.running[leader].send_signal(signal.SIGSTOP)
        else:
            server.stop()
            server.start()
        yield _back_after(folder, began_s, is_judged=_has_two(options))
        if options.fault == "sleep":
            time.sleep(max(0.0, SLEEP_S - (time.monotonic() - began_s)))
            all_of.running[leader].send_signal(signal.SIGCONT)
            time.sleep(3.0)
        before = _committed(folder)
        waited(lambda before=before: _committed(folder) > before)
        if options.store == "postgres":
            waited(lambda: len(all_of.running) < 2 or _stands_by(folder, all_of))


def _stands_by(folder: Path, all_of: Coordinators) -> bool:
    """True if the coordinator that does not lead has said that it stands by."""
    other = next(name for name in all_of.running if name != all_of.leader)
    last = (folder / f"{other}.err").read_text().strip().splitlines()[-1]
    return "stands by" in last


def _ask(folder: Path) -> dict[str, Any]:
    from swarmtrain import status

    found: dict[str, Any] = status.ask(folder)
    return found


def _order(folder: Path, order: str) -> None:
    from swarmtrain import status

    status.order(folder, {"order": order})


def _back_after(folder: Path, began_s: float, *, is_judged: bool) -> float:
    """Return for how long not every peer had a coordinator, seconds."""
    left, back = set(PEERS), dict[str, float]()
    while len(back) < len(PEERS):
        if time.monotonic() - began_s > 180.0:
            raise SystemExit(f"only {list(back)} came back")
        for name in PEERS:
            if not _ask(folder / name)["connected"]:
                left.discard(name)
            elif name not in left:
                back.setdefault(name, time.monotonic() - began_s)
        time.sleep(0.03)
    gap_s = max(back.values())
    if is_judged and gap_s > GAP_S:
        lines = [line for one in sorted(folder.glob("*.err")) for line in _newest(one)]
        print(f"a gap of {gap_s:.1f} s, {back}", *lines, sep="\n", file=sys.stderr)
    return gap_s


def _newest(errors: Path) -> list[str]:
    """The last lines that a process has logged, with its name."""
    return [f"  {errors.stem}: {one}" for one in errors.read_text().splitlines()[-4:]]


def _roots(folder: Path) -> set[str]:
    """State roots at a moment at which all peers tell of the same round."""
    told = [_ask(folder / name) for name in PEERS]
    return (
        {one["state_root"] for one in told} if len({one["round"] for one in told}) == 1 else set()
    )


def _committed(folder: Path) -> int:
    return min(int(_ask(folder / name)["round"]) for name in PEERS)


def _checked(options: argparse.Namespace, folder: Path, url: str) -> dict[str, Any]:
    """Compare the log with every peer's copy of it."""
    from swarmtrain.coordinator.disk.store import Store
    from swarmtrain.peer.disk import ledger_file
    from swarmtrain_transport.wire.records import BodyReader, Commit, Rewind, Skip

    if url:
        from swarmtrain.coordinator.disk.postgres import PostgresDatabase

        database = PostgresDatabase(url, "takeover")
        waited(database.leads, 30.0)
        store = Store.begin(database)
    else:
        store = Store.open(folder / "a")
    with contextlib.closing(store):
        log = store.records()  # checks the chain
    lost = 0
    for name in PEERS:
        for record in ledger_file.read(folder / name / ledger_file.FILE_NAME).records:
            lost += record.index >= len(log) or log[record.index].hash != record.hash
    reader, outcomes, twice, skipped = BodyReader(), Counter[int](), 0, 0
    for record in log:
        body = reader.read(record)
        if isinstance(body, Commit | Skip):
            outcomes[body.op] += 1
            twice, skipped = twice + (outcomes[body.op] > 1), skipped + isinstance(body, Skip)
        elif isinstance(body, Rewind):
            outcomes = Counter(op for op in outcomes if op <= body.op)
    return {
        "records": len(log), "terms": log[-1].term, "lost": lost, "twice": twice,
        "skipped": skipped, "is_whole": not lost and not twice,
    }  # fmt: skip


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--fault", choices=("kill", "sleep", "database"), default="kill")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="swarmtrain-takeover-") as folder:
        figures = measure(options, Path(folder))
    return told(figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
