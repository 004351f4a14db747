"""Orders and reports about pipelines on the control lane: they come back as themselves, every bound
holds at both ends, and what is none of them is a RemoteFault."""

import math
from collections.abc import Iterator
from typing import Any, get_args

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.pipeline.wire import orders as say
from swarmtrain_transport.pipeline.wire.control import (
    OrderLane,
    ReportLane,
    order_of,
    pack_order,
    pack_report,
    report_of,
)
from swarmtrain_transport.pipeline.wire.messages import Reason
from swarmtrain_transport.pipeline.wire.route import Process, Span
from swarmtrain_transport.wire import messages
from swarmtrain_transport.wire.messages import PipelineOrder, PipelineReport
from swarmtrain_transport.wire.records import Plane

BOOT = b"b" * 16
ME = Process(b"m" * 32, BOOT)
MEMBER = say.Member(BOOT, Span(0, 1))
MEMBERS = {ME.peer: MEMBER, b"n" * 32: say.Member(b"x", Span(2, 2))}
MARKS = say.Marks(3, b"\x05")
COUNTED = say.Counted(ME, 1, MARKS)
SETTLED = say.Settled(4, (COUNTED,), say.Made(MARKS, {Reason.LATE: MARKS}), busy_s=0.5)
ORDERS: tuple[say.Order, ...] = (
    say.Welcome(MEMBERS, 3, 2, 1, True), say.Joined(ME.peer, MEMBER), say.Departed(ME),
    say.Begin(3, 7, MEMBERS), say.More(3, 2), say.Weigh(3, 2, 1),
    say.MakeStep(3, 2, 1, 7, 1.5), say.MakeStep(3, 2, 1, 7), say.Void(3, 2, 1, 7), say.Close(3),
    say.Evaluate((3, 3, 2), ME),
)  # fmt: skip
REPORTS: tuple[say.Report, ...] = (
    say.Drained(3, 2, 1, 7, 0), say.Weighed(3, 2, 1, (1.0, None, 0.0)), SETTLED,
    say.Proposed((Plane(0, 5, -7),)),
)  # fmt: skip
LARGE = limits.COUNT_MAX + 1


def raw_of(value: Any) -> Any:
    return msgspec.to_builtins(value, builtin_types=(bytes,))


def ordered(raw: object) -> say.Order:
    return order_of(msgpack.packb(raw))


def reported(raw: object) -> say.Report:
    return report_of(msgpack.packb(raw))


# ---- what goes out comes in


def test_every_order_and_report_is_an_example() -> None:
    assert {type(one) for one in ORDERS} == set(get_args(say.Order))
    assert {type(one) for one in REPORTS} == set(get_args(say.Report))


@pytest.mark.parametrize("order", ORDERS, ids=lambda one: type(one).__name__)
def test_an_order_comes_back_as_itself_through_the_control_lane(order: say.Order) -> None:
    sent = OrderLane().say(order)
    message = messages.decode_from_coordinator(messages.encode(sent))
    assert isinstance(message, PipelineOrder) and ReportLane().hear(message) == order
    assert ordered(raw_of(order)) == order  # the layout written down a second time
    with pytest.raises(RemoteFault):
        report_of(message.body)
    with pytest.raises(RemoteFault):
        messages.decode_from_peer(messages.encode(message))


@pytest.mark.parametrize("report", REPORTS, ids=lambda one: type(one).__name__)
def test_a_report_comes_back_as_itself_through_the_control_lane(report: say.Report) -> None:
    sent = ReportLane().say(report)
    message = messages.decode_from_peer(messages.encode(sent))
    assert isinstance(message, PipelineReport) and OrderLane().hear(message) == report
    assert reported(raw_of(report)) == report
    with pytest.raises(RemoteFault):
        order_of(message.body)


@given(st.sets(st.integers(0, 5000)), st.sampled_from(Reason), st.floats(0, 1e9))
def test_books_and_norms_come_back_as_themselves(
    numbers: set[int], reason: Reason, square: float
) -> None:
    marked = say.marks(numbers)
    made = say.Made(marked, {reason: marked})
    for report in (
        say.Settled(1, (say.Counted(ME, 0, marked),), made), say.Weighed(0, 0, 0, (square, None))
    ):  # fmt: skip
        assert report_of(pack_report(report)) == report


def test_the_largest_legal_report_and_order_fit() -> None:
    boot, most = bytes(limits.BOOT_BYTES_MAX), limits.COUNT_MAX
    one = say.Counted(Process(bytes(32), boot), limits.STAGES_MAX - 1, say.Marks(most, b"\xff"))
    whole = say.Marks(most, bytes(limits.MARKS_BYTES_MAX - limits.COUNTED_MAX))
    seen = say.Seen(one.source, one.source, one.stage, say.Marks(most, bytes(32)))
    told = dict.fromkeys(Reason, most), (seen,) * limits.SEEN_MAX
    settled = say.Settled(most, (one,) * limits.COUNTED_MAX, say.Made(whole, {}), *told)
    body = pack_report(settled)
    assert 0.8 * limits.REPORT_BYTES_MAX < len(body) <= limits.REPORT_BYTES_MAX
    assert report_of(body) == settled
    member = say.Member(boot, Span(255, 255))
    names = (number.to_bytes(32, "big") for number in range(limits.PIPELINE_MEMBERS_MAX))
    begin = say.Begin(most, most, dict.fromkeys(names, member))
    assert order_of(pack_order(begin)) == begin
    assert len(pack_order(begin)) < limits.CONTROL_BYTES_MAX // 16


# ---- bounds, at both ends


def beyond() -> Iterator[say.Order | say.Report]:
    """Each field beyond its bound."""
    change = msgspec.structs.replace
    for value in (*ORDERS, *REPORTS):
        for name in ("round", "step", "attempt", "share", "made", "lost", "stage", "op"):
            if type(getattr(value, name, None)) is int:
                yield from (change(value, **{name: number}) for number in (-1, LARGE))
    for span in (Span(-1, 0), Span(0, limits.STAGES_MAX)):
        yield say.Joined(ME.peer, say.Member(BOOT, span))
    for boot in (b"", bytes(limits.BOOT_BYTES_MAX + 1)):
        yield say.Departed(Process(ME.peer, boot))
        yield say.Begin(0, 0, {ME.peer: say.Member(boot, Span(0, 0))})
    for ops in ((), (0,) * (limits.STAGES_MAX + 1), (-1,), (LARGE,)):
        yield say.Evaluate(ops, ME)
    for key in (b"", b"k" * 31, b"k" * 33):
        yield say.Joined(key, MEMBER)
        yield say.Departed(Process(key, BOOT))
        yield say.Begin(0, 0, {key: MEMBER})
    many = (number.to_bytes(32, "big") for number in range(limits.PIPELINE_MEMBERS_MAX + 1))
    yield say.Welcome(dict.fromkeys(many, MEMBER), 0, 0, 0, False)
    for square in (-1.0, math.nan, math.inf, 3e38, 2 * limits.NORM_SQUARE_MAX):
        yield say.Weighed(0, 0, 0, (square,))
        yield say.MakeStep(0, 0, 0, 0, square)
    yield say.Weighed(0, 0, 0, (1.0,) * (limits.STAGES_MAX + 1))
    yield change(SETTLED, counted=(COUNTED,) * (limits.COUNTED_MAX + 1))
    for seconds in (-1.0, math.nan, math.inf, 2 * limits.BUSY_S_MAX):
        yield change(SETTLED, busy_s=seconds)
    for marked in (
        say.Marks(-1, b""), say.Marks(LARGE, b""),
        say.Marks(0, bytes(limits.MARKS_BYTES_MAX + 1)),
    ):  # fmt: skip
        yield change(SETTLED, counted=(change(COUNTED, numbers=marked),))
        yield change(SETTLED, made=say.Made(marked, {}))
        yield change(SETTLED, made=say.Made(MARKS, {Reason.LATE: marked}))
    for stage in (-1, limits.STAGES_MAX):
        yield change(SETTLED, counted=(change(COUNTED, stage=stage),))


@pytest.mark.parametrize("value", list(beyond()), ids=lambda one: type(one).__name__)
def test_a_bound_holds_at_both_ends(value: Any) -> None:
    pack, read = (pack_order, ordered) if type(value) in get_args(say.Order) else (
        pack_report, reported,
    )  # fmt: skip
    with pytest.raises(LocalFault):
        pack(value)
    if (raw := raw_of(value)) and LARGE not in raw[1:]:  # msgpack has larger numbers than we do
        with pytest.raises(RemoteFault):
            read(raw)


def test_a_report_is_refused_by_its_length_before_it_is_read() -> None:
    with pytest.raises(RemoteFault) as caught:
        report_of(bytes(limits.REPORT_BYTES_MAX + 1))
    assert caught.value.reason == "length"


@pytest.mark.parametrize(
    "raw",
    [
        None, [], {}, [99], ["1"], [True], [b"x", 1], [3], [9], [9, 1, 2], [9, "1"], [9, 1.5],
        [10, 1], {"t": 9}, [30, 1, 1, 1, 1], [32, 1, [], [[0, b""], {"no reason": [0, b""]}]],
        [31, 0, 0, 0, ["1"]], [5, 1, 1, {"a": 1}], [[9], 1],
    ],
)  # fmt: skip
def test_what_is_no_order_and_no_report_is_refused(raw: object) -> None:
    for read in (ordered, reported):
        with pytest.raises(RemoteFault):
            read(raw)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_are_what_we_would_say(data: bytes) -> None:
    try:
        report = report_of(data)
    except RemoteFault:
        return
    assert report_of(pack_report(report)) == report


# ---- connections that break


def test_what_was_lost_with_a_connection_is_said_again_and_heard_once() -> None:
    ours, theirs = OrderLane(), ReportLane()
    first, *lost = [ours.say(order) for order in ORDERS[:4]]
    assert theirs.hear(first) == ORDERS[0] and theirs.hear(first) is None
    with pytest.raises(RemoteFault) as caught:
        theirs.hear(lost[1])
    assert caught.value.reason == "number"
    assert [theirs.hear(message) for message in ours.again()] == [None, *ORDERS[1:4]]
    assert ours.hear(theirs.say(REPORTS[0])) == REPORTS[0] and not ours.num_unheard
    report = theirs.say(REPORTS[1])
    assert theirs.num_unheard == 2 and ours.hear(report) == REPORTS[1]
    assert theirs.hear(ours.say(ORDERS[4])) == ORDERS[4] and theirs.num_unheard == 0
    assert ours.again() == [messages.PipelineOrder(5, 2, pack_order(ORDERS[4]))]


@pytest.mark.parametrize(("number", "heard"), [(3, 0), (2, 2), (2, -1), (1 << 63, 0)])
def test_numbers_that_cannot_be_are_refused(number: int, heard: int) -> None:
    lane, body = OrderLane(), pack_report(REPORTS[0])
    lane.say(ORDERS[0])
    assert lane.hear(PipelineReport(1, 0, body)) == REPORTS[0]
    with pytest.raises(RemoteFault):
        lane.hear(PipelineReport(number, heard, body))
    assert lane.num_unheard == 1
    assert lane.hear(PipelineReport(2, 1, body)) == REPORTS[0]


def test_a_process_that_spoke_before_it_was_in_the_rounds_is_heard_from_then_on() -> None:
    ours, theirs = OrderLane(), ReportLane()
    theirs.say(REPORTS[0])  # to nobody
    assert ours.hear(theirs.say(REPORTS[1])) == REPORTS[1]
    assert [ours.hear(message) for message in theirs.again()] == [None, None]
