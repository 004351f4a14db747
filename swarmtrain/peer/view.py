"""Answer of a running peer to `swarmtrain status`, and its trainer's report for that answer."""

import msgspec

from swarmtrain.console.lines import counted

LEFT = "has left"
"""State of a peer that is in the run no more."""


class TrainerNote(msgspec.Struct, frozen=True):
    """Report of the training thread on itself, for PROGRESS and `status`."""

    phase: str = "starting"
    step: int = 0
    loss: float = 0.0
    tokens_per_s: float = 0.0
    tokens: int = 0
    result: str = ""
    unit: str = "tokens"


def ended_note(rounds: int, checkpoints: str) -> TrainerNote:
    """The note of a peer that has come back to a run that is finished."""
    said = f"{counted(rounds, 'round')}, the model is in the newest folder of {checkpoints}"
    return TrainerNote("finished", result=said)


class PeerView(msgspec.Struct, frozen=True):
    """A peer as `status` shows it.

    Attributes:
        refused_frames: frames that break the protocol, by reason; refused handshakes too.
        ignored_frames: frames that changed nothing: ``stale`` and ``repeated`` ones.
        chain: this peer's chain in the ledger of pair ops, in hex; "" where a run has none.
        audits: number of this peer's audits that ended ``right``, ``wrong`` or ``unanswered``.
        waiting_for: the whole run's wait, as the coordinator tells it; "" while it goes on.
        result: outcome of the run and place of the model, once it is finished.
        waiting_seen_s: seconds since that was here last, if known.
        unit: unit of `tokens`: samples where the model is a program's own.
        unreachable: peers that cannot open a connection to it, in words; "" if all can.
        limits: limits on the link, in words; "" without any.
        ways: way by which it sends to each of the others, in words.
        paused: words of its pause; "" without one.
        caps: limits on the link as numbers, `up`, `down` and `daily`; 0 for none.
        today: bytes of this calendar day, both directions.
    """

    run: str
    name: str
    peer: str
    state: str
    round: int
    step: int
    loss: float
    tokens_per_s: float
    tokens: int
    bytes_up: int
    bytes_down: int
    state_root: str
    connected: bool
    refused_frames: dict[str, int]
    ignored_frames: dict[str, int]
    audits: dict[str, int]
    chain: str = ""
    waiting_for: str = ""
    waiting_seen_s: float | None = None
    result: str = ""
    unit: str = "tokens"
    limits: str = ""
    unreachable: str = ""
    ways: str = ""
    paused: str = ""
    caps: dict[str, int] = {}
    today: int = 0
