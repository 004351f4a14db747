#!/usr/bin/env python3
"""Two versions of this project on one machine, in alternation: the ratio of seconds and of CPU.

    git worktree add ../older COMMIT
    python benchmarks/lab/versions.py ../older --pairs 15 [--only 100,noloco] [--json]

Each pair runs both checkouts' own code in the same net, one right after the other, in turns the
first. A figure is the median over pairs of (this version / the other one), with the 90 % interval
of that median over bootstrap samples of the pairs. As root, like all of the lab.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BLOCKS = {
    "100": ["swarmtrain", "--n", "4", "--numel", "10e6", "--net", "100:0"],
    "50ms": ["swarmtrain", "--n", "4", "--numel", "10e6", "--net", "100:50"],
    "1M-50ms": ["swarmtrain", "--n", "4", "--numel", "1e6", "--net", "100:50"],
    "1M-150ms": ["swarmtrain", "--n", "4", "--numel", "1e6", "--net", "100:150"],
    "lossy": ["swarmtrain", "--n", "4", "--numel", "4e6", "--net", "20:100:1"],
    "unshaped": ["swarmtrain", "--n", "4", "--numel", "10e6"],
    "noloco": ["rounds", "--n", "4", "--numel", "2e6", "--mode", "noloco", "--bytes", "8"],
}
_SAMPLES = 4000


def measured(checkout: Path, words: list[str], reps: int) -> dict[str, Any]:
    """One row of a checkout's bench.py."""
    script = checkout / "benchmarks" / "lab" / "bench.py"
    # From there: what a bench starts by `python -m swarmtrain` is taken from the folder we are in.
    answer = subprocess.run(
        [sys.executable, str(script), *words, "--reps", str(reps)],
        cwd=checkout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = answer.stdout.splitlines()
    row: dict[str, Any] = json.loads(lines[-1]) if lines else {"failed": answer.stderr[-500:]}
    return row


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Median of the ratios, and the 90 % interval of it over bootstrap samples."""
    chance = random.Random(0)
    medians = sorted(
        statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(_SAMPLES)
    )
    at = len(medians) // 20
    return statistics.median(ratios), medians[at], medians[-at - 1]


def compare(other: Path, words: list[str], pairs: int, reps: int) -> dict[str, Any]:
    """All pairs of one block."""
    own = HERE.parents[1]
    ratios: dict[str, list[float]] = {"t": [], "cpu_s": []}
    seconds: dict[str, list[float]] = {"this": [], "other": []}
    failed = []
    for pair in range(pairs):
        turns = [("this", own), ("other", other)]
        rows = {
            who: measured(where, words, reps) for who, where in (turns if pair % 2 else turns[::-1])
        }
        bad = [f"{who}: {row['failed']}" for who, row in rows.items() if "failed" in row]
        failed += bad
        if not bad:
            for figure, found in ratios.items():
                found.append(rows["this"][figure] / rows["other"][figure])
            for who, row in rows.items():
                seconds[who].append(row["t"])
    told: dict[str, Any] = {"pairs": len(ratios["t"]), "failed": failed}
    if ratios["t"]:
        told |= {f"{who}_s": statistics.median(found) for who, found in seconds.items()}
        for figure, found in ratios.items():
            told[figure] = dict(
                zip(("ratio", "low", "high"), (round(x, 4) for x in interval(found)), strict=True)
            )
    return told


def main() -> None:
    a = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    a.add_argument("other", type=Path, help="a checkout of the other version")
    a.add_argument("--pairs", type=int, default=15)
    a.add_argument("--reps", type=int, default=5)
    a.add_argument("--only", default="", help=f"of {','.join(BLOCKS)}")
    a.add_argument("--json", action="store_true")
    asked = a.parse_args()
    other = asked.other.resolve()
    for name in ("peer_rounds.py",):  # an older version has no such script; it has all that it uses
        if not (place := other / "benchmarks" / "lab" / name).exists():
            shutil.copy(HERE / name, place)
    results = {}
    for name in asked.only.split(",") if asked.only else BLOCKS:
        results[name] = told = compare(other, BLOCKS[name], asked.pairs, asked.reps)
        print(name, json.dumps(told), file=sys.stderr, flush=True)
    if asked.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
