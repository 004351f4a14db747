#!/usr/bin/env python3
"""The mean of N float32 vectors over shaped links: one JSON row.

    bench.py SYSTEM --n N --numel P --mode M --net RATE:RTT[:LOSS]

SYSTEM is swarmtrain, gloo, torchft or hivemind (see setup.sh), or any name with --python and
--script: a script that imports lab_peer and calls measure(). RATE is in Mbit/s per peer and
direction (0 = no limit), RTT in ms. --rates 200,50,... gives each peer its own rate instead.

Reported: t = median over rounds of the slowest peer's wall seconds; limit = 2 (N-1)/N x BYTES x
numel / rate with --bytes per value; ratio = t / limit; tx_mb = mean bytes sent per peer with all
headers; cpu_s per peer; err = worst relative L2 error. A result with err > 0.1 is a failure,
whatever its time.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics as st
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HOME = Path(os.environ.get("LAB_HOME", Path.home() / ".cache/swarmtrain-lab"))
VALUE_BYTES = {"int8": 1.002, "u8": 1.0, "fp16": 2.0, "bf16": 2.0, "none": 4.0, "fp32": 4.0}
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
    a.add_argument("--slices", default="measured", help="or equal: of swarmtrain's vectors")
    a.add_argument("--bytes", type=float, help="per value; default: of the mode")
    a.add_argument("--reps", type=int, default=5)
    a.add_argument("--warm", type=int, default=2)
    a.add_argument("--timeout", type=float, default=300)
    a.add_argument("--python")
    a.add_argument("--script")
    return a.parse_args(words)


def collect(
    server: socket.socket, processes: list[Any], world: int, timeout_s: float, log_name: Path
) -> dict[int, list[dict[str, float]]]:
    """Serve the barrier until every peer is done; return {rank: [round, ...]}."""

    def dead() -> bool:
        return any(p.poll() not in (None, 0) for p in processes)

    start = time.monotonic()
    peers: list[Any] = []
    results: dict[int, list[dict[str, float]]] = {}
    server.settimeout(1)
    while len(peers) < world:
        with contextlib.suppress(TimeoutError):  # look whether all still live, and wait on
            peers.append(server.accept()[0].makefile("rw"))
        if dead() or time.monotonic() - start > timeout_s:
            raise RuntimeError(f"a peer died or did not start; see {log_name}")

    def watch() -> None:
        while any(p.poll() is None for p in processes):
            if dead() or time.monotonic() - start > timeout_s:
                for p in processes:
                    p.kill()
                return
            time.sleep(0.5)

    threading.Thread(target=watch, daemon=True).start()
    while len(results) < world:
        messages = [json.loads(p.readline() or '{"dead": 1}') for p in peers]
        if any("dead" in m for m in messages):
            raise RuntimeError(f"a peer died; see {log_name}")
        results.update({m["rank"]: m["rounds"] for m in messages if m.get("at") == "done"})
        for p in peers:
            p.write('{"ok": 1}\n')
            p.flush()
    return results


def python_of(system: str) -> str:
    """The system's own environment; else the one that runs this, which has torch with gloo."""
    own = HOME / f"v-{system}/bin/python"
    return str(own) if own.exists() else sys.executable


def start_peers(a: argparse.Namespace, run_dir: Path, log: Any) -> list[Any]:
    python = a.python or python_of(a.system)
    script = a.script or str(HERE / f"peer_{a.system}.py")
    processes = []
    for rank in range(a.n):
        environment = dict(
            os.environ,
            RANK=str(rank), WORLD=str(a.n), NUMEL=str(int(a.numel)), MODE=a.mode,
            REPS=str(a.reps), WARM=str(a.warm), IFACE="eth0", IP=f"10.77.0.{rank + 1}",
            IP0="10.77.0.1", BARRIER=str(run_dir / "barrier"), RUN_DIR=str(run_dir),
            SLICES=a.slices, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="eth0", PYTHONPATH=str(HERE),
        )  # fmt: skip
        command = ["ip", "netns", "exec", f"nl-p{rank}", python, script]
        processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    return processes


def build_net(a: argparse.Namespace) -> float:
    """Returns the common rate in Mbit/s, 0 where there is none."""
    rate, rtt, loss = ([*a.net.split(":"), "0", "0"])[:3]
    lab = str(HERE / "netlab.sh")
    if a.rates:
        subprocess.run([lab, "up", str(a.n), "0", "0"], check=True)
        for index, own in enumerate(a.rates.split(",")):
            subprocess.run([lab, "limit", str(index), own, own], check=True)
        return 0.0
    subprocess.run([lab, "up", str(a.n), rate, rtt, loss], check=True)
    return float(rate)


def summary(a: argparse.Namespace, results: Any, rate: float) -> dict[str, Any]:
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
    a.mode = a.mode or ("int8" if a.system == "swarmtrain" else "fp32")
    a.bytes = a.bytes or VALUE_BYTES.get(a.mode, 4.0)
    run_dir = Path(tempfile.mkdtemp(prefix="lab-"))
    rate = build_net(a)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(run_dir / "barrier"))
    server.listen(64)
    row: dict[str, Any] = {"system": a.system, "mode": a.mode, "n": a.n, "numel": int(a.numel)}
    row["net"] = a.rates or a.net
    if a.slices != "measured":
        row["mode"] += f", {a.slices}"
    processes: list[Any] = []
    try:
        with (run_dir / "log").open("w") as log:
            processes = start_peers(a, run_dir, log)
            results = collect(server, processes, a.n, a.timeout, run_dir / "log")
        row.update(summary(a, results, rate))
    except RuntimeError as problem:
        row["failed"] = str(problem)
    finally:
        for p in processes:
            try:
                p.wait(8)
            except subprocess.TimeoutExpired:
                p.kill()
        server.close()
        subprocess.run([str(HERE / "netlab.sh"), "down"], check=False)
    if "failed" not in row:
        shutil.rmtree(run_dir, ignore_errors=True)
    return row


if __name__ == "__main__":
    answer = bench(arguments())
    print(json.dumps(answer))
    sys.exit("failed" in answer)
