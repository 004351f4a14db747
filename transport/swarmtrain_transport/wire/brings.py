"""Run, model and data that a peer says it brings: a mistake is noticed at the door, not in a round.

It is no defence: whoever means harm says what fits.
"""

import msgspec

BUILT_IN = "built-in"
OWN = "own"
LEASED = "leased"


class Brings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A peer's model and data, as far as it says; empty is unsaid.

    Attributes:
        run: the name in its invite.
        model: BUILT_IN, to be made as the run file says, or OWN.
        layout: digest of an own model's names, shapes and dtypes.
        num_values: of an own model's trainable parameters.
        data: LEASED or OWN.
    """

    run: str = ""
    model: str = ""
    layout: bytes = b""
    num_values: int = 0
    data: str = ""


UNSAID = Brings()
