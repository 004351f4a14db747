#!/usr/bin/env python3
"""One of N peers dies in mid-exchange: one JSON row.

    death.py [--n 8] [--numel 10e6] [--net 100:0] [--deaths 5] [--at 0.5] [--cut]

Each death has a new swarm: some whole rounds, whose median is the undisturbed time, then one in
which the last rank is killed (SIGKILL) when so much of that time has passed. With --cut its link
goes first, so that no kernel says goodbye for it and only its silence tells.

Reported, medians over the deaths: undisturbed and t = seconds from the call to the committed mean
of the slowest survivor; detect = from the kill until a survivor reads the decision about the dead
one; ratio = (t - detect) / undisturbed, asked is at most 1.3; parts_twice, results_twice =
bytes that the survivors sent a second time, as parts to a slice's next owner or as results that
the death made void, mean per survivor; slice_mb = the dead owner's slice. Every survivor's mean is
checked against the true mean of those who are in it, and all survivors' must be the same bits.
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

from bench import ERROR_MAX, environment_of, python_of
from network import HERE, Failed, Meeting, Net, tail


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    a = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    a.add_argument("--n", type=int, default=8)
    a.add_argument("--numel", type=float, default=10e6)
    a.add_argument("--mode", default="int8")
    a.add_argument("--net", default="100:0")
    a.add_argument("--at", type=float, default=0.5, help="share of the undisturbed time")
    a.add_argument("--cut", action="store_true", help="the link dies with the peer")
    a.add_argument("--deaths", type=int, default=5)
    a.add_argument("--reps", type=int, default=3, help="whole rounds before each death")
    a.add_argument("--warm", type=int, default=2)
    a.add_argument("--timeout", type=float, default=120, help="of one death")
    a.add_argument("--why", action="store_true", help="tell each death from the ledger on stderr")
    return a.parse_args(words)


def one_death(a: argparse.Namespace, run_dir: Path) -> dict[str, Any]:
    """A swarm from its start to the end of the disturbed op."""
    meeting = Meeting(run_dir / "barrier")
    try:
        with Net(a.n, a.net) as net, (run_dir / "log").open("w") as log:
            for rank in range(a.n):
                environment = environment_of(rank, a.n, run_dir) | {
                    "NUMEL": str(int(a.numel)), "MODE": a.mode,
                    "REPS": str(a.reps), "WARM": str(a.warm),
                }  # fmt: skip
                script = str(HERE / "peer_death.py")
                net.start(rank, [python_of("swarmtrain"), script], environment, log)
            net.watch(a.timeout)
            meeting.admit(a.n, net, a.timeout)
            return watched(a, meeting, net)
    finally:
        meeting.close()


def watched(a: argparse.Namespace, meeting: Meeting, net: Net) -> dict[str, Any]:
    everybody, survivors = range(a.n), range(a.n - 1)
    whole = []
    for _ in range(a.warm + a.reps):
        for at in ("start", "done", "end"):
            said = meeting.hear(everybody)
            assert all(m["at"].startswith(at) for m in said.values())
            meeting.let_go(everybody)
        whole.append(said)
    whole = whole[a.warm :]
    undisturbed_s = st.median(slowest(said) for said in whole)
    meeting.hear(everybody)
    meeting.let_go(everybody)
    time.sleep(a.at * undisturbed_s)
    killed_s = time.monotonic()
    net.kill(a.n - 1, link_too=a.cut)
    for _ in ("done", "end"):
        said = meeting.hear(survivors)
        meeting.let_go(survivors)
    return told(a, whole, said, undisturbed_s, killed_s)


def told(
    a: argparse.Namespace, whole: list[Any], said: dict[int, Any], undisturbed_s: float,
    killed_s: float,
) -> dict[str, Any]:  # fmt: skip
    """Tell what one death cost."""
    if a.why:
        print("\n".join(said[0]["why"]), file=sys.stderr)
    if len({m["digest"] for m in said.values()}) > 1:
        raise Failed("the survivors hold different means")
    if any(m["detected_s"] is None for m in said.values()):
        raise Failed("the op ended before anybody was missed: kill earlier")
    err = max(m["err"] for m in [*said.values(), *(m for one in whole for m in one.values())])
    if err > ERROR_MAX:
        raise Failed(f"wrong result, relative error {err:.3g}")
    t = slowest(said)
    detect = min(m["detected_s"] for m in said.values()) - killed_s
    usual = st.median(st.mean(m["tx"] for m in one.values()) for one in whole)
    return {
        "undisturbed": undisturbed_s,
        "t": t,
        "killed_at": killed_s - min(m["began_s"] for m in said.values()),
        "detect": detect,
        "ratio": (t - detect) / undisturbed_s,
        "parts_twice_mb": st.mean(m["parts_twice"] for m in said.values()) / 1e6,
        "results_twice_mb": st.mean(m["results_twice"] for m in said.values()) / 1e6,
        "slice_mb": said[0]["slice_bytes"] / 1e6,
        "extra_tx_mb": (st.mean(m["tx"] for m in said.values()) - usual) / 1e6,
        "err": err,
    }


def slowest(said: dict[int, Any]) -> float:
    return max(m["t"] for m in said.values())


def bench(a: argparse.Namespace) -> dict[str, Any]:
    """All deaths: one row."""
    row: dict[str, Any] = {
        "system": "swarmtrain", "mode": a.mode, "n": a.n, "numel": int(a.numel), "net": a.net,
        "deaths": a.deaths, "at": a.at, "cut": a.cut,
    }  # fmt: skip
    deaths = []
    for _ in range(a.deaths):
        run_dir = Path(tempfile.mkdtemp(prefix="lab-"))
        try:
            deaths.append(one_death(a, run_dir))
        except Failed as problem:
            row["failed"] = f"{problem}: {tail(run_dir / 'log')}"
            return row
        finally:
            shutil.rmtree(run_dir, ignore_errors=True)
    row.update({key: round(st.median(d[key] for d in deaths), 4) for key in deaths[0]})
    row["ratio_max"] = round(max(d["ratio"] for d in deaths), 4)
    row["err"] = max(d["err"] for d in deaths)
    return row


if __name__ == "__main__":
    answer = bench(arguments())
    print(json.dumps(answer))
    sys.exit("failed" in answer)
