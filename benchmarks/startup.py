"""Time that `swarmtrain --help` takes: median of nine processes, exit status 1 above the bar.

    python benchmarks/startup.py [--json]

A volunteer who asks for help must not wait for torch; everything heavy is imported late.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

BAR_S = 0.3
REPEAT = 9


def measure() -> list[float]:
    """Seconds of each process, from its start to its end."""
    seconds = []
    for _ in range(REPEAT):
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "swarmtrain", "--help"], check=True, stdout=subprocess.DEVNULL
        )
        seconds.append(time.perf_counter() - begin)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    seconds = measure()
    median = statistics.median(seconds)
    if options.json:
        figures = {"median_s": median, "min_s": min(seconds), "max_s": max(seconds), "bar_s": BAR_S}
        print(json.dumps(figures))
    else:
        print(f"swarmtrain --help: median {median:.3f} s of {REPEAT} (bar {BAR_S} s)")
    return 0 if median <= BAR_S else 1


if __name__ == "__main__":
    sys.exit(main())
