"""What a running peer answers to `swarmtrain status`."""

import msgspec


class PeerView(msgspec.Struct, frozen=True):
    """A peer as `status` shows it.

    Attributes:
        refused_frames: frames that break the protocol, by reason; refused handshakes too.
        ignored_frames: frames that changed nothing: ``stale`` and ``repeated`` ones.
        chain: of pair ops, this peer's chain in the ledger, in hex; "" where a run has none.
        audits: how many audits of this peer's ended ``right``, ``wrong`` or ``unanswered``.
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
