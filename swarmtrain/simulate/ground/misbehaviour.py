"""Misbehaviour of members that sign right sums, and say what is not so of others or do nothing.

An owner may say that a contributor's part is illegal, or is not what was signed, or may never list
it; a contributor may send nothing to one owner. It is one's word against the other's, and must cost
a slice at most. And a peer may say READY and then give nothing, or give and never say that it holds
a result: then everybody waits for it, which must become rare (protocol.md T4 and STANDING). Or the
bytes themselves are others than was said of them.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from swarmtrain.simulate.ground.quick_keys import quick_sign
from swarmtrain_transport import actions as do
from swarmtrain_transport.ledger.cell_sums import SUM_BYTES
from swarmtrain_transport.ledger.fold import OpView, chunk_range, slice_root
from swarmtrain_transport.ledger.signed_roots import made_of, result_payload
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Got, Have, PeerMessage, Ready, Roots, SliceDone

REFUSES, DENIES, OMITS, WITHHOLDS = "refuses", "denies", "omits", "withholds"
"""An owner says that a part is illegal, or not as it was signed, or says nothing of it; or a
contributor sends nothing to one owner."""

MUTE, UNSENT, GREEDY = "mute", "unsent", "greedy"
"""READY and nothing else; all but the parts; all but the word that a result is held."""

LATE_READY, LATE_PARTS, LATE_SUMS, LATE_WORD = "late ready", "late parts", "late sums", "late word"
SUMLESS = "sumless"
"""READY, its parts, the slices that it owns, or the word that it holds a result, in the last
moment; or an owner that never publishes."""

FORGES, DIPS, BENDS, SPOILS = "forges", "dips", "bends", "spoils"
"""A contributor sends one owner other bytes than it has signed, or a scale below the window; an
owner pushes to one peer other bytes than it has published, or publishes what nobody can decode."""

BLURS, SWELLS, VOIDS, CUTS, MISADDS = "blurs", "swells", "voids", "cuts", "misadds"
HOLDS, STARVES, LAGS = "holds sums", "starves a cell", "lags"
"""An owner in cells sends others sums that are no whole units, larger than parts can make them, no
numbers, of another length, or legal and others than it names, or in every other op names others
than it was given; none, none to the owners of one cell, or late."""

WORDS = (REFUSES, DENIES, OMITS, WITHHOLDS)
DRAGS = (MUTE, UNSENT, GREEDY)
LATE = (LATE_READY, LATE_PARTS, LATE_SUMS, LATE_WORD, SUMLESS)
SUMS = (BLURS, SWELLS, VOIDS, CUTS, MISADDS, HOLDS, STARVES, LAGS)
FORGERIES = (FORGES, DIPS, BENDS, SPOILS)

_MANTISSA_BITS = 7
_DIP = 12
"""Powers of two below the window: sums in its unit are no integers then."""

_GIVEN = (FrameKind.PART, FrameKind.RESULT, FrameKind.RANGES, FrameKind.CREDIT, FrameKind.AHEAD)
_SAID = (Roots, Got, SliceDone, Have)

_DELAYED: dict[str, tuple[float, tuple[type[PeerMessage] | FrameKind, ...]]] = {
    LATE_READY: (4.5, (Ready,)),
    LATE_PARTS: (8.0, (FrameKind.PART, Roots)),
    LATE_SUMS: (15.0, (SliceDone, FrameKind.RESULT)),
    LATE_WORD: (15.0, (Have,)),
    LAGS: (6.0, (FrameKind.SUM,)),
}
"""Seconds by which messages and frames are delayed: of 5 s for READY, 10 for parts and 18 for
results, where a deadline is 20 s."""


@dataclass(frozen=True, slots=True)
class Deed:
    """Misbehaviour of a hostile member from now on.

    Attributes:
        kind: one of the kinds above.
        wanders: True if in each op it is somebody else's turn.
    """

    kind: str
    wanders: bool = False

    def done(
        self,
        actions: Iterable[do.PeerAction],
        op: OpView | None,
        accomplices: Container[PeerId],
    ) -> Iterator[do.PeerAction]:
        """Yield a peer's actions as a hostile member carries them out.

        Args:
            actions: actions of its machine.
            op: the op that is under way.
            accomplices: nobody lies of these.
        """
        victim = self._victim(op, accomplices)
        for action in actions:
            if isinstance(action, do.SendControl):
                message = _said(self.kind, action.message, victim, op)
                if message is not None:
                    yield do.SendControl(message)
            elif not isinstance(action, do.SendFrame):
                yield action
            elif self._starves(action.frame, op):
                continue
            elif not _keeps(self.kind, action.frame.kind, is_victim=action.peer == victim):
                frame = _forged(self.kind, action.frame, op, is_victim=action.peer == victim)
                yield do.SendFrame(action.peer, frame)

    def delay_s(self, action: do.PeerAction) -> float:
        """Return by how many seconds an action is put off."""
        delay_s, late = _DELAYED.get(self.kind, (0.0, ()))
        if isinstance(action, do.SendFrame):
            return delay_s if action.frame.kind in late else 0.0
        said = type(action.message) if isinstance(action, do.SendControl) else None
        return delay_s if said in late else 0.0

    def _starves(self, frame: Frame, op: OpView | None) -> bool:
        """Return True if a sum is not sent: to nobody, or to the owners of one cell."""
        if frame.kind is not FrameKind.SUM or op is None or op.plan_id != frame.plan_id:
            return False
        victim = op.plan.op * self.wanders % op.cells.count
        starved = self.kind == STARVES and frame.slice_index % op.cells.count == victim
        return starved or self.kind == HOLDS

    def _victim(self, op: OpView | None, accomplices: Container[PeerId]) -> PeerId:
        """Choose of whom it says so: the first of the honest in the plan, or another one each
        time."""
        if op is None:
            return b""
        others = [one for one in sorted(op.weights) if one not in accomplices]
        return others[op.plan.op * self.wanders % len(others)] if others else b""


def _said(kind: str, message: PeerMessage, victim: PeerId, op: OpView | None) -> PeerMessage | None:
    """Return a hostile member's version of a message, or None if it sends nothing."""
    if kind == MISADDS and isinstance(message, SliceDone) and message.sums:
        return _misnamed(message, op)
    if kind == MUTE and isinstance(message, _SAID):
        return None
    if kind == SUMLESS and isinstance(message, SliceDone):
        return None
    if kind == GREEDY and isinstance(message, Have):
        return None
    if not isinstance(message, Got) or victim not in message.complete:
        return message
    complete = {peer: root for peer, root in message.complete.items() if peer != victim}
    if kind == OMITS:
        return msgspec.structs.replace(message, complete=complete)
    if kind == REFUSES:
        return msgspec.structs.replace(message, complete=complete, refused={victim: "scale"})
    if kind == DENIES:
        return msgspec.structs.replace(message, complete=complete | {victim: bytes(32)})
    return message


def _misnamed(message: SliceDone, op: OpView | None) -> SliceDone:
    """Return it with another sum of another cell than its mean is made of, and signed."""
    if op is None or op.plan_id != message.plan_id or op.plan.op % 2 == 0:
        return message
    other, index = (message.slice_index + 1) % op.cells.count, message.slice_index
    sums = (*message.sums[:other], bytes(32), *message.sums[other + 1 :])
    root, made = slice_root(message.chunk_hashes), made_of(message.inputs, sums)
    payload = result_payload(op.plan_hash, index, message.attempt, root, made)
    signature = quick_sign(op.owners[index], payload)
    return msgspec.structs.replace(message, sums=sums, signature=signature)


def _forged(kind: str, frame: Frame, op: OpView | None, *, is_victim: bool) -> Frame:
    """Return a frame as it is sent instead."""
    body = bytes(frame.body)
    if op is None or op.plan_id != frame.plan_id:
        return frame
    if kind == DIPS and frame.kind is FrameKind.PART:
        bits = (127 + op.plan.e_min - _DIP) << _MANTISSA_BITS
        return replace(frame, body=bits.to_bytes(2, "little") + body[2:], digest=b"")
    if frame.kind is FrameKind.SUM:
        return replace(frame, body=_wrong_sum(kind, frame, op), digest=b"")
    wanted = {FORGES: FrameKind.PART, BENDS: FrameKind.RESULT}.get(kind)
    if not is_victim or frame.kind is not wanted:
        return frame
    return replace(frame, body=body[:-1] + bytes([body[-1] ^ 1]), digest=b"")


def _wrong_sum(kind: str, frame: Frame, op: OpView) -> bytes:
    """Return what is sent in the place of a cell's sum."""
    body, unit = bytes(frame.body), 2.0 ** (op.plan.e_min - 7)
    start, stop = chunk_range(op.plan, frame.slice_index, frame.chunk)
    values = np.frombuffer(body[: SUM_BYTES * (stop - start)], dtype="<f8").copy()
    is_even, first = op.plan.op % 2 == 0, float(values[0])
    if kind == CUTS:
        return body[:-8] if is_even else body + bytes(8)
    values[0] = {
        BLURS: first + unit / 2,
        SWELLS: 2.0**1000 if is_even else unit * 2.0**54,
        VOIDS: np.nan if is_even else -np.inf,
        MISADDS: first + unit * 2.0**18 * is_even,
    }.get(kind, first)
    return values.tobytes() + body[values.nbytes :]


def _keeps(kind: str, frame: FrameKind, *, is_victim: bool) -> bool:
    """Return True if a frame is held back. Answers to hashes are sent: a peer that sends none is
    passed over, and a peer that alone holds a state and gives it to nobody stops any run."""
    if kind == MUTE:
        return frame in _GIVEN
    if kind == SUMLESS:
        return frame is FrameKind.RESULT
    is_part = frame in (FrameKind.PART, FrameKind.AHEAD)
    return is_part and (kind == UNSENT or (kind == WITHHOLDS and is_victim))
