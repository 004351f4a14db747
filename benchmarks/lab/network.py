"""The lab's net and the processes on it, for as long as a block lasts and no longer.

    with Net(peers=4, net="100:50") as net:
        process = net.start(0, [python, script], environment, log)

Whatever ends the block (Ctrl+C, a signal, an error, a second Ctrl+C meanwhile), every process in
the namespaces is ended and the namespaces are removed. After `kill -9` of the driver its peers die
with it, and the next `up` removes what is left. One net at a time: a second driver waits.
"""

import abc
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve().parent
HOME = Path(os.environ.get("LAB_HOME", Path.home() / ".cache/swarmtrain-lab"))
NAME = os.environ.get("LAB_NET", "nl")
_SET_PDEATHSIG = 1
_LOOK_S = 0.5


class Failed(Exception):
    """A system under test did not do what was asked; the row says so."""


class Lab(abc.ABC):
    """Namespaces that a script makes, for as long as a block lasts.

    Args:
        name: first word of their names; labs of the same name wait for each other.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @abc.abstractmethod
    def _make(self) -> None:
        """Make them, in place of what is left of earlier ones."""

    @abc.abstractmethod
    def _remove(self) -> None:
        """End all that runs in them, and remove them."""

    def __enter__(self) -> Self:
        if os.geteuid():
            raise SystemExit("The lab makes network namespaces, which only root may.")
        HOME.mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _as_interrupt)
        self._lock = (HOME / f"lock-{self._name}").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another lab runs on this machine; waiting for its end.", file=sys.stderr)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with _undisturbed():
            self._remove()
            self._lock.close()


class Net(Lab):
    """Namespaces with shaped links.

    Args:
        peers: how many.
        net: RATE:RTT[:LOSS], Mbit/s each way or UP/DOWN (0 for no limit), ms, per cent.
        rates: of each peer, "R" or "UP/DOWN" in Mbit/s, instead of `net`.
        congestion: TCP's congestion control, forced on every connection; "" leaves the choice to
            the system and to the programs.
    """

    def __init__(
        self, peers: int, net: str = "0:0", rates: Iterable[str] = (), congestion: str = ""
    ) -> None:
        super().__init__(NAME)
        self._peers = peers
        self._net = ([*net.split(":"), "0", "0"])[:3]
        self._rates = tuple(rates)
        self._congestion = congestion
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._is_watching = False

    def _make(self) -> None:
        if self._rates:
            netlab("up", self._peers, 0, 0)
            for index, rate in enumerate(self._rates):
                up, _, down = rate.partition("/")
                netlab("limit", index, up, down or up)
        else:
            netlab("up", self._peers, *self._net)
        if self._congestion:
            netlab("congestion", self._congestion)

    def _remove(self) -> None:
        self._is_watching = False
        netlab("down")
        for process in self._started.values():
            process.wait()

    def start(
        self, rank: int, command: Iterable[str], environment: Mapping[str, str], log: Any
    ) -> "subprocess.Popen[bytes]":
        """Start peer `rank`'s process in its namespace. Ctrl+C reaches the driver alone."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", f"{NAME}-p{rank}", *command],
            env=dict(os.environ, **environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip
        self._started[rank] = process
        return process

    def kill(self, rank: int, *, link_too: bool = False) -> None:
        """End a peer as a power cut would: its machine's kernel says goodbye for it, or, with its
        link, nobody does."""
        process = self._started.pop(rank)
        if link_too:
            netlab("cut", rank)
        process.kill()
        process.wait()

    def dead(self) -> list[int]:
        """Ranks whose process has failed."""
        return [rank for rank, found in self._started.items() if found.poll() not in (None, 0)]

    def watch(self, timeout_s: float) -> None:
        """From now on: if a peer fails, or in so many seconds, all are killed, and whoever waits
        for their words hears the end of them."""
        end_s = time.monotonic() + timeout_s
        self._is_watching = True

        def keep_watching() -> None:
            while self._is_watching:
                is_late = time.monotonic() > end_s
                if is_late:
                    print("This takes too long: all peers are ended.", file=sys.stderr)
                if self.dead() or is_late:
                    for process in list(self._started.values()):
                        process.kill()
                    return
                time.sleep(_LOOK_S)

        threading.Thread(target=keep_watching, daemon=True).start()


class Meeting:
    """Meeting of peers that wait for each other: a unix socket, beside the wire that is measured.

    Args:
        path: of the socket; lab_peer finds it in BARRIER.
    """

    def __init__(self, path: Path) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(64)
        self._server.settimeout(1)
        self._lines: dict[int, Any] = {}
        self._first: dict[int, dict[str, Any]] = {}

    def admit(self, count: int, net: Net, timeout_s: float) -> None:
        """Wait until so many more peers have said their first word.

        Raises:
            Failed: one has ended, or is not there in time.
        """
        end_s = time.monotonic() + timeout_s
        wanted = len(self._lines) + count
        while len(self._lines) < wanted:
            if net.dead() or time.monotonic() > end_s:
                raise Failed("a peer did not start")
            with contextlib.suppress(TimeoutError):  # look whether all still live, and wait on
                line = self._server.accept()[0].makefile("rw")
                message = json.loads(line.readline() or '{"rank": -1}')
                self._lines[message["rank"]] = line
                self._first[message["rank"]] = message

    def hear(self, ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The next word of each of these peers; they wait for the answer.

        Raises:
            Failed: one has ended.
        """
        heard = {}
        for rank in ranks:
            first = self._first.pop(rank, None)
            text = "" if first else self._lines[rank].readline()
            if not first and not text:
                raise Failed(f"peer {rank} has ended")
            heard[rank] = first or json.loads(text)
        return heard

    def let_go(self, ranks: Iterable[int], answer: Any = None) -> None:
        """Answer them.

        Raises:
            Failed: one has ended.
        """
        for rank in ranks:
            try:
                self._lines[rank].write(json.dumps({"ok": 1} if answer is None else answer) + "\n")
                self._lines[rank].flush()
            except OSError as error:
                raise Failed(f"peer {rank} has ended") from error

    def close(self) -> None:
        """No more words."""
        self._server.close()


def netlab(*words: object, script: str = "netlab.sh") -> None:
    """netlab.sh, or a script beside it; a Ctrl+C does not reach it.

    Raises:
        SystemExit: it failed, and has said why.
    """
    command = [str(HERE / script), *map(str, words)]
    status = subprocess.run(command, start_new_session=True, check=False).returncode
    if status:
        raise SystemExit(f"{script} {words[0]} failed ({status})")


def die_with_parent() -> None:
    """For the child between fork and exec: no driver, no peer (Linux, prctl(2))."""
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def _undisturbed() -> Any:
    """Put off whatever comes now until what is begun is done."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    old: dict[int, Any] = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _as_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def tail(log: Path, lines: int = 3) -> str:
    """Return what a log ended with."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return " | ".join(text.strip().splitlines()[-lines:])[-400:]
