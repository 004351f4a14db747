"""Keys in records are written as places in PLAN, and read back as they were."""

from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.member_index import NO_MEMBERS, MemberIndex
from swarmtrain_transport.wire.records import (
    Attest,
    BodyReader,
    Commit,
    Freeze,
    Reassign,
    Record,
    SignedRoot,
    Skip,
    SliceFreeze,
    bodies_of,
    body_of,
    make_record,
    outline_of,
    pack_struct,
    tag_of,
)
from tests.transport.cells_rig import next_in_cells
from tests.transport.rig import (
    STRANGER,
    A,
    B,
    C,
    D,
    begun_chain,
    commit_of,
    join_body,
    plan_body,
    sign,
)

KEYS = [bytes([number]) * 32 for number in range(70)]
MANY = [number.to_bytes(2, "big") * 16 for number in range(1, 4097)]


def read_back(value: Any, places: MemberIndex) -> Any:
    data = msgpack.packb(places.shorten(value))
    return places.lengthen(msgpack.unpackb(data, strict_map_key=False))


values = st.recursive(
    st.sampled_from(KEYS) | st.binary(max_size=40) | st.integers(0, 99) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
        | st.lists(st.sampled_from(KEYS), max_size=70).map(sorted)
    ),
    max_leaves=30,
)


def plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


@settings(max_examples=200, deadline=None)
@given(values, st.permutations(KEYS).map(lambda keys: keys[:64]))
def test_whatever_is_said_of_members_and_others_is_read_back(value: Any, members: list[bytes]):
    assert plain(read_back(value, MemberIndex.among(members))) == plain(value)
    assert plain(read_back(value, NO_MEMBERS)) == plain(value)


def test_a_member_is_three_bytes_and_any_number_of_them_ten() -> None:
    places = MemberIndex.among(KEYS[:64])
    assert len(msgpack.packb(places.shorten(KEYS[63]))) == 3
    for count in (1, 2, 64):
        assert len(msgpack.packb(places.shorten(KEYS[:count]))) == 10
    assert places.shorten([KEYS[1], KEYS[0]]) == [places.shorten(KEYS[1]), places.shorten(KEYS[0])]
    assert places.shorten([KEYS[1], KEYS[1]]) == [places.shorten(KEYS[1])] * 2


def test_a_place_has_two_bytes_where_one_does_not_name_all() -> None:
    for count, num_bytes in ((256, 3), (257, 4), (512, 4), (4096, 4)):
        places = MemberIndex.among(MANY[:count])
        for key in (MANY[0], MANY[count - 1]):
            assert len(msgpack.packb(places.shorten(key))) == num_bytes
            assert read_back(key, places) == key
        named = MANY[0:count:3]
        assert len(msgpack.packb(places.shorten(named))) <= 4 + count // 8 + 1
        assert list(read_back(named, places)) == named


@pytest.mark.parametrize("ext", [b"\x00", b"\x01\x02", b"\x00\x00\x00", b"\xff\xff"])
def test_of_512_a_place_of_one_byte_or_beyond_them_is_refused(ext: bytes) -> None:
    with pytest.raises(RemoteFault):
        MemberIndex.among(MANY[:512]).lengthen(msgpack.ExtType(1, ext))
    with pytest.raises(RemoteFault):
        MemberIndex.among(MANY[:512]).lengthen(msgpack.ExtType(2, bytes(64) + b"\x01"))


@pytest.mark.parametrize(
    "ext",
    [
        msgpack.ExtType(1, b"\x02"), msgpack.ExtType(1, b""), msgpack.ExtType(1, b"\x00\x00"),
        msgpack.ExtType(2, b"\x04"), msgpack.ExtType(2, b"\xff" * 32), msgpack.ExtType(3, b"\x00"),
    ],
)  # fmt: skip
def test_a_place_that_no_member_has_is_refused(ext: msgpack.ExtType) -> None:
    places = MemberIndex.among([A, B])
    for value in (ext, [ext], {ext: 1}, {"k": [{"x": ext}]}):
        with pytest.raises(RemoteFault):
            places.lengthen(value)


def reader_of(plan: Record) -> BodyReader:
    reader = BodyReader()
    reader.read(plan)
    return reader


BODIES = (
    Freeze(1, (A, B), {C: "late"}, roots={A: SignedRoot(bytes(32), bytes(64))},
           accusers={C: (A, B)}),
    Freeze(1, (B, A), {STRANGER: "late"}),
    SliceFreeze(1, 0, 1, (A, C), {B: "absent"}),
    Reassign(1, 0, 1, B, "owner lost", {C: "roots"}),
    Skip(1, "deadline", {B: "owner silent"}),
    Skip(1, "too few", excluded={A: "lost", C: "refused:scale"}, accusers={C: (A, B)}),
    Attest(1, bytes(32), roots=((A, b"x" * 32), (D, b"y" * 32))),
)  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_every_record_of_an_op_is_read_back_with_its_plan(body: Any) -> None:
    plan = make_record(0, bytes(32), 1, plan_body((A, B, C)), sign)
    reader = reader_of(plan)
    record = make_record(1, plan.hash, 1, body, sign, reader)
    assert body_of(record, plan.body) == reader.read(record) == body
    assert outline_of(record) == (tag_of(type(body)), 0, 1)
    assert A not in record.body and B not in record.body
    with pytest.raises(RemoteFault):
        body_of(record)


def test_without_a_plan_keys_stay_and_what_is_of_no_op_never_needs_one() -> None:
    record = make_record(0, bytes(32), 1, BODIES[0], sign)
    assert body_of(record) == BODIES[0] and A in record.body
    plan = make_record(0, bytes(32), 1, plan_body((A, B, C)), sign)
    joined = make_record(1, plan.hash, 1, join_body(A), sign, reader_of(plan))
    assert joined.body == pack_struct(join_body(A)) and body_of(joined) == join_body(A)
    assert outline_of(joined) == ("JOIN", 0, -1)


def test_places_are_those_of_the_ops_own_plan() -> None:
    """Ops of two groups may be under way at once, and two of one group."""
    reader, made = BodyReader(), []
    for group, op, peers in ((0, 1, (A, B)), (1, 1, (B, C)), (1, 2, (C, D))):
        plan = make_record(0, bytes(32), 1, plan_body(peers, op=op, group=group), sign)
        reader.read(plan)
        made.append(plan)
    for group, op, peers in ((0, 1, (A, B)), (1, 1, (B, C)), (1, 2, (C, D))):
        skip = Skip(op, "deadline", dict.fromkeys(peers, "owner silent"), group=group)
        record = make_record(1, bytes(32), 1, skip, sign, reader)
        assert not any(peer in record.body for peer in peers)
        made.append(record)
        assert reader.look(record) == skip
    assert isinstance(bodies_of(made)[-1], Skip)


def test_an_op_that_is_planned_again_has_new_places_and_an_old_one_none() -> None:
    reader = BodyReader()
    for op in (1, 2, 3, 4, 2, 5, 6):
        peers = (A, B) if op != 2 else (B, A)
        reader.read(make_record(0, bytes(32), 1, plan_body(peers, op=op), sign))
    assert reader.plan_of(0, 1) == reader.plan_of(0, 3) == b""
    again = plan_body((B, A), op=2)
    assert reader.plan_of(0, 2) == make_record(0, bytes(32), 1, again, sign).body
    late = Attest(1, bytes(32), roots=((A, bytes(32)),))
    record = make_record(1, bytes(32), 1, late, sign, reader)
    assert A in record.body and reader.look(record) == late


def test_an_op_of_64_is_short() -> None:
    chain = begun_chain(KEYS[:64], 64 * 8)
    before = len(chain.records)
    chain.add(chain.plan(KEYS[:64]))
    signed = {key: SignedRoot(key, key + key) for key in KEYS[:64]}
    chain.add(Freeze(1, tuple(KEYS[:64]), {}, roots=signed))
    assert chain.view.first.op is not None
    commit = commit_of(chain.view.first.op)
    chain.add(Commit(1, commit.plan_hash, commit.contributors, commit.slices, bytes(32),
                     (bytes(64),) * 64))  # fmt: skip
    assert sum(len(record.to_bytes()) for record in chain.records[before:]) < 19_000


def test_a_commit_in_cells_names_contributors_once_and_an_op_of_512_is_short() -> None:
    peers = MANY[:512]
    chain = begun_chain(peers, 512 * 8)
    plan = next_in_cells(chain, peers, 8)
    before = len(chain.records)
    chain.add(plan)
    chain.add(Freeze(1, tuple(peers), {}, sheets=(bytes(32),) * 8))
    view = chain.view.first.op
    assert view is not None
    commit = msgspec.structs.replace(commit_of(view), sheets=(bytes(32),) * 8)
    fewer = msgspec.structs.replace(commit.slices[0], contributors=tuple(peers[:9]))
    other = msgspec.structs.replace(commit, slices=(fewer, *commit.slices[1:]))
    for one in (commit, other):
        record = chain.next_record(one)
        assert chain.ledger.reader.look(record) == one
    chain.add(commit)
    sizes = [len(record.to_bytes()) for record in chain.records[before:]]
    assert sizes[0] < 40_000 and sizes[1] < 800 and sizes[2] < 20_000
