"""Forecast of moves: what a pipeline becomes that begins with so many peers on each stage.

The coordinator's own choice, one move after another. The best that such moves can come to is the
assignment that the same peers get when they join one by one, each for one stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarmtrain.config.settings import RunConfig
from swarmtrain.console.lines import counted
from swarmtrain.foundation.errors import misuse
from swarmtrain.pipeline.costs import stage_needs
from swarmtrain.plan.forecast import Peer
from swarmtrain_transport.pipeline.coordinator.assignment import (
    Server,
    StageNeed,
    choose,
    next_move,
    stage_rates,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One move.

    Attributes:
        peer: kind of the peer.
        stage: old stage.
        to_stage: new stage.
        share: share of the best assignment's micro-batches a second, after the move.
    """

    peer: str
    stage: int
    to_stage: int
    share: float


@dataclass(frozen=True, slots=True)
class Spreading:
    """A swarm that begins somewhere.

    Attributes:
        begin: peers of each stage.
        share: share of the best assignment's micro-batches a second, before any move.
        moves: moves that follow.
        end: peers of each stage after them.
    """

    begin: tuple[int, ...]
    share: float
    moves: tuple[Step, ...]
    end: tuple[int, ...]


def parse_now(text: str, config: RunConfig, num_peers: int) -> tuple[int, ...]:
    """``5,1,1`` as peers of each stage.

    Raises:
        UserError: SWT-E610.
    """
    stages = config.pipeline.num_stages
    parts = [part.strip() for part in text.split(",")]
    now = tuple(int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 5)
    if len(now) != len(parts) or len(now) != stages or not all(now) or sum(now) != num_peers:
        raise misuse(
            f"--now {text!r} does not say where {counted(num_peers, 'peer')} of --peers are in "
            f"{counted(stages, 'stage')}.",
            "Write how many serve each stage, at least one each: --now 5,1,1 for seven of --peers.",
        )
    return now


def spreading(config: RunConfig, peers: Sequence[Peer], now: Sequence[int]) -> Spreading:
    """Work out the moves of a run that begins with the first of these peers on stage 0, the next
    on stage 1, and so on."""
    needs = stage_needs(config)
    at = [stage for stage, count in enumerate(now) for _ in range(count)]
    servers = [_on(peer.server, stage) for peer, stage in zip(peers, at, strict=True)]
    best: list[Server] = []
    for peer in peers:  # a joiner that says nothing of its memory gets one stage
        server = replace(peer.server, memory_bytes=0)
        best.append(replace(server, span=choose(needs, best, server).span))
    states = [servers]
    steps: list[tuple[int, int, int]] = []
    while (found := next_move(needs, states[-1], range(len(peers)))) is not None:
        after = list(states[-1])
        steps.append((found.place, (after[found.place].span or at)[0], found.stage))
        after[found.place] = _on(after[found.place], found.stage)
        states.append(after)
    most = max(_slowest(needs, state) for state in (best, *states))
    shares = [_slowest(needs, state) / most for state in states]
    moves = [
        Step(str(peers[place]), stage, to_stage, share)
        for (place, stage, to_stage), share in zip(steps, shares[1:], strict=True)
    ]
    return Spreading(tuple(now), shares[0], tuple(moves), _counts(needs, states[-1]))


def _on(server: Server, stage: int) -> Server:
    return replace(server, span=range(stage, stage + 1))


def _slowest(needs: Sequence[StageNeed], servers: Sequence[Server]) -> float:
    return min(stage_rates(needs, servers))


def _counts(needs: Sequence[StageNeed], servers: Sequence[Server]) -> tuple[int, ...]:
    return tuple(sum(stage in (one.span or ()) for one in servers) for stage in range(len(needs)))


def in_words(found: Spreading) -> list[str]:
    """The moves as lines."""
    lines = [f"Begin        {_words(found.begin)}: {found.share:.0%} of the best assignment's rate"]
    lines += [
        f"Move {number}       {move.peer} from stage {move.stage} to stage {move.to_stage}: "
        f"{move.share:.0%}"
        for number, move in enumerate(found.moves, 1)
    ]
    return [*lines, f"End          {_words(found.end)}, after {counted(len(found.moves), 'move')}"]


def _words(counts: Sequence[int]) -> str:
    return f"{', '.join(map(str, counts))} peers by stage"
