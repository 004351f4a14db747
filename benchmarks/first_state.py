"""Time until a run begins whose first peer keeps it from its first state.

    python benchmarks/first_state.py [--kind hoard|unreachable] [--peers 4] [--json]

A coordinator and its peers run on loopback, each a process of its own. The first to come is
hostile, and the honest ones come when it has given the run's first state. In `hoard` it answers
nothing that is asked of it by hash, neither states nor results; in `unreachable` it tells an
address where nobody listens, and takes no part in meetings, by which it would soon be reached. It
is told after how many seconds round 1 was committed, counted from the start of the honest peers,
who was in the rounds of the 20 s after it, and where the hostile one is named. Exit status 1:
round 1 took more than three minutes, an honest peer was in no round or in less than half of them,
or the culprit is not named.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from figures import parser_of

from swarmtrain.config.options import Endpoint

HOSTILE = "mallory"
NOWHERE = Endpoint("127.0.0.1", 9)
BEGIN_S = 180.0
"""Bar: time for round 1, with every honest peer in a result."""

WAIT_S = 2 * BEGIN_S
COUNT_S = 20.0
INNER_STEPS, WAIT_READY_S = 10, 3.0


class Beginning:
    """A run, and what its processes say.

    Args:
        peers: number of honest peers.
        place: directories of the run.
        processes: processes of the run.
    """

    def __init__(self, peers: int, place: Any, processes: Any) -> None:
        from swarmtrain.local_run.place import FOUNDERS

        self.place, self.processes = place, processes
        self.honest = FOUNDERS[:peers]
        self.invite = self.hostile_key = ""
        self.has_given = False
        self.first_s: dict[str, float] = {}
        """Times at which each honest peer's part was first in a result."""
        self.rounds: Counter[str] = Counter()
        """Number of rounds that were merged, by honest peer."""

    def hear(self, limit_s: float, holds: Callable[[], bool] = lambda: False) -> bool:
        """Hear events until it holds; False if it does not within the time."""
        from swarmtrain.foundation.events import In, Ready, RoundEnded, StateInPlace
        from swarmtrain.local_run.processes import Ended

        until_s = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > until_s:
                return False
            try:
                name, event = self.processes.news.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(event, Ready):
                self.invite = event.invite
            elif isinstance(event, Ended):
                raise RuntimeError(f"{name} ended with {event.words}")
            elif name == HOSTILE:
                self.has_given |= isinstance(event, StateInPlace)
                self.hostile_key = event.peer if isinstance(event, In) else self.hostile_key
            elif isinstance(event, RoundEnded) and event.outcome == "merged":
                self.first_s.setdefault(name, time.monotonic())
                self.rounds[name] += 1
        return True

    def start(self, kind: str) -> None:
        """Start the coordinator, then the hostile peer, and the others when it has given."""
        self.processes.start_coordinator()
        self.hear(BEGIN_S, lambda: bool(self.invite))
        folder = str(self.place.peer(HOSTILE))
        self.processes.start_module(
            HOSTILE, Path(__file__).stem, "--kind", kind, "--hostile", folder
        )
        self.processes.hand_invite(HOSTILE, self.invite)
        if not self.hear(BEGIN_S, lambda: self.has_given):
            raise RuntimeError("the hostile peer gave no first state")
        for name in self.honest:
            self.processes.start_peer(name)
            self.processes.hand_invite(name, self.invite)

    def named(self) -> dict[str, Any]:
        """Places that name the hostile peer."""
        from swarmtrain.status import ask_coordinator

        status = ask_coordinator(self.place.coordinator)
        words = f"first state of {HOSTILE}"
        told = subprocess.run(
            [sys.executable, "-m", "swarmtrain", "why", "1", "--state-dir",
             str(self.place.coordinator)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return {
            "events": [
                f"{one.event}: {one.reason}" for one in status.events
                if one.peer == self.hostile_key and one.event not in ("joined", "left", "lost")
            ],
            "states": [one.state for one in status.peers if one.peer == self.hostile_key],
            "why": [line for line in told.stdout.splitlines() if words in line],
        }  # fmt: skip


def measure(kind: str, peers: int) -> dict[str, Any]:
    """One run's beginning."""
    from swarmtrain.chaos.setting import write_run_file
    from swarmtrain.local_run.place import Place
    from swarmtrain.local_run.processes import Processes
    from swarmtrain.status import ask_coordinator

    # The processes find this file as a module.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
    )
    with tempfile.TemporaryDirectory(prefix="swarmtrain-first-") as folder:
        place = Place.make(Path(folder) / "run", what="drill")
        write_run_file(place, 1, peers, INNER_STEPS, WAIT_READY_S)
        processes = Processes(place)
        run = Beginning(peers, place, processes)
        try:
            run.start(kind)
            began_s = time.monotonic()
            run.hear(20.0)
            waiting_for = ask_coordinator(place.coordinator).waiting_for
            all_in = run.hear(WAIT_S, lambda: len(run.first_s) == peers)
            before = run.rounds.copy()
            committed = ask_coordinator(place.coordinator).committed
            run.hear(COUNT_S)
            committed = ask_coordinator(place.coordinator).committed - committed
            named = run.named()
        finally:
            processes.close()
    first_s = min(run.first_s.values(), default=began_s + WAIT_S) - began_s
    all_s = max(run.first_s.values()) - began_s if all_in else WAIT_S
    merged = {name: run.rounds[name] - before[name] for name in run.honest}
    is_named = bool(named["events"]) and bool(named["why"])
    shared = bool(committed) and 2 * min(merged.values()) >= committed
    return {
        "kind": kind, "peers": peers, "round_1_s": round(first_s, 1), "all_in_s": round(all_s, 1),
        "rounds": committed, "merged": merged, "waiting_for": waiting_for, "named": named,
        "holds": all_s <= BEGIN_S and shared and is_named,
    }  # fmt: skip


def hostile(kind: str, folder: str) -> int:
    """Be the first peer; the invite is the first line of standard input."""
    from swarmtrain.chaos.siege.hostile import _LyingLink
    from swarmtrain.config.options import JoinOptions
    from swarmtrain.foundation import events
    from swarmtrain.peer.network.shell import PeerShell
    from swarmtrain.peer.run import run_peer
    from swarmtrain_transport.credentials.invite import Invite
    from swarmtrain_transport.wire.frames import FrameKind
    from swarmtrain_transport.wire.messages import PeerMessage, Places

    answers = (FrameKind.BLOB, FrameKind.PIECE)

    class Hoarder(PeerShell):
        def _start_machine(self, *args: Any) -> None:
            super()._start_machine(*args)
            assert self._link is not None
            self._link = _LyingLink(
                self._link, lambda frame: frame.kind not in answers,
                lambda frame, send: False, lambda peer: False,
            )  # fmt: skip

    class Aloof(PeerShell):
        def send(self, message: PeerMessage) -> None:
            if not isinstance(message, Places):
                super().send(message)

    is_aloof = kind == "unreachable"
    options = JoinOptions(
        invite=Invite.parse(sys.stdin.readline().strip()), name=HOSTILE,
        listen=Endpoint("127.0.0.1", 0), advertise=NOWHERE if is_aloof else None,
        state_dirs=(Path(folder),), json_events=True,
    )  # fmt: skip
    say = partial(print, file=sys.stderr, flush=True)
    shell = Aloof if is_aloof else Hoarder
    return run_peer(options, say=say, emit=events.write, make_shell=shell)


def main() -> int:
    parser = parser_of(__doc__.splitlines()[0])
    parser.add_argument("--kind", default="hoard", choices=("hoard", "unreachable"))
    parser.add_argument("--peers", type=int, default=4, help="honest ones")
    parser.add_argument("--hostile", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hostile:
        return hostile(options.kind, options.hostile)
    figures = measure(options.kind, options.peers)
    words = (
        "{kind}: round 1 after {round_1_s} s, all {peers} honest peers in a result after"
        " {all_in_s} s; then {rounds} rounds, with each of them: {merged}; after 20 s the run"
        " waited for: {waiting_for}; named: {named}; the bars hold: {holds}"
    )
    print(json.dumps(figures) if options.json else words.format(**figures))
    return 0 if figures["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
