"""Wishes of a peer's owner while it runs: limits, and orders to pause, go on, finish or leave.

Orders come over the state directory's socket, on the network thread; the training thread looks
here between inner steps. A pause begins where a round has ended, so no work is lost by it: the peer
stays in the run and takes the others' results, is waited for by nobody, and goes on where the run
is. Limits are read from the state directory whenever they have changed there.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil

from swarmtrain.config import owner_limits as limits_file
from swarmtrain.config.options import PAUSE_S_MAX
from swarmtrain.config.owner_limits import NO_LIMITS, Limits, opens_at
from swarmtrain.console.units import human_seconds
from swarmtrain.foundation.errors import UserError, cleaned

_LOOK_S = 2.0
"""Pause between two looks at the machine and the file of limits."""

_NAP_S = 0.5
"""Longest sleep of a duty cycle at once: an order is heard within."""


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="order"):
    """Base of all orders; the field ``order`` names the type."""


class Pause(_Said, frozen=True, tag="pause"):
    """Rest from the end of this round on: for so long, or until `resume`."""

    seconds: Annotated[float, msgspec.Meta(gt=0.0, le=PAUSE_S_MAX)] | None = None


class Resume(_Said, frozen=True, tag="resume"):
    """Go on."""


class Finish(_Said, frozen=True, tag="finish"):
    """Leave when this round has ended."""


class LeaveNow(_Said, frozen=True, tag="leave"):
    """Leave before the next inner step."""


class Machine:
    """The machine of a peer, as far as its limits ask.

    Attributes:
        threads: threads that training takes.
    """

    threads = 1

    def on_battery(self) -> bool:
        """Return True if it runs on battery now; False where nobody can tell."""
        told = getattr(psutil, "sensors_battery", lambda: None)()
        return told is not None and not told.power_plugged

    def others(self) -> float:
        """Return the share of the processors that other processes took since the last call."""
        all_cores = psutil.cpu_percent(None) / 100
        own = self._own.cpu_percent(None) / 100 / (psutil.cpu_count() or 1)
        return float(max(0.0, all_cores - own))

    @cached_property
    def _own(self) -> Any:
        return psutil.Process()

    def worked(self) -> float:
        """Return the seconds for which this process has computed, on each thread for training."""
        return time.process_time() / max(1, self.threads)

    def set_nice(self, nice: int) -> None:
        """Give the process this niceness; a lower one again only a superuser may."""
        tasks = Path("/proc/self/task")
        # Linux has a niceness for each thread, and torch has made its own by now.
        every = [int(one.name) for one in tasks.iterdir()] if tasks.is_dir() else [0]
        for task in every if hasattr(os, "setpriority") else ():
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, task, nice)


class Wishes:
    """The newest wish, and limits.

    Args:
        clock: monotonic seconds.
        directory: state directory whose limits hold; None for none.
        machine: machine to ask; None for this one.
        now: local time.

    Attributes:
        may_pause: False for a peer that others wait for by the step.
        finishes: True if it is to leave when the round has ended.
        leaves: True if it is to leave at once.
        machine: the machine.
        limits: limits that hold now.
        apply: hears limits that have changed.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        directory: Path | None = None,
        machine: Machine | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.may_pause, self.finishes, self.leaves = True, False, False
        self.limits, self._changed_ns, self._read_s = NO_LIMITS, -1, -math.inf
        self._applied: Limits | None = None
        self._directory, self.machine, self._now = directory, machine or Machine(), now
        self._looked_s, self._because, self._is_nice = -math.inf, "", False
        self.apply: Callable[[Limits], None] = lambda limits: None
        self._clock = clock
        self._breathed = clock(), self.machine.worked()
        self._until_s: float | None = None
        self._lock = threading.Lock()

    @property
    def is_paused(self) -> bool:
        """True if the peer is to rest now."""
        with self._lock:
            if self._until_s is not None and self._clock() >= self._until_s:
                self._until_s = None
            rests = self._until_s is not None or bool(self._because)
            return rests and not (self.finishes or self.leaves)

    def look(self) -> None:
        """See every few seconds which limits there are, and if one of them asks for a rest."""
        if self._directory is None or self._clock() - self._looked_s < _LOOK_S:
            return
        self._looked_s = self._clock()
        if self.read() != self._applied:
            self._applied = self.limits
            if self._is_nice or self.limits.nice:
                self._is_nice = True
                self.machine.set_nice(self.limits.nice)
            self.apply(self.limits)
        self._because = self._reason() if self.may_pause else ""

    def read(self) -> Limits:
        """Read the limits again if they have changed, on either thread; those that hold."""
        with self._lock:
            if self._directory is None or self._clock() - self._read_s < _LOOK_S:
                return self.limits
            self._read_s = self._clock()
            try:
                changed_ns = (self._directory / limits_file.FILE_NAME).stat().st_mtime_ns
            except OSError:
                changed_ns = 0
            if changed_ns != self._changed_ns:
                self._changed_ns = changed_ns
                with contextlib.suppress(UserError):  # those that were last whole hold on
                    self.limits = limits_file.read(self._directory)
            return self.limits

    def breathe(self, step_s: float) -> None:
        """Sleep until all that this process has computed since the last time fits into the duty
        cycle; time that it has waited counts.

        Args:
            step_s: duration of the inner step since then, which counts whole: of a card the
                processor knows nothing.
        """
        before_s, worked_before_s = self._breathed
        worked_s = max(step_s, self.machine.worked() - worked_before_s)
        waited_s = self._clock() - before_s
        while not (self.finishes or self.leaves):
            self.look()  # other limits may hold by now
            left_s = worked_s / self.limits.duty - waited_s
            if left_s <= 1e-9:
                break
            nap_s = min(left_s, _NAP_S)
            time.sleep(nap_s)
            waited_s += nap_s
        self._breathed = self._clock(), self.machine.worked()

    def _reason(self) -> str:
        """Say which limit asks for a rest, "" for none."""
        limits, now = self.limits, self._now()
        opens = opens_at(limits.hours, now)
        if opens > now:
            return f"outside its hours, until {opens:%a %H:%M}"
        if not limits.battery and self.machine.on_battery():
            return "on battery"
        if limits.busy < 1.0 and (others := self.machine.others()) > limits.busy:
            return f"others take {100 * others:.0f} % of the processor"
        return ""

    @property
    def words(self) -> str:
        """The pause in words, "" without one."""
        if not self.is_paused:
            return ""
        if self._until_s is None:
            return self._because
        if math.isinf(self._until_s):
            return "by its owner, until `swarmtrain resume`"
        return f"by its owner, for {human_seconds(self._until_s - self._clock())} more"

    async def hear(self, data: bytes) -> dict[str, Any]:
        """Take an order as JSON; the answer is to be encoded as JSON.

        Raises:
            UserError: it is none, or cannot be carried out.
        """
        try:
            said = msgspec.json.decode(data, type=Pause | Resume | Finish | LeaveNow)
        except ValueError as error:
            raise UserError(
                "SWT-E610",
                f"The order is none that a peer takes: {cleaned(str(error))}",
                "A peer takes pause, resume, finish and leave; the run is its coordinator's.",
                "Name the coordinator's directory with --state-dir.",
            ) from error
        match said:
            case Pause() if self.finishes or self.leaves:
                raise UserError(
                    "SWT-E610", "This peer is about to leave.", "There is nothing to pause.",
                    "`swarmtrain join` brings it back.",
                )  # fmt: skip
            case Pause(seconds):
                if not self.may_pause:
                    raise UserError(
                        "SWT-E610",
                        "A peer that serves stages of a model, or is one of several processes,"
                        " cannot pause.",
                        "Others wait for it by the step.",
                        "`swarmtrain leave` lets it go; joined again, it goes on where the run is.",
                    )
                with self._lock:
                    self._until_s = math.inf if seconds is None else self._clock() + seconds
            case Resume():
                with self._lock:
                    self._until_s = None
            case Finish():
                self.finishes = True
            case LeaveNow():
                self.leaves = True
        return {"paused": self.words}
