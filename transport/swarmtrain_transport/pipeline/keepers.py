"""Keepers: no stage's state hangs on one machine.

A stage with many members is safe by itself. Where it has few, other peers with room on their disks
keep its state; they need not serve it. An op is committed when enough of members and keepers hold
its result, and a keeper that left is replaced at once: so any two peers may be lost at any moment.
Where a stage has lost all of its members, whoever serves it next takes the state from a keeper.
"""

import hashlib
from dataclasses import dataclass, field

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.route import Process, Span


class Hold(msgspec.Struct, frozen=True):
    """Tell a process to hold the state of a stage after this op; it says when it does."""

    process: Process
    stage: int
    op: int


class Release(msgspec.Struct, frozen=True):
    """Tell a process that others hold the stage's state now."""

    process: Process
    stage: int


class Committed(msgspec.Struct, frozen=True):
    """Enough hold the op's result."""

    stage: int
    op: int


Deed = Hold | Release | Committed


@dataclass(slots=True)
class Keepers:
    """Holders of all stages, and those that make up their number.

    Args:
        num_stages: of the model.

    Attributes:
        newest: op that was committed last, by stage.
        under_way: op that is being exchanged, by stage.
    """

    num_stages: int
    newest: dict[int, int] = field(default_factory=dict)
    under_way: dict[int, int] = field(default_factory=dict)
    _spans: dict[Process, Span] = field(default_factory=dict)
    _with_room: set[Process] = field(default_factory=set)
    _keepers: dict[int, set[Process]] = field(default_factory=dict)
    _held: dict[tuple[Process, int], int] = field(default_factory=dict)

    def joined(self, process: Process, span: Span, *, has_room: bool) -> tuple[Deed, ...]:
        """A member came, or serves another span now: it takes the state, and the result of the op
        that is under way, from those who have them."""
        self._spans[process] = span
        if has_room:
            self._with_room.add(process)
        newest = self.newest | self.under_way
        told = [Hold(process, stage, newest[stage]) for stage in sorted(newest) if stage in span]
        return (*told, *self._deeds())

    def departed(self, process: Process) -> tuple[Deed, ...]:
        """A member is gone."""
        self._spans.pop(process, None)
        self._with_room.discard(process)
        self._held = {key: op for key, op in self._held.items() if key[0] != process}
        return self._deeds()

    def begun(self, stage: int, op: int) -> tuple[Deed, ...]:
        """An op of the stage is under way: its keepers are to have it, too."""
        self.under_way[stage] = op
        told = [Hold(process, stage, op) for process in sorted(self._keepers.get(stage, ()))]
        return (*told, *self._deeds())

    def skipped(self, stage: int) -> None:
        """The op of the stage that was under way has no result."""
        self.under_way.pop(stage, None)

    def holds(self, process: Process, stage: int, op: int) -> tuple[Deed, ...]:
        """A member says that it holds the state of a stage after this op."""
        if process in self._spans:
            self._held[process, stage] = max(op, self._held.get((process, stage), -1))
        return self._deeds()

    def holders(self, stage: int) -> set[Process]:
        """Members and keepers of a stage."""
        members = {process for process, span in self._spans.items() if stage in span}
        return members | self._keepers.get(stage, set())

    # ---- what follows

    def _deeds(self) -> tuple[Deed, ...]:
        deeds: list[Deed] = []
        for stage in range(self.num_stages):
            keepers = self._keepers.setdefault(stage, set())
            keepers.intersection_update(self._spans)
            while len(self.holders(stage)) < limits.HOLDERS and (new := self._next(stage)):
                keepers.add(new)
                newest = self.newest | self.under_way
                if stage in newest:
                    deeds.append(Hold(new, stage, newest[stage]))
            op = self.under_way.get(stage)
            if op is not None and self._is_safe(stage, op):
                self.newest[stage] = self.under_way.pop(stage)
                deeds.append(Committed(stage, op))
            deeds += self._released(stage)
        return tuple(deeds)

    def _next(self, stage: int) -> Process | None:
        """The next keeper: who keeps least; ties are drawn."""

        def place(process: Process) -> tuple[int, bytes]:
            kept = sum(process in keepers for keepers in self._keepers.values())
            draw = stage.to_bytes(4, "big") + process.peer + process.boot
            return kept, hashlib.sha256(draw).digest()

        return min(self._with_room - self.holders(stage), key=place, default=None)

    def _is_safe(self, stage: int, op: int) -> bool:
        """Return True if two of those that hold the state after the op may be lost."""
        holders = self.holders(stage)
        holding = [who for who in holders if self._held.get((who, stage), -1) >= op]
        return bool(holding) and len(holding) >= min(limits.HOLDERS, len(holders))

    def _released(self, stage: int) -> list[Release]:
        """Keepers of a stage whose members are enough, once these hold the newest state."""
        newest = self.newest.get(stage, -1)
        members = [who for who, span in self._spans.items() if stage in span]
        holding = [who for who in members if self._held.get((who, stage), -1) >= newest]
        if stage in self.under_way or len(holding) < limits.HOLDERS:
            return []
        released = [Release(who, stage) for who in sorted(self._keepers[stage] - set(members))]
        self._keepers[stage] = set()
        for release in released:
            self._held.pop((release.process, stage), None)
        return released
