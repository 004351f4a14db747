"""Who a peer process is, and what only its shell knows of it."""

from dataclasses import dataclass

from swarmtrain_transport.link import PeerId


@dataclass(frozen=True, slots=True)
class Card:
    """Who and where this process is; `boot` is random per process."""

    peer_id: PeerId
    boot: bytes
    name: str
    curve_key: bytes
    host: str
    port: int
    retain_bytes: int = 1 << 30


@dataclass(slots=True)
class LocalStats:
    """What the shell knows and PROGRESS tells. Bytes are of the data lane unless named.

    Attributes:
        up_bytes_per_s, down_bytes_per_s: measured rates of the link while it was busy, within the
            peer's own caps; 0 until something was measured.
    """

    phase: str = "starting"
    bytes_in: int = 0
    bytes_out: int = 0
    control_bytes_in: int = 0
    control_bytes_out: int = 0
    step: int = 0
    loss: float = 0.0
    tokens_per_s: float = 0.0
    tokens: int = 0
    up_bytes_per_s: int = 0
    down_bytes_per_s: int = 0
