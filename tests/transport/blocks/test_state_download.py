"""Any story of donors that give, lack, lie, fall silent and go: bounded, and right in the end."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.blocks.state_download import Ask, Download, tag_of
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from tests.transport.rig import STRANGER, A, B, C

PIECE = limits.STATE_PIECE_BYTES


def chunk_of(seed: int, num_bytes: int) -> bytes:
    return random.Random(seed).randbytes(num_bytes)


def hash_of(data: bytes) -> bytes:
    return content_hash(data)


BIG, SMALL = chunk_of(1, 3 * PIECE + 5), chunk_of(2, 7)


def hasty() -> Download:
    download = Download(list)
    download.is_hasty = True
    return download


def begun(*donors: bytes) -> Download:
    download = hasty()
    download.set_donors(donors)
    download.want(hash_of(BIG), len(BIG))
    return download


def give(download: Download, ask: Ask, data: bytes, now_s: float) -> tuple[bytes, bytes] | None:
    piece = data[ask.start : ask.start + ask.length]
    return download.piece(ask.peer, tag_of(ask.digest), ask.start, piece, now_s)


def test_a_chunk_comes_in_pieces_and_is_handed_over_once() -> None:
    download = begun(A)
    whole = []
    for tick in range(10):
        for ask in download.requests(tick * 0.1):
            whole.append(give(download, ask, BIG, tick * 0.1 + 0.05))
    assert [found for found in whole if found] == [(hash_of(BIG), BIG)]
    assert download.requests(2.0) == []
    assert download.wakeups() == []


def test_a_piece_that_nobody_asked_for_is_dropped() -> None:
    download = begun(A, B)
    asks = download.requests(0.0)
    tag = tag_of(hash_of(BIG))
    for peer in (STRANGER, C):
        assert download.piece(peer, tag, 0, BIG[:PIECE], 0.1) is None
    assert download.piece(asks[0].peer, 12345, 0, BIG[:PIECE], 0.1) is None
    assert download.piece(asks[0].peer, tag, 3 * PIECE, BIG[3 * PIECE :], 0.1) is None
    assert download.piece(asks[0].peer, tag, 77 * PIECE, b"", 0.1) is None


def test_a_piece_of_a_wrong_length_is_a_fault_and_is_asked_for_again() -> None:
    download = begun(A)
    ask = download.requests(0.0)[0]
    with pytest.raises(RemoteFault) as caught:
        download.piece(A, tag_of(ask.digest), ask.start, b"short", 0.1)
    assert caught.value.reason == "length"
    assert ask in download.requests(0.2)


def test_a_silent_donors_pieces_go_to_another_and_are_welcome_from_it_all_the_same() -> None:
    download = begun(A)
    first = download.requests(0.0)[0]
    late_s = 3 * limits.FETCH_TIMEOUT_S
    assert min(download.wakeups()) <= late_s
    download.set_donors((A, B))
    for ask in download.requests(0.1):
        give(download, ask, BIG, 0.2)
    again = download.requests(late_s)
    assert (B, first.start) in {(ask.peer, ask.start) for ask in again}
    assert give(download, first, BIG, late_s + 1.0) is None
    assert first.start not in {ask.start for ask in download.requests(2 * late_s)}


def test_a_piece_that_one_donor_is_slow_with_is_asked_of_a_second_but_no_third() -> None:
    download = hasty()
    download.set_donors((A, B, C))
    download.want(hash_of(SMALL), len(SMALL))
    download.want(hash_of(BIG), len(BIG))
    held = None
    asked = []
    for tick in range(40):
        for ask in download.requests(tick * 0.1):
            asked.append(ask)
            data = SMALL if ask.digest == hash_of(SMALL) else BIG
            if data is SMALL:
                held = held or ask
            else:
                give(download, ask, BIG, tick * 0.1 + 0.05)
    assert held is not None
    of_small = [ask.peer for ask in asked if ask.digest == held.digest]
    assert len(of_small) == 2 and of_small[0] == held.peer != of_small[1]


def test_a_piece_of_a_donor_that_was_never_heard_is_asked_of_another_after_a_second() -> None:
    """A newcomer asks a peer that has died and is not yet out of the roster: 15 s."""
    download = hasty()
    download.set_donors((A, B, C))
    download.want(hash_of(SMALL), len(SMALL))
    (dead,) = download.requests(0.0)
    assert download.requests(limits.FIRST_ASK_S / 2) == []
    (other,) = download.requests(limits.FIRST_ASK_S)
    (third,) = download.requests(2 * limits.FIRST_ASK_S)
    assert {dead.peer, other.peer, third.peer} == {A, B, C}
    assert give(download, third, SMALL, 2.0) == (hash_of(SMALL), SMALL)
    download.want(hash_of(BIG), len(BIG))
    assert download.requests(2.0)[0].peer == third.peer


def test_who_lacked_a_chunk_is_asked_again_when_another_does_not_answer() -> None:
    """Of 512 that began together, one went round three overloaded donors for 600 s, although 500
    others held the state meanwhile (`simulate --cells 8 --peers 512 --ops 2 --seed 4`)."""
    download, busy = Download(list), [bytes([number]) * 32 for number in range(3)]
    download.set_donors((C, *busy))
    download.want(hash_of(SMALL), len(SMALL))
    assert [ask.peer for ask in download.requests(0.0)] == [C]
    download.missing(C, hash_of(SMALL), 0.0)
    asked, now_s = list[bytes](), 0.0
    while C not in asked and now_s < 20 * limits.EVICT_S:
        now_s += 0.5
        asked += [ask.peer for ask in download.requests(now_s)]
    assert asked == [busy[0], C]


@pytest.mark.parametrize("comes", [True, False])
def test_a_chunk_is_not_lost_while_one_who_was_asked_for_it_may_be_slow(*, comes: bool) -> None:
    """Where one holds a state and hundreds want it, most wait in line for long: what came then
    was dropped, as the state was given up meanwhile."""
    download = Download(list)
    download.set_donors((A, B))
    download.want(hash_of(SMALL), len(SMALL))
    (ask,), now_s = download.requests(0.0), 0.0
    assert ask.peer == A
    while now_s < (limits.EVICT_S if comes else 4 * limits.EVICT_S):
        now_s += 0.5
        for later in download.requests(now_s):
            if later.peer == B:
                download.missing(B, later.digest, now_s)
    assert bool(download.rounds) is not comes
    if comes:
        assert give(download, ask, SMALL, now_s) == (hash_of(SMALL), SMALL)


@pytest.mark.parametrize(("honest", "silent"), [(300, 1), (60, 3), (8, 3)])
def test_a_snapshot_that_is_gone_is_given_up_however_many_say_so_and_some_nothing(
    honest: int, silent: int
) -> None:
    """All are asked one after the other: when the last had answered the silent one had its turn."""
    donors = [number.to_bytes(32, "little") for number in range(honest + silent)]
    rng, answers, now_s = random.Random(1), list[tuple[float, bytes]](), 0.0
    download = Download(lambda peers: rng.sample(list(peers), len(peers)))
    download.set_donors(donors)
    download.want(hash_of(SMALL), len(SMALL))
    while download.rounds < 2 and now_s < 3600.0:
        for ask in download.requests(now_s):
            if donors.index(ask.peer) >= silent:
                answers.append((now_s + 0.2, ask.peer))
        times = [time_s for time_s in download.wakeups() if time_s > now_s]
        now_s = min([*times, *(time_s for time_s, _ in answers)])
        for time_s, peer in [one for one in answers if one[0] <= now_s]:
            answers.remove((time_s, peer))
            download.missing(peer, hash_of(SMALL), now_s)
    assert now_s <= 300.0


def test_who_is_known_to_be_alive_is_asked_for_the_first_piece() -> None:
    download = hasty()
    download.set_donors((A, B))
    download.met(B, 0.0)
    download.met(STRANGER, 0.0)
    download.want(hash_of(SMALL), len(SMALL))
    assert [ask.peer for ask in download.requests(0.0)] == [B]


def test_a_donor_that_lacks_a_chunk_is_left_in_peace_for_a_moment() -> None:
    download = begun(A, B)
    first = download.requests(0.0)
    download.missing(A, hash_of(BIG), 0.0)
    assert {ask.peer for ask in first} == {A, B}
    assert A not in {ask.peer for ask in download.requests(0.01)}
    download.missing(B, hash_of(BIG), 0.02)
    assert download.requests(0.03) == []
    assert download.rounds == 1
    assert {ask.peer for ask in download.requests(0.03 + limits.FETCH_RETRY_S)} == {A, B}


def test_a_chunk_of_two_givers_with_a_wrong_hash_is_fetched_from_one_alone() -> None:
    """B lies. Who lied is not known at first; then one gives the whole chunk."""
    download = begun(A, B)
    faults = []
    found = None
    givers: list[set[bytes]] = [set()]
    for tick in range(100):
        for ask in download.requests(tick * 0.1):
            givers[-1].add(ask.peer)
            data = BIG if ask.peer == A else bytes(len(BIG))
            try:
                found = found or give(download, ask, data, tick * 0.1 + 0.05)
            except RemoteFault as fault:
                faults.append((ask.peer, fault.reason))
                givers.append(set())
    assert found == (hash_of(BIG), BIG)
    assert faults in ([], [(B, "hash")])


def test_the_window_grows_while_pieces_do_not_queue_and_shrinks_when_they_do() -> None:
    download = hasty()
    download.set_donors((A,))
    data = chunk_of(3, 800 * PIECE)
    download.want(hash_of(data), len(data))
    under_way: list[tuple[float, Ask]] = []
    widths = []
    for tick in range(40):
        now_s = tick * 0.1
        for _, ask in [item for item in under_way if item[0] <= now_s]:
            give(download, ask, data, now_s)
        under_way = [item for item in under_way if item[0] > now_s]
        under_way += [(now_s + 0.1, ask) for ask in download.requests(now_s)]
        widths.append(len(under_way))
    assert widths[0] == limits.PIECE_WINDOW_MIN and max(widths) == limits.PIECE_WINDOW_MAX
    slow_s = 4.0
    for tick in range(200):
        now_s = slow_s + tick * 0.1
        if under_way:
            give(download, under_way.pop(0)[1], data, now_s)
        under_way += [(now_s, ask) for ask in download.requests(now_s)]
    assert len(under_way) < limits.PIECE_WINDOW_MAX / 4


STORY = st.lists(
    st.tuples(
        st.sampled_from(["give", "give", "give", "lie", "lack", "wait", "donors", "late"]),
        st.integers(0, 20),
        st.sampled_from([A, B, C]),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STORY)
def test_after_any_story_an_honest_donor_brings_everything(
    story: list[tuple[str, int, bytes]],
) -> None:
    blobs = {hash_of(data): data for data in (BIG, SMALL, chunk_of(4, PIECE))}
    download = hasty()
    download.set_donors((A, B))
    for digest, data in blobs.items():
        download.want(digest, len(data))
    got: dict[bytes, bytes] = {}
    open_asks: list[Ask] = []
    now_s = 0.0

    def hear(ask: Ask, data: bytes) -> None:
        try:
            whole = give(download, ask, data, now_s)
        except RemoteFault as fault:
            assert fault.reason == "hash" and ask.peer != C
            return
        if whole is not None:
            assert whole[0] not in got
            got[whole[0]] = whole[1]

    for event, number, peer in story:
        now_s += 0.1
        open_asks += download.requests(now_s)
        if event == "donors":
            download.set_donors({peer, C} if number % 2 else {A, B, C})
        elif event == "wait":
            now_s += number
        elif open_asks:
            ask = open_asks.pop(number % len(open_asks))
            honest = event != "lie" or ask.peer == C
            if event == "lack":
                download.missing(ask.peer, ask.digest, now_s)
            else:
                data = blobs[ask.digest]
                hear(ask, data if honest else bytes(len(data)))
    download.set_donors((C,))
    for _ in range(400):
        if len(got) == len(blobs):
            break
        now_s += 1.0
        for ask in download.requests(now_s):
            hear(ask, blobs[ask.digest])
    assert got == blobs


@pytest.mark.parametrize(("num_donors", "num_quick"), [(200, 64), (40, 40)])
def test_hundreds_who_lack_it_are_asked_four_a_second_when_some_were_asked_by_fours(
    num_donors: int, num_quick: int
) -> None:
    download = begun(*(bytes([number, 1]) * 16 for number in range(num_donors)))
    download.is_hasty = False
    now_s, asked_s = 0.0, []
    while now_s < 70.0:
        asks = download.requests(now_s)
        assert len(asks) <= limits.PIECE_WINDOW_MIN
        asked_s += [now_s] * len(asks)
        now_s += 0.05
        for ask in asks:
            download.missing(ask.peer, ask.digest, now_s)
    assert asked_s[num_quick - 1] < 2.0
    assert (
        0.9 <= (asked_s[num_quick + 199] - asked_s[num_quick]) / (200 * limits.FETCH_RETRY_S) < 1.3
    )


def test_of_many_chunks_hundreds_are_not_asked_for_one_each_and_the_next_is_asked_in_time() -> None:
    chance = random.Random(5)
    download = Download(lambda peers: chance.sample(list(peers), len(peers)))
    download.set_donors(bytes([number, 1]) * 16 for number in range(100))
    for number in range(250):
        download.want(bytes([number, 2]) * 16, 1)
    now_s, num_asked = 0.0, 0
    while now_s < 14.0:  # then all are asked anew
        asks = download.requests(now_s)
        num_asked += len(asks)
        wake_s = min(download.wakeups())
        if num_asked > limits.CELL_PEERS_MAX + 20:
            assert wake_s <= now_s + limits.FETCH_RETRY_S
        now_s = max(now_s + 0.05, wake_s)
        for ask in asks:
            if ask.peer != bytes([7, 1]) * 16:  # one is dead
                download.missing(ask.peer, ask.digest, now_s)
    assert num_asked <= limits.CELL_PEERS_MAX + 20 + 14.0 / limits.FETCH_RETRY_S


def test_who_was_silent_is_asked_again_while_another_dribbles() -> None:
    data = chunk_of(3, 40 * PIECE)
    download = Download(list)
    download.set_donors((A, B))
    download.want(hash_of(data), len(data))
    now_s, late = 0.0, list[Ask]()
    asked_s = []
    while now_s < 60.0:
        for ask in download.requests(now_s):
            if ask.peer == A:
                asked_s.append(now_s)
            else:
                late.append(ask)
        if late and now_s % 14.0 == 13.0:
            give(download, late.pop(0), data, now_s)
        now_s += 1.0
    assert max(asked_s) > limits.EVICT_S


def test_a_relay_is_spared_where_two_others_may_give_and_no_chunk_is_lost_by_that() -> None:
    download = begun(A, B, C)
    download.relayed = {C}
    asks = download.requests(0.0)
    assert {ask.peer for ask in asks} == {A, B}
    download.missing(A, hash_of(BIG), 0.1)
    for ask in asks:
        give(download, ask, BIG, 0.1)
    assert C in {ask.peer for ask in download.requests(0.1)}, "one alone would serve everybody"
    alone = begun(A, C)
    alone.relayed = {C}
    assert {ask.peer for ask in alone.requests(0.0)} == {A, C}


def test_who_is_heard_by_a_relay_is_asked_where_all_others_are_silent() -> None:
    """Of forty that never answered two were always to be asked again, so it never was."""
    draw = random.Random(0)
    download = Download(lambda donors: draw.sample(list(donors), len(donors)))
    download.set_donors([*(bytes([number]) * 32 for number in range(40)), STRANGER])
    download.relayed = {STRANGER}
    data = [chunk_of(number, 4 * PIECE) for number in range(8)]
    wanted = {hash_of(chunk): chunk for chunk in data}
    for digest, chunk in wanted.items():
        download.want(digest, len(chunk))
    now_s = 0.0
    while download.chunks and now_s < 1000:
        for ask in download.requests(now_s):
            if ask.peer == STRANGER:
                part = wanted[ask.digest][ask.start : ask.start + ask.length]
                download.piece(STRANGER, tag_of(ask.digest), ask.start, part, now_s)
        now_s = min(time_s for time_s in download.wakeups() or [math.inf] if time_s > now_s)
    assert not download.chunks
