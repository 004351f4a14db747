"""This process: its card, and the facts that only its shell knows."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.brings import UNSAID, Brings
from swarmtrain_transport.wire.messages import Gauged, Hello, Progress


@dataclass(frozen=True, slots=True)
class Card:
    """Identity and address of this process; `boot` is random per process."""

    peer_id: PeerId
    boot: bytes
    name: str
    curve_key: bytes
    host: str
    port: int
    retain_bytes: int = 1 << 30
    brings: Brings = UNSAID


@dataclass(slots=True)
class LocalStats:
    """The shell's measurements, which PROGRESS tells. Bytes are of the data lane unless named.

    Attributes:
        up_bytes_per_s, down_bytes_per_s: measured rates of the link while it was busy, within the
            peer's own caps; 0 until something was measured.
        ignored: frames that changed nothing: ``stale`` ones of another plan or attempt,
            ``repeated`` ones.
        waiting: bytes per peer that were given to the link and are not known to have arrived.
        gauged: what was seen of others' contributions since PROGRESS was told last; while there is
            something nothing more is looked at.
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
    ignored: Counter[str] = field(default_factory=Counter)
    waiting: Mapping[PeerId, int] = field(default_factory=dict)
    gauged: Gauged | None = None


def hello_of(
    card: Card, stats: LocalStats, ledger: Ledger, applied_op: int, state_root: bytes
) -> Hello:
    """HELLO as of now."""
    return Hello(
        boot=card.boot,
        name=card.name,
        curve_key=card.curve_key,
        host=card.host,
        port=card.port,
        head_index=ledger.head_index,
        head_hash=ledger.head_hash if len(ledger) else b"",
        applied_op=applied_op,
        state_root=state_root,
        retain_bytes=card.retain_bytes,
        up_bytes_per_s=stats.up_bytes_per_s,
        down_bytes_per_s=stats.down_bytes_per_s,
        brings=card.brings,
    )


def progress_of(stats: LocalStats, head_index: int, phase: str, replayed_ops: int) -> Progress:
    """PROGRESS as of now; what was seen of contributions is told once."""
    gauged, stats.gauged = stats.gauged, None
    return Progress(
        index=head_index,
        bytes_in=stats.bytes_in,
        bytes_out=stats.bytes_out,
        phase=phase,
        step=stats.step,
        loss=stats.loss,
        tokens_per_s=stats.tokens_per_s,
        tokens=stats.tokens,
        control_bytes_in=stats.control_bytes_in,
        control_bytes_out=stats.control_bytes_out,
        replayed_ops=replayed_ops,
        up_bytes_per_s=stats.up_bytes_per_s,
        down_bytes_per_s=stats.down_bytes_per_s,
        gauged=gauged,
    )
