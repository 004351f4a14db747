"""Experts at the coordinator: each peer trains one of them, and an expert that nobody trains gets a
peer of another one."""

from collections.abc import Callable, Collection, Mapping
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
        before keeps its own, unless it comes without a state of it and another has nobody."""
        others = {number: self._others(number, peer) for number in range(self.num_experts)}
        need = min(others, key=lambda number: (others[number], number))
        own = self.view.groups_of(peer)
        is_wanted = bool(own) and others[need] == 0 < others[own[0]]
        if not is_new and own and (self._brings(hello, own[0]) or not is_wanted):
            return Choice(range(own[0], own[0] + 1), "as before")
        return Choice(range(need, need + 1), f"{others[need]} others train it")

    def stand_in(
        self, done: Collection[int], is_needed: Callable[[PeerId], bool], now_s: float
    ) -> tuple[PeerId, int, str] | None:
        """A peer, the expert that it is to train from now on, and the reason: nobody has trained it
        for a while, or all who do are leaving.

        Args:
            done: experts whose rounds are over: their peers have nothing left to do there.
            is_needed: tells if a peer alone holds the newest state of its expert.
            now_s: the time.
        """
        groups = self.view.groups
        known = [number for number in range(self.num_experts) if number in groups]
        empty = [n for n in known if not groups[n].members and n not in done]
        for number in self._empty_since.keys() - set(empty):
            del self._empty_since[number]
        for number in empty:
            self._empty_since.setdefault(number, now_s)
        due = {
            number: "nobody trained it"
            for number, since_s in self._empty_since.items()
            if now_s >= since_s + limits.STAGE_EMPTY_S
        }
        leaving = {peer for peer, line in self.lines.items() if line.is_leaving}
        # Who leaves is kept until another one that stays has its state.
        due |= {
            number: "those who trained it leave"
            for number in set(known).difference(empty, done)
            if groups[number].committed and groups[number].members.keys() <= leaving
        }
        if not due:
            return None
        living = {
            peer
            for peer, line in self.lines.items()
            if line.life.is_alive(now_s) and not line.rests
        }
        staying = {number: groups[number].members.keys() & living for number in known}
        # The last one of an expert stays, as its state would be with nobody.
        spare = {
            number: [peer for peer in peers if number in done or not is_needed(peer)]
            for number, peers in staying.items()
            if len(peers) > 1 or number in done
        }
        most = max(spare, key=lambda other: (other in done, len(spare[other])), default=None)
        if most is None or not spare[most]:
            return None
        number = min(due)
        return max(spare[most], key=self.view.join_index.__getitem__), number, due[number]

    def wakeups(self) -> list[float]:
        """When an expert has been without a peer for too long."""
        return [since_s + limits.STAGE_EMPTY_S for since_s in self._empty_since.values()]

    def _brings(self, hello: Hello, number: int) -> bool:
        group = self.view.groups.get(number)
        states = (one for one in hello.states if one.group == number and one.op > 0)
        return group is not None and any(group.may_hold(one.op, one.state_root) for one in states)

    def _others(self, number: int, peer: PeerId) -> int:
        group = self.view.groups.get(number)
        return len(group.members.keys() - {peer}) if group is not None else 0
