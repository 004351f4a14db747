"""Orders of the coordinator about pipelines, and the reports that answer them.

Both go over the control connection, in order. An order is never taken back.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.messages import Reason
from swarmtrain_transport.pipeline.route import Boot, Count, Process, Span, Stage


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A peer's present boot, and the stages that it serves."""

    boot: Boot
    span: Span


class Welcome(msgspec.Struct, frozen=True):
    """First order to a process.

    Attributes:
        members: who is in the run, the process itself included.
        round: the oldest that may still be counted in.
        step, attempt: of it.
        is_open: whether micro-batches of the round are under way.
    """

    members: Mapping[PeerId, Member]
    round: int
    step: int
    attempt: int
    is_open: bool


class Joined(msgspec.Struct, frozen=True):
    """A process came."""

    peer: PeerId
    member: Member


class Departed(msgspec.Struct, frozen=True):
    """A process is gone for good; its peer may come again as another one."""

    process: Process


class Move(msgspec.Struct, frozen=True):
    """Fetch the state of these stages, say FETCHED, and go on serving as before: a later BEGIN has
    the new span."""

    span: Span


class Begin(msgspec.Struct, frozen=True):
    """A round begins. `share` is how many micro-batches the receiver makes: of the round, or of
    each step where steps are flushed. From here on a member serves the span that it has in
    `members`."""

    round: int
    share: int
    members: Mapping[PeerId, Member]


class Weigh(msgspec.Struct, frozen=True):
    """All micro-batches of the step are back: say WEIGHED."""

    round: int
    step: int
    attempt: int


class MakeStep(msgspec.Struct, frozen=True):
    """All micro-batches of the step are back: step, and make `share` more. `whole_norm` is that
    of all stages' gradient, to clip it by; None where nothing was weighed."""

    round: int
    step: int
    attempt: int
    share: int
    whole_norm: float | None = None


class Void(msgspec.Struct, frozen=True):
    """Some of the step's micro-batches are lost: forget it, and make `share` in its place."""

    round: int
    step: int
    attempt: int
    share: int


class Close(msgspec.Struct, frozen=True):
    """Nothing more is counted in the round."""

    round: int


Order = Welcome | Joined | Departed | Move | Begin | Weigh | MakeStep | Void | Close


class Tell(msgspec.Struct, frozen=True):
    """Coordinator: tell a process, after all that it was told before."""

    process: Process
    order: Order


class Drained(msgspec.Struct, frozen=True):
    """Source: all that it had to make of the round, or of the step, has ended.

    Attributes:
        round, step, attempt: which; step and attempt are 0 where steps are free.
        made: how many there were.
        lost: how many of them did not come back.
    """

    round: Count
    step: Count
    attempt: Count
    made: Count
    lost: Count


class Weighed(msgspec.Struct, frozen=True):
    """Answer to WEIGH.

    Attributes:
        round, step, attempt: which.
        squares: squared norm of the mean gradient here, of each stage of the span in order; one is
            None where nothing was counted. They need not be finite.
    """

    round: Count
    step: Count
    attempt: Count
    squares: Annotated[tuple[float | None, ...], msgspec.Meta(max_length=limits.STAGES_MAX)]


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """A set of numbers: bit i of byte j is `first` + 8 j + i."""

    first: Count
    bits: Annotated[bytes, msgspec.Meta(max_length=limits.MARKS_BYTES_MAX)]


class Counted(msgspec.Struct, frozen=True, array_like=True):
    """Micro-batches of one source whose gradient is in that of one stage."""

    source: Process
    stage: Stage
    numbers: Marks


class Made(msgspec.Struct, frozen=True, array_like=True):
    """End of each micro-batch that a source has made in a round.

    Attributes:
        whole: numbers of those that came back.
        lost: numbers of the others, with the reason.
    """

    whole: Marks
    lost: Mapping[Reason, Marks]


class Settled(msgspec.Struct, frozen=True):
    """Answer to CLOSE: the last step is made, nothing is left over, and this was counted."""

    round: Count
    counted: tuple[Counted, ...]
    made: Made


class Fetched(msgspec.Struct, frozen=True):
    """The state of the stages that a MOVE named is here."""

    span: Span


Report = Drained | Weighed | Settled | Fetched


def marks(numbers: set[int]) -> Marks:
    """The set as bits."""
    if not numbers:
        return Marks(0, b"")
    first = min(numbers)
    bits = bytearray((max(numbers) - first) // 8 + 1)
    for number in numbers:
        bits[(number - first) // 8] |= 1 << (number - first) % 8
    return Marks(first, bytes(bits))


def count(marked: Marks) -> int:
    """How many numbers are in the set."""
    return int.from_bytes(marked.bits, "big").bit_count()


def numbers(marked: Marks) -> set[int]:
    """The set that was written as bits."""
    return {
        marked.first + 8 * index + bit
        for index, byte in enumerate(marked.bits)
        for bit in range(8)
        if byte >> bit & 1
    }
