"""Environment variables by which a program that takes part in a run is set up from outside.

`swarmtrain emulate` starts many copies of one program so; a container or a batch system can do the
same. Whatever the program says itself comes first. Without an invite none of them is looked at.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from swarmtrain.config.caps import parse_caps
from swarmtrain.config.options import (
    JoinOptions,
    check_name,
    default_endpoint,
    parse_advertised,
    parse_endpoint,
)
from swarmtrain.foundation import dirs
from swarmtrain.foundation.events import Event
from swarmtrain_transport.credentials.invite import Invite

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

    def options(
        self, invite: str, kind: str, *, name: str, listen: str, state_dir: str | Path | None,
        up: str, down: str, daily: str,
    ) -> JoinOptions:  # fmt: skip
        """Return what a program has said, "" for nothing, and else what stands here.

        Args:
            invite: invite of the run.
            kind: kind of the program, for its place on this machine.
            name, listen, state_dir, up, down, daily: see `swarmtrain.join`.

        Raises:
            UserError: one of them makes no sense.
        """
        parsed, name = Invite.parse(invite), check_name(name or self.name)
        place = str(state_dir or self.state_dir)
        return JoinOptions(
            invite=parsed,
            name=name,
            listen=parse_endpoint(listen) if listen else default_endpoint(parsed),
            state_dirs=(Path(place),) if place else dirs.peer_dirs(parsed.run, name, kind),
            advertise=parse_advertised(self.advertise) if self.advertise else None,
            caps=parse_caps(up or self.up, down or self.down, daily),
        )

    def emit(self) -> Callable[[Event], None]:
        """Return what appends an event to the file, or does nothing where there is none."""
        if not self.events:
            return lambda event: None
        path = Path(self.events)

        def append(event: Event) -> None:
            with path.open("ab", buffering=0) as file:
                file.write(msgspec.json.encode(event) + b"\n")

        return append
