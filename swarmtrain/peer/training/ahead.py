"""The part of the next op's contribution that is known when its round begins, in a form to be sent.

NoLoCo's anchor, for instance, does not change while its round lasts: it travels to the expected
partner during the inner steps, and only the difference is left to exchange at the end.
"""

from dataclasses import dataclass

from swarmtrain_transport.arithmetic import Contribution, Window


@dataclass(frozen=True, slots=True)
class Known:
    """The known part of a contribution; a `Contribution` for values from `start` on.

    Attributes:
        start: first value that is known.
        inner: encodes them, counted from there.
    """

    start: int
    inner: Contribution

    def encode(self, start: int, stop: int, window: Window) -> bytes:
        """Encode values [start, stop) as the whole contribution will."""
        return self.inner.encode(start - self.start, stop - self.start, window)
