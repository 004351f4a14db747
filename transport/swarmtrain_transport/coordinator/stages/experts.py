"""Experts at the coordinator: each peer trains one of them, and an expert that nobody trains gets a
peer of another one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.roster import PeerLine
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.coordinator.assignment import Choice
from swarmtrain_transport.wire.messages import Hello


@dataclass(slots=True)
class Experts:
    """The expert that each peer trains, which is a group.

    Attributes:
        num_experts: number of experts.
        view: the ledger's fold.
        lines: lines of the peers that were heard of.
    """

    num_experts: int
    view: LedgerView
    lines: Mapping[PeerId, PeerLine]
    _empty_since: dict[int, float] = field(default_factory=dict)
    assigns: ClassVar[bool] = True

    def choose(self, peer: PeerId, hello: Hello, *, is_new: bool) -> Choice:
        """The expert of a peer that has joined: the one with the fewest peers. One that was in
        before keeps its own, whose state may be on its disk, unless another has nobody."""
        others = {number: self._others(number, peer) for number in range(self.num_experts)}
        need = min(others, key=lambda number: (others[number], number))
        own = self.view.groups_of(peer)
        if not is_new and own and not (others[need] == 0 < others[own[0]]):
            return Choice(range(own[0], own[0] + 1), "as before")
        return Choice(range(need, need + 1), f"{others[need]} others train it")

    def stand_in(self, done: Collection[int], now_s: float) -> tuple[PeerId, int] | None:
        """A peer, and the expert that it is to train from now on, which nobody has trained for a
        while.

        Args:
            done: experts whose rounds are over: their peers have nothing left to do there.
            now_s: the time.
        """
        groups = self.view.groups
        known = [number for number in range(self.num_experts) if number in groups]
        empty = [n for n in known if not groups[n].members and n not in done]
        for number in self._empty_since.keys() - set(empty):
            del self._empty_since[number]
        for number in empty:
            if now_s < self._empty_since.setdefault(number, now_s) + limits.STAGE_EMPTY_S:
                continue
            living = {peer for peer, line in self.lines.items() if line.life.is_alive(now_s)}
            # The last one of an expert stays, as its state would be with nobody.
            spare = {
                other: sorted(groups[other].members.keys() & living)
                for other in known
                if len(groups[other].members) > 1 or other in done
            }
            most = max(spare, key=lambda other: (other in done, len(spare[other])), default=None)
            if most is not None and spare[most]:
                newest = max(spare[most], key=self.view.join_index.__getitem__)
                return newest, number
        return None

    def wakeups(self) -> list[float]:
        """When an expert has been without a peer for too long."""
        return [since_s + limits.STAGE_EMPTY_S for since_s in self._empty_since.values()]

    def _others(self, number: int, peer: PeerId) -> int:
        group = self.view.groups.get(number)
        return len(group.members.keys() - {peer}) if group is not None else 0
