"""Messages between two peers of a pipeline as frames of the data lane.

The body is the payload, if there is one, then the message in msgpack with its sender's boot;
`chunk` in the header is the message's length. Payloads come first, so they lie in memory as tensors
like it. Inputs and gradients have frame kinds of their own: what waits for a link can tell bulk
from small messages without opening either.
"""

from typing import NamedTuple

import msgpack
import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.pipeline.wire.messages import CARRIES, AnyHopMessage, Forward, Gradient
from swarmtrain_transport.pipeline.wire.route import Boot
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import kinds_of
from swarmtrain_transport.wire.unpacking import unpack_limited

HOP_FRAMES = frozenset({FrameKind.HOP, FrameKind.FORWARD, FrameKind.GRADIENT})
"""Frames that are for a pipeline's machine."""

_KIND_OF = {Forward: FrameKind.FORWARD, Gradient: FrameKind.GRADIENT}
_MESSAGES = kinds_of(AnyHopMessage)
_DETAIL_CHARS_MAX = 200


class Heard(NamedTuple):
    """A message that came.

    Attributes:
        boot: boot of the process that says it.
        message: checked into its type, with every number within its bounds.
        payload: bytes beside it, as many as it says; b"" for messages without one.
    """

    boot: Boot
    message: AnyHopMessage
    payload: Buffer


def pack(run_tag: int, boot: Boot, message: AnyHopMessage, payload: Buffer = b"") -> Frame:
    """The frame of a message of this process.

    Args:
        run_tag: fence of the run.
        boot: our own.
        message: the message.
        payload: bytes beside it.

    Raises:
        LocalFault: a bound is not kept, or the payload is not as long as the message says.
    """
    told = message.payload.num_bytes if isinstance(message, CARRIES) else 0
    if len(payload) != told:
        raise LocalFault(f"{type(message).__name__} with {len(payload)} bytes, it says {told}")
    raw = msgspec.to_builtins(message, builtin_types=(bytes,))
    try:
        _convert([boot, raw])
    except RemoteFault as fault:
        raise LocalFault(f"{type(message).__name__} cannot be sent: {fault.detail}") from fault
    head: bytes = msgpack.packb([boot, raw])
    kind = _KIND_OF.get(type(message), FrameKind.HOP)
    return Frame(kind, run_tag, chunk=len(head), body=b"".join((payload, head)))


def unpack(frame: Frame) -> Heard:
    """The message in a frame of `HOP_FRAMES`, after every check that needs no knowledge of the run.

    Raises:
        RemoteFault: reason ``length``, ``msgpack`` or ``type``.
    """
    split = len(frame.body) - frame.chunk
    if split < 0 or frame.chunk > limits.HOP_BYTES_MAX:
        raise RemoteFault("length", f"message of {frame.chunk} bytes in {len(frame.body)}")
    view = memoryview(frame.body)
    boot, message = _convert(unpack_limited(bytes(view[split:])))
    if frame.kind is not _KIND_OF.get(type(message), FrameKind.HOP):
        raise RemoteFault("type", f"{type(message).__name__} in a frame of kind {frame.kind.name}")
    told = message.payload.num_bytes if isinstance(message, CARRIES) else 0
    if told != split:
        raise RemoteFault("length", f"payload of {split} bytes, the message says {told}")
    return Heard(boot, message, view[:split] if split else b"")


def _convert(raw: object) -> tuple[Boot, AnyHopMessage]:
    """Boot and message of untyped values.

    Raises:
        RemoteFault: reason ``type``.
    """
    try:
        if not isinstance(raw, list) or len(raw) != 2 or not isinstance(raw[1], list):
            raise RemoteFault("type", "no message between two peers of a pipeline")
        kind = _MESSAGES.get(raw[1][0]) if raw[1] else None
        if kind is None:
            raise RemoteFault("type", "no message between two peers of a pipeline")
        boot = msgspec.convert(raw[0], type=Boot, builtin_types=(bytes,))
        return boot, msgspec.convert(raw[1], type=kind, builtin_types=(bytes,))
    except (msgspec.ValidationError, TypeError) as exc:
        # The text may quote the other side: cut it, and let nothing steer a terminal.
        raise RemoteFault("type", ascii(str(exc)[:_DETAIL_CHARS_MAX])[1:-1]) from exc
