"""Micro-batches a second of a model in stages by what its peers allow.

    python benchmarks/pipelines/speed.py [--pass-seconds 0.1] [--rounds 3] [--steps 20] [--json]

`swarmtrain up` and `swarmtrain join` on loopback; exit status 1 beyond the bar. Linux only: it
reads /proc. Three stages of two peers each, one twice as fast as the other; peers sleep until a
pass has taken its time, so that the machine need not have six cores.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from rig import STAGES, Run, parser_of, told

BAR = 0.90

WARMUP_ROUNDS = 3
PASSES = 3
"""Of a micro-batch through a stage: one forward, and a backward pass takes two."""


def speed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Micro-batches that all stages have counted, by the clock and by what peers allow."""
    rounds = WARMUP_ROUNDS + options.rounds
    passes_s = (options.pass_seconds, 2 * options.pass_seconds)
    allowed = sum(1 / (PASSES * pass_s) for pass_s in passes_s)
    books: list[dict[str, float]] = []
    exchanges_s: list[float] = []
    with Run(
        folder, time.monotonic() + options.timeout, rounds=rounds, steps=options.steps,
        layers=4, width=32, heads=2, context=32, batch=12, peers=2 * STAGES,
    ) as run:  # fmt: skip
        for stage in range(STAGES):
            for index, pass_s in enumerate(passes_s):
                words = ("--span", str(stage), "--pass-seconds", str(pass_s))
                run.join(f"p{stage}{index}", *words)
        for view in run.watch():
            now_s, pipeline = time.monotonic(), view.get("pipeline", {})
            if len(exchanges_s) < len(books) and view.get("committed", 0) >= len(books):
                exchanges_s.append(now_s - books[-1]["at_s"])
            if pipeline.get("made", 0) > (books[-1]["made"] if books else 0):
                counts = {name: pipeline[name] for name in ("made", "whole", "lost", "redone")}
                books.append({"at_s": now_s, "cpu_s": run.cpu_s(), **counts})
    if len(books) < rounds:
        raise RuntimeError(f"{len(books)} rounds were seen of {rounds}")
    first, last = books[WARMUP_ROUNDS - 1], books[-1]
    spent = {name: last[name] - first[name] for name in first}
    exchange_s = sum(exchanges_s[WARMUP_ROUNDS - 1 : len(books) - 1])
    rate = spent["whole"] / spent["at_s"]
    return {
        "micro_batches": spent["whole"], "seconds": spent["at_s"],
        "micro_batches_per_s": rate, "allowed_per_s": allowed, "ratio": rate / allowed,
        "tokens_per_s": rate * run.config.pipeline.micro_batch * run.config.model.context,
        "exchange_seconds": exchange_s,
        "ratio_between_exchanges": spent["whole"] / (spent["at_s"] - exchange_s) / allowed,
        "lost": spent["lost"], "redone": spent["redone"],
        "cores_busy": spent["cpu_s"] / spent["at_s"], "cores": os.cpu_count(),
        "load": os.getloadavg()[0], "bar": BAR, "holds": rate / allowed >= BAR,
    }  # fmt: skip


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--pass-seconds", type=float, default=0.1, help="of a fast peer's pass")
    parser.add_argument("--rounds", type=int, default=3, help="after those that warm up")
    parser.add_argument("--steps", type=int, default=20, help="of each peer in a round")
    sys.exit(told(parser.parse_args(), speed))
