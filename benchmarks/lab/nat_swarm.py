"""A run on natlab's internet: its lab, its processes, and what they have told so far."""

import contextlib
import os
import queue
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nat_bars import NO_WAY, UNTOLD
from network import HERE, Failed, Lab, netlab, tail

from swarmtrain import status
from swarmtrain.foundation.errors import UserError
from swarmtrain.foundation.events import Finished, In, Ready, RoundEnded
from swarmtrain.local_run.place import COORDINATOR, Place
from swarmtrain.local_run.processes import Ended, Processes

SCRIPT = "natlab.sh"
NAME = os.environ.get("LAB_NET", "na")
"""Not the one of a lab that somebody has made by hand."""

START_S = 60.0
"""For a coordinator to be ready: Python, torch and the text come first."""

_GLANCE_S = 0.1
_ASK_S = 0.5

RUN_FILE = """\
[run]
name = "nat"
rounds = 100000
[model]
layers = 1
width = {width}
heads = 2
context = 32
[inner]
batch = 4
[outer]
inner_steps = {steps}
[exchange]
start_peers = {peers}
min_contributors = {least}
{more}
"""


class NatLab(Lab):
    """Sites on an internet of their own, see natlab.sh.

    Args:
        sites: KIND[:PEERS] by the name of the site.
        net: RATE:RTT[:LOSS] of each site.
        family: 4, 6 or 46.
        refuses: routers answer strangers' SYNs with RST.
        keeps: the namespaces are left when the block ends.
    """

    def __init__(
        self, sites: Mapping[str, str], *, net: str = "0:0", family: int = 4,
        refuses: bool = False, keeps: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(NAME)
        os.environ["LAB_NET"] = NAME
        self.sites, self.family = dict(sites), family
        self._keeps = keeps
        self._words = ["--net", net, "--family", family, *(["--refuse"] if refuses else [])]

    def _make(self) -> None:
        self.order("up", *self._words, *(f"{name}={kind}" for name, kind in self.sites.items()))

    def _remove(self) -> None:
        if not self._keeps:
            self.order("down")

    def order(self, *words: object) -> None:
        """Have natlab.sh do something."""
        netlab(*words, script=SCRIPT)

    def within(self, place: str) -> tuple[str, ...]:
        """Return the words of a command that runs another one at SITE[.PEER]."""
        return (str(HERE / SCRIPT), "run", place)

    def kind_at(self, place: str) -> str:
        """Return the kind of the router in front of SITE[.PEER]."""
        return self.sites[place.partition(".")[0]].partition(":")[0]

    def host_of(self, place: str) -> str:
        """Return the own address of SITE[.PEER], as a part of HOST:PORT."""
        said = subprocess.run(
            [str(HERE / SCRIPT), "addresses", place], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        own = said[0].split()[1]
        return f"[{own}]" if ":" in own else own


class Swarm:
    """A coordinator and peers at places of a lab, from their start to their end.

    Args:
        lab: lab that is up.
        folder: an empty one for all files.
        places: SITE[.PEER] by the name of the process; the coordinator's is `COORDINATOR`.
        more: lines for the end of the run file, in its section [exchange] at first.
        steps: inner steps of a round.
        width: width of the model.

    Attributes:
        came_s: time at which each peer was let in.
        rounds: rounds that each peer's part was in, each with the time and its news.
        ended: words for how a process has ended, by its name.
        lost: peers that the coordinator gave up, with the reason and how often.
    """

    def __init__(
        self, lab: NatLab, folder: Path, places: Mapping[str, str], *, more: str = "",
        steps: int = 20, width: int = 16, least: int = 0,
    ) -> None:  # fmt: skip
        self._lab, self._places = lab, dict(places)
        self.names = [name for name in places if name != COORDINATOR]
        self.place = Place.make(folder / "run", what="nat")
        count = len(self.names)
        self.place.run_file.write_text(
            RUN_FILE.format(peers=count, least=least or count, steps=steps, width=width, more=more)
        )
        self.processes = Processes(self.place, where=self._where)
        self.invite = ""
        self.came_s: dict[str, float] = {}
        self.rounds: dict[str, dict[int, tuple[float, RoundEnded]]] = defaultdict(dict)
        self.ended: dict[str, str] = {}
        self.lost: dict[tuple[str, str], int] = {}
        self._spared: set[str] = set()
        self._status: dict[str, Any] = {}
        self._asked_s = 0.0

    def __enter__(self) -> "Swarm":
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.close()

    def _where(self, name: str) -> Sequence[str]:
        return self._lab.within(self._places[name])

    # ---- starting

    def start(self, *words: str, peer_words: Mapping[str, Sequence[str]] | None = None) -> None:
        """Start the coordinator, and when it is ready all peers.

        Args:
            words: more options of `up`.
            peer_words: more options of `join`, by the peer's name.

        Raises:
            Failed: the coordinator has ended, or is not ready in time.
        """
        here = self._places[COORDINATOR]
        is_open = self._lab.kind_at(here) == "none"
        every = "[::]" if self._lab.family == 6 else "0.0.0.0"
        self.processes.start_module(
            COORDINATOR, "swarmtrain", "up", str(self.place.run_file), "--json-events",
            "--listen", f"{self._lab.host_of(here) if is_open else every}:0", "--linger", "0",
            "--state-dir", str(self.place.coordinator), *self._mapping(here, "up"), *words,
        )  # fmt: skip
        if not self.hear(START_S, lambda: bool(self.invite)):
            raise Failed("the coordinator is not ready")
        for name in self.names:
            self.join(name, *(peer_words or {}).get(name, ()))

    def join(self, name: str, *words: str) -> None:
        """Start a peer, with no option that a volunteer would not give."""
        self.begin(
            name, "join", "--name", name, "--yes", "--json-events",
            "--state-dir", str(self.place.peer(name)),
            *self._mapping(self._places[name], "join"), *words,
        )  # fmt: skip

    def begin(self, name: str, command: str, *words: str, place: str = "") -> None:
        """Start a command of swarmtrain that takes the invite on standard input."""
        if place:
            self._places[name] = place
        self.processes.start_module(name, "swarmtrain", command, "--invite-file", "-", *words)
        self.processes.hand_invite(name, self.invite)

    def kill(self, name: str) -> None:
        """End a process as a power cut would; that it has ended is no failure."""
        self._spared.add(name)
        self.processes.kill(name)

    def _mapping(self, place: str, command: str) -> tuple[str, ...]:
        """Nobody is asked without a terminal: leave to alter the router is given here."""
        is_asked = self._lab.kind_at(place) == "mapped" and has_option(command, "--map")
        return ("--map",) if is_asked else ()

    # ---- hearing

    def hear(self, limit_s: float, holds: Callable[[], bool] = lambda: False) -> bool:
        """Hear what the processes tell until it holds; False if it does not within the time.

        Raises:
            Failed: a process has ended.
        """
        until_s = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > until_s:
                return False
            try:
                name, event = self.processes.news.get(timeout=_GLANCE_S)
            except queue.Empty:
                continue
            now_s = time.monotonic()
            match event:
                case Ready():
                    self.invite = event.invite
                case In():
                    self.came_s.setdefault(name, now_s)
                case RoundEnded(outcome="merged"):
                    self.rounds[name][event.round] = (now_s, event)
                case Finished():
                    raise Failed("the run is over")
                case Ended() if name not in self._spared:
                    self.ended[name] = event.words
                    said = tail(self.place.log(name))
                    raise Failed(f"{name} ended with {event.words}: {said}")
        return True

    def status(self) -> dict[str, Any]:
        """Return the coordinator's status, of the last half second."""
        if time.monotonic() > self._asked_s + _ASK_S:
            self._asked_s = time.monotonic()
            with contextlib.suppress(UserError):  # it is busy: what it said before stands
                self._status = status.ask(self.place.coordinator)
            for event in self._status.get("events", ()):
                if event["event"] == "lost":
                    self.lost[event["peer"], event["reason"]] = event["times"]
        return self._status

    def common(self, names: Iterable[str] = ()) -> dict[int, float]:
        """Return the rounds that all parts were in, each with the time when the last one had it."""
        wanted = [self.rounds[name] for name in names or self.names]
        both = set.intersection(*(set(told) for told in wanted))
        return {
            round_: max(told[round_][0] for told in wanted)
            for round_ in sorted(both)
            if all(told[round_][1].contributors >= len(wanted) for told in wanted)
        }

    def differing(self) -> list[int]:
        """Return the rounds after which state roots differ among those who have told theirs."""
        roots: dict[int, set[str]] = defaultdict(set)
        for told in self.rounds.values():
            for round_, (_, event) in told.items():
                roots[round_].add(event.root)
        return sorted(round_ for round_, found in roots.items() if len(found) > 1)

    def first_s(self) -> float | None:
        """Return the seconds from when all were in until the first round of all; None without."""
        common = self.common()
        return min(common.values()) - max(self.came_s.values()) if common else None

    def way(self, sender: str, receiver: str) -> str:
        """Return the way from one peer to another as the coordinator tells it."""
        for peer in self.status().get("peers", ()):
            if peer["name"] == sender and "ways" in peer:
                return peer["ways"].get(receiver) or NO_WAY
        return UNTOLD


def has_option(command: str, option: str) -> bool:
    """Return True if this version's command has that option."""
    return option in _help(command)


def has_command(command: str) -> bool:
    """Return True if this version has that command."""
    return _help(command).strip() != ""


def _help(command: str) -> str:
    words = [sys.executable, "-m", "swarmtrain", command, "--help"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout
