"""Who is at fault: a slow contributor is left out, an unreachable owner is relieved, never both."""

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport.matrix import MatrixVerdict, matrix_rule

Rows = dict[int, set[bytes]]


def names(count: int) -> list[bytes]:
    return [bytes([65 + number]) for number in range(count)]


def full(peers: list[bytes]) -> Rows:
    """Each of them owns one slice and has everything."""
    return {index: set(peers) for index in range(len(peers))}


def test_nothing_missing_means_everybody() -> None:
    peers = names(4)
    assert matrix_rule(set(peers), full(peers)) == MatrixVerdict(frozenset(peers), None)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(2, 12), slow=st.integers(0, 11))
def test_one_slow_contributor_is_left_out_and_nobody_is_relieved(count: int, slow: int) -> None:
    peers = names(count)
    slow %= count
    rows = full(peers)
    for index, row in rows.items():
        if index != slow:
            row.discard(peers[slow])
    verdict = matrix_rule(set(peers), rows)
    assert verdict == MatrixVerdict(frozenset(peers) - {peers[slow]}, None)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(3, 12), bad=st.integers(0, 11))
def test_one_unreachable_owner_is_relieved_and_nobody_is_left_out(count: int, bad: int) -> None:
    peers = names(count)
    bad %= count
    rows = full(peers)
    rows[bad] = {peers[bad]}
    assert matrix_rule(set(peers), rows) == MatrixVerdict(frozenset(peers), bad)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(2, 12),
    contributor=st.integers(0, 11),
    owner=st.integers(0, 11),
)
def test_one_bad_link_costs_one_contribution_at_most(
    count: int, contributor: int, owner: int
) -> None:
    peers = names(count)
    contributor, owner = contributor % count, owner % count
    rows = full(peers)
    rows[owner].discard(peers[contributor])
    verdict = matrix_rule(set(peers), rows)
    assert verdict.reassign is None
    assert verdict.contributors == frozenset(peers) - {peers[contributor]}


@settings(max_examples=40, deadline=None)
@given(count=st.integers(3, 12), contributor=st.integers(0, 11), owner=st.integers(0, 11))
def test_where_nobody_can_be_spared_one_bad_link_costs_a_slice(
    count: int, contributor: int, owner: int
) -> None:
    peers = names(count)
    contributor, owner = contributor % count, owner % count
    rows = full(peers)
    rows[owner].discard(peers[contributor])
    verdict = matrix_rule(set(peers), rows, needed=count)
    assert verdict == MatrixVerdict(frozenset(peers), owner)
    del rows[owner]
    assert matrix_rule(set(peers), rows, needed=count).contributors == frozenset(peers)


def test_a_slow_peer_that_owns_a_slice_costs_neither_the_op_nor_a_contributor_too_many() -> None:
    peers = names(4)
    rows = full(peers)
    for index in range(3):
        rows[index].discard(peers[3])  # what it sends has come nowhere
    rows[3].discard(peers[0])  # and one part has not come to it
    verdict = matrix_rule(set(peers), rows, needed=3)
    assert verdict == MatrixVerdict(frozenset(peers[:3]), 3)
    assert matrix_rule(set(peers), rows, needed=2).contributors == frozenset(peers[1:3])


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
    verdict = matrix_rule(set(peers), rows)
    assert verdict.reassign == bad
    del rows[bad]
    assert matrix_rule(set(peers), rows).contributors == frozenset(peers) - {peers[slow]}


def test_many_slow_contributors_do_not_make_the_owners_look_unreachable() -> None:
    peers = names(6)
    fast = set(peers[:2])
    rows = {index: fast | {peer} for index, peer in enumerate(peers)}
    assert matrix_rule(set(peers), rows) == MatrixVerdict(frozenset(fast), None)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 8).flatmap(
        lambda count: st.lists(
            st.sets(st.sampled_from(names(count))), min_size=count, max_size=count
        )
    ),
    st.integers(0, 9),
)
def test_any_matrix_has_a_verdict_that_every_staying_owner_can_serve(
    held: list[set[bytes]], needed: int
) -> None:
    peers = names(len(held))
    rows: Rows = dict(enumerate(held))
    while True:
        verdict = matrix_rule(set(peers), rows, needed)
        if verdict.reassign is None:
            break
        del rows[verdict.reassign]
    assert all(verdict.contributors <= row for row in rows.values())


def test_no_rows_and_no_candidates_are_no_trouble() -> None:
    assert matrix_rule(set(), {}) == MatrixVerdict(frozenset(), None)
    assert matrix_rule(set(names(2)), {}) == MatrixVerdict(frozenset(names(2)), None)
    assert matrix_rule(set(), {0: set()}) == MatrixVerdict(frozenset(), None)
