#!/usr/bin/env python3
"""Who says what when in an exchange: one of them, laid out message by message.

    timeline.py --n 4 --numel 1e6 --net 100:50 [--reps 5] [--lines] [--json]

Runs bench.py with peers and a coordinator that write down every message (`traced.py`), and shows
the exchange of middle length. Times are ms since the last peer's call. For each message: how many
there were, when the first and the last was sent, and when the first and the last was heard.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import bench
from network import HERE

Line = tuple[float, str, str, int]


def read(folder: Path) -> dict[str, list[Line]]:
    """Lines of each process by its role."""
    found: dict[str, list[Line]] = {}
    for path in folder.glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if lines and lines[0][1] == "is":
            found[lines[0][2]] = [(*line,) for line in lines[1:]]
    return found


def rounds_of(lines: dict[str, list[Line]]) -> list[tuple[float, float]]:
    """Last call and last mean of each exchange."""
    peers = [found for who, found in lines.items() if who.startswith("peer")]
    calls = zip(*([t for t, _, name, _ in found if name == "call"] for found in peers), strict=True)
    means = zip(*([t for t, _, name, _ in found if name == "mean"] for found in peers), strict=True)
    return [(max(a), max(b)) for a, b in zip(calls, means, strict=True)]


def table(lines: dict[str, list[Line]], start_s: float, end_s: float) -> list[dict[str, Any]]:
    """One row per kind of message, in the order in which they begin."""
    rows: dict[str, dict[str, Any]] = {}
    for who, found in lines.items():
        for at_s, direction, name, num_bytes in found:
            if not start_s - 0.02 <= at_s <= end_s + 0.05:
                continue
            row = rows.setdefault(name, {"message": name, "count": 0, "bytes": 0})
            at_ms = round(1e3 * (at_s - start_s), 1)
            row.setdefault(direction, []).append((at_ms, who))
            if direction == "sent":
                row["count"] += 1
                row["bytes"] += num_bytes
    for row in rows.values():
        for direction in ("put", "sent", "heard"):
            times = sorted(row.get(direction, ()))
            row[direction] = [*times[:1], *times[-1:]]
    return sorted(rows.values(), key=lambda row: min((t for t, _ in row["sent"] or row["heard"])))


def show(rows: list[dict[str, Any]]) -> None:
    """As a table for people."""

    def span(times: list[tuple[float, str]]) -> str:
        return " to ".join(f"{at_ms:.0f}" for at_ms, _ in times)

    print("| message | how many | bytes | put, ms | sent, ms | heard, ms |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        put = span(row["put"])
        print(
            f"| {row['message']} | {row['count']} | {row['bytes'] or ''} | {put} "
            f"| {span(row['sent'])} | {span(row['heard'])} |"
        )


def main() -> int:
    """Run and show."""
    words = sys.argv[1:]
    own = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    own.add_argument("--json", action="store_true")
    own.add_argument("--lines", action="store_true", help="every line of it too")
    asked, rest = own.parse_known_args(words)
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        os.environ["TRACE"] = folder
        script = str(HERE / "peer_traced.py")
        row = bench.bench(bench.arguments(["swarmtrain", "--script", script, *rest]))
        if "failed" in row:
            print(row["failed"], file=sys.stderr)
            return 1
        lines = read(Path(folder))
    rounds = sorted(rounds_of(lines)[-5:], key=lambda one: one[1] - one[0])
    start_s, end_s = rounds[len(rounds) // 2]
    rows = table(lines, start_s, end_s)
    if asked.json:
        print(json.dumps({"row": row, "messages": rows}))
        return 0
    print(f"{row['t']} s, {row['net']}, this one {end_s - start_s:.3f} s\n")
    show(rows)
    if asked.lines:
        every = sorted((t, who, *rest) for who, found in lines.items() for t, *rest in found)
        for at_s, who, *rest in every:
            if start_s - 0.02 <= at_s <= end_s + 0.05:
                print(f"{1e3 * (at_s - start_s):8.1f}  {who:12} {' '.join(map(str, rest))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
