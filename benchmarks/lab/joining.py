#!/usr/bin/env python3
"""A peer joins while others train: one JSON row.

    joining.py [--donors 4] [--numel 50e6] [--donor-rate 100] [--rate 50] [--inner 36]

The donors train through `swarmtrain.join` (DiLoCo, int8), a round being INNER seconds of inner
steps and an exchange. After some rounds a joiner with other weights comes and fetches the run's
state, 8 bytes per value (weights and momentum), over a link of RATE Mbit/s each way.

Reported: link = state bits per second of download / RATE, asked is at least 0.90 (TCP itself
carries 0.956); state_s = from the first request for the state until the last byte of it is checked;
join_s = from the call until the state is in the model; round and round_joining = median seconds of
the donors' rounds before the joiner, and of those that the download falls into, slower = their
ratio less 1, asked is at most 0.05; share = the exchange's part of an undisturbed round, PLAN to
COMMIT, at most 0.20. What is not exchange and not inner step is arithmetic on 50 M values, by five
peers at once on this one machine.
The state that the joiner ends with must be that of the donors after the same round.
"""

import argparse
import json
import shutil
import statistics as st
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import environment_of, python_of
from network import HERE, Failed, Meeting, Net, tail

STEPS = 10
RUN_FILE = """
[run]
name = "joining"
rounds = 100000
[model]
kind = "custom"
[data]
source = "own"
[outer]
inner_steps = {steps}
[exchange]
start_peers = {donors}
[checkpoint]
every_rounds = 100000
snapshot_rounds = 1
"""


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    a = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    a.add_argument("--donors", type=int, default=4)
    a.add_argument("--numel", type=float, default=50e6)
    a.add_argument("--donor-rate", default="100", help="Mbit/s each way, of each donor")
    a.add_argument("--rate", type=float, default=50, help="Mbit/s each way, of the joiner")
    a.add_argument("--inner", type=float, default=36, help="seconds of a round's inner steps")
    a.add_argument("--reps", type=int, default=2, help="rounds before the joiner comes")
    a.add_argument("--warm", type=int, default=1)
    a.add_argument("--timeout", type=float, default=400)
    return a.parse_args(words)


def told(run_dir: Path, rank: int) -> list[dict[str, Any]]:
    """Read what a peer has told so far; its last line may not be whole yet."""
    path = run_dir / f"told-{rank}"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def rounds_of(run_dir: Path, rank: int) -> dict[int, dict[str, Any]]:
    return {one["round"]: one for one in told(run_dir, rank) if one["event"] == "round"}


def moment(events: list[dict[str, Any]], event: str, *, last: bool = False) -> dict[str, Any]:
    found = [one for one in events if one["event"] == event]
    if not found:
        raise Failed(f"the joiner never told of: {event}")
    return found[-1 if last else 0]


def watched(a: argparse.Namespace, net: Net, meeting: Meeting, run_dir: Path) -> dict[str, Any]:
    donors, joiner = range(a.donors), a.donors

    def wait_for(is_so: Any) -> None:
        while not is_so():
            if net.dead():
                raise Failed(f"peer {net.dead()[0]} has ended")
            time.sleep(0.1)

    meeting.hear([*donors, joiner])
    meeting.let_go(donors)
    wait_for(lambda: all(len(rounds_of(run_dir, r)) >= a.warm + a.reps for r in donors))
    # Its processor time for coming in shall not fall into an exchange: it comes between two.
    meeting.let_go([joiner])
    wait_for(lambda: any(one["event"] == "in" for one in told(run_dir, joiner)))
    mine = moment(told(run_dir, joiner), "in")
    ended = max(rounds_of(run_dir, 0)) + 1  # the round that the end of the download fell into
    wait_for(lambda: all(ended in rounds_of(run_dir, r) for r in donors))
    if any(rounds_of(run_dir, r)[mine["round"]]["root"] != mine["root"] for r in donors):
        raise Failed("the joiner's state is not the donors'")
    return summary(a, told(run_dir, joiner), [rounds_of(run_dir, r) for r in donors])


def summary(
    a: argparse.Namespace, joining: list[dict[str, Any]], donors: list[dict[int, dict[str, Any]]]
) -> dict[str, Any]:
    join, begun = moment(joining, "join"), moment(joining, "download")
    whole, loaded = moment(joining, "chunk", last=True), moment(joining, "in")
    before, during = [], []
    shares, exchanges = [], []
    for rounds in donors:
        for number in sorted(rounds)[a.warm :]:
            began_s, ended_s = rounds[number - 1]["s"], rounds[number]["s"]
            if ended_s < join["s"]:
                before.append(ended_s - began_s)
                shares.append(rounds[number]["exchange_s"] / (ended_s - began_s))
            elif began_s < whole["s"] and ended_s > begun["s"]:
                during.append(ended_s - began_s)
                exchanges.append(rounds[number]["exchange_s"])
    state_s = whole["s"] - begun["s"]
    chunks = {one["digest"]: one["num_bytes"] for one in joining if one["event"] == "chunk"}
    num_bytes = sum(chunks.values())
    return {
        "link": round(8 * num_bytes / state_s / (a.rate * 1e6), 4),
        "state_s": round(state_s, 3),
        "join_s": round(loaded["s"] - join["s"], 3),
        "rx_mb": round((whole["rx"] - begun["rx"]) / 1e6, 1),
        "state_mb": round(num_bytes / 1e6, 1),
        "round": round(st.median(before), 3),
        "round_joining": round(st.median(during), 3),
        "round_joining_max": round(max(during), 3),
        "slower": round(st.median(during) / st.median(before) - 1, 4),
        "share": round(st.median(shares), 4),
        "exchange_joining": round(st.median(exchanges), 3),
        "rounds": f"{len(before) // len(donors)} + {len(during) // len(donors)}",
    }


def bench(a: argparse.Namespace) -> dict[str, Any]:
    run_dir = Path(tempfile.mkdtemp(prefix="lab-"))
    (run_dir / "run.toml").write_text(RUN_FILE.format(steps=STEPS, donors=a.donors))
    row: dict[str, Any] = {
        "system": "swarmtrain", "mode": "int8", "n": a.donors, "numel": int(a.numel),
        "net": f"{a.donor_rate}, joiner {a.rate:g}",
    }  # fmt: skip
    meeting = Meeting(run_dir / "barrier")
    rates = [a.donor_rate] * a.donors + [f"{a.rate:g}"]
    try:
        with Net(a.donors + 1, rates=rates) as net, (run_dir / "log").open("w") as log:
            for rank in range(a.donors + 1):
                environment = environment_of(rank, a.donors + 1, run_dir) | {
                    "NUMEL": str(int(a.numel)), "MODE": "int8", "REPS": "0", "WARM": "0",
                    "INNER_S": str(a.inner), "STEPS": str(STEPS),
                }  # fmt: skip
                script = str(HERE / "peer_training.py")
                net.start(rank, [python_of("swarmtrain"), script], environment, log)
            net.watch(a.timeout)
            meeting.admit(a.donors + 1, net, a.timeout)
            row.update(watched(a, net, meeting, run_dir))
    except Failed as problem:
        row["failed"] = f"{problem}: {tail(run_dir / 'log')}"
    finally:
        meeting.close()
        shutil.rmtree(run_dir, ignore_errors=True)
    return row


if __name__ == "__main__":
    answer = bench(arguments())
    print(json.dumps(answer))
    sys.exit("failed" in answer)
