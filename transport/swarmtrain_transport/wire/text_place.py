"""The place of a run in its text, as PLAN tells it."""

import msgspec


class TextPlace(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Place of the run in the text that the coordinator leases.

    Attributes:
        number: number of the pass, from 1 on.
        used: pieces that were used in it.
        pieces: number of pieces.
    """

    number: int
    used: int
    pieces: int

    @property
    def in_words(self) -> str:
        """For people."""
        return f"pass {self.number}, {self.used} of {self.pieces} pieces used"
