#!/usr/bin/env python3
"""1 MB after a rest: how long it takes by congestion control, and what helps.

    rested.py [--net 100:50] [--rest 2] [--json]

One connection between two peers of the lab, which has just moved 5 MB at full speed, rests and then
sends 1 MB; five times, the median. Between two exchanges every connection rests so.

- nothing: as it is;
- trickle: one packet every 0.1 s meanwhile;
- sysctl: net.ipv4.tcp_slow_start_after_idle = 0, which only root may set, for a whole network
  namespace.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from network import NAME, Net

PORT = 9400
BURST_BYTES = 1_000_000
TRICKLE_BYTES, TRICKLE_S = 1400, 0.1
END = b"\1"
WAYS = ("nothing", "trickle", "sysctl")
CONTROLS = ("cubic", "bbr")


def hear(server: socket.socket) -> None:
    """Answer the end of each burst."""
    connection, _ = server.accept()
    while data := connection.recv(1 << 16):
        if data[-1:] == END:
            connection.sendall(END)


def burst(connection: socket.socket) -> float:
    """Seconds until all of it has come."""
    start_s = time.perf_counter()
    connection.sendall(bytes(BURST_BYTES) + END)
    connection.recv(1)
    return time.perf_counter() - start_s


def send(control: str, way: str, rest_s: float) -> float:
    """Median of five bursts after a rest."""
    connection = socket.socket()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
    connection.connect(("10.77.0.2", PORT))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(5):
        burst(connection)
    found = []
    for _ in range(5):
        end_s = time.monotonic() + rest_s
        while time.monotonic() < end_s:
            if way == "trickle":
                connection.sendall(bytes(TRICKLE_BYTES))
            time.sleep(TRICKLE_S)
        found.append(burst(connection))
    return statistics.median(found)


def measured(net: Net, control: str, way: str, rest_s: float) -> float:
    """One figure, in a net that stands."""
    setting = "net.ipv4.tcp_slow_start_after_idle"
    value = 0 if way == "sysctl" else 1
    inside = ["ip", "netns", "exec", f"{NAME}-p0"]
    subprocess.run([*inside, "sysctl", "-qw", f"{setting}={value}"], check=True)
    hearing = net.start(1, [sys.executable, __file__, "--hear"], {}, sys.stderr)
    while (
        b"10.77.0.2:9400"
        not in subprocess.run(
            ["ip", "netns", "exec", f"{NAME}-p1", "ss", "-tln"], capture_output=True, check=True
        ).stdout
    ):
        time.sleep(0.1)
    words = [sys.executable, __file__, "--send", control, way, str(rest_s)]
    answer = subprocess.run([*inside, *words], capture_output=True, text=True, check=True)
    hearing.wait()
    return float(answer.stdout)


def main() -> None:
    """Measure all, or be one of the two peers."""
    a = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    a.add_argument("--net", default="100:50")
    a.add_argument("--rest", type=float, default=2.0)
    a.add_argument("--json", action="store_true")
    a.add_argument("--hear", action="store_true", help=argparse.SUPPRESS)
    a.add_argument("--send", nargs=3, help=argparse.SUPPRESS)
    asked = a.parse_args()
    if asked.hear:
        hear(socket.create_server(("10.77.0.2", PORT)))
        return
    if asked.send:
        print(send(asked.send[0], asked.send[1], float(asked.send[2])))
        return
    allowed = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    row: dict[str, object] = {"net": asked.net, "load": round(os.getloadavg()[0], 1)}
    with Net(2, asked.net) as net:
        for control in (one for one in CONTROLS if one in allowed):
            for way in WAYS:
                seconds = measured(net, control, way, asked.rest)
                row[f"{control}, {way}"] = round(seconds, 3)
                if not asked.json:
                    print(f"{control:6} {way:8} {seconds:.3f} s", flush=True)
    if asked.json:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
