"""Wishes of a peer's owner while it runs: to pause, to go on, to finish or to leave.

Orders come over the state directory's socket, on the network thread; the training thread looks
here between inner steps. A pause begins where a round has ended, so no work is lost by it: the peer
stays in the run and takes the others' results, is waited for by nobody, and goes on where the run
is.
"""

import math
import threading
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from swarmtrain.console.units import human_seconds
from swarmtrain.foundation.errors import UserError, cleaned

_SECONDS_MAX = 366 * 86_400.0


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="order"):
    """Base of all orders; the field ``order`` names the type."""


class Pause(_Said, frozen=True, tag="pause"):
    """Rest from the end of this round on: for so long, or until `resume`."""

    seconds: Annotated[float, msgspec.Meta(gt=0.0, le=_SECONDS_MAX)] | None = None


class Resume(_Said, frozen=True, tag="resume"):
    """Go on."""


class Finish(_Said, frozen=True, tag="finish"):
    """Leave when this round has ended."""


class LeaveNow(_Said, frozen=True, tag="leave"):
    """Leave before the next inner step."""


class Wishes:
    """The newest wish.

    Args:
        clock: monotonic seconds.

    Attributes:
        may_pause: False for a peer that others wait for by the step.
        finishes: True if it is to leave when the round has ended.
        leaves: True if it is to leave at once.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.may_pause, self.finishes, self.leaves = True, False, False
        self._clock = clock
        self._until_s: float | None = None
        self._lock = threading.Lock()

    @property
    def is_paused(self) -> bool:
        """True if the peer is to rest now."""
        with self._lock:
            if self._until_s is not None and self._clock() >= self._until_s:
                self._until_s = None
            return self._until_s is not None and not (self.finishes or self.leaves)

    @property
    def words(self) -> str:
        """The pause in words, "" without one."""
        if not self.is_paused or self._until_s is None:
            return ""
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
        except msgspec.DecodeError as error:
            raise UserError(
                "SWT-E610",
                f"The order is none that a peer takes: {cleaned(str(error))}",
                "A peer takes pause, resume, finish and leave; the run is its coordinator's.",
                "Name the coordinator's directory with --state-dir.",
            ) from error
        match said:
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
