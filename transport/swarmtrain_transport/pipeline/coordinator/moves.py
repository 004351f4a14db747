"""Moves of peers to the stage that all others wait for: when one is due, and of whom. Pure.

All stages of a run count equally many micro-batches, so counts alone do not tell which stage is
slow. A peer says how long its passes took in a round, and is believed within bounds: it was busy
for no longer than the round took, and for no less than half the time of the second busiest member.
So one peer that says that it is idle draws nobody away whom its stage needs.

One peer moves at a time. The next one does when the last has counted in its new stage, or is gone,
or was given time enough; and when a move was due for some rounds in a row since then. A stage that
has lost all its peers does not wait for that (`coordinator.stages.staffing`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.coordinator.assignment import (
    Server,
    StageNeed,
    Transfer,
    flops_of,
    next_move,
)
from swarmtrain_transport.pipeline.coordinator.books import Books
from swarmtrain_transport.pipeline.coordinator.rounds import Rounds
from swarmtrain_transport.pipeline.wire.route import Process


@dataclass(frozen=True, slots=True)
class Moving:
    """A peer that is to serve another stage from now on.

    Attributes:
        peer: peer that moves.
        stage: stage that it is to serve.
        why: the reason in words.
    """

    peer: PeerId
    stage: int
    why: str


class Moves:
    """Moves of a run.

    Args:
        needs: needs of each stage.
        rounds: number of rounds in a row in which a move must be due.
        choose: chooses whom to move.

    Attributes:
        under_way: the peer that moves; None as soon as that has come to nothing.
    """

    def __init__(
        self,
        needs: Sequence[StageNeed],
        rounds: int = limits.MOVE_ROUNDS,
        choose: Callable[
            [Sequence[StageNeed], Sequence[Server], Sequence[int]], Transfer | None
        ] = next_move,
    ) -> None:
        self.under_way: Moving | None = None
        self._needs, self._rounds, self._choose = needs, rounds, choose
        self._num_due = 0
        self._moved_s: float | None = None
        self._paces: dict[PeerId, tuple[float, float]] = {}  # operations, and their seconds

    def seen_flops_per_s(self, peer: PeerId) -> float:
        """Speed of a peer by the books of its last rounds; 0 before any."""
        work, seconds = self._paces.get(peer, (0.0, 0.0))
        return work / seconds if seconds else 0.0

    def booked(
        self,
        books: Books,
        rounds: Rounds,
        servers: Mapping[PeerId, Server],
        movable: Sequence[PeerId],
        now_s: float,
    ) -> None:
        """Learn from a round how fast its members are; if a move is due then, a member leaves the
        rounds for it.

        Args:
            books: books of the round.
            rounds: rounds of the pipeline.
            servers: members, as they tell of themselves.
            movable: members that may be sent elsewhere.
            now_s: the time.
        """
        moving = self.under_way
        if moving is not None and rounds.leaving is None and moving.peer in servers:
            has_moved = servers[moving.peer].span == _only(moving.stage)
            self.under_way = moving if has_moved else None  # else nobody could take its place
        self._read(books)
        for peer in self._paces.keys() - servers.keys():
            del self._paces[peer]
        if self._waits(servers, now_s):
            return
        self.under_way = self._moved_s = None
        due = self._due(servers, [peer for peer in movable if peer in rounds.members])
        if due is not None:
            self.under_way = due
            rounds.release(Process(due.peer, rounds.members[due.peer].boot))

    def released(self, rounds: Rounds) -> Moving | None:
        """The move of a member that has given its part of its last round in its old stages."""
        moving, process = self.under_way, rounds.released
        is_it = moving is not None and process is not None and moving.peer == process.peer
        return moving if is_it else None

    def _read(self, books: Books) -> None:
        needs, took_s = self._needs, books.took_s
        told = sorted(min(busy_s, took_s) for busy_s in books.busy_s.values())
        least_s = told[-2] / 2 if len(told) > 1 else took_s
        for process, span in books.spans.items():
            stages = range(span.first, span.last + 1)
            counts = [books.told.get((process, stage), 0) for stage in stages]
            moving = self.under_way
            if moving is not None and (moving.peer, moving.stage) == (process.peer, span.first):
                self.under_way = None if any(counts) else moving
            whole = sum(needs[stage].share * needs[stage].flops for stage in stages)
            parts = zip(stages, counts, strict=True)
            part = sum(needs[stage].flops * count for stage, count in parts) / whole
            busy_s = min(max(books.busy_s.get(process, took_s), least_s), took_s)
            work, seconds = self._paces.get(process.peer, (0.0, 0.0))
            self._paces[process.peer] = (
                work / 2 + part * flops_of(needs, stages), seconds / 2 + busy_s
            )  # fmt: skip

    def _due(self, servers: Mapping[PeerId, Server], movable: Sequence[PeerId]) -> Moving | None:
        """The move for which there was reason enough in some rounds in a row."""
        peers = sorted(servers)
        known = [
            replace(servers[peer], seen_flops_per_s=self.seen_flops_per_s(peer)) for peer in peers
        ]
        found = self._choose(self._needs, known, [peers.index(peer) for peer in movable])
        self._num_due = 0 if found is None else self._num_due + 1
        if found is None or self._num_due < self._rounds:
            return None
        self._num_due = 0
        return Moving(peers[found.place], found.stage, found.why)

    def _waits(self, servers: Mapping[PeerId, Server], now_s: float) -> bool:
        """Return True if a peer moves, and still has time for it."""
        moving = self.under_way
        server = servers.get(moving.peer) if moving is not None else None
        if moving is None or server is None:
            return False
        if self._moved_s is None and server.span == _only(moving.stage):
            self._moved_s = now_s
        return self._moved_s is None or now_s < self._moved_s + limits.MOVE_S


def _only(stage: int) -> range:
    return range(stage, stage + 1)
