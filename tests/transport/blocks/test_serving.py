"""Serving of a peer: results at once, the state in its turn and never at the exchange's cost."""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.manifest import ArraySpec, StateManifest, describe_state
from swarmtrain_transport.blocks.serving import Serving
from swarmtrain_transport.blocks.state_download import tag_of
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.wire.frames import Frame, FrameKind, Wanted
from tests.transport.rig import LAYOUT, A, B, C

PIECE = limits.STATE_PIECE_BYTES
UPLINK = 10 * PIECE
"""Bytes per second."""


def pinned(num_bytes: int = 8 * PIECE) -> tuple[Serving, Blobs, StateManifest, bytes]:
    data = bytes(range(256)) * (num_bytes // 256)
    manifest, chunks = describe_state(LAYOUT, (ArraySpec("anchor", num_bytes // 4),), data)
    blobs = Blobs()
    blobs.pin_snapshot(4, manifest, chunks, 0.0)
    return Serving([blobs]), blobs, manifest, data


def ask_all(serving: Serving, peer: bytes, manifest: StateManifest, now_s: float = 0.0) -> None:
    for digest in manifest.chunk_hashes:
        for start in range(0, 8 * PIECE, PIECE):
            wanted = Wanted(digest, start, PIECE)
            assert serving.asked(peer, wanted.pack(), 7, now_s) is None


def bytes_until(serving: Serving, seconds: float, *, uplink: int, in_op: bool) -> int:
    """Count what leaves in so much time when `due` is called whenever it asks to be."""
    now_s, total = 0.0, 0
    while now_s <= seconds:
        total += sum(
            len(frame.body) for _, frame in serving.due(7, uplink, in_op=in_op, now_s=now_s)
        )
        wakeups = serving.wakeups()
        if not wakeups:
            break
        now_s = max(now_s + 1e-3, min(wakeups))
    return total


def test_a_result_is_given_at_once_and_what_is_not_here_is_said() -> None:
    serving, blobs, manifest, _ = pinned()
    digest = blobs.keep_result(1, b"bytes")
    assert digest == content_hash(b"bytes")
    assert serving.asked(A, digest, 7, 0.0) == Frame(FrameKind.BLOB, 7, body=b"bytes")
    root = serving.asked(A, manifest.root, 7, 0.0)
    assert root == Frame(FrameKind.BLOB, 7, body=manifest.to_bytes())
    lacking = content_hash(b"other")
    assert serving.asked(A, lacking, 7, 0.0) == Frame(FrameKind.MISSING, 7, body=lacking)
    beyond = Wanted(digest, 3, 10)
    assert serving.asked(A, beyond.pack(), 7, 0.0) == Frame(FrameKind.MISSING, 7, body=digest)


def test_a_piece_names_its_chunk_and_its_place() -> None:
    serving, _, manifest, data = pinned()
    (digest,) = manifest.chunk_hashes
    serving.asked(A, Wanted(digest, PIECE, 100).pack(), 7, 0.0)
    ((peer, frame),) = serving.due(7, 0, in_op=False, now_s=0.0)
    assert (peer, frame.kind, frame.chunk) == (A, FrameKind.PIECE, PIECE)
    assert frame.set_id == tag_of(digest)
    assert bytes(frame.body) == data[PIECE : PIECE + 100]


@pytest.mark.parametrize("length", [0, 1, 31, 33, 39, 41, 4096])
def test_a_get_of_another_length_is_a_fault(length: int) -> None:
    serving, *_ = pinned()
    with pytest.raises(RemoteFault) as caught:
        serving.asked(A, bytes(length), 7, 0.0)
    assert caught.value.reason == "length"


def test_a_get_of_nothing_or_of_more_than_a_piece_is_a_fault() -> None:
    serving, *_ = pinned()
    for length in (0, PIECE + 1, (1 << 32) - 1):
        body = bytes(32) + (0).to_bytes(4, "little") + length.to_bytes(4, "little")
        with pytest.raises(RemoteFault):
            serving.asked(A, body, 7, 0.0)


def test_while_an_op_is_under_way_joiners_get_a_small_share_of_the_uplink() -> None:
    serving, _, manifest, _ = pinned()
    ask_all(serving, A, manifest)
    got = bytes_until(serving, 3.0, uplink=UPLINK, in_op=True)
    share = limits.JOINER_SHARE * UPLINK * 3.0
    assert share - PIECE <= got <= share + PIECE


def test_between_ops_joiners_get_all_that_the_uplink_has() -> None:
    serving, _, manifest, _ = pinned()
    ask_all(serving, A, manifest)
    got = bytes_until(serving, 0.5, uplink=UPLINK, in_op=False)
    assert 0.5 * UPLINK <= got <= 0.5 * limits.JOINER_HEADROOM * UPLINK + PIECE


def test_an_unknown_uplink_is_no_limit_between_ops_and_a_slow_one_in_them() -> None:
    serving, _, manifest, _ = pinned()
    ask_all(serving, A, manifest)
    slow = bytes_until(serving, 4.0, uplink=0, in_op=True)
    assert slow <= 4.0 * limits.JOINER_BYTES_PER_S_MIN + PIECE
    rest = serving.due(7, 0, in_op=False, now_s=4.0)
    assert slow + sum(len(frame.body) for _, frame in rest) == 8 * PIECE


class ThinLine:
    """A line through which pieces go one after the other, but for those that nobody takes."""

    def __init__(self, bytes_per_s: float) -> None:
        self.free_s = self.now_s = 0.0
        self.left_s: dict[bytes, float] = {}
        self.given: list[bytes] = []
        self.most_behind_s = 0.0
        self._rate = bytes_per_s

    def is_leaving(self, peer: bytes) -> bool:
        return self.now_s < self.left_s.get(peer, 0.0)

    def serve(
        self, serving: Serving, until_s: float, *, in_op: bool, idle: bytes = b"", uplink: int = 0
    ) -> None:
        """Let this line have what a donor gives that knows this of its uplink."""
        while self.now_s < until_s:
            given = serving.due(
                7, uplink, in_op=in_op, now_s=self.now_s, is_leaving=self.is_leaving
            )
            for peer, frame in given:
                self.given.append(peer)
                if peer == idle:
                    self.left_s[peer] = float("inf")
                    continue
                self.free_s = max(self.free_s, self.now_s) + len(frame.body) / self._rate
                self.left_s[peer] = self.free_s
            self.most_behind_s = max(self.most_behind_s, self.free_s - self.now_s)
            wakeups = serving.wakeups()
            assert not wakeups or min(wakeups) > self.now_s or given
            self.now_s = max(self.now_s + 1e-3, min(wakeups, default=until_s))


@pytest.mark.parametrize(("bytes_per_s", "uplink"), [(PIECE / 4, 0), (2e4, 0), (2e4, 20_000)])
def test_of_a_thin_line_a_piece_at_most_is_in_the_way_of_an_op(
    bytes_per_s: float, uplink: int
) -> None:
    """20 kB/s is the thinnest line of the simulator's worlds of 512."""
    serving, _, manifest, _ = pinned()
    joiners = [bytes([number]) * 32 for number in range(12)]
    for joiner in joiners:
        ask_all(serving, joiner, manifest)
    line = ThinLine(bytes_per_s)
    line.serve(serving, 15 * PIECE / bytes_per_s, in_op=False, uplink=uplink)
    assert line.most_behind_s <= PIECE / bytes_per_s + 1e-3 < 7
    assert len(line.given) >= 14 and set(line.given[:14]) == set(joiners[:8])


def test_who_takes_nothing_costs_the_others_one_turn_and_gets_no_second_piece() -> None:
    serving, _, manifest, _ = pinned()
    for joiner in (A, B):
        ask_all(serving, joiner, manifest)
    line = ThinLine(PIECE / 4)
    line.serve(serving, limits.PIECE_TURN_S + 34.0, in_op=False, idle=A)
    assert line.given == [A] + [B] * 8


def test_in_an_op_pieces_leave_most_of_a_thin_line_that_was_never_measured_to_it() -> None:
    serving, _, manifest, _ = pinned()
    ask_all(serving, A, manifest)
    line = ThinLine(PIECE / 8)  # half of what joiners get of a line that nothing is known of
    line.serve(serving, 20.0, in_op=False)
    before = len(line.given)
    line.serve(serving, 84.0, in_op=True)
    assert before in (2, 3) and len(line.given) - before <= 1 + 64 / 8 / 2


def test_in_an_op_joiners_get_half_of_a_thin_uplink_at_most() -> None:
    serving, _, manifest, _ = pinned()
    ask_all(serving, A, manifest)
    thin = limits.JOINER_BYTES_PER_S_MIN
    assert bytes_until(serving, 16.0, uplink=thin, in_op=True) <= 16.0 * thin / 2 + PIECE


def test_what_was_held_back_goes_on_at_once_when_the_op_has_ended() -> None:
    serving, _, manifest, _ = pinned()
    ask_all(serving, A, manifest)
    assert len(serving.due(7, UPLINK, in_op=True, now_s=0.0)) == 1
    assert serving.due(7, UPLINK, in_op=True, now_s=0.1) == []
    serving.due(7, UPLINK, in_op=False, now_s=0.2)
    wait_s = serving.wakeups()[0] - 0.2
    assert wait_s <= PIECE / (limits.JOINER_HEADROOM * UPLINK)


def test_every_second_piece_goes_to_one_joiner_until_it_has_all_and_the_others_take_turns() -> None:
    serving, _, manifest, _ = pinned()
    for joiner in (A, B, C):
        ask_all(serving, joiner, manifest)
    order = [peer for peer, _ in serving.due(7, 0, in_op=False, now_s=0.0)]
    assert order[:15] == [A, B, A, C] * 3 + [A, B, A]
    assert order[15:].index(C) < order[15:].index(B) < 3  # now half of the pieces are B's


def test_who_asks_for_single_bytes_keeps_nobody_from_the_front() -> None:
    serving, _, manifest, _ = pinned()
    (digest,) = manifest.chunk_hashes
    for start in range(100):
        serving.asked(A, Wanted(digest, start, 1).pack(), 7, 0.0)
    for joiner in (B, C):
        ask_all(serving, joiner, manifest)
    order = [peer for peer, _ in serving.due(7, 0, in_op=False, now_s=0.0)]
    assert order[:24].count(B) == 8 > order[:24].count(C)


def test_who_has_had_the_whole_state_comes_last() -> None:
    serving, _, manifest, _ = pinned()
    ask_all(serving, A, manifest)
    assert len(serving.due(7, 0, in_op=False, now_s=0.0)) == 8
    for joiner in (A, B, C, A):
        ask_all(serving, joiner, manifest)
    order = [peer for peer, _ in serving.due(7, 0, in_op=False, now_s=1.0)]
    assert order.count(A) == 8 and order[:16].count(B) == 8


def test_who_asks_for_little_at_a_time_keeps_its_place_and_keeps_nobody_waiting() -> None:
    serving, _, manifest, _ = pinned()
    (digest,) = manifest.chunk_hashes
    order = []
    for number in range(5):
        now_s = 2.1 * number
        if number < 2:
            serving.asked(A, Wanted(digest, number * PIECE, PIECE).pack(), 7, now_s)
        for joiner in (B, C):
            ask_all(serving, joiner, manifest, now_s)
        order += [peer for peer, _ in serving.due(7, PIECE, in_op=True, now_s=now_s)]
    assert order == [A, B, A, C, B]


def test_a_joiner_that_asks_without_end_fills_a_bounded_queue() -> None:
    serving, _, manifest, _ = pinned()
    (digest,) = manifest.chunk_hashes
    for start in range(10_000):
        serving.asked(A, Wanted(digest, start, 1).pack(), 7, 0.0)
        serving.asked(A, Wanted(digest, 0, 2).pack(), 7, 0.0)
    assert len(serving.due(7, 0, in_op=False, now_s=0.0)) == limits.JOINER_QUEUE


def test_who_has_gone_gets_nothing_more() -> None:
    serving, _, manifest, _ = pinned()
    ask_all(serving, A, manifest)
    serving.forget(A)
    assert serving.due(7, 0, in_op=False, now_s=0.0) == []
    assert serving.wakeups() == []


def test_a_snapshot_that_vanished_meanwhile_is_said_to_be_missing() -> None:
    serving, blobs, manifest, _ = pinned()
    ask_all(serving, A, manifest, 990.0)
    for op in (8, 12, 16, 20, 24):
        other, chunks = describe_state(LAYOUT, (ArraySpec("a", 2),), bytes([op]) * 8)
        blobs.pin_snapshot(op, other, chunks, 1000.0)
    frames = [frame for _, frame in serving.due(7, 0, in_op=False, now_s=1000.0)]
    assert {frame.kind for frame in frames} == {FrameKind.MISSING}


def test_a_snapshot_stays_while_a_joiner_asks_for_it_and_its_results_are_kept() -> None:
    serving, blobs, manifest, _ = pinned()
    wanted = Wanted(manifest.chunk_hashes[0], 0, 1).pack()
    now_s = 0.0
    stayed = []
    for op in range(8, 44, 4):
        now_s += limits.SNAPSHOT_LEASE_S / 2
        serving.asked(A, wanted, 7, now_s)
        other, chunks = describe_state(LAYOUT, (ArraySpec("a", 2),), bytes([op]) * 8)
        blobs.pin_snapshot(op, other, chunks, now_s)
        assert len(blobs.snapshot_ops) <= 2 + limits.SNAPSHOTS_LEASED
        if 4 in blobs.snapshot_ops:
            stayed.append(op)
    assert stayed[-1] == 4 + limits.RESULT_KEEP_OPS - 4


def test_states_that_a_rewind_cancels_take_no_place_of_those_that_come_then() -> None:
    blobs = Blobs()

    def pin(op: int) -> bytes:
        manifest, chunks = describe_state(LAYOUT, (ArraySpec("a", 2),), bytes([op]) * 8)
        blobs.pin_snapshot(op, manifest, chunks, 0.0)
        return manifest.root

    cancelled = [pin(op) for op in (8, 9)]
    blobs.rewound(4)
    assert not any(root in blobs for root in cancelled)
    for op in (4, 5, 6):
        assert pin(op) in blobs
    assert blobs.snapshot_ops == (5, 6)


def test_who_does_not_ask_again_is_served_by_others_by_now() -> None:
    serving, _, manifest, _ = pinned()
    first, second = (Wanted(manifest.chunk_hashes[0], start, PIECE) for start in (0, PIECE))
    for peer, wanted in [(A, first), (A, second), (B, first), (C, first)]:
        assert serving.asked(peer, wanted.pack(), 7, 0.0) is None
    given = [peer for peer, _ in serving.due(7, PIECE, in_op=False, now_s=0.0)]
    assert serving.asked(C, first.pack(), 7, 45.0) is None
    for now_s in (301.0, 305.0, 309.0, 313.0):
        given += [peer for peer, _ in serving.due(7, PIECE, in_op=False, now_s=now_s)]
    assert given == [A, C]


def test_who_gives_to_an_op_has_the_state_that_it_asked_for() -> None:
    serving, blobs, manifest, _ = pinned()
    big = bytes(PIECE + 1)
    result = blobs.keep_result(1, big)
    for peer in (A, B):
        ask_all(serving, peer, manifest)
    assert serving.asked(A, Wanted(result, 0, PIECE).pack(), 7, 0.0) is None
    serving.have_state({A, C}, blobs)
    given = [(peer, frame.set_id) for peer, frame in serving.due(7, 0, in_op=False, now_s=0.0)]
    of_state = tag_of(manifest.chunk_hashes[0])
    assert given.count((A, tag_of(result))) == 1 and given.count((B, of_state)) == 8
    assert len(given) == 9
