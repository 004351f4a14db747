"""Keepers: no stage's state hangs on one machine.

A stage with many members is safe by itself. Where it has few, other peers with room on their disks
keep its state; they need not serve it. An op is committed when enough of members and keepers hold
its result, and a keeper that left is replaced at once: so any two peers may be lost at any moment.
Where a stage has lost all of its members, whoever serves it next takes the state from a keeper.

A keeper that cannot hold the state, or has not said in time that it does, is replaced; a member is
not waited for any longer.
"""

import hashlib
import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.route import Process, Span

K = TypeVar("K", bytes, Process)


def next_keeper(stage: int, able: AbstractSet[K], kept: Mapping[int, AbstractSet[K]]) -> K | None:
    """The next keeper of a stage: who keeps least; ties are drawn.

    Args:
        stage: whose state is to be kept.
        able: who has room for it and is no holder yet.
        kept: keepers of each stage.
    """

    def place(who: K) -> tuple[int, bytes]:
        load = sum(who in keepers for keepers in kept.values())
        key = who if isinstance(who, bytes) else who.peer + who.boot
        return load, hashlib.sha256(stage.to_bytes(4, "big") + key).digest()

    return min(able, key=place, default=None)


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
    _asked_s: dict[tuple[Process, int], float] = field(default_factory=dict)
    _silent: set[tuple[Process, int]] = field(default_factory=set)

    def joined(
        self, process: Process, span: Span, now_s: float, *, has_room: bool
    ) -> tuple[Deed, ...]:
        """A member came, or serves another span now: it takes the state, and the result of the op
        that is under way, from those who have them."""
        self._spans[process] = span
        if has_room:
            self._with_room.add(process)
        told = [self._ask(process, stage, now_s) for stage in self._wanted if stage in span]
        return (*told, *self._deeds(now_s))

    def departed(self, process: Process, now_s: float) -> tuple[Deed, ...]:
        """A member is gone."""
        self._spans.pop(process, None)
        self._with_room.discard(process)
        self._held = {key: op for key, op in self._held.items() if key[0] != process}
        self._asked_s = {key: s for key, s in self._asked_s.items() if key[0] != process}
        self._silent = {key for key in self._silent if key[0] != process}
        return self._deeds(now_s)

    def begun(self, stage: int, op: int, now_s: float) -> tuple[Deed, ...]:
        """An op of the stage is under way: its keepers are to have it, too."""
        self.under_way[stage] = op
        told = [self._ask(process, stage, now_s) for process in sorted(self.holders(stage))]
        keepers = self._keepers.get(stage, set())
        return (*(one for one in told if one.process in keepers), *self._deeds(now_s))

    def skipped(self, stage: int) -> None:
        """The op of the stage that was under way has no result."""
        self.under_way.pop(stage, None)

    def holds(self, process: Process, stage: int, op: int, now_s: float) -> tuple[Deed, ...]:
        """A member says that it holds the state of a stage after this op; void of one that there
        is not."""
        if process in self._spans and op <= self._wanted.get(stage, -1):
            key = process, stage
            self._held[key] = max(op, self._held.get(key, -1))
            if op == self._wanted[stage]:
                self._asked_s.pop(key, None)
                self._silent.discard(key)
        return self._deeds(now_s)

    def unable(self, process: Process, stage: int, op: int, now_s: float) -> tuple[Deed, ...]:
        """A member says that it cannot hold that; void of what it is not asked for."""
        if (process, stage) not in self._asked_s or op != self._wanted.get(stage):
            return ()
        self._asked_s[process, stage] = -math.inf
        return self.overdue(now_s)

    def holders(self, stage: int) -> set[Process]:
        """Members and keepers of a stage."""
        members = {process for process, span in self._spans.items() if stage in span}
        return members | self._keepers.get(stage, set())

    @property
    def due_s(self) -> float:
        """When `overdue` has something to do, if nobody says anything; infinity if never."""
        return min(self._asked_s.values(), default=math.inf) + limits.HOLD_S

    def overdue(self, now_s: float) -> tuple[Deed, ...]:
        """Go on without those who have not said in time that they hold a state."""
        released = []
        for (process, stage), asked_s in sorted(self._asked_s.items()):
            if asked_s + limits.HOLD_S <= now_s:
                del self._asked_s[process, stage]
                self._silent.add((process, stage))
                if process in self._keepers.get(stage, ()):
                    self._keepers[stage].discard(process)
                    released.append(Release(process, stage))
        return (*released, *self._deeds(now_s))

    # ---- what follows

    @property
    def _wanted(self) -> dict[int, int]:
        """The op after which holders are to hold the state, by stage."""
        return self.newest | self.under_way

    def _ask(self, process: Process, stage: int, now_s: float) -> Hold:
        op = self._wanted[stage]
        if self._held.get((process, stage), -1) < op and (process, stage) not in self._silent:
            self._asked_s[process, stage] = now_s
        return Hold(process, stage, op)

    def _deeds(self, now_s: float) -> tuple[Deed, ...]:
        deeds: list[Deed] = []
        for stage in range(self.num_stages):
            keepers = self._keepers.setdefault(stage, set())
            keepers.intersection_update(self._spans)
            while len(self._sound(stage)) < limits.HOLDERS and (new := self._next(stage)):
                keepers.add(new)
                if stage in self._wanted:
                    deeds.append(self._ask(new, stage, now_s))
            op = self.under_way.get(stage)
            if op is not None and self._is_safe(stage, op):
                self.newest[stage] = self.under_way.pop(stage)
                deeds.append(Committed(stage, op))
            deeds += self._released(stage)
        return tuple(deeds)

    def _sound(self, stage: int) -> set[Process]:
        """Holders that have not failed to hold what they were asked for."""
        return {process for process in self.holders(stage) if (process, stage) not in self._silent}

    def _next(self, stage: int) -> Process | None:
        able = {process for process in self._with_room if (process, stage) not in self._silent}
        return next_keeper(stage, able - self.holders(stage), self._keepers)

    def _is_safe(self, stage: int, op: int) -> bool:
        """Return True if two of those that hold the state after the op may be lost."""
        holding = [p for p in self.holders(stage) if self._held.get((p, stage), -1) >= op]
        needed = min(limits.HOLDERS, len(self._sound(stage)))
        return bool(holding) and len(holding) >= needed

    def _released(self, stage: int) -> list[Release]:
        """Keepers of a stage whose members are enough, once these hold the newest state."""
        newest = self.newest.get(stage, -1)
        members = [who for who, span in self._spans.items() if stage in span]
        holding = [who for who in members if self._held.get((who, stage), -1) >= newest]
        if stage in self.under_way or len(holding) < limits.HOLDERS:
            return []
        released = sorted(self._keepers[stage] - set(members))
        self._keepers[stage] = set()
        for process in released:
            self._held.pop((process, stage), None)
            self._asked_s.pop((process, stage), None)
        return [Release(process, stage) for process in released]
