#!/usr/bin/env python3
"""Every measured claim of the exchange in one run on one machine, as a table.

    table.py [--quick] [--reps 5] [--json]

Rows of one block are to be compared with each other, and with no other machine's.
"""

import argparse
import json
import sys
from typing import Any

import bench

COLUMNS = ("system", "mode", "n", "numel", "net", "t", "limit", "ratio", "tx_mb", "cpu_s", "err")

BLOCKS: dict[str, list[str]] = {
    "unshaped, 4 peers, 10 M values": [
        "swarmtrain --n 4 --numel 10e6",
        "gloo --n 4 --numel 10e6",
    ],
    "unshaped, 4 peers, 25 M values": [
        "swarmtrain --n 4 --numel 25e6",
        "gloo --n 4 --numel 25e6",
    ],
    "100 Mbit/s, 4 peers": [
        "swarmtrain --n 4 --numel 10e6 --net 100:0",
        "gloo --n 4 --numel 10e6 --net 100:0",
    ],
    "100 Mbit/s, round trip 50 ms, 4 peers": [
        "swarmtrain --n 4 --numel 10e6 --net 100:50",
        "gloo --n 4 --numel 10e6 --net 100:50",
    ],
    "100 Mbit/s, 8 peers": [
        "swarmtrain --n 8 --numel 10e6 --net 100:0",
        "gloo --n 8 --numel 10e6 --net 100:0",
    ],
    "100 Mbit/s, round trip 50 ms, 8 peers": [
        "swarmtrain --n 8 --numel 10e6 --net 100:50",
        "gloo --n 8 --numel 10e6 --net 100:50",
    ],
    "links of 200, 50 and 10 Mbit/s, 8 peers": [
        "swarmtrain --n 8 --numel 10e6 --rates 200,200,50,50,50,50,10,10 --warm 4",
        "swarmtrain --n 8 --numel 10e6 --rates 200,200,50,50,50,50,10,10 --slices equal",
        "gloo --n 8 --numel 10e6 --rates 200,200,50,50,50,50,10,10",
    ],
}

OTHERS = [
    "torchft --n 4 --numel 10e6 --net 100:0",
    "hivemind --n 4 --numel 10e6 --net 100:0",
    "hivemind --n 4 --numel 10e6 --net 100:0 --mode u8",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first block and the third")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    blocks = dict(BLOCKS)
    if options.quick:
        blocks = {name: blocks[name] for name in list(blocks)[0:3:2]}
    # Whoever ran setup.sh has the other systems too.
    others = [row for row in OTHERS if (bench.HOME / f"v-{row.split()[0]}").exists()]
    if others and not options.quick:
        blocks["other systems"] = others
    failed = False
    for name, commands in blocks.items():
        if not options.json:
            print(f"\n{name}\n" + "  ".join(f"{column:>10}" for column in COLUMNS), flush=True)
        for command in commands:
            row = bench.bench(bench.arguments([*command.split(), "--reps", str(options.reps)]))
            failed = failed or "failed" in row
            show(row, options.json)
    return int(failed)


def show(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(row), flush=True)
        return
    cells: list[object] = [row.get(column) for column in COLUMNS]
    if "failed" in row:
        cells = [row["system"], row["mode"], f"failed: {row['failed']}"]
    print("  ".join(f"{_short(cell):>10}" for cell in cells), flush=True)


def _short(cell: object) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else str("" if cell is None else cell)


if __name__ == "__main__":
    sys.exit(main())
