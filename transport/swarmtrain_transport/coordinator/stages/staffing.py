"""Stages of a pipeline at the coordinator: whoever joins is told which ones to serve, and a stage
that is slow, or has lost all its peers, gets one of another stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.roster import PeerLine
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.coordinator.assignment import (
    Choice,
    Server,
    StageNeed,
    choose,
    memory_of,
    stage_rates,
    stand_in,
)
from swarmtrain_transport.pipeline.coordinator.books import Books
from swarmtrain_transport.pipeline.coordinator.moves import Moves
from swarmtrain_transport.pipeline.coordinator.rounds import Rounds
from swarmtrain_transport.pipeline.wire.orders import Member
from swarmtrain_transport.wire.messages import Hello


@dataclass(slots=True)
class Stages:
    """The stages that each peer serves, which are groups.

    Attributes:
        needs: needs of each stage; empty in a run without stages.
        view: the ledger's fold.
        lines: lines of the peers that were heard of.
        moves: moves from faster stages to slower ones.
    """

    needs: Sequence[StageNeed]
    view: LedgerView
    lines: Mapping[PeerId, PeerLine]
    moves: Moves = field(init=False)
    _empty_since: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.moves = Moves(self.needs)

    num_experts: ClassVar[int] = 0

    @property
    def assigns(self) -> bool:
        """True if peers are told here what they are in."""
        return bool(self.needs)

    def booked(self, books: Books, rounds: Rounds, now_s: float) -> None:
        """Learn from a round of the pipeline, and have a peer leave it for a slow stage."""
        if self.needs:
            servers = {peer: self._server(peer) for peer in self.view.roster}
            self.moves.booked(books, rounds, servers, self._movable(now_s), now_s)

    def stand_in(self, members: Mapping[PeerId, Member], now_s: float) -> tuple[PeerId, int] | None:
        """A peer, and the stage that it is to serve from now on, which nobody has served for a
        while. A peer that asked for its own span stays; so does one that is the only member of the
        rounds in a stage. A peer that still fetches the state of a stage is no other one there."""
        groups = self.view.groups
        known = (stage for stage in range(len(self.needs)) if stage in groups)
        empty = [stage for stage in known if not groups[stage].members]
        for stage in self._empty_since.keys() - set(empty):
            del self._empty_since[stage]
        for stage in empty:
            if now_s < self._empty_since.setdefault(stage, now_s) + limits.STAGE_EMPTY_S:
                continue
            peers = sorted(self.view.roster)
            movable = [
                peers.index(peer)
                for peer in self._movable(now_s)
                if self._has_others(peer, members)
            ]
            servers = [self._server(peer) for peer in peers]
            keeping = [index for index in movable if peers[index] in groups[stage].keepers]
            found = stand_in(self.needs, servers, stage, keeping)
            if found is None:
                found = stand_in(self.needs, servers, stage, movable)
            if found is not None:
                return peers[found], stage
        return None

    def wakeups(self) -> list[float]:
        """When a stage has been without a peer for too long."""
        return [since_s + limits.STAGE_EMPTY_S for since_s in self._empty_since.values()]

    def choose(self, peer: PeerId, hello: Hello, *, is_new: bool) -> Choice:
        """The stages of a peer that has joined. One that was in before keeps its own, whose state
        may be on its disk, unless it asks for others, cannot hold them, or a stage has nobody."""
        joiner, groups = server_of(hello), self.view.groups_of(peer)
        span = range(groups[0], groups[-1] + 1)
        others = [self._server(other) for other in self.view.roster if other != peer]
        fits = not joiner.memory_bytes or memory_of(self.needs, span) <= joiner.memory_bytes
        if not is_new and joiner.span in (None, span) and fits:
            rates = stage_rates(self.needs, [*others, replace(joiner, span=span)])
            if all(rates):
                return Choice(span, "as before")
        return choose(self.needs, others, joiner)

    def _has_others(self, peer: PeerId, members: Mapping[PeerId, Member]) -> bool:
        """Return True if every stage of a peer has another member of the rounds."""
        spans = [member.span for other, member in members.items() if other != peer]
        return all(any(at in span for span in spans) for at in self.view.groups_of(peer))

    def _movable(self, now_s: float) -> list[PeerId]:
        """Living peers that did not ask for their stages."""
        return [
            peer
            for peer in sorted(self.view.roster)
            if (line := self.lines.get(peer)) is not None
            and line.life.is_alive(now_s)
            and not line.hello.brings.span
        ]

    def _server(self, peer: PeerId) -> Server:
        """A peer that is in, with the stages that it serves."""
        groups = self.view.groups_of(peer)
        line = self.lines.get(peer)
        known = server_of(line.hello) if line is not None else Server()
        return replace(
            known,
            span=range(groups[0], groups[-1] + 1),
            seen_flops_per_s=self.moves.seen_flops_per_s(peer),
        )


def server_of(hello: Hello) -> Server:
    """A peer as its HELLO tells of it, with its wish."""
    brings = hello.brings
    span = range(brings.span[0], brings.span[1] + 1) if brings.span else None
    rates = [rate for rate in (hello.up_bytes_per_s, hello.down_bytes_per_s) if rate > 0]
    return Server(span, brings.flops_per_s, min(rates, default=0), brings.memory_bytes)
