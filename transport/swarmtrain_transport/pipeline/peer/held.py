"""One micro-batch at one peer: its phase, and the receivers that it was sent to."""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.phases import Table
from swarmtrain_transport.pipeline.peer.requests import Job
from swarmtrain_transport.pipeline.wire.messages import Payload, Reason
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Slot


class Phase(Enum):
    """Phases of a micro-batch at one peer."""

    FORWARD = "forward"
    """Its forward pass is to be made, or is being made."""
    WAITING = "waiting"
    """For an invitation of the next stage."""
    SENT = "sent"
    """A receiver has it, or will."""
    ARRIVED = "arrived"
    """Here is the end of its route; the source is asked."""
    OUTRUN = "outrun"
    """The receiver's route was not let go on; an earlier receiver's may have been."""
    LABELLED = "labelled"
    """Its labels are here: its loss is to be told, or is being made. Of judged ones."""
    BACKWARD = "backward"
    """Its backward pass is to be made, or is being made."""
    RETURNED = "returned"
    """The input's gradient is on its way up, until ACK."""
    REFUSED = "refused"
    """The refusal is on its way up, until ACK."""


_ON = frozenset({Phase.WAITING, Phase.BACKWARD, Phase.REFUSED})

PHASES: Table[Phase] = {
    Phase.FORWARD: frozenset({Phase.WAITING, Phase.REFUSED}),
    Phase.WAITING: frozenset({Phase.SENT, Phase.BACKWARD, Phase.REFUSED}),
    Phase.SENT: _ON | {Phase.OUTRUN},
    Phase.ARRIVED: frozenset({Phase.BACKWARD, Phase.REFUSED, Phase.LABELLED}),
    Phase.OUTRUN: frozenset({Phase.BACKWARD, Phase.REFUSED}),
    Phase.BACKWARD: frozenset({Phase.RETURNED, Phase.REFUSED}),
}
"""A source's own end in BACKWARD, or where it fails. WAITING becomes BACKWARD when an earlier try
comes back after all."""

PAST_GO = frozenset({Phase.BACKWARD, Phase.RETURNED})
"""Phases of which only the source's one permission leads."""

OWED = frozenset({Phase.RETURNED, Phase.REFUSED})
"""Phases in which nothing is left to do but to be heard above."""


@dataclass(slots=True)
class Try:
    """One receiver that has had the micro-batch.

    Attributes:
        receiver: the process.
        slot: slot of the receiver.
        since_s: time when it was first sent there.
        is_long: True if it has been there for far longer than others take.
    """

    receiver: Process
    slot: Slot
    since_s: float
    is_long: bool = False


@dataclass(slots=True)
class Held:
    """A micro-batch at this peer.

    Attributes:
        job: name of it here.
        above: the process that sent it; None at its source.
        stage: the first that it goes through here.
        secret: drawn by its source.
        tokens: tokens that count in its loss; known to a source after its pass.
        labels: form of the labels; at a source, after the forward pass.
        phase: phase of it.
        began_s: time when it came.
        since_s: time when its phase began.
        kept_s: Time since which its slot was kept for it.
        tries: receivers that have had it, the newest last.
        num_tries: number of tries so far, a coming one included.
        avoided: receivers that have failed it.
        meant: the receiver that it was meant for.
        asked: receivers of which one may invite it.
        heard_s: time when the newest receiver last gave a sign of it.
        output, gradient: forms of its output and of its input's gradient.
        below: the receiver whose gradient it takes; None at the end of its route.
        reason: reason for which it is refused.
        steps: inner steps that its first stage here had made before its forward pass.
        again_s, pause_s: time when a payload may be sent again, and the pause after that.
        twin: the one of the same text, at its source (`comparisons`); they are to go to two peers.
    """

    job: Job
    above: Process | None
    stage: int
    secret: bytes
    tokens: int
    phase: Phase
    began_s: float
    since_s: float
    kept_s: float = 0.0
    tries: list[Try] = field(default_factory=list)
    num_tries: int = 1
    avoided: set[Process] = field(default_factory=set)
    meant: PeerId | None = None
    asked: Collection[PeerId] = ()
    heard_s: float = 0.0
    labels: Payload | None = None
    output: Payload | None = None
    gradient: Payload | None = None
    below: Process | None = None
    reason: Reason | None = None
    steps: int = 0
    again_s: float = 0.0
    pause_s: float = limits.HOP_TICK_S
    twin: "Held | None" = field(default=None, compare=False, repr=False)

    @property
    def micro_batch(self) -> MicroBatch:
        """Its name."""
        return self.job.micro_batch

    @property
    def order(self) -> tuple[int, int, int, int, PeerId]:
        """Place in a queue: the oldest goes first, and so gradients add up in one order."""
        name = self.micro_batch
        return name.round, name.step, name.attempt, name.number, name.source

    @property
    def kept_apart(self) -> set[PeerId]:
        """Peers of the next stage that its twin has gone to, or is to go to."""
        if self.twin is None:
            return set()
        tried = {one.receiver.peer for one in self.twin.tries}
        return tried or ({self.twin.meant} if self.twin.meant is not None else set())

    def is_at(self, receiver: Process, slot: Slot) -> bool:
        """Return True if this is the newest receiver."""
        return bool(self.tries) and (self.tries[-1].receiver, self.tries[-1].slot) == (
            receiver, slot,
        )  # fmt: skip

    def was_at(self, receiver: Process, slot: Slot) -> bool:
        """Return True if this is one of its receivers."""
        return any((one.receiver, one.slot) == (receiver, slot) for one in self.tries)

    def may_send(self, now_s: float) -> bool:
        """Return True if it is time to send a payload once more; the next pause is longer."""
        if now_s < self.again_s:
            return False
        self.again_s = now_s + self.pause_s
        self.pause_s = min(2 * self.pause_s, limits.HOP_RESEND_MAX_S)
        return True

    def sends_anew(self) -> None:
        """Another payload, or to somebody else: no pause is due."""
        self.again_s, self.pause_s = 0.0, limits.HOP_TICK_S
