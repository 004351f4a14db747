"""News of a peer, for people or as JSON lines for a program that listens."""

import sys
from collections.abc import Callable

from swarmtrain.console.lines import stamped
from swarmtrain.foundation.events import Event, Waiting

Print = Callable[[str], None]
Emit = Callable[[Event], None]


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
