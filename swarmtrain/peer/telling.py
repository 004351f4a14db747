"""News of a peer, for people or as JSON lines for a program that listens."""

import sys
from collections.abc import Callable

from swarmtrain.console.lines import stamped
from swarmtrain.foundation.events import Event, Waiting

Print = Callable[[str], None]
Emit = Callable[[Event], None]


def unheld(is_held: bool | None, op: int) -> str:
    """Say who else has the weights that a peer leaves with, "" if somebody has.

    Args:
        is_held: as `PeerThread.hand_over` returns.
        op: newest op in them.
    """
    if is_held is None:
        return (
            f"The coordinator does not answer, so nobody can say who else has the weights after "
            f"round {op}; this peer has saved them."
        )
    return (
        ""
        if is_held
        else (
            f"Nobody else is known to have the weights after round {op}: the others wait for this "
            "peer, or go back to an earlier round."
        )
    )


class Telling:
    """Tell the news to whoever listens.

    Args:
        say: shows people a line.
        emit: puts out an event for programs; None where none listens.
    """

    def __init__(self, say: Print, emit: Emit | None) -> None:
        self.say = say
        self._emit = emit

    def tell(self, event: Event, text: str) -> None:
        """Tell of an event; people read `text`."""
        if self._emit is not None:
            self._emit(event)
        else:
            self.say(stamped(text, sys.stderr))

    def waits(self, words: str) -> None:
        """Tell that the run waits for something; "" once it goes on."""
        text = f"the run waits for {words}" if words else "the run waits no longer"
        self.tell(Waiting(words), text)
