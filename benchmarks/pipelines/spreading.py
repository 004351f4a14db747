"""The moves of a pipeline that begins with so many peers on each stage, without a run.

The coordinator's own choice, one move after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarmtrain.config.settings import RunConfig
from swarmtrain.pipeline.costs import stage_needs
from swarmtrain.plan.forecast import Peer
from swarmtrain_transport.pipeline.coordinator.assignment import Server, next_move


@dataclass(frozen=True, slots=True)
class Spreading:
    """A swarm that begins somewhere.

    Attributes:
        moves: number of moves that follow.
        end: peers of each stage after them.
    """

    moves: int
    end: tuple[int, ...]


def spreading(config: RunConfig, peers: Sequence[Peer], begin: Sequence[int]) -> Spreading:
    """Work out the moves of a run that begins with the first of these peers on stage 0, the next
    on stage 1, and so on."""
    needs = stage_needs(config)
    at = [stage for stage, count in enumerate(begin) for _ in range(count)]
    servers = [_on(peer.server, stage) for peer, stage in zip(peers, at, strict=True)]
    moves = 0
    while (found := next_move(needs, servers, range(len(peers)))) is not None:
        servers[found.place] = _on(servers[found.place], found.stage)
        moves += 1
    counts = (sum(stage in (one.span or ()) for one in servers) for stage in range(len(needs)))
    return Spreading(moves, tuple(counts))


def _on(server: Server, stage: int) -> Server:
    return replace(server, span=range(stage, stage + 1))
