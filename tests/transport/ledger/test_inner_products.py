"""Numbers of whole vectors: what owners may say, what FREEZE carries, and when it comes."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger import inner_products
from swarmtrain_transport.ledger.inner_products import NORMS, PRODUCTS, Table
from swarmtrain_transport.ledger.plan_rules import check_plan
from swarmtrain_transport.wire.messages import Got, Ready, Roots, decode_from_peer, encode
from swarmtrain_transport.wire.records import (
    Freeze,
    Reassign,
    SliceFreeze,
    make_record,
    record_from_bytes,
)
from tests.transport.coordinator.ops.table import REPAIR_S, SCATTER_S
from tests.transport.coordinator.ops.table import Table as Op
from tests.transport.rig import (
    STRANGER,
    A,
    B,
    C,
    D,
    plan_body,
    received,
    roots_of,
    sign,
    view_of,
)  # fmt: skip

PEERS = (A, B, C)
KINDS = pytest.mark.parametrize("kind", [NORMS, PRODUCTS])


def product(one: bytes, other: bytes) -> float:
    """Return the product of made-up vectors (1, key): whatever slice."""
    return 1.0 + one[0] * other[0]


def row_of(kind: str, peer: bytes, known: tuple[bytes, ...] = PEERS) -> bytes:
    order = inner_products.columns(kind, peer, PEERS)
    return inner_products.pack_row({other: product(peer, other) for other in known}, order)


def full(kind: str) -> Table:
    table = Table(kind, PEERS)
    table.report({peer: row_of(kind, peer) for peer in PEERS})
    return table


@given(st.dictionaries(st.sampled_from(PEERS), st.floats(-1e300, 1e300)))
def test_a_row_is_read_as_it_was_packed_and_what_is_missing_stays_missing(row):
    assert inner_products.unpack_row(inner_products.pack_row(row, PEERS), PEERS) == row


@pytest.mark.parametrize("data", [b"", bytes(23), bytes(25), struct.pack("<3d", 1, math.inf, 0)])
def test_a_row_of_another_length_or_without_bounds_is_refused(data: bytes):
    with pytest.raises(RemoteFault, match="scalars"):
        inner_products.unpack_row(data, PEERS)


@KINDS
def test_the_first_word_stands_and_a_bad_row_takes_its_message_with_it(kind: str):
    table = full(kind)
    table.report({A: inner_products.pack_row({A: 77.0}, inner_products.columns(kind, A, PEERS))})
    assert table.of((A, A)) == product(A, A)
    empty = Table(kind, PEERS)
    with pytest.raises(RemoteFault):
        empty.report({A: row_of(kind, A), B: b"short"})
    assert not empty.fits(A, product(A, A), ())
    empty.report({STRANGER: b"whatever"})


@KINDS
def test_totals_are_added_in_the_order_of_slices(kind: str):
    parts = [0.1, 1e16, -1e16 if kind == PRODUCTS else 3.0]
    tables = []
    for number in parts:
        table = Table(kind, (A,))
        table.report({A: inner_products.pack_row({A: number}, (A,))})
        tables.append(table)
    (found,) = struct.unpack("<d", inner_products.totals(kind, (A,), tables))
    assert found == (parts[0] + parts[1]) + parts[2]


@KINDS
def test_some_of_the_totals_are_what_only_those_would_have_had(kind: str):
    data = inner_products.totals(kind, PEERS, [full(kind)])
    assert len(data) == 8 * (3 if kind == NORMS else 6)
    alone = inner_products.totals(kind, (A, C), [full(kind)])
    assert inner_products.chosen(kind, PEERS, data, (A, C)) == struct.unpack(
        f"<{len(alone) // 8}d", alone
    )
    inner_products.check_totals(kind, PEERS, data)


@KINDS
@pytest.mark.parametrize("number", [-1.0, math.nan, math.inf])
def test_totals_that_nothing_can_have_are_refused(kind: str, number: float):
    count = 3 if kind == NORMS else 6
    for place in (0, count - 1):  # squared norms both
        numbers = [1.0] * count
        numbers[place] = number
        with pytest.raises(RemoteFault, match="nothing can have"):
            inner_products.check_totals(kind, PEERS, struct.pack(f"<{count}d", *numbers))
    for data in (b"", bytes(8 * count + 8), bytes(7)):
        with pytest.raises(RemoteFault, match="order"):
            inner_products.check_totals(kind, PEERS, data)


def test_a_product_beyond_both_lengths_fits_nobody():
    table = Table(PRODUCTS, PEERS)
    table.report({A: inner_products.pack_row({A: 4.0}, PEERS)})
    table.report({B: inner_products.pack_row({A: -6.0, B: 9.0}, PEERS)})
    table.report({C: inner_products.pack_row({A: 6.1, B: 0.0, C: 9.0}, PEERS)})
    assert table.fits(B, 9.0, (A,)) and not table.fits(B, 9.1, (A,))
    assert not table.fits(C, 9.0, (A,)) and table.fits(C, 9.0, (B,))


def test_what_has_no_scalars_has_the_bytes_that_it_had_before_there_were_any():
    """Records keep their hashes, and older peers read what newer ones say."""
    plain = Freeze(1, (A,), {})
    record = make_record(0, bytes(32), 1, plain, sign)
    assert b"scalars" not in record.body and b"times" in record.body and b"roots" in record.body
    assert record_from_bytes(record.to_bytes()) == record
    assert b"scalars" not in encode(Got(1, 0, 0, {A: B})) and b"refused" in encode(Got(1, 0, 0, {}))
    assert b"norms" not in encode(Roots(1, (A,), b"s"))
    assert b"centre" not in encode(Ready(1, 2, 0, bytes(32)))
    planned = make_record(0, bytes(32), 1, plan_body(PEERS), sign).body
    assert b"centre" not in planned and b"scalars" not in planned
    said = Got(1, 0, 0, {A: B}, {}, {A: bytes(8)})
    assert decode_from_peer(encode(said)) == said


def test_a_plan_asks_for_scalars_only_with_a_rule_and_for_known_ones():
    for changes in ({"scalars": "sums", "rule": "flag", "exact": False}, {"scalars": NORMS}):
        with pytest.raises(RemoteFault, match="scalars"):
            check_plan(plan_body(PEERS, **changes), 24)
    check_plan(plan_body(PEERS, scalars=NORMS, rule="norm-clip", exact=False), 24)


# ---- one op at the coordinator


class Measured(Op):
    """Owners that measure what they have, all slices alike."""

    def say(self, index: int, *peers: bytes, rows: dict[bytes, bytes] | None = None) -> None:
        kind, attempt = self.plan.scalars, self.view.attempts[index]
        whole = {peer: row_of(kind, peer, peers) for peer in peers} if rows is None else rows
        report = Got(self.view.plan_id, index, attempt, received(index, peers), {}, whole)
        self.op.reports.hear(self.view.owners[index], report, self.now_s)

    def sign(self, *peers: bytes) -> None:
        for peer in peers:
            said = roots_of(self.view, peer)
            norms = (product(peer, peer),) * len(self.indexes)
            self.op.reports.hear(
                peer, Roots(said.plan_id, said.slice_roots, said.signature, norms), 0.0
            )


def measured(kind: str, **changes: object) -> Measured:
    plan = plan_body(PEERS, rule="flag", scalars=kind, exact=False, **changes)
    return Measured(plan, unsigned=set(PEERS))


@KINDS
@pytest.mark.parametrize("signs_first", [True, False])
def test_freeze_carries_the_totals_whichever_word_comes_first(kind: str, signs_first: bool):
    op = measured(kind)
    if signs_first:
        op.sign(*PEERS)
    for index in op.indexes:
        op.say(index, *PEERS)
    if not signs_first:
        assert op.decide() is None
        op.sign(*PEERS)
    frozen = op.decide()
    assert isinstance(frozen, Freeze) and frozen.contributors == PEERS
    wanted = [3 * product(*pair) for pair in inner_products.pairs_of(kind, PEERS)]
    assert list(struct.unpack(f"<{len(wanted)}d", frozen.scalars)) == wanted
    assert op.view.scalars == frozen.scalars


@KINDS
def test_who_was_not_measured_everywhere_is_not_complete(kind: str):
    op = measured(kind)
    op.sign(*PEERS)
    op.say(0, *PEERS)
    op.say(1, *PEERS)
    op.say(2, *PEERS, rows={peer: row_of(kind, peer, (A, B)) for peer in (A, B)})
    assert op.decide(SCATTER_S - 0.01) is None
    moved = op.decide(SCATTER_S)
    assert isinstance(moved, Reassign) and moved.slice_index == 2
    assert op.lacked == {C: "absent"}
    op.say(2, *PEERS)
    frozen = op.decide()
    assert isinstance(frozen, Freeze) and frozen.contributors == (A, B, C)


@KINDS
def test_one_owner_cannot_leave_somebody_out_by_measuring_it_wrongly(kind: str):
    op = measured(kind)
    op.sign(*PEERS)
    op.say(0, *PEERS)
    op.say(1, *PEERS)
    rows = {peer: row_of(kind, peer, PEERS) for peer in PEERS}
    columns = inner_products.columns(kind, A, inner_products.vectors(PEERS, 0))
    wrong = {other: 7.0 for other in columns}
    op.say(2, *PEERS, rows=rows | {A: inner_products.pack_row(wrong, columns)})
    moved = op.decide()
    assert isinstance(moved, Reassign) and moved.owner == B, "at once: nothing is to come any more"
    assert op.lacked == {A: "scalars"}
    assert op.decide() is None
    op.say(2, *PEERS)
    frozen = op.decide()
    assert isinstance(frozen, Freeze) and frozen.contributors == PEERS


def reassigned(kind: str) -> Op:
    """An op in which everything was measured before C died, whose slice A has got."""
    op = measured(kind)
    op.sign(*PEERS)
    for index in op.indexes:
        op.say(index, *PEERS)
    op.lose(C)
    op.now_s = SCATTER_S - 1
    assert op.decide() == Reassign(1, 2, 1, A, "owner lost")
    return op


@KINDS
def test_freeze_waits_for_the_new_owner_of_a_slice_to_measure_it(kind: str):
    op = reassigned(kind)
    assert op.decide(SCATTER_S + 1) is None
    op.say(2, A, B)
    frozen = op.decide()
    assert isinstance(frozen, Freeze) and frozen.contributors == (A, B)
    assert frozen.excluded == {C: "lost"}
    wanted = [3 * product(*pair) for pair in inner_products.pairs_of(kind, (A, B))]
    assert list(struct.unpack(f"<{len(wanted)}d", frozen.scalars)) == wanted
    assert op.decide() == SliceFreeze(1, 2, 1, (A, B))


@KINDS
def test_a_new_owner_that_stays_silent_is_not_waited_for_beyond_its_time(kind: str):
    op = reassigned(kind)
    op.say(2)
    assert op.decide(SCATTER_S - 1 + REPAIR_S - 0.01) is None
    assert op.decide(SCATTER_S - 1 + REPAIR_S) == Reassign(1, 2, 2, B, "unreachable for most")


@KINDS
def test_norms_that_cannot_be_are_refused_with_who_says_them(kind: str):
    op = measured(kind)
    said = roots_of(op.view, A)
    for norms in ((), (1.0,) * 4, (1.0, 1.0, -1.0), (math.nan,) * 3, (1e101,) * 3):
        with pytest.raises(RemoteFault, match="norm"):
            op.op.reports.hear(A, Roots(said.plan_id, said.slice_roots, b"", norms), 0.0)
    with pytest.raises(RemoteFault, match="norm"):  # nobody has asked
        Op(plan_body((A, B, D))).op.reports.hear(
            A, Roots(0, said.slice_roots, b"", (1.0,) * 3), 0.0
        )


def test_freeze_without_what_the_plan_asks_for_is_no_freeze():
    view = view_of(plan_body(PEERS, rule="flag", scalars=NORMS, exact=False))
    for data in (b"", bytes(16), bytes(32)):
        with pytest.raises(RemoteFault, match="scalars"):
            view.apply(Freeze(1, PEERS, {}, scalars=data))
        assert view.frozen is None
    view.apply(Freeze(1, PEERS, {}, scalars=bytes(24)))
    with pytest.raises(RemoteFault, match="scalars"):
        view_of(plan_body(PEERS)).apply(Freeze(1, PEERS, {}, scalars=bytes(24)))
