"""Messages between two peers of a pipeline. Each may be lost, doubled or late.

The frame around a message names its sender's boot. FORWARD, GRADIENT and GO carry a payload beside
the message, bytes that this part never looks into; `Payload` tells their form. All others are
small.

Those from a sender of micro-batches to a receiver: WANT, RETURN, FORWARD, DROP, ACK. The other way:
INVITE, ALIVE, GRADIENT, REFUSE. Between the end of a route and the source: ARRIVED, GO, NO; and
JUDGED, of validation text.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Secret, Slot, Stage

Size = Annotated[int, msgspec.Meta(ge=0, le=limits.HOP_PAYLOAD_BYTES_MAX)]
"""Number of bytes, or of something that takes at least a byte."""

Shape = Annotated[tuple[Size, ...], msgspec.Meta(min_length=1, max_length=limits.SHAPE_DIMS_MAX)]


class Reason(StrEnum):
    """Reason why a micro-batch is given back or lost."""

    CLOSED = "closed"
    """Its round, or its step, is over."""
    FULL = "no slot"
    """The slot that it came to is not kept for its sender."""
    BAD = "bad input"
    """The input is not what its form says, or not what a stage takes."""
    SPOILED = "bad gradient"
    """The gradient is not what its form says, or not finite."""
    GRANTED = "granted"
    """Another end has the one permission to begin the way back."""
    MUTE = "mute"
    """Its source did not answer the end."""
    TRIES = "tries"
    """No receiver took it to its end in so many tries."""
    STALE = "stale"
    """The gradient came back too many steps after the forward pass."""
    LATE = "late"
    """Too much time has passed since it was made."""
    SILENT = "silent"
    """The receiver no longer said that it holds it."""
    GONE = "gone"
    """The receiver left the run."""


FINAL = frozenset({Reason.GRANTED, Reason.STALE, Reason.SPOILED})
"""Reasons that say that an end has the permission: another try would not get it."""


class HopMessage(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag_field="t"
):
    """Base of the messages between two peers of a pipeline."""


class Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Form of the bytes beside a message.

    Attributes:
        codec: name of the codec that made bytes of the values.
        shape: shape of the tensor; the last dimension is a token's vector.
        num_bytes: length of the bytes.
    """

    codec: Annotated[str, msgspec.Meta(max_length=limits.CODEC_CHARS_MAX)]
    shape: Shape
    num_bytes: Size


class Want(HopMessage, frozen=True, tag=1):
    """I have `count` micro-batches for this stage of yours; this replaces what was said."""

    stage: Stage
    count: Annotated[int, msgspec.Meta(ge=0, le=limits.HOP_WANTS_MAX)]


class Invite(HopMessage, frozen=True, tag=2):
    """Your micro-batch may come into this slot. Said again until it is filled or returned."""

    slot: Slot


class Return(HopMessage, frozen=True, tag=3):
    """I do not need the slot."""

    slot: Slot


class Forward(HopMessage, frozen=True, tag=4):
    """A micro-batch for the slot; the payload is the stage's input.

    Attributes:
        slot: slot of the invitation.
        micro_batch: name of the micro-batch.
        secret: drawn by its source, to be shown to it by the end of the route.
        stage: stage whose input it is.
        tokens: tokens that count in its loss.
        payload: form of the input.
    """

    slot: Slot
    micro_batch: MicroBatch
    secret: Secret
    stage: Stage
    tokens: Size
    payload: Payload


class Gradient(HopMessage, frozen=True, tag=5):
    """The gradient of what came into the slot, as payload. Said again until ACK."""

    slot: Slot
    micro_batch: MicroBatch
    payload: Payload


class Refuse(HopMessage, frozen=True, tag=6):
    """No gradient will come for the micro-batch of the slot. Said again until ACK."""

    slot: Slot
    micro_batch: MicroBatch
    reason: Reason


class Ack(HopMessage, frozen=True, tag=7):
    """The gradient or the refusal for the slot is here, and the slot is yours again."""

    slot: Slot


class Alive(HopMessage, frozen=True, tag=8):
    """I hold what came into the slot; be patient."""

    slot: Slot


class Arrived(HopMessage, frozen=True, tag=9):
    """End of a route to the source: may I begin the way back? Said again until it is answered. The
    secret is the one that came with FORWARD."""

    micro_batch: MicroBatch
    slot: Slot
    secret: Secret


class Go(HopMessage, frozen=True, tag=10):
    """Source to one end, the only one ever: begin. The payload is the labels."""

    micro_batch: MicroBatch
    slot: Slot
    payload: Payload


class No(HopMessage, frozen=True, tag=11):
    """Source to an end: another one has begun, or the micro-batch has ended."""

    micro_batch: MicroBatch
    slot: Slot


class Drop(HopMessage, frozen=True, tag=12):
    """The micro-batch in the slot is needed no more; nothing is owed for it."""

    slot: Slot


class Judged(HopMessage, frozen=True, tag=13):
    """To the source of validation text: the sum of its losses, from the end of its route. Any peer
    that was sent it may say None: no loss will come of it, for it has not that state."""

    micro_batch: MicroBatch
    secret: Secret
    tokens: Size
    loss: Annotated[float, msgspec.Meta(ge=-limits.LOSS_MAX, le=limits.LOSS_MAX)] | None


CARRIES = (Forward, Gradient, Go)
"""Messages whose frame has a payload beside them."""

AnyHopMessage = (
    Want | Invite | Return | Forward | Gradient | Refuse | Ack | Alive | Arrived | Go | No | Drop
    | Judged
)  # fmt: skip
