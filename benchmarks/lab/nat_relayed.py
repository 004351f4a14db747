"""Exchanges of which every byte between peers goes through one relay: how near to its link's limit.

Peers are those of `benchmarks/allreduce.py`, behind symmetric routers, so nothing but a relay joins
them; the relay is `swarmtrain relay` at an open place, its line the narrowest. Its limit is the
payload of all peers, 2 (N-1) vectors in int8, at its rate: all that they send to each other comes
in by its line, and goes out by it at the same time.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nat_bars import Fact
from nat_swarm import NatLab, has_command
from network import Failed, die_with_parent, tail

SCRIPT = Path(__file__).resolve().parents[1] / "allreduce.py"
RATIO_BAR = 1.15
BYTES_A_VALUE = 1.002
"""Of int8: a byte, and its part of the scale of a block."""

UNLIMITED = "10gbit"
"""The line is the limit, no cap of the relay's own."""

HUB, RELAY = "hub", "relay"
_LOOK_S = 0.1


class _Processes:
    """Processes of the measurement, all gone at its end."""

    def __init__(self, lab: NatLab, folder: Path) -> None:
        self._lab, self._folder = lab, folder
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "_Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started.values():
            process.kill()
            process.wait()

    def start(self, name: str, place: str, *words: str, given: str = "") -> None:
        """Start a script or module of Python at a place; what it prints is in NAME.out."""
        with self.out(name).open("wb") as out, self.log(name).open("wb") as log:
            process = subprocess.Popen(
                [*self._lab.within(place), sys.executable, *words], stdin=subprocess.PIPE,
                stdout=out, stderr=log, preexec_fn=die_with_parent,
            )  # fmt: skip
        self._started[name] = process
        assert process.stdin is not None
        process.stdin.write(given.encode())
        process.stdin.close()

    def out(self, name: str) -> Path:
        return self._folder / f"{name}.out"

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def wait(self, seconds: float, *names: str, line: bool = False) -> None:
        """Wait until they have ended well, or one of them has printed a line.

        Raises:
            Failed: one has ended with an error, or it takes longer.
        """
        until_s = time.monotonic() + seconds
        while True:
            for name, process in self._started.items():
                if process.poll():
                    raise Failed(f"{name} ended ({process.returncode}): {tail(self.log(name))}")
            if line and any("\n" in self.out(name).read_text() for name in names):
                return
            if not line and all(self._started[name].poll() == 0 for name in names):
                return
            if time.monotonic() > until_s:
                raise Failed(f"{', '.join(names)} took longer than {seconds:.0f} s")
            time.sleep(_LOOK_S)


def measure(net: str, peers: int, numel: int, seconds: float, folder: Path) -> list[Fact]:
    """Measure exchanges through one relay.

    Args:
        net: RATE:RTT of each line, with a rate.
        peers: number of peers.
        numel: values of each vector.
        seconds: time for all of it.
        folder: an empty one.

    Raises:
        Failed: it was not over in time, or a process has ended.
    """
    if not has_command("relay"):
        raise Failed("this version has no `swarmtrain relay`")
    names = [f"p{rank}" for rank in range(peers)]
    sites = {HUB: "none", RELAY: "none", **dict.fromkeys(names, "symmetric")}
    with NatLab(sites, net=net) as lab, _Processes(lab, folder) as processes:
        serving = ("coordinator", f"--peers={peers}", "--listen", f"{lab.host_of(HUB)}:0")
        processes.start(HUB, HUB, str(SCRIPT), *serving)
        processes.wait(seconds, HUB, line=True)
        invite = processes.out(HUB).read_text().strip()
        relaying = ("-m", "swarmtrain", "relay", "--invite-file", "-", "--rate", UNLIMITED)
        processes.start(RELAY, RELAY, *relaying, given=invite)
        for rank, name in enumerate(names):
            joining = (f"--rank={rank}", f"--numel={numel}", "--listen", "0.0.0.0:0")
            processes.start(name, name, str(SCRIPT), "peer", invite, *joining)
        processes.wait(seconds, *names)
        files = [str(processes.out(name)) for name in names]
    told = subprocess.run(
        [sys.executable, str(SCRIPT), "summary", *files, "--json"],
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return facts(json.loads(told.stdout), float(net.partition(":")[0]))


def facts(summary: dict[str, Any], rate_mbit: float) -> list[Fact]:
    """Judge what allreduce.py says of exchanges through a relay whose line has that rate."""
    payload = 2 * (summary["peers"] - 1) * summary["numel"] * BYTES_A_VALUE
    limit_s = 8 * payload / (rate_mbit * 1e6)
    ratio = summary["seconds"] / limit_s
    return [
        Fact("an exchange", f"{summary['seconds']:.3f} s of {limit_s:.3f} s, {ratio:.2f} x",
             f"at most {RATIO_BAR} x", holds=ratio <= RATIO_BAR),
        Fact("fastest, slowest", f"{summary['seconds_min']:.3f} s, {summary['seconds_max']:.3f} s"),
    ]  # fmt: skip
