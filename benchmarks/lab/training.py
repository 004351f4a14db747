#!/usr/bin/env python3
"""Share of time that peers spend in inner steps, by strategy, link and size of the model.

    training.py [--strategies diloco,eager] [--nets 100/100:50,10/50:50] [--models 0.85,10] [--json]
    training.py --real [--strategies eager] [--models 10]

Peers in network namespaces train through `swarmtrain.join`. A round has 20 inner steps, the
default, of 0.5 s: on one core of 2.5 GHz a model of 10 M values takes that for 4 examples of 128
bytes, one of 0.85 M for 48. An inner step is a pause of a drawn length, 5 % up or down, in which a
part of the weights changes, so that few cores do not measure their own lack; the exchange and its
arithmetic are the real ones. Links are UP/DOWN:RTT in Mbit/s and ms. `streaming` has five
fragments, a result's place is where the next one is given, and it copies its state after 16 of
them, as others do after 4 whole rounds; all else is the strategy's own.

Reported are medians over peers and rounds after the first, a round being so many own steps: share =
inner steps' part of its time, but for the time in which the training thread could have computed
and other programs had the core, which is queued_s; busy_share = with that; least = the smallest
share; waits_s = seconds in which it neither computes nor makes an inner step; computes_s = those in
which it computes what is the swarm's: differences, decoding, the outer step, hashes.

With --real rank 0 computes its inner steps, one example of 128 bytes each, on a core that nothing
else of the lab is on, and slower = by how much its steps take longer while an exchange is under way
than between two, by the clock without what other programs had the core for (medians); slower_cpu
likewise by processor time of that thread.

The bars, written down before the first run: at 100 Mbit/s both ways `streaming` and `eager`, which
train on during an exchange, have a share of 0.99 at least; slower is at most 0.05. Exit status 1 if
one is missed.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics as st
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import environment_of, python_of
from joining import told
from network import HERE, Failed, Meeting, Net, tail

STRATEGIES = {
    "diloco": "",
    "streaming": "fragments = 5\ndelay_steps = {interval}\n[checkpoint]\nsnapshot_rounds = 16\n",
    "eager": "",
    "noloco": "",
    "asynchronous": "",
}
OVERLAPPING = ("streaming", "eager")
NETS = ("100/100:50", "10/50:50", "5/20:50")
MODELS = {"0.85": (4, 128, 4), "10": (8, 320, 8)}
"""Millions of values: layers, width, heads."""

SHARE_BAR, SLOWER_BAR = 0.99, 0.05
BAR_NET = "100/100:50"
COLUMNS = ("share", "least", "busy_share", "waits_s", "computes_s", "queued_s", "load")
REAL_COLUMNS = ("slower", "slower_cpu", "step_s", "steps", "load")
MODEL_FILE = """
[run]
name = "model"
[model]
layers = {0}
width = {1}
heads = {2}
"""
RUN_FILE = """
[run]
name = "training"
rounds = 1000000
[model]
kind = "custom"
[data]
source = "own"
[outer]
strategy = "{strategy}"
inner_steps = {steps}
{more}
[exchange]
start_peers = {peers}
wait_ready_s = 600.0
"""


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    a = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    a.add_argument("--strategies", default=",".join(STRATEGIES))
    a.add_argument("--nets", default=",".join(NETS))
    a.add_argument("--models", default=",".join(MODELS))
    a.add_argument("--n", type=int, default=2, help="peers")
    a.add_argument("--steps", type=int, default=20, help="inner steps of a round")
    a.add_argument("--step", type=float, default=0.5, help="seconds of an inner step")
    a.add_argument("--rounds", type=int, default=3, help="that count, after one that does not")
    a.add_argument("--real", action="store_true", help="rank 0 computes, on a core of its own")
    a.add_argument("--timeout", type=float, default=600, help="seconds of one row at most")
    a.add_argument("--json", action="store_true", help="one JSON object a row")
    return a.parse_args(words)


def measured(a: argparse.Namespace, strategy: str, net: str, model: str) -> dict[str, Any]:
    """Run one swarm: one row."""
    run_dir = Path(tempfile.mkdtemp(prefix="lab-"))
    more = STRATEGIES[strategy].format(interval=a.steps // 5)
    words = {"strategy": strategy, "steps": a.steps, "peers": a.n, "more": more}
    (run_dir / "run.toml").write_text(RUN_FILE.format(**words))
    (run_dir / "model.toml").write_text(MODEL_FILE.format(*MODELS[model]))
    row: dict[str, Any] = {"strategy": strategy, "net": net, "model": model, "n": a.n}
    meeting = Meeting(run_dir / "barrier")
    try:
        with Net(a.n, net) as lab, (run_dir / "log").open("w") as log:
            for rank in range(a.n):
                environment = environment_of(rank, a.n, run_dir) | {
                    "NUMEL": "0", "MODE": "", "REPS": "0", "WARM": "0", "STEPS": str(a.steps),
                    "STEP_S": str(a.step), "REAL": str(int(a.real)),
                }  # fmt: skip
                lab.start(
                    rank, [python_of("swarmtrain"), str(HERE / "peer_steps.py")], environment, log
                )
            lab.watch(a.timeout)
            meeting.admit(a.n, lab, a.timeout)
            meeting.hear(range(a.n))
            meeting.let_go(range(a.n))
            windows = watched(a, lab, run_dir)
        row |= slowed(windows[0]) if a.real else summary(windows)
    except Failed as problem:
        row["failed"] = f"{problem}: {tail(run_dir / 'log')}"
    finally:
        meeting.close()
        shutil.rmtree(run_dir, ignore_errors=True)
    return row | {"load": round(os.getloadavg()[0], 1)}


def watched(a: argparse.Namespace, lab: Net, run_dir: Path) -> list[list[dict[str, Any]]]:
    """Return what each peer tells of the rounds that count, once all have told of enough."""
    while True:
        windows = [told(run_dir, rank)[1 : 1 + a.rounds] for rank in range(a.n)]
        if all(len(each) == a.rounds for each in windows):
            return windows
        if lab.dead():
            raise Failed(f"peer {lab.dead()[0]} has ended")
        time.sleep(0.5)


def summary(windows: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Figures of a row, of all peers' rounds."""
    rounds = list(itertools.chain(*windows))
    wholes = [one["inner_s"] + one["outer_s"] for one in rounds]
    shares = [
        one["inner_s"] / (whole - one["queued_s"])
        for one, whole in zip(rounds, wholes, strict=True)
    ]
    waits = [one["outer_s"] - one["computes_s"] - one["queued_s"] for one in rounds]
    busy = [one["inner_s"] / whole for one, whole in zip(rounds, wholes, strict=True)]
    return {
        "share": round(st.median(shares), 4),
        "least": round(min(shares), 4),
        "busy_share": round(st.median(busy), 4),
        "waits_s": round(max(0.0, st.median(waits)), 3),
        "computes_s": round(st.median(one["computes_s"] for one in rounds), 3),
        "queued_s": round(st.median(one["queued_s"] for one in rounds), 3),
    }


def slowed(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of the one peer that computes."""
    steps = list(itertools.chain(*(one["steps"] for one in rounds)))
    during, between = ([one for one in steps if one[2] == beside] for beside in (True, False))
    if len(during) < 3 or len(between) < 3:
        raise Failed(f"{len(during)} steps during an exchange and {len(between)} between")
    clock, cpu = (
        st.median(one[place] for one in during) / st.median(one[place] for one in between)
        for place in (0, 1)
    )
    return {
        "slower": round(clock - 1, 4),
        "slower_cpu": round(cpu - 1, 4),
        "step_s": round(st.median(one[0] for one in between), 4),
        "steps": f"{len(during)} + {len(between)}",
    }


def bar_of(row: dict[str, Any]) -> tuple[str, bool]:
    """Tell a row's bar and if it is kept; "" without one."""
    if "failed" in row:
        return "failed", False
    if "slower" in row:
        return f"slower at most {SLOWER_BAR}", row["slower"] <= SLOWER_BAR
    if row["strategy"] in OVERLAPPING and row["net"] == BAR_NET:
        return f"share at least {SHARE_BAR}", row["share"] >= SHARE_BAR
    return "", True


def main() -> int:
    a = arguments()
    if a.real:  # what is started from here stays away from the core of the steps
        os.sched_setaffinity(0, set(range(1, os.cpu_count() or 1)) or {0})
    missed = 0
    if not a.json:
        columns = REAL_COLUMNS if a.real else COLUMNS
        print(f"| {' | '.join(('strategy', 'link', 'M values', *columns, 'bar'))} |")
        print(f"|{'---|' * (4 + len(columns))}", flush=True)
    for model, net, strategy in itertools.product(
        a.models.split(","), a.nets.split(","), a.strategies.split(",")
    ):
        row = measured(a, strategy, net, model)
        bar, is_kept = bar_of(row)
        missed += not is_kept
        if a.json:
            print(json.dumps(row | {"bar": bar, "kept": is_kept}), flush=True)
            continue
        told_bar = f"{bar}: {'holds' if is_kept else 'missed'}" if bar else ""
        cells = [strategy, net, model, *(row.get(name, "") for name in columns), told_bar]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        if "failed" in row:
            print(row["failed"], file=sys.stderr)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
