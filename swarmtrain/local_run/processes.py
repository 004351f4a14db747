"""The processes of a run on this machine: started by commands, heard, and ended for certain.

Most are `python -m swarmtrain up` or `join` with `--json-events`; what they print comes as events
through one queue, and stands in their logs beside their messages. Invites are handed over on
standard input, where no other user of the machine sees them. A program that somebody brings has its
invite in the environment and writes its events to a file; they come through the same queue. All
processes are in one group that a guard leads, so that nothing outlives whoever started them,
whatever ends it.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from swarmtrain.foundation import dirs
from swarmtrain.foundation.errors import UserError
from swarmtrain.foundation.events import Event, parse
from swarmtrain.local_run import marks
from swarmtrain.local_run.place import COORDINATOR, Place
from swarmtrain.status import ask_coordinator
from swarmtrain_transport.coordinator.status import CoordinatorStatus


@dataclass(frozen=True, slots=True)
class Ended:
    """The process is gone. A negative status is the signal that ended it."""

    status: int

    @property
    def words(self) -> str:
        """Way in which it ended, for people."""
        return f"signal {-self.status}" if self.status < 0 else f"exit status {self.status}"


@dataclass(frozen=True, slots=True)
class Say:
    """A wish of whoever decides about processes: tell the people who watch."""

    text: str


@dataclass(frozen=True, slots=True)
class Start:
    """Order to start this peer's process."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Order to end this peer's process as a power cut would."""

    name: str


Heard = Event | Ended | CoordinatorStatus
News = tuple[str, Heard]
"""A process by its name, and its news."""

LOOPBACK = "127.0.0.1"

_LOOK_S = 0.05
"""Pause between two looks at a process that shall end."""

_ASK_S = 0.7
"""Pause between two questions to the coordinator."""

_KILLED_S = 10.0
"""SIGKILL is not answered at once by a process that waits for a disk."""

_TAIL_LINES = 12


class Processes:
    """Everything that one demo, chaos or emulation starts. A name may be started again once it has
    ended.

    Args:
        place: folder of logs and state directories.
        mark: word in everybody's environment, so that their own children are ended too wherever
            these go; "" trusts them to start nothing.
        where: words of a command that runs another one somewhere, by the name of the process.

    Attributes:
        news: words of the processes, each with its name.
    """

    def __init__(
        self,
        place: Place,
        *,
        mark: str = "",
        where: Callable[[str], Sequence[str]] = lambda name: (),
    ) -> None:
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._place = place
        self._mark = mark
        self._where = where
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._listeners: dict[str, threading.Thread] = {}
        self._guard = subprocess.Popen(
            [sys.executable, "-P", "-m", "swarmtrain.local_run.guard", mark],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0,
        )  # fmt: skip

    # ---- starting

    def start_coordinator(self, host: str = LOOPBACK, *, run_file: Path | None = None) -> None:
        """`swarmtrain up` on a free port; with the place's run file if no other is named."""
        self._start(
            COORDINATOR,
            "up", str(run_file or self._place.run_file), "--listen", f"{host}:0",
            "--state-dir", str(self._place.coordinator), "--linger", "0",
        )  # fmt: skip

    def start_peer(
        self,
        name: str,
        *words: str,
        freeze_in_round: int = 0,
        advertise: str = "",
        host: str = LOOPBACK,
    ) -> None:
        """`swarmtrain join`; it waits for its invite.

        Args:
            freeze_in_round: stop in the middle of this round's exchange, 0 for never.
            advertise: HOST:PORT that the other peers dial, "" for where it listens.
        """
        more = words
        if freeze_in_round:
            more += ("--freeze-in-round", str(freeze_in_round))
        if advertise:
            more += ("--advertise", advertise)
        self._start(
            name,
            "join", "--invite-file", "-", "--name", name, "--listen", f"{host}:0",
            "--state-dir", str(self._place.peer(name)), "--threads", "1", "--yes", *more,
        )  # fmt: skip

    def start_module(self, name: str, module: str, *words: str) -> None:
        """`python -m MODULE WORDS`, for what is no command of swarmtrain; a module of the folder
        that somebody stands in is none."""
        command = [sys.executable, "-P", "-m", module, *words]
        process = self._spawn(name, command, {}, is_heard=True)
        self._hear(name, process, partial(_listen, path=self._place.log(name)))

    def start_program(
        self, name: str, command: Sequence[str], variables: Mapping[str, str], events: Path
    ) -> None:
        """A program that somebody brings.

        Args:
            command: command for a shell, run here.
            variables: additions to the environment.
            events: file that it appends its events to, as JSON lines.

        Raises:
            OSError: it cannot be run.
        """
        events.touch()
        process = self._spawn(name, [*command], variables, is_heard=False)
        self._hear(name, process, partial(_follow, path=events, offset=events.stat().st_size))

    def _spawn(
        self, name: str, command: list[str], variables: Mapping[str, str], *, is_heard: bool
    ) -> "subprocess.Popen[bytes]":
        self.bury(name)
        own = {dirs.LIFETIME: str(self._place.lifetime)}  # a rehearsal is nobody's credit
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **own, **variables}
        if self._mark:
            environment[marks.VARIABLE] = f"{self._mark}/{name}"
        with self._place.log(name).open("ab", buffering=0) as log:
            shown = command[3:] if is_heard else command
            log.write(f"$ {' '.join(shown)}\n".encode())
            return subprocess.Popen(
                [*self._where(name), *command],
                stdin=subprocess.PIPE if is_heard else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_heard else log,
                stderr=log,
                env=environment,
                process_group=self._guard.pid,
            )

    def _hear(
        self,
        name: str,
        process: "subprocess.Popen[bytes]",
        listen: Callable[["subprocess.Popen[bytes]", Callable[[Heard], None]], None],
    ) -> None:
        self._running[name] = process
        listener = threading.Thread(
            target=listen, args=(process, lambda heard: self.news.put((name, heard))),
            name=f"hear-{name}", daemon=True,
        )  # fmt: skip
        self._listeners[name] = listener
        listener.start()

    def _start(self, name: str, *words: str) -> None:
        self.start_module(name, "swarmtrain", *words, "--json-events")

    # ---- talking

    def hand_invite(self, name: str, invite: str) -> None:
        """Give a waiting peer the invite, all that it waits for."""
        self.tell(name, invite.encode())
        stream = self._running[name].stdin
        assert stream is not None
        _close_quietly(stream)

    def tell(self, name: str, line: bytes) -> None:
        """Write a line to a process. One that is gone says so by its own end."""
        stream = self._running[name].stdin
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):
            stream.write(line + b"\n")
            stream.flush()

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Ask the coordinator for its status, on a thread of its own; answers are news of it."""
        over = threading.Event()

        def keep_asking() -> None:
            while not over.wait(_ASK_S):
                with contextlib.suppress(UserError):  # not up yet, or no more
                    self.news.put((COORDINATOR, ask_coordinator(self._place.coordinator)))

        thread = threading.Thread(target=keep_asking, name="ask-status", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    # ---- ending

    def kill(self, name: str) -> None:
        """End a process, and all that it has started, as a power cut would: SIGKILL."""
        self._running[name].kill()
        if self._mark:
            marks.end_marked(f"{self._mark}/{name}")

    def is_running(self, name: str) -> bool:
        """Return True if the process of that name has not ended."""
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has just ended."""
        self._running[name].send_signal(number)

    def stop(self, *, patience_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """End all that run: first the peers, so that they can say goodbye, then the coordinator.

        Args:
            patience_s: time for a clean end; then comes SIGTERM, then SIGKILL.
            hurry: asked again and again; True ends the patience.
        """
        coordinator = self._running.get(COORDINATOR)
        peers = [process for process in self._running.values() if process is not coordinator]
        _end(peers, patience_s, hurry)
        if coordinator is not None:
            _end([coordinator], patience_s, hurry)

    def close(self) -> None:
        """End whatever is left, the guard last. Closing twice is allowed."""
        self.stop(patience_s=0.0, hurry=lambda: True)
        for name in list(self._running):
            self.bury(name)
        if self._mark:
            marks.end_marked(self._mark)
        # The guard ignores gentle signals; with it goes what others have left in its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.wait()
        assert self._guard.stdin is not None
        self._guard.stdin.close()

    def bury(self, name: str) -> None:
        """Hear the last words of a process that has ended, and let go of it."""
        process, listener = self._running.pop(name, None), self._listeners.pop(name, None)
        if process is None or listener is None:
            return
        listener.join(_KILLED_S)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                _close_quietly(stream)


def tail(path: Path) -> list[str]:
    """The last lines of a log."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return [line.rstrip() for line in deque(lines, _TAIL_LINES)]
    except OSError as error:
        return [f"({path} cannot be read: {error.strerror})"]


def _listen(
    process: "subprocess.Popen[bytes]", tell: Callable[[Heard], None], *, path: Path
) -> None:
    """Runs on its own thread until the process is gone; what it prints goes to its log as well."""
    assert process.stdout is not None
    with path.open("ab", buffering=0) as log:
        for line in process.stdout:
            log.write(line)
            event = parse(line)
            if event is not None:
                tell(event)
    tell(Ended(process.wait()))


def _follow(
    process: "subprocess.Popen[bytes]", tell: Callable[[Heard], None], *, path: Path, offset: int
) -> None:
    """Tell the events that a program appends to a file."""
    with path.open("rb") as events:
        events.seek(offset)
        rest, is_running = b"", True
        while is_running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
                is_running = False
            *lines, rest = (rest + events.read()).split(b"\n")
            for line in lines:
                event = parse(line)
                if event is not None:
                    tell(event)
    tell(Ended(process.wait()))


def _end(
    processes: Iterable[subprocess.Popen[bytes]], patience_s: float, hurry: Callable[[], bool]
) -> None:
    """SIGINT finishes the round, SIGTERM after it leaves at once, SIGKILL asks nobody."""
    left = [process for process in processes if process.poll() is None]
    steps = ((signal.SIGINT, patience_s), (signal.SIGTERM, patience_s / 4))
    for number, wait_s in steps:
        if left and not hurry():
            for process in left:
                process.send_signal(number)
            left = _wait(left, wait_s, hurry)
    for process in left:
        process.kill()
    _wait(left, _KILLED_S, lambda: False)


def _wait(
    processes: list[subprocess.Popen[bytes]], wait_s: float, hurry: Callable[[], bool]
) -> list[subprocess.Popen[bytes]]:
    """Return the processes that still run after so many seconds, or when it is urgent."""
    until_s = time.monotonic() + wait_s
    left = [process for process in processes if process.poll() is None]
    while left and time.monotonic() < until_s and not hurry():
        time.sleep(_LOOK_S)
        left = [process for process in left if process.poll() is None]
    return left


def _close_quietly(stream: IO[bytes]) -> None:
    """Close a pipe whose other end may be gone with unread bytes in between."""
    with contextlib.suppress(BrokenPipeError):
        stream.close()
