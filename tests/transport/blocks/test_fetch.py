"""Fetching by hash: past the silent and the lacking, within the window, only what is wanted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.blocks.manifest import describe_state
from swarmtrain_transport.hashing import content_hash
from tests.transport.rig import STRANGER, A, B, C, D

W = limits.FETCH_WINDOW


def digest_of(number: int) -> bytes:
    return content_hash(bytes([number]))


X, Y = digest_of(1), digest_of(2)


def fetcher() -> Fetcher:
    found = Fetcher(list)
    found.is_hasty = True
    return found


def test_holders_are_asked_in_the_order_given() -> None:
    fetch = fetcher()
    fetch.want(X, [B, A], spread=False)
    assert fetch.requests(0.0) == [(B, X)]
    assert fetch.requests(0.1) == []


def test_a_holder_that_lacks_the_blob_is_passed_over_at_once() -> None:
    fetch = fetcher()
    fetch.want(X, [A, B], spread=False)
    fetch.requests(0.0)
    fetch.missing(A, X, 0.0)
    assert fetch.requests(0.0) == [(B, X)]


def test_what_nobody_has_does_not_fill_the_windows_of_those_who_have_the_rest() -> None:
    fetch = fetcher()
    lost = [digest_of(10 + number) for number in range(2 * W)]
    for digest in lost:
        fetch.want(digest, [A], spread=False)
    now_s, asked = 0.0, set[bytes]()
    while min(map(fetch.rounds, lost)) < 1:
        for peer, digest in fetch.requests(now_s):
            fetch.missing(peer, digest, now_s)
        now_s += limits.FETCH_RETRY_S
    fetch.want(X, [A], spread=False)
    asked.update(digest for _, digest in fetch.requests(now_s + 1.0))
    assert X in asked


class Seen(bytes):
    """A key that counts how often keys are looked at."""

    count = 0

    def __hash__(self) -> int:
        Seen.count += 1
        return super().__hash__()


def test_hundreds_who_lack_a_state_are_asked_four_a_second_after_some() -> None:
    fetch = fetcher()
    fetch.want(X, [bytes([number]) * 32 for number in range(1, 201)], spread=True)
    now_s, asked_s = 0.0, []
    while now_s < 20.0:
        for peer, digest in fetch.requests(now_s):
            asked_s.append(now_s)
            fetch.missing(peer, digest, now_s)
        now_s = max(now_s + 0.01, min(fetch.wakeups(), default=0.0))
    num_quick = limits.CELL_PEERS_MAX
    assert asked_s[num_quick - 1] < 1.0
    assert asked_s[num_quick + 39] - asked_s[num_quick - 1] >= 40 * limits.FETCH_RETRY_S - 0.1
    assert len(asked_s) >= num_quick + 0.9 * 19.0 / limits.FETCH_RETRY_S


def test_of_hundreds_of_holders_few_are_looked_at_for_what_waits() -> None:
    """In cells everybody may have a slice, and hundreds wait while the first holder is busy."""
    holders, fetch = [Seen(bytes([n % 256, n // 256]) * 16) for n in range(512)], Fetcher(list)
    wants = [content_hash(bytes([n % 256, n // 256])) for n in range(100)]
    for digest in wants:
        fetch.want(digest, holders, spread=False)
    assert len(fetch.requests(0.0)) == W
    Seen.count = 0
    assert not fetch.requests(0.1) and fetch.wakeups()
    assert Seen.count < 16 * len(wants)


def test_a_silent_holder_is_passed_over_after_its_time() -> None:
    fetch = fetcher()
    fetch.want(X, [A, B], spread=False)
    fetch.heard(A, 0.0)
    fetch.requests(0.0)
    assert fetch.wakeups() == [limits.FETCH_TIMEOUT_S]
    assert fetch.requests(limits.FETCH_TIMEOUT_S - 0.01) == []
    assert fetch.requests(limits.FETCH_TIMEOUT_S) == [(B, X)]


def test_a_holder_to_whom_no_connection_can_be_made_is_asked_last() -> None:
    fetch = fetcher()
    fetch.unreached([A], 10.0)
    fetch.want(digest_of(1), (A, B), spread=False)
    fetch.want(digest_of(2), (A,), spread=False)
    assert dict((digest, peer) for peer, digest in fetch.requests(1.0)) == {
        digest_of(1): B, digest_of(2): A,
    }  # fmt: skip


def test_a_holder_that_was_never_heard_may_be_dead_and_costs_a_second() -> None:
    """A newcomer asks a peer that has died and is not yet out of the roster: 5 s for each want."""
    fetch = fetcher()
    fetch.want(X, [A, B], spread=True)
    fetch.requests(0.0)
    assert fetch.wakeups() == [limits.FIRST_ASK_S]
    assert fetch.requests(limits.FIRST_ASK_S) == [(B, X)]
    assert fetch.arrived(B, X, limits.FIRST_ASK_S)
    fetch.want(Y, [A, B], spread=False)
    assert fetch.requests(2.0) == [(B, Y)]


def test_who_is_known_to_be_alive_is_asked_before_who_may_be_dead() -> None:
    fetch = fetcher()
    fetch.met(C, 0.0)
    fetch.want(X, [A, B, C], spread=False)
    assert fetch.requests(0.0) == [(C, X)]
    fetch.met(C, limits.FETCH_TIMEOUT_S - 0.1)  # any bytes, again and again: no more patience
    assert fetch.requests(limits.FETCH_TIMEOUT_S) == [(A, X)]


def test_a_slow_link_carries_a_blob_three_times_at_most() -> None:
    fetch = fetcher()
    fetch.want(X, [A, B, C, D], spread=False)
    now_s, asked = 0.0, []
    while now_s < limits.FETCH_TIMEOUT_S:
        asked += [peer for peer, _ in fetch.requests(now_s)]
        now_s = min(fetch.wakeups())
    assert asked == [A, B, C]
    assert fetch.arrived(B, X, now_s)
    fetch.want(Y, [A, B, C, D], spread=False)
    assert fetch.requests(now_s) == [(B, Y)]
    assert fetch.wakeups() == [now_s + limits.FETCH_TIMEOUT_S]


def test_when_all_were_passed_over_the_round_begins_again_after_a_pause() -> None:
    fetch = fetcher()
    fetch.want(X, [A, B], spread=False)
    for peer in (A, B):
        assert fetch.requests(0.0) == [(peer, X)]
        fetch.missing(peer, X, 0.0)
    assert fetch.rounds(X) == 0
    assert fetch.requests(0.0) == []
    assert fetch.rounds(X) == 1
    assert fetch.wakeups() == [limits.FETCH_RETRY_S]
    assert fetch.requests(limits.FETCH_RETRY_S - 0.01) == []
    assert fetch.requests(limits.FETCH_RETRY_S) == [(A, X)]


def test_nobody_is_asked_for_more_than_the_window() -> None:
    fetch = fetcher()
    for number in range(3 * W):
        fetch.want(digest_of(number), [A], spread=False)
    asked = [digest for _, digest in fetch.requests(0.0)]
    assert len(asked) == W
    fetch.cancel([asked[0]])
    assert len(fetch.requests(0.0)) == 1


def test_state_is_spread_over_the_donors_with_the_fewest_requests() -> None:
    fetch = fetcher()
    for number in range(9):
        fetch.want(digest_of(number), [A, B, C], spread=True)
    asked = [peer for peer, _ in fetch.requests(0.0)]
    assert sorted(asked) == [A] * 3 + [B] * 3 + [C] * 3


def test_whoever_was_not_asked_cannot_say_that_a_blob_is_missing() -> None:
    fetch = fetcher()
    fetch.want(X, [A, B], spread=False)
    fetch.requests(0.0)
    for peer in (B, STRANGER):
        fetch.missing(peer, X, 0.0)
    fetch.missing(A, Y, 0.0)
    fetch.missing(A, b"no hash", 0.0)
    assert fetch.requests(0.0) == []


def test_only_wanted_blobs_arrive_and_each_of_them_once() -> None:
    fetch = fetcher()
    fetch.want(X, [A], spread=False)
    assert not fetch.arrived(A, Y, 0.0)
    assert fetch.arrived(A, X, 0.0)
    assert not fetch.arrived(A, X, 0.0)
    assert not fetch.is_wanted(X)


def test_a_cancelled_want_frees_its_place_in_the_window() -> None:
    fetch = fetcher()
    for number in range(W + 1):
        fetch.want(digest_of(number), [A], spread=False)
    fetch.requests(0.0)
    fetch.cancel([digest_of(0), digest_of(200)])
    assert fetch.requests(0.0) == [(A, digest_of(W))]


def test_new_sources_of_a_known_want_are_asked_next() -> None:
    fetch = fetcher()
    fetch.want(X, [A], spread=False)
    fetch.requests(0.0)
    fetch.want(X, [B, A], spread=False)
    fetch.missing(A, X, 0.0)
    assert fetch.requests(0.0) == [(B, X)]


def test_an_owner_that_died_does_not_hold_up_every_blob_for_its_own_time_out() -> None:
    """Twelve blobs of a dead owner that another peer has too: one time-out, not three."""
    fetch = fetcher()
    wanted = {digest_of(number) for number in range(3 * W)}
    for digest in wanted:
        fetch.want(digest, [A, B], spread=False)
    now_s = 0.0
    while wanted and now_s < 60.0:
        for peer, digest in fetch.requests(now_s):
            if peer == B:
                fetch.arrived(peer, digest, now_s)
                wanted.discard(digest)
        now_s += 0.05
    assert not wanted
    assert now_s < 2 * limits.FETCH_TIMEOUT_S


def test_where_one_holder_was_silent_those_who_were_heard_meanwhile_are_asked_next() -> None:
    """Many have died, each of whom would cost a time-out, and who has the blob comes last. Of those
    who were heard the order given counts: to be heard later, or oftener, is no merit."""
    fetch = Fetcher(list)
    for peer in (A, B):
        fetch.heard(peer, 0.0)
    fetch.want(X, [A, B, C, D], spread=False)
    assert fetch.requests(0.0) == [(A, X)]
    fetch.missing(A, X, 0.0)
    assert fetch.requests(0.0) == [(B, X)], "in the order given as long as all answer"
    fetch.met(A, 1.0)
    fetch.met(C, 2.0)
    fetch.met(D, 3.0)
    assert fetch.requests(limits.FETCH_TIMEOUT_S) == [(C, X)]
    fetch.missing(C, X, limits.FETCH_TIMEOUT_S)
    assert fetch.requests(limits.FETCH_TIMEOUT_S) == [(D, X)]


def test_of_silent_holders_none_is_asked_before_one_that_was_heard() -> None:
    fetch = Fetcher(list)
    fetch.met(C, 0.0)
    fetch.want(X, [A, B, C, D], spread=False)
    assert fetch.requests(1.0) == [(A, X)]
    fetch.met(D, 3.0)
    silent_s = 1.0 + limits.FETCH_TIMEOUT_S
    assert fetch.requests(silent_s) == [(D, X)]
    fetch.missing(D, X, silent_s)
    assert fetch.requests(silent_s) == [(C, X)], "of those that were not, who was heard last"


def test_a_holder_that_answers_again_is_asked_first_again() -> None:
    fetch = fetcher()
    fetch.want(X, [A, B], spread=False)
    fetch.requests(0.0)
    late_s = limits.FETCH_TIMEOUT_S
    assert fetch.requests(late_s) == [(B, X)]
    fetch.want(Y, [A, B], spread=False)
    assert fetch.requests(late_s) == [(B, Y)]
    fetch.missing(B, Y, late_s)
    assert fetch.requests(late_s) == [(A, Y)]
    fetch.arrived(A, Y, late_s)
    fetch.want(Y, [A, B], spread=False)
    assert fetch.requests(late_s) == [(A, Y)]


def test_a_holder_that_answers_one_by_one_has_time_for_all() -> None:
    """Four blobs of a slow link: the last comes later than a silent holder would be waited for."""
    fetch = fetcher()
    fetch.heard(A, 0.0)
    for number in range(W):
        fetch.want(digest_of(number), [A, B], spread=False)
    assert len(fetch.requests(0.0)) == W
    for number in range(W):
        now_s = (number + 1) * 0.9 * limits.FETCH_TIMEOUT_S
        assert fetch.requests(now_s) == []
        assert fetch.arrived(A, digest_of(number), now_s)


def test_a_fast_holder_far_away_is_asked_for_more_at_once() -> None:
    fetch = fetcher()
    for number in range(200):
        fetch.want(digest_of(number), [A], spread=False)
    widths = []
    for tick in range(8):
        asks = fetch.requests(0.1 * tick)
        widths.append(len(asks))
        for _, digest in asks:
            fetch.arrived(A, digest, 0.1 * tick + 0.1)
    assert widths[:4] == [W, 2 * W, 4 * W, 8 * W]
    assert max(widths) <= limits.FETCH_WINDOW_MAX


STEP = st.tuples(
    st.sampled_from(["want", "ask", "arrive", "lack", "cancel", "wait"]),
    st.integers(0, 9),
    st.sampled_from([A, B, C, D]),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(STEP, max_size=80), st.booleans())
def test_any_story_keeps_the_window_and_never_asks_twice_at_once(
    story: list[tuple[str, int, bytes]], spread: bool
) -> None:
    fetch = fetcher()
    for peer in (A, B, C, D):
        fetch.heard(peer, 0.0)
    under_way: dict[bytes, tuple[bytes, float]] = {}
    heard: dict[bytes, float] = {}
    now_s = 0.0
    for event, number, peer in story:
        digest = digest_of(number)
        if event == "want":
            fetch.want(digest, [peer, A, B], spread=spread)
        elif event == "arrive":
            giver = under_way.pop(digest, None)
            if giver is not None:
                heard[giver[0]] = now_s
            assert fetch.arrived(giver[0] if giver else STRANGER, digest, now_s) or giver is None
        elif event == "lack":
            fetch.missing(peer, digest, now_s)
            if under_way.get(digest, (None,))[0] == peer:
                heard[peer] = now_s
                del under_way[digest]
        elif event == "cancel":
            fetch.cancel([digest])
            under_way.pop(digest, None)
        else:
            now_s += 1.3 if event == "wait" else 0.0
            late = [
                key
                for key, (asked, at) in under_way.items()
                if now_s >= max(at, heard.get(asked, 0.0)) + limits.FETCH_TIMEOUT_S
            ]
            for key in late:
                del under_way[key]
            for asked, wanted in fetch.requests(now_s):
                assert wanted not in under_way
                under_way[wanted] = (asked, now_s)
        counts = [sum(p == peer for p, _ in under_way.values()) for peer in (A, B, C, D)]
        assert max(counts) <= limits.FETCH_WINDOW_MAX


# ---- what a peer serves


def test_results_are_kept_for_a_bounded_number_of_ops() -> None:
    blobs = Blobs()
    digests = [blobs.keep_result(op, bytes([op])) for op in range(1, limits.RESULT_KEEP_OPS + 3)]
    assert [blobs.get(digest) is None for digest in digests[:3]] == [True, True, False]


def test_two_snapshots_are_pinned_and_share_what_is_equal() -> None:
    blobs = Blobs()
    pinned = []
    for op in (4, 8, 12):
        manifest, chunks = describe_state(bytes(32), (), bytes([op]) * 8)
        blobs.pin_snapshot(op, manifest, chunks, 0.0)
        pinned.append(manifest)
    assert blobs.snapshot_ops == (8, 12)
    assert blobs.get(pinned[0].root) is None
    assert all(blobs.get(manifest.root) == manifest.to_bytes() for manifest in pinned[1:])
    assert all(blobs.get(digest) is not None for digest in pinned[2].chunk_hashes)


def test_skipped_ops_push_no_result_out() -> None:
    """A run that skips for long still lets whoever fell behind replay the last commit."""
    blobs = Blobs()
    kept = blobs.keep_result(9, b"the last commit")
    for op in range(10, 10 + 3 * limits.RESULT_KEEP_OPS):
        blobs.keep_result(op, b"early %d" % op)
        blobs.forget(op)
    assert blobs.get(kept) == b"the last commit"


def test_results_of_a_cancelled_past_take_no_place() -> None:
    blobs = Blobs()
    early = blobs.keep_result(3, b"kept")
    for op in range(4, 4 + limits.RESULT_KEEP_OPS - 1):
        blobs.keep_result(op, b"cancelled %d" % op)
    blobs.rewound(3)
    for op in range(4, 4 + limits.RESULT_KEEP_OPS - 1):
        blobs.keep_result(op, b"new %d" % op)
    assert blobs.get(early) == b"kept"


def test_while_others_answer_a_dead_holder_is_not_waited_for_in_every_round() -> None:
    """A result that nobody holds is found to be lost soon, although a dead holder is asked too."""
    fetch = fetcher()
    fetch.want(X, [A, B], spread=False)
    now_s, asked_dead = 0.0, []
    while fetch.rounds(X) < limits.LOST_ROUNDS:
        for peer, digest in fetch.requests(now_s):
            if peer == B:
                fetch.missing(B, digest, now_s)
            else:
                asked_dead.append(now_s)
        now_s = max(now_s, min(fetch.wakeups(), default=now_s))
    assert asked_dead == [0.0]
    assert now_s <= limits.FETCH_TIMEOUT_S + limits.LOST_ROUNDS * limits.FETCH_RETRY_S


def test_a_silent_holder_gets_its_turn_again_and_is_the_only_hope_when_all_are_silent() -> None:
    fetch = fetcher()
    fetch.want(X, [A, B], spread=False)
    fetch.heard(A, 0.0)
    now_s, asked_dead = 0.0, []
    while now_s < 12.0:
        for peer, digest in fetch.requests(now_s):
            if peer == B:
                fetch.missing(B, digest, now_s)
            else:
                asked_dead.append(now_s)
        now_s = max(now_s, min(fetch.wakeups(), default=now_s))
    assert len(asked_dead) == 2
    alone = fetcher()
    alone.want(Y, [A], spread=False)
    assert alone.requests(0.0) == [(A, Y)]
    assert alone.requests(limits.FETCH_TIMEOUT_S) == []
    assert alone.requests(limits.FETCH_TIMEOUT_S + limits.FETCH_RETRY_S) == [(A, Y)]


def test_a_holder_that_has_gone_is_not_asked_any_more() -> None:
    fetch = fetcher()
    fetch.want(X, [A, B], spread=False)
    assert fetch.requests(0.0) == [(A, X)]
    fetch.forget(A)
    assert fetch.requests(0.0) == [(B, X)]
    fetch.missing(B, X, 0.0)
    assert fetch.requests(0.0) == []
    assert fetch.requests(1.0) == [(B, X)]


def test_a_lost_answer_is_asked_for_again_however_often_something_else_is_missing() -> None:
    """Those few bytes overtake bulk, so they are no sign that the answer is behind them."""
    fetch = fetcher()
    fetch.want(X, [A], spread=False)
    fetch.want(Y, [A], spread=False)
    asked = []
    for tick in range(100):
        now_s = 0.1 * tick
        for peer, digest in fetch.requests(now_s):
            asked.append(digest)
            if digest == Y:
                fetch.missing(peer, Y, now_s)
    assert asked.count(X) >= 2 and asked.count(Y) > 10


def test_holders_that_are_heard_by_a_relay_come_after_the_others() -> None:
    fetch = fetcher()
    fetch.relayed = {A, B}
    fetch.want(X, [A, B, C], spread=False)
    assert fetch.requests(0.0) == [(C, X)]
    fetch.missing(C, X, 0.0)
    assert fetch.requests(0.0) == [(A, X)]
