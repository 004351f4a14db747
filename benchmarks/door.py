"""Cost of silent connections to a coordinator: its memory, and how long an honest stranger waits.

    python benchmarks/door.py [--connections 6000] [--json]

A coordinator of its own runs on loopback. From 127.0.0.1 so many connections are opened that say
nothing; meanwhile a stranger from 127.0.0.2 asks how it is, over TLS. Linux only: it binds other
addresses of the loopback network, and reads memory from /proc.
"""

import argparse
import json
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONNECT_TIMEOUT_S = 10.0
UP_TIMEOUT_S = 60.0
SETTLE_S = 3.0
"""After the last connection, and after all were closed: memory is given back by then."""


def resident_mb(pid: int) -> float:
    """Memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def ask(port: int, source: str) -> float:
    """Seconds from the connection to the answer of /livez."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    begin = time.perf_counter()
    with (
        socket.create_connection(
            ("127.0.0.1", port), CONNECT_TIMEOUT_S, source_address=(source, 0)
        ) as plain,
        context.wrap_socket(plain) as line,
    ):
        line.sendall(b"GET /livez HTTP/1.1\r\nHost: run\r\nConnection: close\r\n\r\n")
        if not line.recv(4096).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("the coordinator is not well")
    return time.perf_counter() - begin


def flood(port: int, count: int, pid: int) -> dict[str, float]:
    """Open and hold; memory at its height, and what an honest stranger waits."""
    held = []
    peak, waits = resident_mb(pid), [ask(port, "127.0.0.2")]
    begin = time.perf_counter()
    for number in range(count):
        one = socket.socket()
        one.settimeout(CONNECT_TIMEOUT_S)
        one.bind(("127.0.0.1", 0))
        one.connect(("127.0.0.1", port))
        held.append(one)
        if number % 100 == 0:
            peak = max(peak, resident_mb(pid))
        if number % 500 == 250:
            waits.append(ask(port, "127.0.0.2"))
    opened_s = time.perf_counter() - begin
    time.sleep(SETTLE_S)
    peak = max(peak, resident_mb(pid))
    waits.append(ask(port, "127.0.0.2"))
    for one in held:
        one.close()
    time.sleep(SETTLE_S)
    return {
        "opened_s": opened_s, "peak_mb": peak, "after_mb": resident_mb(pid),
        "honest_s_max": max(waits),
    }  # fmt: skip


def measure(count: int) -> dict[str, float]:
    """One coordinator's life under one flood."""
    with tempfile.TemporaryDirectory(prefix="swarmtrain-door-") as folder:
        run_file = Path(folder) / "run.toml"
        run_file.write_text('[run]\nname = "door"\n')
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "swarmtrain", "up", str(run_file), "--listen",
             f"127.0.0.1:{port}", "--state-dir", f"{folder}/state"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            deadline_s = time.monotonic() + UP_TIMEOUT_S
            while True:
                try:
                    ask(port, "127.0.0.2")
                    break
                except OSError:
                    if time.monotonic() > deadline_s or process.poll() is not None:
                        raise
                    time.sleep(0.2)
            before = resident_mb(process.pid)
            return {"connections": count, "before_mb": before, **flood(port, count, process.pid)}
        finally:
            process.terminate()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=6000)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = options.connections + 100
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    figures = measure(options.connections)
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    else:
        print(
            "{connections} silent connections in {opened_s:.1f} s: {before_mb:.0f} MB before,"
            " {peak_mb:.0f} MB at most, {after_mb:.0f} MB after; an honest stranger waited"
            " {honest_s_max:.2f} s at most".format(**figures)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
