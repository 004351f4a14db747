"""Actions that the machines ask of their shell. A machine decides; the shell acts, in the order
given.

Time is a value: every event carries `now_s`, and a machine says in `next_wakeup_s` when it wants
to hear `tick(now_s)` again. There is no timer action to lose or to leak. Actions are structs of
msgspec, never encoded: frozen ones are made ten times as fast as frozen dataclasses.
"""

from typing import TYPE_CHECKING

import msgspec

from swarmtrain_transport.links.link import Address, PeerId
from swarmtrain_transport.wire.frames import Frame
from swarmtrain_transport.wire.messages import FIRST_GROUP, CoordinatorMessage, PeerMessage

if TYPE_CHECKING:
    from swarmtrain_transport.blocks.manifest import StateManifest
    from swarmtrain_transport.blocks.retention import Piece
    from swarmtrain_transport.result import OpResult
    from swarmtrain_transport.wire.records import Record

# ---- both sides


class Append(msgspec.Struct, frozen=True):
    """Coordinator: make this record durable before any later action of the same tuple."""

    record: "Record"


class Adopt(msgspec.Struct, frozen=True):
    """Coordinator: make these records of earlier lives durable, and `term` this life's number.

    They were signed by the run key and lost with the disk; peers have kept them.
    """

    records: "tuple[Record, ...]"
    term: int


class SendToPeer(msgspec.Struct, frozen=True):
    """Coordinator: send over the peer's control connection, if it has one."""

    peer: PeerId
    message: CoordinatorMessage


class ClosePeer(msgspec.Struct, frozen=True):
    """Coordinator: close the peer's control connection after what was sent."""

    peer: PeerId


class SendControl(msgspec.Struct, frozen=True):
    """Peer: send to the coordinator, if connected; what must arrive is re-sent after HELLO."""

    message: PeerMessage


class SendFrame(msgspec.Struct, frozen=True):
    """Peer: send on the data lane."""

    peer: PeerId
    frame: Frame


class AllowPeer(msgspec.Struct, frozen=True):
    """Peer: admit this key on the data lane; its host is "" until it is known."""

    address: Address


class WarmWays(msgspec.Struct, frozen=True):
    """Peer: have ways to these peers, as frames for them are soon to come."""

    peers: tuple[PeerId, ...]


class RevokePeer(msgspec.Struct, frozen=True):
    """Peer: this key left the roster."""

    peer: PeerId


class LoadState(msgspec.Struct, frozen=True):
    """Peer: put this downloaded state of op `op` in place, then call `applied`. `samples` are those
    in all results that led to it, where the run counts them."""

    op: int
    manifest: "StateManifest"
    chunks: "tuple[Piece, ...]"
    samples: int = 0
    group: int = FIRST_GROUP


class DownloadBegun(msgspec.Struct, frozen=True):
    """Peer: this state is being downloaded; what is kept of another one may go."""

    manifest: "StateManifest"
    group: int = FIRST_GROUP


class KeepChunk(msgspec.Struct, frozen=True):
    """Peer: a chunk of the download is here and verified; keep it, should we not live to see the
    others."""

    digest: bytes
    data: bytes
    group: int = FIRST_GROUP


class ApplyResult(msgspec.Struct, frozen=True):
    """Peer: do the outer step with this committed result, then call `applied`."""

    result: "OpResult"


class OpSkipped(msgspec.Struct, frozen=True):
    """Peer: the op ended without a result; parameters, momentum and error feedback stay."""

    op: int
    reason: str
    group: int = FIRST_GROUP


class Rewound(msgspec.Struct, frozen=True):
    """Peer: whatever is kept of ops after `op` is of a past that was cancelled."""

    op: int
    group: int = FIRST_GROUP


class Moved(msgspec.Struct, frozen=True):
    """Peer: from now on it is in these groups; of others nothing is left. `why` is for people."""

    groups: tuple[int, ...]
    why: str = ""


class GivenUp(msgspec.Struct, frozen=True):
    """Peer: the ledger says that it has left the run."""


class RecordAccepted(msgspec.Struct, frozen=True):
    """Peer: a ledger record was verified; keep it with the peer's own copy of the ledger."""

    record: "Record"


class LedgerBegins(msgspec.Struct, frozen=True):
    """Peer: its copy of the ledger begins with this SNAPSHOT, and has a gap before it. Keep record
    0, the SNAPSHOT and its image; of what was there before nothing but record 0, if `frees`."""

    run: "Record"
    snapshot: "Record"
    image: bytes
    frees: bool = False


class RunFinished(msgspec.Struct, frozen=True):
    """Peer: the last op is applied; save and leave. The loss after it, where that is known, and how
    many ops were committed."""

    op: int
    loss: float | None = None
    group: int = FIRST_GROUP
    rounds: int = 0


class Halt(msgspec.Struct, frozen=True):
    """Peer: it is not safe or not allowed to go on; say why and stop."""

    code: str
    text: str


class KeepProof(msgspec.Struct, frozen=True):
    """Peer: keep this proof of a wrong sum in `op` (audit.Proof)."""

    op: int
    data: bytes
    group: int = FIRST_GROUP


class PeerFault(msgspec.Struct, frozen=True):
    """Peer: another peer broke the protocol on the data lane; count it and show it."""

    peer: PeerId
    reason: str
    detail: str


CoordinatorAction = Append | Adopt | SendToPeer | ClosePeer
PeerAction = (
    SendControl | SendFrame | AllowPeer | WarmWays | RevokePeer | LoadState | DownloadBegun
    | KeepChunk | ApplyResult | OpSkipped | Rewound | Moved | GivenUp | RecordAccepted
    | LedgerBegins | RunFinished | Halt | KeepProof | PeerFault
)  # fmt: skip
