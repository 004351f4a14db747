"""Disks of a simulated pipeline: who holds which stage's state, as the coordinator's part wants it.

P7 with any two deaths no stage's committed state is lost.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.keepers import Committed, Deed, Hold, Keepers, Release
from swarmtrain_transport.pipeline.route import Process, Span

_SKIPPED_S = 100.0


class Place(Protocol):
    """A world, as its disks see it.

    Attributes:
        now_s: the time.
    """

    now_s: float

    def members(self) -> list[Process]:
        """Those that the coordinator has not given up."""

    def lives(self, process: Process) -> bool:
        """Return True if the process runs."""

    def after(self, least_s: float, most_s: float, act: Callable[[], None]) -> None:
        """Act some time later."""

    def broken(self, invariant: str, story: str) -> None:
        """Something does not hold."""


class Disks:
    """States on the disks of all peers.

    Args:
        place: the world.
        num_stages: of the model.
    """

    def __init__(self, place: Place, num_stages: int) -> None:
        self.keepers = Keepers(num_stages)
        self._place = place
        self._held: dict[bytes, dict[int, int]] = {}
        self._spans: dict[Process, Span] = {}
        self._done: Callable[[], None] | None = None

    def joined(self, process: Process, span: Span) -> None:
        """A process is in; it says what its disk holds, after it has taken its stages' states."""
        held = self._held.setdefault(process.peer, {})
        self._spans[process] = span
        self._act(self.keepers.joined(process, span, self._place.now_s, has_room=True))
        for stage, op in list(held.items()):
            self._act(self.keepers.holds(process, stage, op, self._place.now_s))

    def serves(self, process: Process, span: Span) -> None:
        """A process serves this span from now on, of which it has a state."""
        if self._spans.get(process) not in (None, span):
            self._act(self.keepers.joined(process, span, self._place.now_s, has_room=True))
        self._spans[process] = span

    def departed(self, process: Process) -> None:
        """The coordinator has given a process up."""
        self._spans.pop(process, None)
        self._act(self.keepers.departed(process, self._place.now_s))

    def exchange(self, op: int, members: dict[Process, Span], done: Callable[[], None]) -> None:
        """The stages' ops of a round: members come to hold the results. Then `done`."""
        self._done = done
        for stage in range(self.keepers.num_stages):
            self._act(self.keepers.begun(stage, op, self._place.now_s))
            for process, span in members.items():
                if stage in span:
                    self._place.after(0.2, 8, partial(self._made, process, stage, op))
            for process, span in self._spans.items():
                if stage in span:  # who was late takes the result from the others
                    self._hold(process, stage, op)
            self._place.after(_SKIPPED_S, _SKIPPED_S, partial(self._skip, stage, op))
        self._go_on()

    # ---- holders

    def _made(self, process: Process, stage: int, op: int) -> None:
        """A member has the result of its own exchange."""
        if self._place.lives(process):
            held = self._held[process.peer]
            held[stage] = max(op, held.get(stage, -1))
            self._act(self.keepers.holds(process, stage, op, self._place.now_s))

    def _hold(self, process: Process, stage: int, op: int) -> None:
        self._place.after(0.5, 10, partial(self._fetch, process, stage, op))

    def _fetch(self, process: Process, stage: int, op: int) -> None:
        """Take the state from anybody who has it; later, if nobody has."""
        if process not in self._place.members():
            return
        donors = [who for who in self._holding(stage, op) if self._place.lives(who)]
        if self._place.lives(process) and donors:
            held = self._held[process.peer]
            held[stage] = max(op, held.get(stage, -1))
            self._act(self.keepers.holds(process, stage, op, self._place.now_s))
        elif self.keepers.newest.get(stage) == op or self.keepers.under_way.get(stage) == op:
            self._hold(process, stage, op)

    def _holding(self, stage: int, op: int) -> list[Process]:
        return [
            process
            for process in self._place.members()
            if self._held.get(process.peer, {}).get(stage, -1) >= op
        ]

    def _skip(self, stage: int, op: int) -> None:
        """Nobody has a result: the op is skipped."""
        if self.keepers.under_way.get(stage) != op:
            return
        if any(self._place.lives(process) for process in self._holding(stage, op)):
            self._place.after(10, 10, partial(self._skip, stage, op))
            return
        self.keepers.skipped(stage)
        self._go_on()

    # ---- the coordinator's part

    def _act(self, deeds: tuple[Deed, ...]) -> None:
        for deed in deeds:
            match deed:
                case Hold(process, stage, op):
                    self._hold(process, stage, op)
                case Release(process, stage):
                    self._held.get(process.peer, {}).pop(stage, None)
                case Committed():
                    self._check(deed)
        self._go_on()

    def _check(self, deed: Committed) -> None:
        holding = self._holding(deed.stage, deed.op)
        if len(holding) < min(limits.HOLDERS, len(self._spans)):
            who = [process.peer for process in holding]
            self._place.broken("P7", f"{deed} is held by {who} alone of {len(self._spans)}")

    def _go_on(self) -> None:
        if self._done is not None and not self.keepers.under_way:
            done, self._done = self._done, None
            done()
