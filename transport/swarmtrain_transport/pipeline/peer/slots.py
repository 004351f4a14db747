"""A receiver's slots that are kept for others: memory is bounded by invitations.

A peer that has micro-batches for us says how many; a free slot is offered to those who want one, in
turn, and is kept until it is filled or returned, or was kept for too long. So nobody can send what
there is no room for, and nobody can hold the room either: who has kept a slot for nothing waits as
long for the next one, and where there are several senders none of them has all slots.
"""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.wire.route import Boot, Process, Slot


class Window:
    """Number of micro-batches to have under way, by the bandwidth-delay product of their way.

    The largest rate at which they came back, times the shortest time that one took, in this round
    and the last one: so many keep the way full where nothing waits in line, and twice as many where
    something does (BBR, Cardwell et al., Queue 14(5), 2016). While too few are under way the rate
    follows their number, so it doubles until the way is full. As a round begins with an empty way,
    each shows how long that is.

    Args:
        least: Number below which it does not fall.
        most: Number that memory has room for.

    Attributes:
        size: Number of micro-batches.
    """

    def __init__(self, least: int, most: int) -> None:
        self.size = least
        self._least, self._most = least, max(least, most)
        self._ends_s: deque[float] = deque(maxlen=2 * self._most)
        self._shortest_s, self._rate = math.inf, 0.0
        self._last = math.inf, 0.0  # of the round before

    def begin_round(self) -> None:
        """The way is empty now."""
        self._last = self._shortest_s, self._rate
        self._shortest_s, self._rate = math.inf, 0.0

    def back(self, since_s: float, now_s: float) -> None:
        """One has come to its end that has had its place since then."""
        self._ends_s.append(now_s)
        took_s = now_s - since_s
        if took_s <= 0:
            return
        rate = sum(end_s > since_s for end_s in self._ends_s) / took_s
        self._shortest_s, self._rate = min(self._shortest_s, took_s), max(self._rate, rate)
        shortest_s, rate = min(self._shortest_s, self._last[0]), max(self._rate, self._last[1])
        product = math.ceil(limits.WINDOW_TIMES * rate * shortest_s)
        self.size = min(self._most, max(self._least, product))


class Invitations:
    """Slots that are kept for senders.

    Args:
        boot: boot of the receiver.
    """

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._kept: dict[Slot, tuple[Process, float]] = {}
        self._wanted: dict[Process, int] = {}
        self._doubted_until_s: dict[Process, float] = {}
        self._number = 0

    def __len__(self) -> int:
        """Slots that are kept."""
        return len(self._kept)

    def __iter__(self) -> Iterator[tuple[Slot, Process]]:
        """Slots, and for whom."""
        return ((slot, sender) for slot, (sender, _) in self._kept.items())

    @property
    def oldest_s(self) -> float:
        """Time since which the oldest kept slot is kept; infinity if none is."""
        return min((since_s for _, since_s in self._kept.values()), default=math.inf)

    def wanted(self, sender: Process, count: int, now_s: float) -> None:
        """The sender has so many micro-batches; this replaces what it said before, and those that
        invitations are on their way for are among them. It keeps its turn."""
        if count <= 0 or now_s < self._doubted_until_s.get(sender, -math.inf):
            self._wanted.pop(sender, None)
        else:
            self._wanted[sender] = count

    def waits(self, filled: Mapping[Process, int]) -> bool:
        """Return True if somebody wants a slot and has none."""
        kept = {sender for sender, _ in self._kept.values()}
        return any(not filled.get(sender) and sender not in kept for sender in self._wanted)

    def give(
        self, free: int, now_s: float, filled: Mapping[Process, int], most: int
    ) -> list[tuple[Slot, Process]]:
        """Give free slots to those who want one, in turn; as many as there are.

        Args:
            free: slots.
            now_s: the time.
            filled: slots that hold something, by sender.
            most: slots that one sender may have, filled or kept.
        """
        given: list[tuple[Slot, Process]] = []
        kept = Counter(sender for sender, _ in self._kept.values())
        while len(given) < free:
            sender = next(
                (
                    who
                    for who, count in self._wanted.items()
                    if kept[who] < min(count, most - filled.get(who, 0))
                ),
                None,
            )
            if sender is None:
                break
            self._wanted[sender] = self._wanted.pop(sender)  # the others come first then
            kept[sender] += 1
            self._number += 1
            slot = Slot(self._boot, self._number)
            self._kept[slot] = sender, now_s
            given.append((slot, sender))
        return given

    def take(self, slot: Slot, sender: Process) -> float | None:
        """Return since when the slot was kept for the sender, None if it was not; it is no more."""
        if slot not in self._kept or self._kept[slot][0] != sender:
            return None
        _, since_s = self._kept.pop(slot)
        if (count := self._wanted.pop(sender, 0) - 1) > 0:
            self._wanted[sender] = count
        return since_s

    def returned(self, slot: Slot, sender: Process, now_s: float) -> None:
        """The sender does not need the slot, nor any other."""
        since_s = self.take(slot, sender)
        if since_s is not None:
            self._wanted.pop(sender, None)
            if now_s - since_s > limits.HOP_SILENCE_S:
                self.doubted(sender, since_s, now_s)

    def doubted(self, sender: Process, since_s: float, now_s: float) -> None:
        """The sender has had a slot for nothing since then: it waits as long for the next one."""
        self._wanted.pop(sender, None)
        until_s = now_s + (now_s - since_s)
        self._doubted_until_s[sender] = max(self._doubted_until_s.get(sender, 0.0), until_s)

    def unheard(self, now_s: float) -> None:
        """Nobody has heard us until now: who has left a slot empty meanwhile is not to blame."""
        self._kept = {slot: (sender, now_s) for slot, (sender, _) in self._kept.items()}
        self._doubted_until_s.clear()

    def departed(self, sender: Process) -> None:
        """Nothing is kept for the sender any more."""
        self._wanted.pop(sender, None)
        self._doubted_until_s.pop(sender, None)
        self._kept = {slot: kept for slot, kept in self._kept.items() if kept[0] != sender}

    def forget_old(self, now_s: float) -> None:
        """Take back those that were kept for too long."""
        for slot, (sender, since_s) in list(self._kept.items()):
            if now_s - since_s > limits.INVITED_S:
                del self._kept[slot]
                self.doubted(sender, since_s, now_s)
