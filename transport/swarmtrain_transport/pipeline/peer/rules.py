"""Rules of a run for its pipelines."""

from dataclasses import dataclass, field

from swarmtrain_transport.pipeline.wire.paths import Path, Paths
from swarmtrain_transport.pipeline.wire.route import MicroBatch


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that all peers of a run know.

    Attributes:
        num_stages: number of the model's stages.
        slots: micro-batches of others that a peer takes in at a time, at least.
        most_slots: largest number of them, where the way through the stages has room for more.
        flushes: the coordinator says when to step; else a peer steps by itself.
        step_micro_batches: micro-batches that a source makes for each step, where steps are free.
        max_stale_steps: inner steps between a forward pass and its gradient's return.
        under_way: a source's own micro-batches at a time, at least; 0 for as many as `slots`. A
            source that makes more than the average one has as many more, and one that makes fewer
            fewer.
        most_under_way: largest number of them on average.
        tokens: most tokens of a micro-batch, as there is room for in its form.
        repeat_every: number of micro-batches in which a source makes one of the text before, and
            compares; 0 for none. Flushed steps have none: a text would count twice in a step.
        judged: micro-batches of an evaluation's text.
        visit: stages that a micro-batch visits; 0 for all.
        at_random: see `Paths`.
    """

    num_stages: int
    slots: int
    flushes: bool = False
    step_micro_batches: int = 1
    max_stale_steps: int = 1 << 30
    under_way: int = 0
    repeat_every: int = 0
    tokens: int = field(kw_only=True)
    judged: int = 0
    most_slots: int = 0
    most_under_way: int = 0
    visit: int = 0
    at_random: bool = False

    @property
    def paths(self) -> Paths:
        """The stages of each micro-batch."""
        return Paths(self.num_stages, self.visit, self.at_random)

    def path(self, name: MicroBatch) -> Path:
        """The stages of a micro-batch; validation text visits all."""
        return tuple(range(self.num_stages)) if name.judged else self.paths.of(*name.entry)
