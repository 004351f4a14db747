"""The queue before the link: what waits, in which order it goes, and what a cap lets through."""

import itertools

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.links.outbox import Outbox, TokenBucket
from swarmtrain_transport.wire.frames import Frame, FrameKind

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
CHUNK = 256 << 10
RATE = 1 << 20
"""Bytes per second of the link that these tests imagine: a chunk takes a quarter of a second."""


def part(number: int, plan_id: int = 1, kind: FrameKind = FrameKind.PART) -> Frame:
    return Frame(kind, 7, plan_id, chunk=number, body=bytes([number % 256]) * CHUNK)


def filled(**counts: int) -> Outbox:
    """An outbox with so many chunks for each peer."""
    outbox = Outbox()
    for name, count in counts.items():
        for number in range(count):
            outbox.put(name.encode() * 32, part(number))
    return outbox


class Wire:
    """A link that carries RATE in all, or less to a peer that is slow itself."""

    def __init__(self, outbox: Outbox, slow: dict[bytes, float] | None = None) -> None:
        self.outbox = outbox
        self.acked: dict[bytes, float] = {A: 0.0, B: 0.0, C: 0.0}
        self.handed: dict[bytes, int] = {A: 0, B: 0, C: 0}
        self.most_under_way = 0.0
        self.now_s = 0.0
        self._slow = slow or {}

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.02)):
            counts = {peer: int(count) for peer, count in self.acked.items()}
            for peer, frame in self.outbox.due(counts, RATE, self.now_s):
                self.handed[peer] += len(frame.body)
            self.most_under_way = max(self.most_under_way, self.under_way)
            self.now_s += 0.02
            left = RATE * 0.02
            for peer in sorted(self.acked, key=lambda p: p not in self._slow):
                room = min(left, self._slow.get(peer, RATE) * 0.02)
                moved = min(room, self.handed[peer] - self.acked[peer])
                self.acked[peer] += moved
                left -= moved

    @property
    def under_way(self) -> float:
        return sum(self.handed.values()) - sum(self.acked.values())


def handed(outbox: Outbox, acked: dict[bytes, int], now_s: float) -> list[int]:
    """Numbers of the chunks that go to A now."""
    return [frame.chunk for _, frame in outbox.due(acked, RATE, now_s)]


@pytest.mark.parametrize("is_seen_gone", [True, False])
def test_what_a_connection_has_lost_goes_again_as_soon_as_another_one_stands(
    is_seen_gone: bool,
) -> None:
    outbox = filled(a=3)
    assert handed(outbox, {A: 0}, 0.0) == [0, 1]
    assert handed(outbox, {A: CHUNK + 9}, 0.1) == [2]  # the first has arrived
    if is_seen_gone:
        for now_s in (0.2, 0.3):
            assert handed(outbox, {}, now_s) == []
    again = [handed(outbox, {A: count * CHUNK}, 0.5) for count in range(4)]
    assert [*itertools.chain(*again)] == [1, 2]


def test_what_stood_still_goes_again_if_the_connection_has_died_of_it() -> None:
    outbox = filled(a=1)
    assert handed(outbox, {A: 5}, 0.0) == [0]
    assert handed(outbox, {A: 5}, 2 * limits.OUT_STUCK_S) == []
    assert handed(outbox, {A: 0}, 2.1 * limits.OUT_STUCK_S) == [0]


def test_what_stood_still_and_went_on_has_arrived() -> None:
    outbox = filled(a=1)
    assert handed(outbox, {A: 5}, 0.0) == [0]
    for now_s, count in ((2.0, 5), (2.1, CHUNK), (2.2, 0)):
        assert handed(outbox, {A: count}, now_s * limits.OUT_STUCK_S) == []


def test_nothing_of_a_plan_that_has_ended_goes_again() -> None:
    outbox = Outbox()
    for plan_id in (1, 2):
        outbox.put(A, part(plan_id, plan_id))
    outbox.put(A, part(3, kind=FrameKind.BLOB))
    assert handed(outbox, {A: 0}, 0.0) == [1, 2]
    outbox.keep_only({2})
    assert handed(outbox, {}, 0.1) == []
    assert handed(outbox, {A: 0}, 0.2) == [2, 3]


def test_without_any_measurement_everything_goes_at_once_in_turns() -> None:
    outbox = filled(a=2, b=2)
    order = [peer for peer, _ in outbox.due({A: 0, B: 0}, 0, 0.0)]
    assert order == [A, B, A, B] and outbox.is_empty


def test_where_the_system_tells_nothing_nothing_is_held_back() -> None:
    outbox = filled(a=64)
    assert len(outbox.due(None, RATE, 0.0)) == 64
    outbox.put(A, part(1))
    assert len(outbox.due(None, RATE, 1.0)) == 1 and outbox.waiting(None, 1.0) == {}


def test_a_piece_of_a_state_is_leaving_until_it_has_arrived_and_nothing_else_is() -> None:
    outbox = filled(b=1)
    outbox.put(A, part(1, kind=FrameKind.PIECE))
    seen = [outbox.is_leaving(A)]
    for acked in (0, CHUNK - 1, CHUNK):
        outbox.due({A: acked, B: 0}, 0, 0.0)
        seen.append(outbox.is_leaving(A))
    assert seen == [True, True, True, False]
    assert not outbox.is_leaving(B) and not outbox.is_leaving(C)


def test_no_more_is_under_way_than_the_link_carries_in_a_moment_and_the_link_stays_full() -> None:
    wire = Wire(filled(a=16, b=16))
    wire.run(8.2)
    assert wire.outbox.is_empty and wire.under_way == 0
    assert wire.most_under_way <= RATE * limits.OUT_WINDOW_S + CHUNK


def test_shares_of_all_sizes_end_together() -> None:
    wire = Wire(filled(a=4, b=12))
    wire.run(2.0)
    assert 0.5 * wire.handed[B] <= 3 * wire.handed[A] <= 2 * wire.handed[B]


def test_a_slow_peer_does_not_hold_up_the_others() -> None:
    wire = Wire(filled(a=16, b=16), slow={A: RATE / 50})
    wire.run(5.5)
    assert wire.acked[B] == 16 * CHUNK
    assert wire.handed[A] - wire.acked[A] <= limits.OUT_LINE_BYTES + CHUNK


def test_a_broken_connection_does_not_stop_the_queue() -> None:
    outbox = filled(a=40)
    first = outbox.due({A: 0}, RATE, 0.0)
    assert 0 < len(first) < 40
    assert outbox.due({A: 2 * CHUNK}, RATE, 1.0)
    assert outbox.due({A: 2 * CHUNK}, RATE, 1.5) == []
    assert outbox.due({A: 0}, RATE, 2.0), "what the old connection lost is not waited for"
    assert outbox.due({}, RATE, 3.0) == [], "without a connection it would be lost, too"
    assert outbox.due({A: 0}, RATE, 3.1)


def test_a_new_connection_that_moved_more_than_the_lost_one_does_not_stop_the_queue() -> None:
    outbox = filled(a=40)
    assert outbox.due({A: 0}, RATE, 0.0)
    handshake = 300  # more than the refused connection had moved, and none of our frames
    outbox.due({A: handshake}, RATE, 1.0)
    assert outbox.due({A: handshake}, RATE, 1.0 + limits.OUT_STUCK_S / 2) == []
    assert outbox.due({A: handshake}, RATE, 1.0 + limits.OUT_STUCK_S), "nothing moved: it is lost"


def test_what_moves_slowly_is_not_lost() -> None:
    outbox = filled(a=40)
    outbox.due({A: 0}, RATE, 0.0)
    outbox.due({A: 1}, RATE, 0.1)
    for tick in range(2, 12):
        assert outbox.due({A: tick}, RATE, tick * limits.OUT_STUCK_S / 2) == []


def test_an_answer_that_is_on_its_way_as_a_result_goes_once() -> None:
    outbox = Outbox()
    result = part(1, kind=FrameKind.RESULT)
    answer = Frame(FrameKind.BLOB, 7, body=result.body)
    outbox.put(A, result)
    outbox.put(A, answer)
    assert [frame.kind for _, frame in outbox.due({A: 0}, RATE, 0.0)] == [FrameKind.RESULT]
    outbox.put(A, answer)
    assert outbox.is_empty
    outbox.due({A: CHUNK + 100}, RATE, 1.0)
    outbox.put(A, answer)  # it has arrived, and is asked for all the same
    assert not outbox.is_empty


def test_of_an_op_that_ended_only_answers_still_go() -> None:
    outbox = filled(a=3)
    outbox.put(A, Frame(FrameKind.BLOB, 7, body=b"blob"))
    outbox.put(A, part(9, plan_id=2))
    outbox.keep_only({2})
    left = [(frame.kind, frame.plan_id) for _, frame in outbox.due({A: 0, B: 0}, 0, 0.0)]
    assert left == [(FrameKind.BLOB, 0), (FrameKind.PART, 2)]
    outbox.put(B, part(1))
    outbox.forget(B)
    assert outbox.is_empty


def test_a_cap_lets_through_what_it_says_and_no_more() -> None:
    outbox = Outbox(TokenBucket(RATE, 0.0))
    for number in range(100):
        outbox.put(A, part(number))
    sent, now_s = 0, 0.0
    for step in itertools.count():
        now_s = 0.02 * step
        if now_s > 10.0:
            break
        sent += sum(len(frame.body) for _, frame in outbox.due(None, 0, now_s))
        assert sent <= RATE * (now_s + limits.CAP_BURST_S) + CHUNK
    assert sent >= RATE * 9.7


def test_a_capped_queue_wakes_when_the_cap_opens() -> None:
    outbox = Outbox(TokenBucket(RATE, 0.0))
    for number in range(4):
        outbox.put(A, part(number))
    outbox.due(None, 0, 0.0)
    assert 0.1 < outbox.next_wakeup_s < 0.5
    assert len(outbox.due(None, 0, outbox.next_wakeup_s)) == 1


def test_bodies_that_compress_do_not_seem_to_be_under_way_for_ever() -> None:
    """TCP acknowledges what the link made of them; the queue would stand still at each window."""
    outbox, acked, sent = filled(a=64), 0, 0
    for tick in range(8):
        for peer, frame in outbox.due({A: acked}, RATE, 0.02 * tick):
            outbox.sent(peer, frame, 1000)
            acked, sent = acked + 1100, sent + 1
        assert outbox.waiting({A: acked}, 0.0).get(A, 0) == (64 - sent) * CHUNK
    assert sent >= 16


def test_a_result_that_compressed_and_arrived_is_given_again_when_it_is_asked_for() -> None:
    outbox = Outbox()
    result = part(1, kind=FrameKind.RESULT)
    outbox.put(A, result)
    ((_, frame),) = outbox.due({A: 0}, RATE, 0.0)
    outbox.sent(A, frame, 1000)
    outbox.put(A, Frame(FrameKind.BLOB, 7, body=result.body))
    assert outbox.is_empty
    outbox.due({A: 1100}, RATE, 0.1)
    outbox.put(A, Frame(FrameKind.BLOB, 7, body=result.body))
    assert not outbox.is_empty


def test_what_the_link_refused_is_not_on_its_way() -> None:
    outbox = filled(a=2)
    for peer, frame in outbox.due({A: 0}, RATE, 0.0):
        outbox.sent(peer, frame, 0)
    assert outbox.waiting({A: 0}, 0.0) == {}
    outbox.put(A, Frame(FrameKind.BLOB, 7, body=part(1).body))
    assert not outbox.is_empty


def test_a_cap_counts_what_goes_over_the_wire() -> None:
    outbox = Outbox(TokenBucket(RATE, 0.0))
    for number in range(8):
        outbox.put(A, part(number))
    given = []
    for tick in range(8):
        for peer, frame in outbox.due(None, 0, 0.01 * tick):
            outbox.sent(peer, frame, 1000)
            given.append(frame)
    assert len(given) == 8


def test_of_several_frames_at_once_each_has_its_own_size() -> None:
    outbox = filled(a=2)
    frames = [frame for _, frame in outbox.due({A: 0}, RATE, 0.0)]
    assert len(frames) == 2
    for frame, size in zip(frames, (1000, 5000), strict=True):
        outbox.sent(A, frame, size)
    assert outbox.waiting({A: 0}, 0.0) == {A: 6000}
    assert outbox.waiting({A: 1000}, 0.0) == {A: 5000}
    outbox.put(A, Frame(FrameKind.BLOB, 7, body=frames[1].body))
    assert outbox.is_empty
    outbox.put(A, Frame(FrameKind.BLOB, 7, body=frames[0].body))
    assert not outbox.is_empty


def test_a_frame_without_a_body_goes_like_any_other() -> None:
    outbox = Outbox()
    outbox.put(A, Frame(FrameKind.BLOB, 7))
    assert len(outbox.due({A: 0}, RATE, 0.0)) == 1 and outbox.is_empty


def with_hops(outbox: Outbox, count: int, kind: FrameKind = FrameKind.FORWARD) -> Outbox:
    for number in range(count):
        outbox.put(B, part(number, kind=kind))
    return outbox


def test_what_goes_between_stages_overtakes_an_exchange_and_leaves_it_a_share() -> None:
    outbox = with_hops(filled(a=4, b=4), 12)
    kinds = [frame.kind for _, frame in outbox.due({A: 0, B: 0}, 0, 0.0)]
    assert kinds[0] is FrameKind.FORWARD and len(kinds) == 20 and outbox.is_empty
    for count in range(1, len(kinds) + 1):
        hops = kinds[:count].count(FrameKind.FORWARD)
        if hops < 12:
            assert (count - hops) <= 1 + hops / limits.OUT_HOPS + 1
            assert hops <= limits.OUT_HOPS * (count - hops + 1)
    assert FrameKind.PART in kinds[:4]


def test_gradients_of_stages_go_in_their_order_when_nothing_else_waits() -> None:
    outbox = with_hops(Outbox(), 5, FrameKind.GRADIENT)
    assert not outbox.is_empty and outbox.waiting({}, 0.0) == {}
    assert [frame.chunk for _, frame in outbox.due({A: 0, B: 0}, 0, 0.0)] == [0, 1, 2, 3, 4]


def test_what_goes_between_stages_keeps_to_the_window_too() -> None:
    wire = Wire(with_hops(filled(a=40), 40))
    wire.run(10)
    assert wire.most_under_way <= limits.OUT_WINDOW_BYTES + 2 * CHUNK
    assert 2 < wire.handed[B] / wire.handed[A] < 4
    wire.run(20)
    assert wire.handed[A] == wire.handed[B] == 40 * CHUNK


def test_each_of_several_flows_to_a_peer_has_something_to_carry() -> None:
    outbox = filled(a=99, b=99)
    outbox.widths[A] = 8
    frames = outbox.due({A: 0, B: 0}, RATE // 8, 0.0)
    to_a = sum(len(frame.body) for peer, frame in frames if peer == A)
    assert to_a == 8 * 2 * CHUNK


def test_what_goes_between_stages_goes_by_several_flows_too() -> None:
    outbox = with_hops(Outbox(), 5)
    outbox.widths[B] = 4
    given = [outbox.due({B: 0}, RATE, 0.3 * turn) for turn in range(9)]
    assert sum(map(len, given)) > 0
    outbox = filled(a=1)
    outbox.widths[A] = 4
    outbox.put(A, Frame(FrameKind.BLOB, 7))  # without a body, and the last one put
    assert len(outbox.due({A: 0}, RATE, 0.0)) == 2


def paced(rates: dict[bytes, float], known: int, looks: int = 12) -> dict[bytes, float]:
    """Paces after so many looks at lines that carry these bytes per second at most."""
    wire = Wire(filled(a=99, b=99, c=99), slow=rates)
    paces: dict[bytes, float] = {}
    for _ in range(looks):
        wire.run(0.1)
        wire.outbox.waiting({peer: int(count) for peer, count in wire.acked.items()}, wire.now_s)
        paces = wire.outbox.paces(known, wire.now_s)
    return paces


def test_flows_that_share_a_link_are_paced_to_even_shares_of_it() -> None:
    paces = paced({}, RATE)
    assert set(paces) == {A, B, C}
    assert sum(paces.values()) == pytest.approx(limits.OUT_PACE_ROOM * RATE, rel=0.05)
    assert len({round(pace) for pace in paces.values()}) == 1


def test_a_slow_receiver_leaves_the_rest_of_its_share_to_the_others() -> None:
    paces = paced({A: RATE / 100}, RATE)
    even = limits.OUT_PACE_ROOM * RATE / 3
    assert paces[A] == pytest.approx(limits.OUT_PACE_LEAST * even, rel=0.05)
    assert paces[B] == paces[C] > 1.4 * even


def test_a_link_that_carries_more_than_is_known_is_paced_to_more() -> None:
    assert sum(paced({}, RATE // 2).values()) >= RATE


def test_nobody_is_paced_while_the_rate_of_the_link_is_not_known() -> None:
    assert paced({}, 0) == {}


def test_what_a_dead_connection_has_lost_is_no_sign_of_a_fast_link() -> None:
    outbox = filled(a=8, b=1)
    for now_s in (0.0, 0.1):
        outbox.due({A: 0, B: 0}, RATE, now_s)
        outbox.waiting({A: 0, B: 0}, now_s)
        outbox.paces(RATE, now_s)
    outbox.waiting({B: 0}, 0.2)  # the way to A has broken, with two chunks under way
    assert sum(outbox.paces(RATE, 0.2).values()) == pytest.approx(limits.OUT_PACE_ROOM * RATE)
