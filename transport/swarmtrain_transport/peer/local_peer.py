"""This process in its own words: its card, and what HELLO and PROGRESS say."""

from dataclasses import dataclass

from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.ledger_copy import LedgerCopy
from swarmtrain_transport.wire.messages import UNSAID, Applied, Brings, Hello, Progress


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


def hello_of(
    card: Card,
    stats: LocalStats,
    copy: LedgerCopy,
    states: tuple[Applied, ...],
    *,
    takes_image: bool,
) -> Hello:
    """HELLO as of now."""
    ledger = copy.ledger
    return Hello(
        boot=card.boot,
        name=card.name,
        curve_key=card.curve_key,
        host=card.host,
        port=card.port,
        head_index=ledger.head_index,
        head_hash=ledger.head_hash if len(ledger) else b"",
        retain_bytes=card.retain_bytes,
        up_bytes_per_s=stats.up_bytes_per_s,
        down_bytes_per_s=stats.down_bytes_per_s,
        brings=card.brings,
        states=states,
        takes_image=takes_image,
        joined=copy.joined,
    )


def progress_of(
    stats: LocalStats, ledger: Ledger, phase: str, replayed_ops: int, state_bytes: int
) -> Progress:
    """PROGRESS as of now; what was seen of contributions is told once."""
    gauged, stats.gauged = stats.gauged, None
    return Progress(
        index=ledger.head_index,
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
        holds_from=ledger.first,
        state_bytes=state_bytes,
        unreached=stats.unreached,
    )
