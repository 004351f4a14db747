"""A round that is closed and has no outcome yet: its members tell what they have counted in it.

Not here: whom to wait for still, which `rounds` decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.coordinator.books import Books, books_of, check
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.paths import Paths
from swarmtrain_transport.pipeline.wire.route import Process, Span


@dataclass(slots=True)
class Closing:
    """A closed round.

    Attributes:
        round: number of the round.
        size: micro-batches that those who stayed were to make.
        asked: micro-batches that each source was to make in it.
        spans: spans of the members when it was closed.
        voided: micro-batches that were made again because their step was void.
        closed_s: time when it was closed.
        took_s: time from its begin until then.
        paths: the stages of each micro-batch.
        settled: reports of members.
        unsettled: members that have not.
        settled_s: time at which each member has, or was waited for no longer.
        is_booked: True once its books are made: nobody's word counts any more.
    """

    round: int
    size: int
    asked: Mapping[Process, int]
    spans: Mapping[Process, Span]
    voided: int
    closed_s: float
    took_s: float
    paths: Paths
    settled: dict[Process, orders.Settled] = field(default_factory=dict)
    unsettled: set[Process] = field(default_factory=set)
    settled_s: dict[PeerId, float] = field(default_factory=dict)
    is_booked: bool = False

    def __post_init__(self) -> None:
        self.unsettled = set(self.spans)

    def settle(self, process: Process, report: orders.Settled) -> None:
        """Take the word of a member that has not told.

        Raises:
            RemoteFault: reason ``books``: it cannot have counted that. Nothing changed.
        """
        left_out = self.paths.num_left_out
        check(report, self.spans[process], self.asked.get(process, 0), left_out)
        self.unsettled.discard(process)
        self.settled[process] = report

    def book(self) -> Books:
        """Make the books of what was told so far."""
        self.is_booked = True
        self.unsettled.clear()
        return books_of(
            self.round, self.paths.num_stages, self.asked, self.settled, self.spans, self.voided,
            self.took_s, self.paths,
        )  # fmt: skip

    def norms(self, stage: int) -> list[float]:
        """Norms of a stage's gradient as its members have told them, within bounds."""
        told = []
        for process, report in self.settled.items():
            span = self.spans[process]
            norm = report.norms[stage - span.first] if stage in span and report.norms else None
            if norm is not None and 0 < norm <= limits.NORM_MAX:
                told.append(norm)
        return told
