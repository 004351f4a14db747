"""Bytes of both lanes: what goes out comes in, and whatever else comes in is a RemoteFault.

Frames are fuzzed at three depths: arbitrary bytes, a right header with arbitrary content, and
single flips in a right frame. Control messages likewise.
"""

import struct
import tracemalloc
from typing import get_args

import lz4.block
import msgpack
import msgspec
import pytest
from blake3 import blake3
from hypothesis import example, given
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.wire import messages
from swarmtrain_transport.wire.frames import (
    Frame,
    FrameKind,
    Ranges,
    pack,
    pack_credit,
    unpack,
    unpack_credit,
)
from swarmtrain_transport.wire.messages import Brings
from tests.transport.links.link_rig import noise

FRAME_REASONS = {"frame", "version", "length", "checksum"}
MESSAGE_REASONS = {"length", "msgpack", "type"}

U16, U32, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
BODIES = st.one_of(
    st.binary(max_size=300),
    st.builds(noise, st.integers(1000, 70_000), st.integers(0, 5)),
    st.builds(lambda byte, count: byte * count, st.binary(min_size=1, max_size=3), st.just(30_000)),
)
FRAMES = st.builds(Frame, st.sampled_from(FrameKind), U64, U64, U16, U16, U32, U64, BODIES)


def raw_header(body: bytes, **changes: int) -> bytes:
    """A header by hand: the layout written down a second time."""
    fields = {
        "version": 1, "kind": 1, "run_tag": 7, "plan_id": 8, "slice": 9, "attempt": 10,
        "chunk": 11, "num_bytes": len(body),
        "checksum": int.from_bytes(blake3(body).digest()[:4], "little"), "flags": 0,
        "spare_byte": 0, "spare_short": 0, "set_id": 12,
    } | changes  # fmt: skip
    return b"SW" + struct.pack("<BBQQHHIIIBBHQ", *fields.values())


# ---- frames


@given(frame=FRAMES)
def test_a_frame_reads_back_as_itself(frame: Frame) -> None:
    header, body = pack(frame)
    assert len(header) == limits.HEADER_BYTES == 48
    assert unpack(header, body) == frame
    assert unpack(memoryview(header), memoryview(body)) == frame


def test_the_header_s_bytes_are_fixed() -> None:
    frame = Frame(FrameKind.BLOB, 0x0102030405060708, 0x1112131415161718, 0x2122, 0x3132,
                  0x41424344, 0x5152535455565758, b"swarmtrain")  # fmt: skip
    header, body = pack(frame)
    assert bytes(body) == b"swarmtrain"
    assert header.hex() == (
        "5357" "01" "05" "0807060504030201" "1817161514131211" "2221" "3231" "44434241"
        "0a000000" "4eadaa2d" "00" "00" "0000" "5857565554535251"
    )  # fmt: skip


def test_dense_bodies_travel_as_they_are_and_sparse_ones_shrink() -> None:
    dense = noise(100_000)
    assert pack(Frame(FrameKind.PART, 1, body=dense))[1] == dense
    header, body = pack(Frame(FrameKind.PART, 1, body=bytes(100_000)))
    assert len(body) < 1000 and header[36] == 1
    assert unpack(header, body).body == bytes(100_000)


def test_a_body_over_the_limit_is_our_own_mistake() -> None:
    pack(Frame(FrameKind.PART, 1, body=bytes(limits.FRAME_BYTES_MAX)))
    with pytest.raises(LocalFault):
        pack(Frame(FrameKind.PART, 1, body=bytes(limits.FRAME_BYTES_MAX + 1)))


@given(header=st.binary(max_size=60), body=st.binary(max_size=60))
@example(b"", b"")
@example(b"SW" + bytes(46), b"")
def test_arbitrary_bytes_are_refused_with_a_reason(header: bytes, body: bytes) -> None:
    with pytest.raises(RemoteFault) as caught:
        unpack(header, body)
    assert caught.value.reason in FRAME_REASONS


@given(body=st.binary(max_size=200), kind=st.integers(0, 255), flags=st.integers(0, 3))
@example(b"\0\0\0\0", 1, 1)
@example(b"\0\0\0\0\0", 1, 1)
@example(b"\xff\xff\xff\xff\0", 1, 1)
@example(b"\x64\0\0\0\x10a", 1, 1)
@example(b"\x05\0\0\0\x1fa\x01\0\xff\xff\xff", 1, 1)
def test_a_right_header_around_anything_gives_a_frame_or_a_remote_fault(
    body: bytes, kind: int, flags: int
) -> None:
    try:
        frame = unpack(raw_header(body, kind=kind, flags=flags), body)
    except RemoteFault as fault:
        assert fault.reason in FRAME_REASONS
    else:
        assert frame.kind == kind and flags in (0, 1)
        assert flags == 1 or frame.body == body


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 0}, "version"),
        ({"version": 2}, "version"),
        ({"kind": 0}, "frame"),
        ({"kind": len(FrameKind) + 1}, "frame"),
        ({"flags": 2}, "frame"),
        ({"flags": 128}, "frame"),
        ({"spare_byte": 1}, "frame"),
        ({"spare_short": 1}, "frame"),
        ({"num_bytes": 3}, "length"),
        ({"num_bytes": 2**32 - 1}, "length"),
        ({"checksum": 0}, "checksum"),
    ],
)
def test_each_field_that_cannot_be_right_is_refused(changes: dict[str, int], reason: str) -> None:
    assert unpack(raw_header(b"body"), b"body").body == b"body"
    with pytest.raises(RemoteFault) as caught:
        unpack(raw_header(b"body", **changes), b"body")
    assert caught.value.reason == reason


@given(frame=FRAMES, data=st.data())
def test_a_flip_in_the_body_is_found(frame: Frame, data: st.DataObject) -> None:
    header, body = pack(frame)
    flipped = bytearray(body)
    if not flipped:
        return
    index = data.draw(st.integers(0, len(flipped) - 1))
    flipped[index] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(RemoteFault) as caught:
        unpack(header, flipped)
    assert caught.value.reason == "checksum"


@pytest.mark.parametrize("body", [b"", b"dense body", bytes(5000)])
def test_a_flip_in_the_header_is_found_or_changes_only_what_the_machines_check(
    body: bytes,
) -> None:
    # CURVE authenticates the header; the fields that pass here are those of the fence.
    frame = Frame(FrameKind.PART, 1, 2, 3, 4, 5, 6, body)
    header, wire = pack(frame)
    for bit in range(8 * len(header)):
        flipped = bytearray(header)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            other = unpack(flipped, wire)
        except RemoteFault as fault:
            assert fault.reason in FRAME_REASONS
            continue
        assert other != frame
        assert other.body == body or flipped[36] == 0  # byte 36 says whether it is compressed


@pytest.mark.parametrize("claimed", [limits.FRAME_BYTES_MAX + 1, 2**31 - 1, 2**32 - 1])
def test_a_compressed_bomb_is_refused_before_anything_is_decoded(claimed: int) -> None:
    packed = lz4.block.compress(bytes(limits.FRAME_BYTES_MAX + 1), store_size=False)
    body = claimed.to_bytes(4, "little") + packed
    header = raw_header(body, flags=1)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteFault) as caught:
            unpack(header, body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.reason == "length"
    assert peak < 1 << 20


@pytest.mark.parametrize("claimed", [0, 10, 9_999, 10_001, limits.FRAME_BYTES_MAX])
def test_a_compressed_body_that_lies_about_its_size_is_refused(claimed: int) -> None:
    packed = lz4.block.compress(bytes(10_000), store_size=False)
    body = claimed.to_bytes(4, "little") + packed
    with pytest.raises(RemoteFault):
        unpack(raw_header(body, flags=1), body)


@given(credit=U64, received=U64, chunks=st.lists(st.booleans(), max_size=70).map(tuple))
def test_ranges_read_back_as_themselves(
    credit: int, received: int, chunks: tuple[bool, ...]
) -> None:
    ranges = Ranges(credit, received, chunks)
    assert Ranges.unpack(ranges.pack()) == ranges
    assert Ranges.unpack(memoryview(ranges.pack())) == ranges


def test_ranges_have_fixed_bytes() -> None:
    flags = (True, False, True, False, False, False, False, False, True)
    assert Ranges(1, 2, flags).pack().hex() == "01000000000000000200000000000000090000000501"


@given(body=st.binary(max_size=64))
def test_arbitrary_ranges_and_credits_are_values_or_remote_faults(body: bytes) -> None:
    for reader in (Ranges.unpack, unpack_credit):
        try:
            reader(body)
        except RemoteFault as fault:
            assert fault.reason == "length"


@given(credit=U64)
def test_credits_read_back_as_themselves(credit: int) -> None:
    assert unpack_credit(pack_credit(credit)) == credit
    assert unpack_credit(memoryview(pack_credit(credit))) == credit


# ---- control messages

FROM_PEER: tuple[type[messages.Message], ...] = get_args(messages.PeerMessage)
FROM_COORDINATOR: tuple[type[messages.Message], ...] = get_args(messages.CoordinatorMessage)

FIELD_VALUES = {
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    float | None: st.none() | st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=40),
    tuple[float, ...]: st.lists(st.floats(allow_nan=False), max_size=5).map(tuple),
    tuple[int, ...]: st.lists(st.integers(0, 2**32), max_size=5).map(tuple),
    tuple[bytes, ...]: st.lists(st.binary(max_size=40), max_size=5).map(tuple),
    tuple[tuple[str, int], ...]: st.lists(
        st.tuples(st.text(max_size=20), st.integers(0, 65535)), max_size=4
    ).map(tuple),
    tuple[bool, ...]: st.lists(st.booleans(), max_size=20).map(tuple),
    dict[bytes, tuple[str, int]]: st.dictionaries(
        st.binary(max_size=40), st.tuples(st.text(max_size=9), st.integers(0, 65535)), max_size=4
    ),
    dict[bytes, bytes]: st.dictionaries(st.binary(max_size=40), st.binary(max_size=40), max_size=4),
    Brings: st.builds(
        Brings,
        st.text(max_size=20),
        st.text(max_size=20),
        st.binary(max_size=40),
        st.integers(0, 2**40),
        st.text(max_size=20),
    ),
    messages.Gauged | None: st.none()
    | st.builds(
        messages.Gauged,
        st.integers(0, 2**40),
        st.integers(0, 2**63 - 1),
        st.integers(0, 64),
        st.dictionaries(st.binary(max_size=40), st.tuples(st.floats(0, 9), st.floats(-1, 1))),
    ),
    dict[bytes, str]: st.dictionaries(st.binary(max_size=40), st.text(max_size=9), max_size=4),
    tuple[messages.HaveRow, ...]: st.lists(
        st.builds(
            messages.HaveRow,
            st.integers(0, 9),
            st.integers(0, 9),
            st.integers(0, 2**63 - 1),
            st.lists(st.booleans(), max_size=5).map(tuple),
            st.binary(max_size=40),
        ),
        max_size=3,
    ).map(tuple),
    tuple[messages.HashesRow, ...]: st.lists(
        st.builds(
            messages.HashesRow,
            st.integers(0, 9),
            st.integers(0, 9),
            st.integers(0, 2**63 - 1),
            st.lists(st.binary(max_size=40), max_size=5).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    tuple[messages.Leased, ...]: st.lists(
        st.builds(messages.Leased, st.binary(max_size=40), st.integers(0, 2**32)), max_size=5
    ).map(tuple),
    tuple[messages.Place, ...]: st.lists(
        st.builds(messages.Place, st.text(max_size=9), st.text(max_size=20), st.integers(0, 65535))
    ).map(tuple),
    tuple[messages.Applied, ...]: st.lists(
        st.builds(messages.Applied, st.integers(0, 99), st.binary(max_size=40)), max_size=3
    ).map(tuple),
}


def test_what_is_said_of_several_slices_is_one_message_and_comes_apart_again() -> None:
    haves = [messages.Have(7, index, 0, 5, (True,), bytes(32)) for index in range(3)]
    hashes = [messages.Hashes(7, index, 1, 5, (bytes(32),)) for index in range(3)]
    assert list(messages.each_of(messages.joined(haves))) == haves
    assert list(messages.each_of(messages.joined(hashes))) == hashes
    assert messages.joined(haves[:1]) == haves[0] and not haves[0].more
    assert len(messages.encode(messages.joined(haves))) < 2 * len(messages.encode(haves[0]))


@st.composite
def any_message(draw: st.DrawFn, kind: type[messages.Message]) -> messages.Message:
    fields = msgspec.structs.fields(kind)
    return kind(**{field.name: draw(FIELD_VALUES[field.type]) for field in fields})


def test_every_message_type_belongs_to_exactly_one_direction() -> None:
    known = {kind for kind in messages.Message.__subclasses__()}
    assert known == set(FROM_PEER) | set(FROM_COORDINATOR)
    assert not set(FROM_PEER) & set(FROM_COORDINATOR)


@pytest.mark.parametrize("kind", FROM_PEER, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_message_of_a_peer_reads_back_as_itself(
    kind: type[messages.Message], data: st.DataObject
) -> None:
    message = data.draw(any_message(kind))
    assert messages.decode_from_peer(messages.encode(message)) == message
    with pytest.raises(RemoteFault):
        messages.decode_from_coordinator(messages.encode(message))


@pytest.mark.parametrize("kind", FROM_COORDINATOR, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_message_of_the_coordinator_reads_back_as_itself(
    kind: type[messages.Message], data: st.DataObject
) -> None:
    message = data.draw(any_message(kind))
    assert messages.decode_from_coordinator(messages.encode(message)) == message
    with pytest.raises(RemoteFault):
        messages.decode_from_peer(messages.encode(message))


def refused(data: bytes) -> str:
    """The reason for which both sides refuse these bytes; of a peer the kind is read first."""
    reasons = []
    for decode in (messages.decode_from_peer, messages.decode_from_coordinator):
        with pytest.raises(RemoteFault) as caught:
            decode(data)
        assert len(str(caught.value)) < 1000
        reasons.append(caught.value.reason)
    assert reasons[0] in (reasons[1], "type")
    return reasons[1]


@given(data=st.binary(max_size=80))
@example(b"")
@example(b"\xc1")
@example(b"\x81\x90\x01")
@example(b"\x81\xa1t\x90")
@example(b"\xa3\xff\xfe\xfd")
@example(b"\xd6\xff0000")
@example(b"\xc7\x0c\xff000000000000")
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xc6\xff\xff\xff\xff")
@example(b"\x91" * 3000)
def test_arbitrary_control_bytes_are_refused_with_a_reason(data: bytes) -> None:
    assert refused(data) in MESSAGE_REASONS


MSGPACK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
    | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
TAGS = [kind.__struct_config__.tag for kind in FROM_PEER]


@given(fields=st.dictionaries(st.text(max_size=9), MSGPACK, max_size=5), tag=st.sampled_from(TAGS))
def test_right_msgpack_of_a_wrong_shape_is_a_remote_fault(
    fields: dict[str, object], tag: str
) -> None:
    # Types whose fields all have defaults are the only ones that random fields may make.
    data = msgpack.packb({"t": tag} | fields | {"t": tag})
    try:
        message = messages.decode_from_peer(data)
    except RemoteFault as fault:
        assert fault.reason in MESSAGE_REASONS
    else:
        assert isinstance(message, messages.Leave | messages.Leaving)


def test_a_message_over_the_limit_is_neither_sent_nor_read() -> None:
    text = "x" * limits.CONTROL_BYTES_MAX
    with pytest.raises(LocalFault):
        messages.encode(messages.Leave(text))
    assert refused(msgpack.packb({"t": "leave", "reason": text})) == "length"


@pytest.mark.parametrize(
    "fields",
    [
        {"t": "leave", "reason": 7},
        {"t": "leave", "reason": "asked", "more": 1},
        {"t": "leave", "x" * 1_000: 1},
        {"t": "x" * 100_000},
        {"t": "leave", "\x1b[31mred\n": 1},
        {"t": 5},
        {"reason": "asked"},
        {"t": "ready", "op": 1.5, "samples": 1, "applied_op": 0, "state_root": b""},
        {"t": "ready", "op": True, "samples": 1, "applied_op": 0, "state_root": b""},
        {"t": "ready", "op": 1, "samples": 1, "applied_op": 0, "state_root": "text"},
        {"t": "have", "plan_id": 1, "slice_index": 0, "attempt": 0, "set_id": 0, "chunks": [1]},
    ],
)
def test_wrong_fields_are_refused_in_few_printable_words(fields: dict[str, object]) -> None:
    with pytest.raises(RemoteFault) as caught:
        messages.decode_from_peer(msgpack.packb(fields))
    assert caught.value.reason == "type"
    assert len(str(caught.value)) < 1000 and str(caught.value).isprintable()
