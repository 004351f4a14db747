"""Records of ops in cells travel in short, and come out as they were."""

import zlib

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.records import BodyReader, Member, Plan, Skip, make_record
from swarmtrain_transport.wire.short_records import (
    NONE,
    Before,
    is_short,
    short_from_bytes,
    shortened,
)
from tests.transport.cells_rig import peers_of, plan_in_cells
from tests.transport.rig import A, B, plan_body, sign

PEERS = peers_of(512)


def plan_of(peers: list[bytes], op: int = 1, cells: int = 8) -> Plan:
    plan = plan_in_cells(peers, cells, op=op)
    boots = [bytes([number % 251]) * 16 for number in range(len(peers))]
    named = zip(plan.members, boots, strict=True)
    members = tuple(Member(m.peer, m.peer[:2] + boot[2:], 1 + op % 200) for m, boot in named)
    return msgspec.structs.replace(plan, members=members)


def test_a_plan_of_512_is_short_by_the_plan_before_it() -> None:
    reader = BodyReader()
    first = make_record(7, bytes(32), 1, plan_of(PEERS), sign)
    reader.read(first)
    record = make_record(8, first.hash, 1, plan_of(PEERS[3:], op=2), sign)
    data = shortened(record.to_bytes(), 8, Before(0, 1, first.body))
    assert len(record.to_bytes()) > 32_000 and len(data) < 8_000
    assert is_short(data) and not is_short(record.to_bytes())
    assert short_from_bytes(data)[:3] == (8, 0, 1)
    assert reader.record(data) == record
    assert reader.record(record.to_bytes()) == record


@given(st.binary(max_size=60_000), st.binary(max_size=60_000))
def test_any_bytes_come_out_as_they_were(data: bytes, plan: bytes) -> None:
    assert short_from_bytes(shortened(data, 3)).lengthened(b"") == data
    if plan:
        made = short_from_bytes(shortened(data + plan, 3, Before(0, 1, plan)))
        assert made.lengthened(plan) == data + plan


def test_one_that_is_short_by_a_plan_that_is_not_here_is_refused() -> None:
    reader = BodyReader()
    plan = make_record(0, bytes(32), 1, plan_body((A, B)), sign)
    reader.read(plan)
    skip = make_record(1, plan.hash, 1, Skip(1, "deadline"), sign, reader)
    for before in (Before(0, 2, b"x"), Before(1, 1, b"x")):
        with pytest.raises(RemoteFault):
            reader.record(shortened(skip.to_bytes(), 1, before))
    other = make_record(0, bytes(32), 1, plan_of(PEERS), sign)
    false = shortened(other.to_bytes(), 1, Before(0, 1, other.body))
    with pytest.raises(RemoteFault):  # named one PLAN, meant another
        reader.record(false)


def packed(*parts: bytes) -> bytes:
    return b"\xc1" + bytes(msgpack.packb([1, 0, -1, list(parts)]))


def deflated(data: bytes) -> bytes:
    made = zlib.compressobj(9, zlib.DEFLATED, -15)
    return made.compress(data) + made.flush()


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1", b"\xc1\xc0", packed(b""), packed(b"\xff"), packed(deflated(b"x")[:-1]),
        packed(deflated(bytes(1 << 30))), packed(deflated(bytes((16 << 10) + 1))),
        packed(deflated(b"x") + b"y"), packed(*[deflated(bytes(1 << 14))] * 300),
        b"\xc1" + msgpack.packb([1, 0, -1, [1]]), b"\xc1" + msgpack.packb([1, 0, "1", []]),
        b"\xc1" + msgpack.packb([1, 0, 1]), b"\xc1" + msgpack.packb([1, 0, 1, b"x"]),
    ],
    ids=range(13),
)  # fmt: skip
def test_what_does_not_inflate_or_is_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteFault):
        BodyReader().record(data)


def test_the_longest_is_no_longer_than_a_control_message() -> None:
    longest = packed(*[deflated(bytes(1 << 14))] * (limits.CONTROL_BYTES_MAX >> 14))
    assert len(short_from_bytes(longest).lengthened(b"")) == limits.CONTROL_BYTES_MAX
    assert len(longest) < 10_000
    assert shortened(b"", 0, NONE) == b"\xc1" + msgpack.packb([0, 0, -1, []])
