"""Misbehaviour of a hostile member: it lies, or keeps silent, where an honest one would speak.

`Liar` stands between the production machine and its two lanes. It changes or holds back what the
machine says, and everything else goes through: a peer that breaks every rule at once would soon be
nobody's partner, while one that keeps most of them goes on being planned with. Pure: an order says
what is on, and chance comes from the order's seed. Offences that are deeds of their own (talking
back, flooding, knocking under a name) only have their names here; `hostile` does them.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import FrameKind
from swarmtrain_transport.wire.messages import Got, Have, PeerMessage, Ready, Roots, SliceDone


class Offence(StrEnum):
    """One kind of misbehaviour."""

    TALKBACK = "talkback"
    """Messages sent back over the connections of those who send to it, and a reset after them; the
    same towards those who listen."""
    REFUSE = "refuse"
    """Complaints, as an owner, that what came of somebody is illegal."""
    FALSE_ROOT = "false-root"
    """Reports, as an owner, of another root of what came than the contributor has signed."""
    UNLISTED = "unlisted"
    """Silence, as an owner, about somebody's part that has come."""
    BOAST = "boast"
    """Claims to have trained on a billion samples."""
    SLOW_NAME = "slow-name"
    """Joins again and again, under new keys, to be dialled by a DNS name."""
    FLOOD = "flood"
    """Thousands of requests a second, and reports of states that there are not."""
    DRAG = "drag"
    """READY every round, and then nothing at all."""
    SILENT_OWNER = "silent-owner"
    """Contributions, but never a byte of the slice that it owns."""
    NO_HAVE = "no-have"
    """Silence about every result that it holds."""
    READY_LATE = "ready-late"
    """READY in the last moment, every round."""
    PUBLISH_LATE = "publish-late"
    """The slice that it owns published in the last moment."""


UNDERTAKINGS = frozenset({Offence.TALKBACK, Offence.SLOW_NAME, Offence.FLOOD})
"""Deeds of their own: what the machine says is left alone."""

BOUNDED = frozenset({Offence.BOAST, Offence.SLOW_NAME})
"""Offences that are capped, or refused at the door: the offender need not be named for them."""

LATE = frozenset(
    {
        Offence.DRAG, Offence.SILENT_OWNER, Offence.NO_HAVE,
        Offence.READY_LATE, Offence.PUBLISH_LATE,
    }
)  # fmt: skip
"""Offences by which the others wait, until nobody waits for the offender any more."""

BOASTED_SAMPLES = 10**9

_SILENCED: dict[Offence, frozenset[type[PeerMessage]]] = {
    Offence.DRAG: frozenset({Roots, Got, SliceDone, Have}),
    Offence.SILENT_OWNER: frozenset({SliceDone}),
    Offence.NO_HAVE: frozenset({Have}),
}
"""Messages that are held back."""

_HELD: dict[Offence, frozenset[FrameKind]] = {
    Offence.DRAG: frozenset(FrameKind),
    Offence.SILENT_OWNER: frozenset({FrameKind.RESULT, FrameKind.BLOB, FrameKind.PIECE}),
}
"""Frames that are held back."""

WAIT_READY_S = 10.0
"""Longest wait for READY in a siege, which leaves room for being just in time."""

_DELAYED: dict[Offence, tuple[float, frozenset[type[PeerMessage]], frozenset[FrameKind]]] = {
    Offence.READY_LATE: (0.8 * WAIT_READY_S, frozenset({Ready}), frozenset()),
    Offence.PUBLISH_LATE: (
        4.0, frozenset({SliceDone}),
        frozenset({FrameKind.RESULT, FrameKind.BLOB, FrameKind.PIECE}),
    ),
}  # fmt: skip
"""Seconds by which messages and frames are delayed: a publication has 4.5 s at the shortest
deadline of a siege."""

_LIES_ABOUT_PARTS = (Offence.REFUSE, Offence.FALSE_ROOT, Offence.UNLISTED)


class Order(msgspec.Struct, frozen=True):
    """Instructions for the hostile member from now on.

    Attributes:
        offences: offences that are on; without any it behaves.
        victim: place of the victim among the other contributors, in the order of their keys; all
            of them are victims at -1.
        is_mixed: each round draws about half of the offences that are on, so that in others it
            earns the trust that it spends there.
        seed: seed of the draw.
    """

    offences: tuple[Offence, ...] = ()
    victim: int = -1
    is_mixed: bool = False
    seed: int = 0


class Liar:
    """Turns what an honest machine says into what a hostile member says.

    Attributes:
        order: instructions in force.
        counts: number of times that it has offended, by offence.
    """

    def __init__(self) -> None:
        self.order = Order()
        self.counts: Counter[str] = Counter()

    def is_on(self, offence: Offence, op: int) -> bool:
        """Return True if the member commits this offence in this op."""
        order = self.order
        if offence not in order.offences:
            return False
        if not order.is_mixed or offence in UNDERTAKINGS:
            return True
        return random.Random(f"{order.seed} {op} {offence}").random() < 0.5

    def said(self, message: PeerMessage, op: int, others: Sequence[PeerId]) -> PeerMessage | None:
        """Return the message to send instead of the given one, or None to send nothing.

        Args:
            op: op that is under way or comes next.
            others: other contributors of that op, in the order of their keys.
        """
        for offence, kinds in _SILENCED.items():
            if type(message) in kinds and self.is_on(offence, op):
                self.counts[offence] += 1
                return None
        if isinstance(message, Ready) and self.is_on(Offence.BOAST, message.op):
            self.counts[Offence.BOAST] += 1
            return msgspec.structs.replace(message, samples=BOASTED_SAMPLES)
        if isinstance(message, Got):
            for offence in _LIES_ABOUT_PARTS:
                if self.is_on(offence, op):
                    message = self._belie(offence, message, self._victims(others))
        return message

    def passes(self, kind: FrameKind, op: int) -> bool:
        """Return True if a frame of this kind is to be sent."""
        for offence, kinds in _HELD.items():
            if kind in kinds and self.is_on(offence, op):
                self.counts[offence] += 1
                return False
        return True

    def delay_s(self, said: PeerMessage | FrameKind, op: int) -> float:
        """Return by how many seconds a message or a frame is held back."""
        for offence, (delay_s, messages, frames) in _DELAYED.items():
            is_meant = said in frames if isinstance(said, FrameKind) else type(said) in messages
            if is_meant and self.is_on(offence, op):
                self.counts[offence] += 1
                return delay_s
        return 0.0

    def _victims(self, others: Sequence[PeerId]) -> list[PeerId]:
        victim = self.order.victim
        return list(others) if victim < 0 or not others else [others[victim % len(others)]]

    def _belie(self, offence: Offence, message: Got, victims: Sequence[PeerId]) -> Got:
        complete, refused = dict(message.complete), dict(message.refused)
        for victim in victims:
            root = complete.pop(victim, None)
            if offence is Offence.REFUSE:
                refused[victim] = "scale"
            elif offence is Offence.FALSE_ROOT and root is not None:
                complete[victim] = hashlib.sha256(root).digest()
            elif root is None:
                continue
            self.counts[offence] += 1
        return msgspec.structs.replace(message, complete=complete, refused=refused)
