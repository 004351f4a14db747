"""Stages of a pipeline at the coordinator: whoever joins is told which ones to serve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from swarmtrain_transport.coordinator.roster import PeerLine
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.assignment import (
    Choice,
    Server,
    StageNeed,
    choose,
    memory_of,
    stage_rates,
)
from swarmtrain_transport.wire.messages import Hello


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages that each peer serves, which are groups.

    Attributes:
        needs: of each stage; empty in a run without stages.
        view: the ledger's fold.
        lines: who was heard of.
    """

    needs: Sequence[StageNeed]
    view: LedgerView
    lines: Mapping[PeerId, PeerLine]

    def choose(self, peer: PeerId, hello: Hello, *, is_new: bool) -> Choice:
        """The stages of a peer that has joined. Who was in before keeps its own, whose state may be
        on its disk, unless it asks for others, cannot hold them now, or one has nobody else."""
        joiner, groups = server_of(hello), self.view.groups_of(peer)
        span = range(groups[0], groups[-1] + 1)
        others = [self._server(other) for other in self.view.roster if other != peer]
        fits = not joiner.memory_bytes or memory_of(self.needs, span) <= joiner.memory_bytes
        if not is_new and joiner.span in (None, span) and fits:
            rates = stage_rates(self.needs, [*others, replace(joiner, span=span)])
            if all(rates):
                return Choice(span, "as before")
        return choose(self.needs, others, joiner)

    def _server(self, peer: PeerId) -> Server:
        """Somebody who is in."""
        groups = self.view.groups_of(peer)
        line = self.lines.get(peer)
        known = server_of(line.hello) if line is not None else Server()
        return replace(known, span=range(groups[0], groups[-1] + 1))


def server_of(hello: Hello) -> Server:
    """A peer as its HELLO tells of it, with its wish."""
    brings = hello.brings
    span = range(brings.span[0], brings.span[1] + 1) if brings.span else None
    rates = [rate for rate in (hello.up_bytes_per_s, hello.down_bytes_per_s) if rate > 0]
    return Server(span, brings.flops_per_s, min(rates, default=0), brings.memory_bytes)
