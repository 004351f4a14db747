"""The network thread: one asyncio loop beside the training thread, joined by a queue.

The training thread puts events in by `call` and takes what concerns it out of `inbox`; neither
ever waits for the other's work. Nothing starts before `start`.
"""

import asyncio
import queue
import random
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from swarmtrain.config.options import JoinOptions
from swarmtrain.foundation import file_descriptors as descriptors
from swarmtrain.foundation.errors import UserError, translate
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.peer.network.memory import keep_freed_chunks
from swarmtrain.peer.network.shell import ForTrainer, PeerShell
from swarmtrain.peer.view import TrainerNote
from swarmtrain.peer.wishes import Wishes
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.peer.participant import Actions, Participant
from swarmtrain_transport.wire.messages import Leaving, PeerMessage, Released, Welcome

T = TypeVar("T")

_LOOK_S = 0.5
"""Pause between two looks whether the thread that is waited for still lives."""

_CLOSE_TIMEOUT_S = 10.0
"""A coordinator that does not read may not keep a leaving peer for longer."""

_MOMENT_S = 1.0
"""Shortest wait that people are told of."""


class PeerThread:
    """A PeerShell on its own thread.

    Args:
        options: see PeerShell.
        storage: state directory.
        identity: keys.
        make_shell: makes the network side; chaos brings one that misbehaves.

    Attributes:
        inbox: news for the training thread, in order.
        wishes: orders of the peer's owner.
        shell: the network side, from `start` on; its properties may be read on any thread.
    """

    def __init__(
        self,
        options: JoinOptions,
        storage: PeerStorage,
        identity: Identity,
        make_shell: Callable[..., PeerShell] = PeerShell,
    ) -> None:
        self.inbox: queue.SimpleQueue[ForTrainer] = queue.SimpleQueue()
        self._options, self._storage, self._identity = options, storage, identity
        self._make_shell = make_shell
        self.shell: PeerShell
        self.wishes = Wishes(time.monotonic, storage.directory)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._main, name="swarmtrain-net", daemon=True)

    def start(self) -> None:
        """Begin; WELCOME or an error comes through the inbox."""
        keep_freed_chunks()
        descriptors.raise_limit()
        self._thread.start()
        self._up.wait()

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception as error:
            told = translate(error)
            if told is None:
                told = UserError("SWT-E901", f"The network thread failed: {error!r}.")
                told.__cause__ = error
            self.inbox.put(told)
        finally:
            self._up.set()

    async def _run(self) -> None:
        self.shell = self._make_shell(
            self._options, self._storage, self._identity,
            to_trainer=self.inbox.put, rng=random.Random(), wishes=self.wishes,
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._up.set()
        try:
            await self.shell.run()
        finally:
            self._loop = None

    # ---- from the training thread

    def clock(self) -> float:
        """Monotonic seconds, by which the training thread waits."""
        return time.monotonic()

    def call(self, action: Callable[[PeerShell], None]) -> None:
        """Do something on the network thread, soon; nothing if it has ended."""
        if (loop := self._loop) is not None:
            try:
                loop.call_soon_threadsafe(action, self.shell)
            except RuntimeError:
                return  # the loop has just closed; whoever waits hears it through the inbox

    def machine(self, event: Callable[[Participant, float], Actions]) -> None:
        """Give the participant an event."""
        self.call(lambda shell: shell.machine(event))

    def note(self, note: TrainerNote) -> None:
        """Say what the trainer is doing."""
        self.call(lambda shell: shell.note(note))

    def send(self, message: PeerMessage) -> None:
        """Send a control message that is not the machine's."""
        self.call(lambda shell: shell.send(message))

    def run_coroutine(self, make: Callable[[PeerShell], Coroutine[Any, Any, None]]) -> None:
        """Start a task on the network thread."""
        self.call(lambda shell: shell.spawn(make(shell)))

    def result_of(self, make: Callable[[PeerShell], Coroutine[Any, Any, T]]) -> T:
        """Do something on the network thread and wait for its result.

        Raises:
            UserError: the network side has ended; or as the coroutine does.
        """
        done: Future[T] = Future()

        async def work(shell: PeerShell) -> None:
            try:
                done.set_result(await make(shell))
            except BaseException as error:
                done.set_exception(error)
                if not isinstance(error, UserError):
                    raise

        self.run_coroutine(work)
        while True:
            try:
                return done.result(_LOOK_S)
            except TimeoutError:
                if not self._thread.is_alive():
                    raise self._last_word() from None

    def _last_word(self) -> UserError:
        """The reason for which the network thread has ended."""
        while not self.inbox.empty():
            if isinstance(item := self.inbox.get(), UserError):
                return item
        return UserError("SWT-E203", "The connection to the run has ended.")

    def hand_over(self, waits: Callable[[], None]) -> bool | None:
        """Wait until somebody else holds the newest state that this peer holds, HAND_OVER_S at
        most, and drop whatever else comes; `leave` follows.

        Args:
            waits: called once if that takes longer than a moment.

        Returns:
            False if nobody else is known to hold it; None if the coordinator, who would know, is
            away.
        """
        shell = self.shell
        if not shell.num_others:
            return True if shell.is_connected else None
        self.send(Leaving())
        begun_s, is_told = self.clock(), False
        while shell.is_connected and self.clock() - begun_s < limits.HAND_OVER_S:
            try:
                item = self.inbox.get(timeout=_LOOK_S)
            except queue.Empty:
                item = None
            match item:
                case Released():
                    return True
                case Welcome():  # we were gone for a moment
                    self.send(Leaving())
                case UserError():
                    return None
            if not is_told and self.clock() - begun_s >= _MOMENT_S:
                is_told = True
                waits()
        return False if shell.is_connected else None

    def leave(self, reason: str) -> None:
        """Tell the coordinator, flush, and end the thread."""
        self.call(lambda shell: shell.leaves())
        self.machine(lambda participant, now_s: participant.leave(reason, now_s))
        self.close()

    def close(self) -> None:
        """End the thread; what is queued is sent first."""
        self.run_coroutine(lambda shell: shell.close())
        self._thread.join(_CLOSE_TIMEOUT_S)
