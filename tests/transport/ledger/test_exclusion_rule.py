"""Matrix rule: a slow contributor is left out, an unreachable owner is relieved, never both; and
one's word against another's costs a slice."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.ledger.exclusion_rule import MatrixVerdict, matrix_rule, voices_needed

Rows = dict[int, set[bytes]]


def names(count: int) -> list[bytes]:
    return [bytes([65 + number]) for number in range(count)]


def full(peers: list[bytes]) -> Rows:
    """Each of them owns one slice and has everything."""
    return {index: set(peers) for index in range(len(peers))}


def rule(peers: list[bytes], rows: Rows, before: dict[bytes, set[bytes]] | None = None):
    """The verdict where each of the peers owns the slice of its number."""
    owners = {index: peers[index] for index in rows}
    needed = voices_needed(len(peers), len(peers) - 1)
    return matrix_rule(set(peers), rows, owners, lambda peer: needed, before or {})


def settled(peers: list[bytes], rows: Rows) -> tuple[set[bytes], list[int]]:
    """Apply the rule, as FREEZE does, until no slice must move: who stays, and the slices moved."""
    rows, moved = dict(rows), []
    before: dict[bytes, set[bytes]] = {}
    while (verdict := rule(peers, rows, before)).reassign is not None:
        index = verdict.reassign
        gaps = verdict.contributors - rows.pop(index)
        if 2 * len(gaps) <= len(peers):
            for peer in gaps:
                before.setdefault(peer, set()).add(peers[index])
        moved.append(index)
    return set(verdict.contributors), moved


def test_nothing_missing_means_everybody() -> None:
    peers = names(4)
    assert rule(peers, full(peers)) == MatrixVerdict(frozenset(peers), None)


def test_more_than_half_of_the_others_must_say_so_two_at_least_and_eight_at_most() -> None:
    of_all = {planned: voices_needed(planned, planned - 1) for planned in (1, 2, 3, 4, 5, 6, 7, 64)}
    assert of_all == {1: 2, 2: 2, 3: 2, 4: 2, 5: 3, 6: 3, 7: 4, 64: limits.VOICES}
    assert voices_needed(7, 3) == 3, "or all the others that own anything"
    assert voices_needed(7, 1) == 2


@settings(max_examples=40, deadline=None)
@given(count=st.integers(3, 12), slow=st.integers(0, 11))
def test_one_slow_contributor_is_left_out_and_nobody_is_relieved(count: int, slow: int) -> None:
    peers = names(count)
    slow %= count
    rows = full(peers)
    for index, row in rows.items():
        if index != slow:
            row.discard(peers[slow])
    assert rule(peers, rows) == MatrixVerdict(frozenset(peers) - {peers[slow]}, None)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(3, 12), bad=st.integers(0, 11))
def test_one_unreachable_owner_is_relieved_and_nobody_is_left_out(count: int, bad: int) -> None:
    peers = names(count)
    bad %= count
    rows = full(peers)
    rows[bad] = {peers[bad]}
    assert rule(peers, rows) == MatrixVerdict(frozenset(peers), bad)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(2, 12), contributor=st.integers(0, 11), owner=st.integers(0, 11))
def test_one_bad_link_costs_one_slice_and_no_contribution(
    count: int, contributor: int, owner: int
) -> None:
    peers = names(count)
    contributor, owner = contributor % count, owner % count
    rows = full(peers)
    rows[owner].discard(peers[contributor])
    assert rule(peers, rows) == MatrixVerdict(frozenset(peers), owner)
    assert settled(peers, rows) == (set(peers), [owner])


def test_a_slow_peer_that_owns_a_slice_costs_no_contributor_too_many() -> None:
    peers = names(4)
    rows = full(peers)
    for index in range(3):
        rows[index].discard(peers[3])  # what it sends has come nowhere
    rows[3].discard(peers[0])  # and one part has not come to it
    assert settled(peers, rows) == (set(peers[:3]), [3])


@settings(max_examples=40, deadline=None)
@given(count=st.integers(4, 12), slow=st.integers(0, 11), bad=st.integers(0, 11))
def test_a_slow_contributor_and_an_unreachable_owner_are_told_apart(
    count: int, slow: int, bad: int
) -> None:
    peers = names(count)
    slow, bad = slow % count, bad % count
    if slow == bad:
        return
    rows = full(peers)
    for index, row in rows.items():
        if index != slow:
            row.discard(peers[slow])
    rows[bad] = {peers[bad]}
    assert rule(peers, rows).reassign == bad
    assert settled(peers, rows) == (set(peers) - {peers[slow]}, [bad])


def test_many_slow_contributors_do_not_make_the_owners_look_unreachable() -> None:
    peers = names(6)
    fast = set(peers[:2])
    rows = {index: fast | {peer} for index, peer in enumerate(peers)}
    assert rule(peers, rows) == MatrixVerdict(frozenset(fast), None)


def test_an_earlier_owners_word_counts_with_the_later_ones() -> None:
    peers = names(5)
    rows = full(peers)
    rows[1].discard(peers[0])
    assert rule(peers, rows, {peers[0]: {peers[2]}}).reassign == 1
    three = rule(peers, rows, {peers[0]: {peers[2], peers[3]}})
    assert three == MatrixVerdict(frozenset(peers) - {peers[0]}, None)
    is_back = rule(peers, full(peers), {peers[0]: {peers[2], peers[3], peers[4]}})
    assert is_back.contributors == frozenset(peers)


def sets_of(peers: list[bytes]) -> list[set[bytes]]:
    """Every set of these."""
    sizes = range(len(peers) + 1)
    return [set(some) for size in sizes for some in itertools.combinations(peers, size)]


@pytest.mark.parametrize(("count", "hostile"), [(3, 1), (4, 1), (5, 2)])
def test_whatever_fewer_than_half_say_and_withhold_nobody_honest_is_left_out(
    count: int, hostile: int
) -> None:
    """Every word of hostile owners on the honest, and every choice of hostile contributors to
    whom to send."""
    peers = names(count)
    liars, honest = peers[:hostile], set(peers[hostile:])
    told = sets_of(sorted(honest))
    given = sets_of(peers[hostile:])
    for words in itertools.product(told, repeat=hostile):
        for sends in itertools.product(given, repeat=hostile):
            rows: Rows = {i: set(word) | set(liars) for i, word in enumerate(words)}
            for index in range(hostile, count):
                got = {one for one, to in zip(liars, sends, strict=True) if peers[index] in to}
                rows[index] = honest | got
            assert honest <= settled(peers, rows)[0], (words, sends)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 8).flatmap(
        lambda count: st.lists(
            st.sets(st.sampled_from(names(count))), min_size=count, max_size=count
        )
    )
)
def test_any_matrix_has_a_verdict_that_every_staying_owner_can_serve(
    held: list[set[bytes]],
) -> None:
    peers = names(len(held))
    stays, moved = settled(peers, dict(enumerate(held)))
    kept = [row for index, row in enumerate(held) if index not in moved]
    assert all(stays <= row for row in kept)


def test_no_rows_and_no_candidates_are_no_trouble() -> None:
    assert matrix_rule(set(), {}, {}, len) == MatrixVerdict(frozenset(), None)
    assert rule(names(2), {}) == MatrixVerdict(frozenset(names(2)), None)
    assert matrix_rule(set(), {0: set()}, {0: b"A"}, len) == MatrixVerdict(frozenset(), None)
