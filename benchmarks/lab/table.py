#!/usr/bin/env python3
"""Every measured claim of the exchange in one run on one machine, as a table.

    table.py [--only NAME,NAME] [--out rows.jsonl] [--again] [--quick]    # run, as root
    table.py --list                                                       # the blocks' names
    table.py --print [--out rows.jsonl]                                   # what is there

A row is one line of rows.jsonl as soon as it is measured; what is there already is not measured
again unless --again is said (then the newest counts). Rows of one block are to be compared with
each other, and with no other machine's. torchft and hivemind are in it where setup.sh was run.

    table.py --only wire --pairs 15        # exchanges beside their ceilings, in alternation

With --pairs the commands of a block take turns so many times, and a row is the median of its own
runs. `raw` is the ceiling of the exchanges of as many peers and values on the same net. The bars,
written down before the first run:

- a ceiling is valid if without delay it is at most 1.10 of the bytes' time at the rate;
- an exchange of four peers at 100 Mbit/s, of 1, 10 or 40 M values at 0, 50 or 150 ms, takes at most
  1.10 of its ceiling and two round trips;
- at 20 Mbit/s, 100 ms and 1 % loss an exchange moves its bytes at half the rate at least, with the
  system's congestion control and with cubic;
- unshaped an exchange takes at most gloo's time.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import bench
import death
import joining
import report

OURS = ("swarmtrain", "raw")
LOSSY = "--n 4 --numel 4e6 --net 20:100:1"
MIXED = "--n 8 --numel 10e6 --rates 200,200,50,50,50,50,10,10"

BLOCKS: dict[str, list[str]] = {
    "unshaped-10": [
        "bench swarmtrain --n 4 --numel 10e6 --reps 9",
        "bench gloo --n 4 --numel 10e6 --reps 9",
        "bench torchft --n 4 --numel 10e6",
        "bench hivemind --n 4 --numel 10e6",
    ],
    "unshaped-25": [
        "bench swarmtrain --n 4 --numel 25e6 --reps 9",
        "bench gloo --n 4 --numel 25e6 --reps 9",
    ],
    "100-4": [
        "bench swarmtrain --n 4 --numel 10e6 --net 100:0",
        "bench swarmtrain --n 4 --numel 10e6 --net 100:0 --congestion bbr",
        "bench gloo --n 4 --numel 10e6 --net 100:0",
        "bench torchft --n 4 --numel 10e6 --net 100:0",
        "bench hivemind --n 4 --numel 10e6 --net 100:0",
        "bench hivemind --n 4 --numel 10e6 --net 100:0 --mode u8",
    ],
    "100-50ms-4": [
        "bench swarmtrain --n 4 --numel 10e6 --net 100:50",
        "bench swarmtrain --n 4 --numel 10e6 --net 100:50 --congestion cubic",
        "bench gloo --n 4 --numel 10e6 --net 100:50",
        "bench torchft --n 4 --numel 10e6 --net 100:50",
        "bench hivemind --n 4 --numel 10e6 --net 100:50 --mode u8",
    ],
    "100-8": [
        "bench swarmtrain --n 8 --numel 10e6 --net 100:0",
        "bench gloo --n 8 --numel 10e6 --net 100:0",
    ],
    "100-50ms-8": [
        "bench swarmtrain --n 8 --numel 10e6 --net 100:50",
        "bench gloo --n 8 --numel 10e6 --net 100:50",
    ],
    "mixed": [
        f"bench swarmtrain {MIXED} --warm 4",
        f"bench swarmtrain {MIXED} --slices equal",
        f"bench gloo {MIXED} --reps 2 --warm 1",
    ],
    **{
        f"wire-{rtt}-{numel}": [
            f"bench {system} --n 4 --numel {numel}e6 --net 100:{rtt}" for system in OURS
        ]
        for rtt in (0, 50, 150)
        for numel in (1, 10, 40)
    },
    "wire-0-8": [f"bench {system} --n 8 --numel 10e6 --net 100:0" for system in OURS],
    "wire-lossy": [
        f"bench {system} {LOSSY}{control}"
        for control in ("", " --congestion cubic --warm 8")
        for system in OURS
    ],
    "death": ["death --n 8 --numel 10e6 --net 100:0"],
    "death-cut": ["death --n 8 --numel 10e6 --net 100:0 --cut"],
    "joining": ["joining --donors 4 --numel 50e6"],
}
QUICK = ("unshaped-10", "100-4")
TOOLS: dict[str, Any] = {"bench": bench, "death": death, "joining": joining}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="names of blocks or their first words, with commas between"
    )
    parser.add_argument("--pairs", type=int, default=1, help="runs of each row, in alternation")
    parser.add_argument("--quick", action="store_true", help="two blocks that say most")
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    parser.add_argument("--out", type=Path, default=Path("rows.jsonl"))
    parser.add_argument("--list", action="store_true", help="the blocks and their rows")
    parser.add_argument("--print", action="store_true", help="the table, without measuring")
    options = parser.parse_args()
    if options.list:
        for name, rows in BLOCKS.items():
            print(name, *(f"    {row}" for row in rows), sep="\n")
        return 0
    failed = False if options.print else measure(options)
    print(report.markdown(report.newest(read(options.out)), BLOCKS))
    return int(failed)


def measure(options: argparse.Namespace) -> bool:
    """Run what is wanted and not there; whether something failed."""
    asked = QUICK if options.quick else options.only.split(",") if options.only else tuple(BLOCKS)
    found = {one: [name for name in BLOCKS if f"{name}-".startswith(f"{one}-")] for one in asked}
    if unknown := [one for one in asked if not found[one]]:
        raise SystemExit(f"no block is called {', '.join(sorted(unknown))}; see --list")
    there = set() if options.again else {row["command"] for row in read(options.out)}
    session, failed = time.time(), False
    for name in dict.fromkeys(name for one in asked for name in found[one]):
        for command in BLOCKS[name] * options.pairs:
            tool, system, *_ = command.split()
            is_foreign = tool == "bench" and system in ("torchft", "hivemind")
            if command in there or (is_foreign and bench.python_of(system) == sys.executable):
                continue
            row = {"block": name, "command": command, "session": session, **facts()}
            row |= TOOLS[tool].bench(TOOLS[tool].arguments(command.split()[1:]))
            failed = failed or "failed" in row
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), file=sys.stderr, flush=True)
    return failed


def read(path: Path) -> list[dict[str, Any]]:
    """The rows so far; the last line may not be whole after a power cut."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"not a row, left out: {line[:60]}", file=sys.stderr)
    return rows


def facts() -> dict[str, Any]:
    """Tell when, of what and where a row was measured."""
    git = ["git", "-C", str(bench.HERE), "describe", "--always", "--dirty"]
    revision = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return {
        "load": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "revision": revision,
        "machine": f"{os.cpu_count()} cores of {_processor()}, Linux {platform.release()}",
        "tcp": control.read_text().strip() if control.exists() else "",
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Stopped; the rows so far are kept.")
