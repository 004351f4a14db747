"""Names of what travels through the stages, and of the places that it takes there.

A *micro-batch* is named by who made it and when, so a name is never used twice, not even by a
process that forgot. A *slot* is one place in one receiver's memory, used or returned once. Both
name a process by its boot: what was said to an earlier life of a peer is never taken for a later
one's.
"""

from typing import Annotated

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId

Boot = Annotated[bytes, msgspec.Meta(min_length=1, max_length=limits.BOOT_BYTES_MAX)]
"""Drawn anew by each process."""

Key = Annotated[PeerId, msgspec.Meta(min_length=limits.KEY_BYTES, max_length=limits.KEY_BYTES)]
"""A peer as others name it: these bounds, and those below, are checked where bytes are decoded."""

Count = Annotated[int, msgspec.Meta(ge=0, le=limits.COUNT_MAX)]
Stage = Annotated[int, msgspec.Meta(ge=0, lt=limits.STAGES_MAX)]


Secret = Annotated[
    bytes, msgspec.Meta(min_length=limits.SECRET_BYTES, max_length=limits.SECRET_BYTES)
]
"""Secret of a micro-batch: names can be guessed, so its source knows by this who was sent it."""

Fence = tuple[int, int, int]
"""Round, step and attempt."""


class MicroBatch(
    msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True
):
    """Name of a micro-batch.

    Attributes:
        source: the peer that has made it.
        boot: boot of the source.
        round: round that it belongs to.
        step, attempt: step and attempt of it, where steps are flushed; both 0 where they are free.
        number: counts what this boot of the source has made, across rounds.
        judged: True for validation text, which goes forward only and counts nowhere. Its round is
            the first stage's op after which the model is evaluated, and numbers count apart.
    """

    source: Key
    boot: Boot
    round: Count
    step: Count
    attempt: Count
    number: Count
    judged: bool = False

    @property
    def fence(self) -> Fence:
        """Its round, step and attempt."""
        return self.round, self.step, self.attempt

    @property
    def entry(self) -> "tuple[Process, int]":
        """Its source and number: books know no more of it."""
        return Process(self.source, self.boot), self.number


class Slot(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    """One place at a receiver, for one micro-batch.

    Attributes:
        boot: boot of the receiver.
        number: counts the slots that this boot has given, so later ones are larger.
    """

    boot: Boot
    number: Count


class Process(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    """One life of a peer."""

    peer: Key
    boot: Boot


class Span(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    """Consecutive stages that a peer serves, both ends included."""

    first: Stage
    last: Stage

    def __contains__(self, stage: int) -> bool:
        """Return True if the stage is one of them."""
        return self.first <= stage <= self.last
