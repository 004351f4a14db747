"""Environment variables by which a program that takes part in a run is set up from outside.

`swarmtrain emulate` starts many copies of one program so; a container or a batch system can do the
same. Whatever the program says itself comes first. Without an invite none of them is looked at.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from swarmtrain.foundation.events import Event

INVITE = "SWARMTRAIN_INVITE"
NAME = "SWARMTRAIN_NAME"
STATE_DIR = "SWARMTRAIN_STATE_DIR"
ADVERTISE = "SWARMTRAIN_ADVERTISE"
UP = "SWARMTRAIN_UP"
DOWN = "SWARMTRAIN_DOWN"
EVENTS = "SWARMTRAIN_EVENTS"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Settings of a program from outside; "" stands for nothing.

    Attributes:
        name: shown to others.
        state_dir: directory for state.
        advertise: HOST:PORT that the other peers dial.
        up: cap on what is sent, as `swarmtrain.join` takes it.
        down: cap on what is taken in.
        events: file to which the peer's events are appended as JSON lines.
    """

    name: str = ""
    state_dir: str = ""
    advertise: str = ""
    up: str = ""
    down: str = ""
    events: str = ""

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> "Surroundings":
        """Read them."""
        names = (NAME, STATE_DIR, ADVERTISE, UP, DOWN, EVENTS)
        return cls(*(variables.get(name, "").strip() for name in names))

    def emit(self) -> Callable[[Event], None]:
        """Return what appends an event to the file, or does nothing where there is none."""
        if not self.events:
            return lambda event: None
        path = Path(self.events)

        def append(event: Event) -> None:
            with path.open("ab", buffering=0) as file:
                file.write(msgspec.json.encode(event) + b"\n")

        return append
