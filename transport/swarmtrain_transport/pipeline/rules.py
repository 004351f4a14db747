"""Rules of a run for its pipelines."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that all peers of a run know.

    Attributes:
        num_stages: of the model.
        slots: micro-batches that a peer takes in at a time, and as many that a source makes.
        flushes: the coordinator says when to step; else a peer steps by itself.
        step_micro_batches: that a peer counts until it steps, where steps are free.
        max_stale_steps: inner steps between a forward pass and its gradient's return.
        tokens: of a micro-batch at most, as there is room for in its form.
    """

    num_stages: int
    slots: int
    flushes: bool = False
    step_micro_batches: int = 1
    max_stale_steps: int = 1 << 30
    tokens: int = field(kw_only=True)
