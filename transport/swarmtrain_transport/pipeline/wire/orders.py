"""Orders of the coordinator about pipelines, and the reports that answer them.

Both go over the control connection, in order. An order is never taken back. Bounds are checked
where bytes are decoded (`control`).
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.wire.messages import Reason
from swarmtrain_transport.pipeline.wire.route import Boot, Count, Key, Process, Span, Stage
from swarmtrain_transport.wire.records import Plane

Members = Annotated[Mapping[Key, "Member"], msgspec.Meta(max_length=limits.PIPELINE_MEMBERS_MAX)]
Square = Annotated[float, msgspec.Meta(ge=0, le=limits.NORM_SQUARE_MAX)]
Norm = Annotated[float, msgspec.Meta(ge=0, le=limits.NORM_MAX)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class OrderOrReport(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag_field="t"
):
    """Base of what coordinator and peers tell each other about pipelines."""


class Member(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A peer's present boot, and the stages that it serves."""

    boot: Boot
    span: Span


class Pace(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Length of a round, and its steps: the same for everybody.

    Attributes:
        begins: steps of the learning rate's schedule that are over before it.
        length: steps that it takes of the schedule.
        steps: inner steps that a peer makes of it.
        share: micro-batches that a source makes on average where BEGIN says how many it makes; 0
            if unknown.
        norm_shares: share of each stage in the whole gradient's norm, as it was lately; () where
            that is not known.
        turns: turns of the run's subspace in which its activations lie: the ledger's first ones.
    """

    begins: Count = 0
    length: Count = 1
    steps: Annotated[int, msgspec.Meta(ge=1, le=limits.COUNT_MAX)] = 1
    share: Count = 0
    norm_shares: Annotated[tuple[Share, ...], msgspec.Meta(max_length=limits.STAGES_MAX)] = ()
    turns: Count = 0

    def step(self, made: int) -> int:
        """The schedule's step after so many inner steps of the round.

        >>> [Pace(begins=40, length=20, steps=10).step(made) for made in (0, 5, 12)]
        [40, 50, 58]
        """
        return self.begins + self.length * min(made, self.steps - 1) // self.steps


class Welcome(OrderOrReport, frozen=True, tag=1):
    """First order to a process.

    Attributes:
        members: members of the run, the process itself included.
        round: the oldest that may still be counted in.
        step, attempt: step and attempt of that round.
        is_open: True if micro-batches of the round are under way.
        pace: pace of the round.
    """

    members: Members
    round: Count
    step: Count
    attempt: Count
    is_open: bool
    pace: Pace = Pace()


class Joined(OrderOrReport, frozen=True, tag=2):
    """A process came."""

    peer: Key
    member: Member


class Departed(OrderOrReport, frozen=True, tag=3):
    """A process is gone for good; its peer may come again as another one."""

    process: Process


class Begin(OrderOrReport, frozen=True, tag=5):
    """A round begins. `share` is how many micro-batches the receiver makes: of the round, or of
    each step where steps are flushed; steps are made by `pace`."""

    round: Count
    share: Count
    members: Members
    pace: Pace = Pace()


class More(OrderOrReport, frozen=True, tag=4):
    """Make `share` more micro-batches of the round, as others that were to are gone. A DRAINED that
    was said without them is void."""

    round: Count
    share: Count


class Weigh(OrderOrReport, frozen=True, tag=6):
    """All micro-batches of the step are back: say WEIGHED."""

    round: Count
    step: Count
    attempt: Count


class MakeStep(OrderOrReport, frozen=True, tag=7):
    """All micro-batches of the step are back: step, and make `share` more. `whole_norm` is that
    of all stages' gradient, to clip it by; None where nothing was weighed."""

    round: Count
    step: Count
    attempt: Count
    share: Count
    whole_norm: Square | None = None


class Void(OrderOrReport, frozen=True, tag=8):
    """Some of the step's micro-batches are lost: forget it, and make `share` in its place."""

    round: Count
    step: Count
    attempt: Count
    share: Count


class Close(OrderOrReport, frozen=True, tag=9):
    """Nothing more is counted in the round."""

    round: Count


class Evaluate(OrderOrReport, frozen=True, tag=10):
    """The evaluator sends the validation text through the stages, to be judged by the weights after
    these ops.

    Attributes:
        ops: newest op of each stage; the loss is told as of the first one's.
        evaluator: a source.
        turns: see `Pace`.
    """

    ops: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=limits.STAGES_MAX)]
    evaluator: Process
    turns: Count = 0


Order = Welcome | Joined | Departed | Begin | More | Weigh | MakeStep | Void | Close | Evaluate


class Tell(msgspec.Struct, frozen=True):
    """Coordinator: tell a process, after all that it was told before."""

    process: Process
    order: Order


class Drained(OrderOrReport, frozen=True, tag=30):
    """Source: all that it had to make of the round, or of the step, has ended.

    Attributes:
        round, step, attempt: round, step and attempt; the latter two are 0 where steps are free.
        made: number of micro-batches that it made.
        lost: number of them that did not come back.
    """

    round: Count
    step: Count
    attempt: Count
    made: Count
    lost: Count


class Weighed(OrderOrReport, frozen=True, tag=31):
    """Answer to WEIGH.

    Attributes:
        round, step, attempt: round, step and attempt that were weighed.
        squares: squared norm of the mean gradient here, of each stage of the span in order; None
            where nothing was counted, or where it is larger than it may be.
    """

    round: Count
    step: Count
    attempt: Count
    squares: Annotated[tuple[Square | None, ...], msgspec.Meta(max_length=limits.STAGES_MAX)]


class Marks(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A set of numbers: bit i of byte j is `first` + 8 j + i."""

    first: Count
    bits: Annotated[bytes, msgspec.Meta(max_length=limits.MARKS_BYTES_MAX)]


class Counted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Micro-batches of one source whose gradient is in that of one stage."""

    source: Process
    stage: Stage
    numbers: Marks


class Seen(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Micro-batches of one source that another member has served at a stage: their inputs came from
    it, or their gradients."""

    member: Process
    source: Process
    stage: Stage
    numbers: Marks


class Made(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """End of each micro-batch that a source has made in a round.

    Attributes:
        whole: numbers of those that came back.
        lost: numbers of the others, with the reason.
    """

    whole: Marks
    lost: Mapping[Reason, Marks]


class Compared(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Comparisons of a source in a round: its own word, on which nobody else acts.

    Attributes:
        times: number of times that it has compared what two routes made of the same text.
        odd: number of times that they were at odds.
        suspect: the peer to which its findings point, of this round and before.
    """

    times: Count = 0
    odd: Count = 0
    suspect: Key | None = None


class Settled(OrderOrReport, frozen=True, tag=32):
    """Answer to CLOSE: the last step is made, nothing is left over, and this was counted.
    `redone` is how often it has sent micro-batches of the round to yet another receiver, and why;
    `seen` is who else has served what it has counted. `norms` has for each stage of its span the
    median norm of the round's gradients before they were clipped; None where it made no whole
    step. `busy_s` is how long its passes took. `compared` is what a source has found."""

    round: Count
    counted: Annotated[tuple[Counted, ...], msgspec.Meta(max_length=limits.COUNTED_MAX)]
    made: Made
    redone: Mapping[Reason, Count] = {}
    seen: Annotated[tuple[Seen, ...], msgspec.Meta(max_length=limits.SEEN_MAX)] = ()
    norms: Annotated[tuple[Norm | None, ...], msgspec.Meta(max_length=limits.STAGES_MAX)] = ()
    busy_s: Annotated[float, msgspec.Meta(ge=0, le=limits.BUSY_S_MAX)] = 0.0
    compared: Compared = Compared()


class Proposed(OrderOrReport, frozen=True, tag=33):
    """A member of the last stage has seen in which planes the subspace lacks most; before SETTLED
    of each round, where a run turns it. Its own word."""

    planes: Annotated[tuple[Plane, ...], msgspec.Meta(max_length=limits.TURN_PLANES_MAX)]


Report = Drained | Weighed | Settled | Proposed


def runs(numbers: set[int]) -> list[Marks]:
    """The set as bits, in parts whose numbers lie close together: few bytes, whoever drew them."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if not parts or number - parts[-1][-1] > limits.MARKS_GAP:
            parts.append([])
        parts[-1].append(number)
    return [marks(set(part)) for part in parts]


def marks(numbers: set[int]) -> Marks:
    """The set as bits. One's own numbers lie close together; for others' there is `runs`."""
    if not numbers:
        return Marks(0, b"")
    first = min(numbers)
    bits = bytearray((max(numbers) - first) // 8 + 1)
    for number in numbers:
        bits[(number - first) // 8] |= 1 << (number - first) % 8
    return Marks(first, bytes(bits))


def count(marked: Marks) -> int:
    """Count the numbers in the set."""
    return int.from_bytes(marked.bits, "big").bit_count()


def numbers(marked: Marks) -> set[int]:
    """The set that was written as bits."""
    return {
        marked.first + 8 * index + bit
        for index, byte in enumerate(marked.bits)
        for bit in range(8)
        if byte >> bit & 1
    }
