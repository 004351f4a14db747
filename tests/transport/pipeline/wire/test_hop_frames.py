"""Messages between two peers of a pipeline as frames: they come back as themselves, every bound
holds at both ends, and what is none of them is a RemoteFault."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.pipeline.wire.encoding import HOP_FRAMES, pack, unpack
from swarmtrain_transport.pipeline.wire.messages import (
    Ack,
    Alive,
    AnyHopMessage,
    Arrived,
    Drop,
    Forward,
    Go,
    Gradient,
    HopMessage,
    Invite,
    Judged,
    No,
    Payload,
    Reason,
    Refuse,
    Return,
    Want,
)
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Slot
from swarmtrain_transport.wire import frames
from swarmtrain_transport.wire.frames import Frame, FrameKind

REASONS = {"length", "msgpack", "type"}
TAG = 7
BOOT = b"b" * 16
SLOT = Slot(b"r" * 16, 12)
MICRO_BATCH = MicroBatch(b"s" * 32, b"o" * 16, 3, 1, 0, 44)
SECRET = b"x" * limits.SECRET_BYTES
FORM = Payload("int8", (2, 3), 6)
BYTES = b"\x01\xff" * 3

BOOTS = st.binary(min_size=1, max_size=limits.BOOT_BYTES_MAX)
COUNTS = st.integers(0, limits.COUNT_MAX)
STAGES = st.integers(0, limits.STAGES_MAX - 1)
SIZES = st.integers(0, limits.HOP_PAYLOAD_BYTES_MAX)
SLOTS = st.builds(Slot, BOOTS, COUNTS)
MICRO_BATCHES = st.builds(
    MicroBatch, st.binary(min_size=32, max_size=32), BOOTS, COUNTS, COUNTS, COUNTS, COUNTS,
    st.booleans(),
)  # fmt: skip
LOSSES = st.none() | st.floats(-limits.LOSS_MAX, limits.LOSS_MAX)
SECRETS = st.binary(min_size=limits.SECRET_BYTES, max_size=limits.SECRET_BYTES)
SHAPES = st.lists(SIZES, min_size=1, max_size=limits.SHAPE_DIMS_MAX).map(tuple)
FORMS = st.builds(Payload, st.text(max_size=limits.CODEC_CHARS_MAX), SHAPES, st.integers(0, 100))
MESSAGES = st.one_of(
    st.builds(Want, STAGES, st.integers(0, limits.HOP_WANTS_MAX)),
    *(st.builds(kind, SLOTS) for kind in (Invite, Return, Ack, Alive, Drop)),
    st.builds(Forward, SLOTS, MICRO_BATCHES, SECRETS, STAGES, SIZES, FORMS),
    st.builds(Gradient, SLOTS, MICRO_BATCHES, FORMS),
    st.builds(Refuse, SLOTS, MICRO_BATCHES, st.sampled_from(Reason)),
    st.builds(Arrived, MICRO_BATCHES, SLOTS, SECRETS),
    st.builds(No, MICRO_BATCHES, SLOTS),
    st.builds(Go, MICRO_BATCHES, SLOTS, FORMS),
    st.builds(Judged, MICRO_BATCHES, SECRETS, SIZES, LOSSES),
)
EXAMPLES: tuple[AnyHopMessage, ...] = (
    Want(2, 3), Invite(SLOT), Return(SLOT), Forward(SLOT, MICRO_BATCH, SECRET, 1, 96, FORM),
    Gradient(SLOT, MICRO_BATCH, FORM), Refuse(SLOT, MICRO_BATCH, Reason.TRIES), Ack(SLOT),
    Alive(SLOT), Arrived(MICRO_BATCH, SLOT, SECRET), Go(MICRO_BATCH, SLOT, FORM),
    No(MICRO_BATCH, SLOT), Drop(SLOT), Judged(MICRO_BATCH, SECRET, 96, 1.5),
)  # fmt: skip


def payload_of(message: HopMessage) -> bytes:
    form = getattr(message, "payload", None)
    return bytes(range(form.num_bytes)) if form else b""


def framed(raw: object, kind: FrameKind = FrameKind.HOP, payload: bytes = b"") -> Frame:
    """The layout written down a second time."""
    head = msgpack.packb(raw)
    return Frame(kind, TAG, chunk=len(head), body=payload + head)


def raw_of(message: HopMessage) -> list[object]:
    return [BOOT, msgspec.to_builtins(message, builtin_types=(bytes,))]


def kind_of(message: HopMessage) -> FrameKind:
    named = {Forward: FrameKind.FORWARD, Gradient: FrameKind.GRADIENT}
    return named.get(type(message), FrameKind.HOP)


# ---- what goes out comes in


def test_every_message_is_an_example() -> None:
    assert {type(one) for one in EXAMPLES} == set(get_args(AnyHopMessage))


@given(message=MESSAGES, boot=BOOTS)
def test_a_message_reads_back_as_itself(message: AnyHopMessage, boot: bytes) -> None:
    payload = payload_of(message)
    frame = pack(TAG, boot, message, payload)
    header, body = frames.pack(frame)
    for received in (frame, frames.unpack(header, memoryview(body))):
        heard = unpack(received)
        assert (heard.boot, heard.message, bytes(heard.payload)) == (boot, message, payload)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda one: type(one).__name__)
def test_inputs_and_gradients_have_frames_of_their_own(message: AnyHopMessage) -> None:
    frame = pack(TAG, BOOT, message, payload_of(message))
    assert frame.kind is kind_of(message) and frame.kind in HOP_FRAMES
    assert frame.run_tag == TAG
    assert unpack(framed(raw_of(message), frame.kind, payload_of(message))).message == message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda one: type(one).__name__)
def test_messages_are_small(message: AnyHopMessage) -> None:
    assert pack(TAG, BOOT, message, payload_of(message)).chunk < 160


def test_the_longest_legal_message_fits() -> None:
    most = limits.COUNT_MAX
    boot = bytes(limits.BOOT_BYTES_MAX)
    size = limits.HOP_PAYLOAD_BYTES_MAX
    form = Payload("\U0010ffff" * limits.CODEC_CHARS_MAX, (size,) * limits.SHAPE_DIMS_MAX, size)
    micro_batch = MicroBatch(bytes(32), boot, most, most, most, most)
    stage = limits.STAGES_MAX - 1
    message = Forward(Slot(boot, most), micro_batch, SECRET, stage, size, form)
    frame = pack(TAG, boot, message, bytes(size))
    assert 300 < frame.chunk < 450
    assert len(frame.body) <= limits.FRAME_BYTES_MAX
    assert unpack(frame).message == message


def test_a_payload_is_not_copied_again_when_it_comes() -> None:
    frame = pack(TAG, BOOT, Gradient(SLOT, MICRO_BATCH, FORM), BYTES)
    body = bytearray(frame.body)
    heard = unpack(replace(frame, body=body))
    body[0] = 77
    assert heard.payload[0] == 77


# ---- bounds, at both ends


def beyond() -> Iterator[AnyHopMessage]:
    """Each field of each name beyond its bound."""
    changed = msgspec.structs.replace
    most = limits.COUNT_MAX + 1
    for boot in (b"", bytes(limits.BOOT_BYTES_MAX + 1)):
        yield Ack(changed(SLOT, boot=boot))
        yield Arrived(changed(MICRO_BATCH, boot=boot), SLOT, SECRET)
    for number in (-1, most):
        yield Invite(changed(SLOT, number=number))
        for name in ("round", "step", "attempt", "number"):
            yield No(changed(MICRO_BATCH, **{name: number}), SLOT)
    for source in (b"", b"s" * 31, b"s" * 33):
        yield Arrived(changed(MICRO_BATCH, source=source), SLOT, SECRET)
    for stage in (-1, limits.STAGES_MAX):
        yield Want(stage, 1)
        yield Forward(SLOT, MICRO_BATCH, SECRET, stage, 1, changed(FORM, num_bytes=0))
    for num_bytes in (0, limits.SECRET_BYTES - 1, limits.SECRET_BYTES + 1):
        yield Arrived(MICRO_BATCH, SLOT, bytes(num_bytes))
    for count in (-1, limits.HOP_WANTS_MAX + 1):
        yield Want(0, count)
    size = limits.HOP_PAYLOAD_BYTES_MAX + 1
    for tokens in (-1, size):
        yield Forward(SLOT, MICRO_BATCH, SECRET, 0, tokens, changed(FORM, num_bytes=0))
    for loss in (math.nan, math.inf, -math.inf, 2 * limits.LOSS_MAX):
        yield Judged(MICRO_BATCH, SECRET, 1, loss)
    for shape in ((), (1,) * (limits.SHAPE_DIMS_MAX + 1), (-1,), (size,)):
        yield Gradient(SLOT, MICRO_BATCH, Payload("none", shape, 0))
    yield Go(MICRO_BATCH, SLOT, Payload("c" * (limits.CODEC_CHARS_MAX + 1), (1,), 0))


@pytest.mark.parametrize("message", list(beyond()), ids=lambda one: type(one).__name__)
def test_a_bound_holds_at_both_ends(message: AnyHopMessage) -> None:
    with pytest.raises(LocalFault):
        pack(TAG, BOOT, message)
    with pytest.raises(RemoteFault) as caught:
        unpack(framed(raw_of(message), kind_of(message)))
    assert caught.value.reason == "type"


def test_a_payload_beyond_a_frame_is_refused() -> None:
    size = limits.HOP_PAYLOAD_BYTES_MAX + 1
    message = Gradient(SLOT, MICRO_BATCH, Payload("int8", (size,), size))
    with pytest.raises(LocalFault):
        pack(TAG, BOOT, message, bytes(size))


@pytest.mark.parametrize("boot", [b"", bytes(limits.BOOT_BYTES_MAX + 1)])
def test_a_sender_s_boot_has_its_bounds_too(boot: bytes) -> None:
    with pytest.raises(LocalFault):
        pack(TAG, boot, Ack(SLOT))
    with pytest.raises(RemoteFault):
        unpack(framed([boot, raw_of(Ack(SLOT))[1]]))


@pytest.mark.parametrize("payload", [b"", BYTES[:-1], BYTES + b"\0"])
def test_a_payload_of_another_length_than_was_told_is_refused_at_both_ends(payload: bytes) -> None:
    for message in (Gradient(SLOT, MICRO_BATCH, FORM), Go(MICRO_BATCH, SLOT, FORM)):
        with pytest.raises(LocalFault):
            pack(TAG, BOOT, message, payload)
        with pytest.raises(RemoteFault) as caught:
            unpack(framed(raw_of(message), kind_of(message), payload))
        assert caught.value.reason == "length"


def test_a_message_without_a_payload_brings_none() -> None:
    with pytest.raises(LocalFault):
        pack(TAG, BOOT, Ack(SLOT), b"x")
    with pytest.raises(RemoteFault) as caught:
        unpack(framed(raw_of(Ack(SLOT)), payload=b"x"))
    assert caught.value.reason == "length"


# ---- what is none of them


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda one: type(one).__name__)
def test_a_message_in_another_kind_of_frame_is_refused(message: AnyHopMessage) -> None:
    for kind in HOP_FRAMES - {kind_of(message)}:
        with pytest.raises(RemoteFault) as caught:
            unpack(framed(raw_of(message), kind, payload_of(message)))
        assert caught.value.reason == "type"


@pytest.mark.parametrize(
    "raw",
    [
        None, 7, "x", {}, {"t": 1}, [], [BOOT], [BOOT, []], [BOOT, [0]], [BOOT, [13]],
        [BOOT, ["ack", [b"r", 1]]], [BOOT, [[1], 2]], [BOOT, {"t": 7}], [BOOT, [7, [b"r", 1], 1]],
        [BOOT, [7, [b"r", 1, 1]]], [BOOT, [7, [b"r"]]], [BOOT, [7, ["r", 1]]],
        [BOOT, [7, [b"r", True]]], [BOOT, [7, [b"r", 1.0]]], [BOOT, [7, {"boot": b"r"}]],
        ["boot", [7, [b"r", 1]]], [7, [7, [b"r", 1]]], [BOOT, [7, [b"r", 1]], 0],
        [BOOT, [True, 1, 1]], [BOOT, [None]],
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(raw: object) -> None:
    with pytest.raises(RemoteFault) as caught:
        unpack(framed(raw))
    assert caught.value.reason == "type"


def test_a_reason_that_nobody_knows_is_refused() -> None:
    boot, raw = raw_of(Refuse(SLOT, MICRO_BATCH, Reason.MUTE))
    assert isinstance(raw, list)
    with pytest.raises(RemoteFault):
        unpack(framed([boot, [*raw[:-1], "bored"]]))


@pytest.mark.parametrize(("length", "body"), [(1, b""), (9, b"12345678"), (513, bytes(513))])
def test_a_length_that_cannot_be_is_refused(length: int, body: bytes) -> None:
    with pytest.raises(RemoteFault) as caught:
        unpack(Frame(FrameKind.HOP, TAG, chunk=length, body=body))
    assert caught.value.reason == "length"


@given(
    kind=st.sampled_from(sorted(HOP_FRAMES)), chunk=st.integers(0, 40), body=st.binary(max_size=40)
)
def test_any_bytes_are_refused_with_a_reason(kind: FrameKind, chunk: int, body: bytes) -> None:
    with pytest.raises(RemoteFault) as caught:
        unpack(Frame(kind, TAG, chunk=chunk, body=body))
    assert caught.value.reason in REASONS


def test_what_the_other_side_wrote_steers_no_terminal() -> None:
    raw = raw_of(Refuse(SLOT, MICRO_BATCH, Reason.MUTE))[1]
    assert isinstance(raw, list)
    with pytest.raises(RemoteFault) as caught:
        unpack(framed([BOOT, [*raw[:-1], "\x1b[2J"]]))
    assert "\x1b" not in str(caught.value)
