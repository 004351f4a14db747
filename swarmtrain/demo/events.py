"""What the demo hears from its processes: the JSON lines of `--json-events`, as values.

A line that is none of these is not an error: a newer version may say more.
"""

from dataclasses import dataclass

import msgspec

from swarmtrain_transport.coordinator.membership import CoordinatorStatus


class _Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Base of all lines."""


class Ready(_Event, frozen=True, tag="ready"):
    """The coordinator takes peers; the invite lets them in."""

    invite: str
    port: int = 0


class In(_Event, frozen=True, tag="in"):
    """The coordinator let the peer in. `peer` is its key in hex, `port` that of its data lane on
    this machine."""

    peer: str
    name: str
    port: int = 0


class StateInPlace(_Event, frozen=True, tag="state"):
    """The peer holds the run's state after `round`."""

    round: int


class RoundEnded(_Event, frozen=True, tag="round"):
    """A round ended for the peer: merged, left-out, replayed, followed or skipped; where rounds go
    by pairs merged, alone, followed or skipped. `root` is its state root after it, `partner` its
    partner's key and `chain` the chain that both have then, in hex."""

    round: int
    outcome: str
    contributors: int
    root: str = ""
    partner: str = ""
    chain: str = ""


class Evaluated(_Event, frozen=True, tag="evaluated"):
    """The peer measured the validation loss of the shared weights, in nats per byte."""

    round: int
    loss: float


class Frozen(_Event, frozen=True, tag="frozen"):
    """The peer stopped in the middle of an exchange, as it was asked to."""

    round: int
    phase: str
    chunks_sent: int
    chunks_total: int


class Left(_Event, frozen=True, tag="left"):
    """The peer left cleanly. `root` is its state root in hex, bytes are those of both lanes."""

    round: int
    root: str
    bytes_up: int
    bytes_down: int


class Offended(_Event, frozen=True, tag="offended"):
    """A hostile member of a chaos counts what it has done, by offence. `keys` are those that it
    has besides its own, in hex."""

    counts: dict[str, int]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The process is gone. A negative status is the signal that ended it."""

    status: int


Told = Ready | In | StateInPlace | RoundEnded | Evaluated | Frozen | Left | Offended
Heard = Told | Ended | CoordinatorStatus


def parse(line: bytes) -> Told | None:
    """One line of `--json-events`, or None if it says nothing that we know."""
    try:
        event: Told = msgspec.json.decode(line, type=Told)
    except msgspec.DecodeError:
        return None
    return event
