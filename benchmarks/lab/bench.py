#!/usr/bin/env python3
"""The mean of N float32 vectors over shaped links: one JSON row.

    bench.py SYSTEM --n N --numel P --mode M --net RATE:RTT[:LOSS]

SYSTEM is swarmtrain, gloo, torchft or hivemind (see setup.sh), raw (this project's bytes over
plain sockets, by the best of three ways: the ceiling), or any name with --python and --script: a
script that imports lab_peer and calls measure(). RATE is in Mbit/s per peer and direction (0 = no
limit), RTT in ms. --rates 200,50,... gives each peer its own rate instead. --congestion cubic (or
bbr, reno) forces TCP's congestion control on all; else the system's default counts, and what a
program asks for.

Reported: t = median over rounds of the slowest peer's wall seconds; limit = 2 (N-1)/N x BYTES x
numel / rate with --bytes per value; ratio = t / limit; tx_mb = mean bytes sent per peer with all
headers; cpu_s per peer; way = the best of a system's ways, where it has several; err = worst
relative L2 error. A result with err > 0.1 is a failure, whatever its time.
"""

import argparse
import json
import shutil
import statistics as st
import sys
import tempfile
from pathlib import Path
from typing import Any

from network import HERE, HOME, Failed, Meeting, Net, tail

VALUE_BYTES = {"int8": 1.002, "u8": 1.0, "fp16": 2.0, "bf16": 2.0, "none": 4.0, "fp32": 4.0}
MODES = {"swarmtrain": "int8", "raw": "int8"}
ERROR_MAX = 0.1


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    a = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    a.add_argument("system")
    a.add_argument("--n", type=int, default=4)
    a.add_argument("--numel", type=float, default=2.5e6)
    a.add_argument("--mode", default="")
    a.add_argument("--net", default="0:0")
    a.add_argument("--rates", default="", help="Mbit/s of each peer, instead of one for all")
    a.add_argument("--congestion", default="", help="of TCP, for every connection")
    a.add_argument("--slices", default="measured", help="or equal: of swarmtrain's vectors")
    a.add_argument("--bytes", type=float, help="per value; default: of the mode")
    a.add_argument("--reps", type=int, default=5)
    a.add_argument("--warm", type=int, default=2)
    a.add_argument("--timeout", type=float, default=300)
    a.add_argument("--python")
    a.add_argument("--script")
    return a.parse_args(words)


def collect(meeting: Meeting, world: int) -> dict[int, list[dict[str, float]]]:
    """Serve the barrier until every peer is done; return {rank: [round, ...]}."""
    everybody = range(world)
    results: dict[int, list[dict[str, float]]] = {}
    while len(results) < world:
        messages = meeting.hear(everybody)
        results = {rank: m["rounds"] for rank, m in messages.items() if m["at"] == "done"}
        meeting.let_go(everybody)
    return results


def python_of(system: str) -> str:
    """The system's own environment; else the one that runs this, which has torch with gloo."""
    own = HOME / f"v-{system}/bin/python"
    return str(own) if own.exists() else sys.executable


def start_peers(a: argparse.Namespace, net: Net, run_dir: Path, log: Any) -> None:
    python = a.python or python_of(a.system)
    script = a.script or str(HERE / f"peer_{a.system}.py")
    for rank in range(a.n):
        environment = environment_of(rank, a.n, run_dir) | {
            "NUMEL": str(int(a.numel)), "MODE": a.mode, "REPS": str(a.reps), "WARM": str(a.warm),
            "SLICES": a.slices, "NET": a.net, "VALUE_BYTES": str(a.bytes),
        }  # fmt: skip
        net.start(rank, [python, script], environment, log)


def environment_of(rank: int, world: int, run_dir: Path) -> dict[str, str]:
    """Return what every peer script is told: who and where it is."""
    return {
        "RANK": str(rank), "WORLD": str(world), "IFACE": "eth0", "IP": f"10.77.0.{rank + 1}",
        "IP0": "10.77.0.1", "BARRIER": str(run_dir / "barrier"), "RUN_DIR": str(run_dir),
        "TMPDIR": str(run_dir), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0",
        "PYTHONPATH": str(HERE),
    }  # fmt: skip


def summary(a: argparse.Namespace, results: Any, rate: float) -> dict[str, Any]:
    """One row of all rounds; of a system that has several ways of its best one."""
    ways = {told.get("way") for told in results[0]}
    rows = []
    for way in ways:
        of_way = {i: [told for told in results[i] if told.get("way") == way] for i in results}
        rows.append(_summary(a, of_way, rate) | ({"way": way} if way else {}))
    return min(rows, key=lambda row: row["t"])


def _summary(a: argparse.Namespace, results: Any, rate: float) -> dict[str, Any]:
    rounds = range(a.reps)
    slowest = [max(results[i][r]["t"] for i in results) for r in rounds]
    limit = 2 * (a.n - 1) / a.n * a.bytes * a.numel * 8 / (rate * 1e6) if rate else None
    sent = [st.mean(results[i][r]["tx"] for i in results) for r in rounds]
    cpu = [sum(results[i][r]["cpu"] for i in results) for r in rounds]
    row: dict[str, Any] = {
        "t": round(st.median(slowest), 4),
        "t_min": round(min(slowest), 4),
        "t_max": round(max(slowest), 4),
        "limit": limit and round(limit, 4),
        "ratio": limit and round(st.median(slowest) / limit, 3),
        "tx_mb": round(st.median(sent) / 1e6, 3),
        "cpu_s": round(st.median(cpu) / a.n, 3),
        "err": max(results[i][r]["err"] for i in results for r in rounds),
    }
    if row["err"] > ERROR_MAX:
        row["failed"] = "wrong result"
    return row


def bench(a: argparse.Namespace) -> dict[str, Any]:
    """Build the net, run the system, take the net down: one row."""
    a.mode = a.mode or MODES.get(a.system, "fp32")
    a.bytes = a.bytes or VALUE_BYTES.get(a.mode, 4.0)
    run_dir = Path(tempfile.mkdtemp(prefix="lab-"))
    row: dict[str, Any] = {"system": a.system, "mode": a.mode, "n": a.n, "numel": int(a.numel)}
    row["net"] = a.rates or a.net
    if a.slices != "measured":
        row["mode"] += f", {a.slices}"
    if a.congestion:
        row["mode"] += f", {a.congestion}"
    rates = a.rates.split(",") if a.rates else ()
    meeting = Meeting(run_dir / "barrier")
    try:
        with Net(a.n, a.net, rates, a.congestion) as net, (run_dir / "log").open("w") as log:
            start_peers(a, net, run_dir, log)
            net.watch(a.timeout)
            meeting.admit(a.n, net, a.timeout)
            results = collect(meeting, a.n)
        row.update(summary(a, results, 0.0 if rates else float(a.net.split(":")[0])))
    except Failed as problem:
        row["failed"] = f"{problem}: {tail(run_dir / 'log')}"
    finally:
        meeting.close()
        shutil.rmtree(run_dir, ignore_errors=True)
    return row


if __name__ == "__main__":
    answer = bench(arguments())
    print(json.dumps(answer))
    sys.exit("failed" in answer)
