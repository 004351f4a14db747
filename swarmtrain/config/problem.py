"""The error of one setting of a run file, and the bounds of every setting."""

from dataclasses import dataclass

from swarmtrain.foundation.errors import cleaned

INTEGER_MAX = 2**63 - 1
"""Largest whole number that msgpack and every reader of it can hold."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One setting that cannot work.

    Attributes:
        key: full path, ``outer.inner_steps``.
        text: the rest of a sentence that begins with the key.
        reason: reason for such a bound; may be empty.
    """

    key: str
    text: str
    reason: str = ""


def too_long(key: str) -> Problem:
    """The setting is a whole number that not every reader of it can hold."""
    return Problem(cleaned(key), "must be a number of at most 63 bits")
