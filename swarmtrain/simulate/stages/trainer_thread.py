"""A training thread under a virtual clock: it runs while the world stands still, and the world
while it waits.

So a program that waits in its inbox runs here as it is, and two runs of a world are the same.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable

from swarmtrain.peer.network.shell import ForTrainer


class Killed(BaseException):
    """The process is gone: nothing of it catches this."""


class TrainerThread:
    """One thread that is never awake together with the world's.

    Args:
        main: all that it does.

    Attributes:
        is_over: `main` has ended.
        error: exception of the thread, if it has ended with one.
    """

    def __init__(self, main: Callable[[], None]) -> None:
        self.is_over = False
        self.error: BaseException | None = None
        self._main = main
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._is_killed = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Run until it waits for the first time."""
        self._thread.start()
        self._back.acquire()

    def go_on(self) -> None:
        """Run until it waits again."""
        if not self.is_over:
            self._go.release()
            self._back.acquire()

    def kill(self) -> None:
        """End it where it waits."""
        self._is_killed = True
        self.go_on()

    def wait(self) -> None:
        """Called by itself: let the world go on until `go_on`."""
        self._back.release()
        self._go.acquire()
        if self._is_killed:
            raise Killed

    def _run(self) -> None:
        try:
            self._main()
        except Killed:
            pass
        except BaseException as error:  # the world judges it, on its own thread
            self.error = error
        self.is_over = True
        self._back.release()


class Inbox:
    """The inbox of a training thread, in the place of a `queue.SimpleQueue`.

    Args:
        thread: thread that waits in it.
        later: does something in so many seconds, if the process still lives then.
        part_s: seconds of the next part of training.
    """

    def __init__(
        self, later: Callable[[float, Callable[[], None]], None], part_s: Callable[[], float]
    ) -> None:
        self.thread: TrainerThread | None = None
        self._later, self._part_s = later, part_s
        self._items: deque[ForTrainer] = deque()
        self._turn = 0
        self._is_idle = False

    def put(self, item: ForTrainer) -> None:
        """Hear something, on the world's thread."""
        self._items.append(item)
        if self._is_idle:
            self._is_idle = False
            self._wake_in(0.0)

    def empty(self) -> bool:
        """Return True if nothing is here."""
        return not self._items

    def get(self, block: bool = True, timeout: float | None = None) -> ForTrainer:
        """Take the next item, on the training thread. Parts of training take their time.

        Raises:
            queue.Empty: nothing has come in time.
        """
        if not self._items and block:
            self._is_idle = True
            self._wake_in(timeout)
            self._wait()
        if not self._items:
            raise queue.Empty
        item = self._items.popleft()
        if callable(item):
            self._wake_in(self._part_s())
            self._wait()
        return item

    def _wake_in(self, seconds: float | None) -> None:
        self._turn += 1
        turn = self._turn

        def wake() -> None:
            if turn == self._turn and self.thread is not None:
                self._is_idle = False
                self.thread.go_on()

        if seconds is not None:
            self._later(seconds, wake)

    def _wait(self) -> None:
        assert self.thread is not None
        self.thread.wait()
