"""Events of a running coordinator or peer, as `--json-events` writes them: a JSON object a line.

A program that starts processes reads them as the same values. A line that is none of these is no
error: a newer version may say more.
"""

import json
import sys

import msgspec

from swarmtrain.foundation import signals as ending


class _Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True):
    """Base of all lines."""


class Ready(_Event, frozen=True, tag="ready"):
    """The coordinator takes peers; the invite lets them in, and the page shows the run."""

    invite: str
    host: str = ""
    port: int = 0
    run: str = ""
    state_dir: str = ""
    page: str = ""


class Finished(_Event, frozen=True, tag="finished"):
    """The run has ended at its coordinator; `result` says in words how."""

    result: str


class In(_Event, frozen=True, tag="in"):
    """The coordinator let the peer in. `peer` is its key in hex, `port` that of its data lane on
    this machine."""

    peer: str
    name: str
    port: int = 0


class Serving(_Event, frozen=True, tag="serving"):
    """The peer serves these stages of the model, the last one included; `why` says the reason."""

    first: int
    last: int
    why: str = ""


class StateInPlace(_Event, frozen=True, tag="state"):
    """The peer holds the run's state after `round`; of one stage, where the model is in stages."""

    round: int
    stage: int = 0


class Waiting(_Event, frozen=True, tag="waiting"):
    """The run stands still, as the peer hears, and waits for this; "" when it goes on."""

    waiting_for: str


class RoundEnded(_Event, frozen=True, tag="round"):
    """A round ended for the peer: merged, left-out, replayed, followed or skipped; where rounds go
    by pairs merged, alone, followed or skipped. `root` is its state root after it, `partner` its
    partner's key and `chain` the chain that both have then, in hex; where the model is in stages it
    is `stage`'s round. `loss` is the peer's own training loss then, None if nobody knows it."""

    round: int
    outcome: str
    contributors: int
    root: str = ""
    partner: str = ""
    chain: str = ""
    stage: int = 0
    loss: float | None = None


class Evaluated(_Event, frozen=True, tag="evaluated"):
    """The peer measured the validation loss of the shared weights, in nats per token."""

    round: int
    loss: float


class Frozen(_Event, frozen=True, tag="frozen"):
    """The peer stopped in the middle of an exchange, as it was asked to; or, where it serves
    stages, with so many micro-batches of others on their way."""

    round: int
    phase: str
    chunks_sent: int
    chunks_total: int
    micro_batches: int = 0


class Left(_Event, frozen=True, tag="left"):
    """The peer left cleanly. `root` is its state root in hex, `result` what a finished run has come
    to; bytes are those of both lanes. `roots` are those of its stages, by their numbers."""

    round: int
    root: str
    bytes_up: int
    bytes_down: int
    result: str = ""
    roots: dict[str, str] = {}


class Offended(_Event, frozen=True, tag="offended"):
    """A hostile member of a chaos counts what it has done, by offence. `keys` are those that it
    has besides its own, in hex."""

    counts: dict[str, int]
    keys: tuple[str, ...] = ()


OfCoordinator = Ready | Finished
OfPeer = In | Serving | StateInPlace | Waiting | RoundEnded | Evaluated | Frozen | Left
Event = OfCoordinator | OfPeer | Offended


def write(event: Event) -> None:
    """Put an event out as one line, for a program that listens on stdout."""
    ending.tell(json_line(event), sys.stdout)


def json_line(value: object) -> str:
    """A value as one line of JSON in printable ASCII, which loses nothing and moves no terminal."""
    return json.dumps(json.loads(msgspec.json.encode(value))).replace("\x7f", "\\u007f")


def parse(line: bytes) -> Event | None:
    """Read one line of `--json-events`; None if it says nothing that we know."""
    try:
        event: Event = msgspec.json.decode(line, type=Event)
    except ValueError:
        return None
    return event
