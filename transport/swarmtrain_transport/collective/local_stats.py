"""The shell's measurements: what PROGRESS tells, and what ops share with the rest of a process."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Gauged


@dataclass(slots=True)
class LocalStats:
    """Measurements of one process. Bytes are of the data lane unless named.

    Attributes:
        up_bytes_per_s, down_bytes_per_s: measured rates of the link while it was busy, within the
            peer's own caps; 0 until something was measured.
        ignored: frames that changed nothing: ``stale`` ones of another plan or attempt,
            ``repeated`` ones.
        waiting: bytes per peer that were given to the link and are not known to have arrived.
        is_leaving: tells if a piece of a state that was given to the link for this peer has not
            left yet; None where nobody can tell.
        unreached: Peers to which no connection could be made for long.
        relayed: Peers whose bytes come over a relay.
        gauged: findings on others' contributions since PROGRESS was told last; while there is
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
    is_leaving: Callable[[PeerId], bool] | None = None
    unreached: tuple[PeerId, ...] = ()
    relayed: tuple[PeerId, ...] = ()
    gauged: Gauged | None = None
