"""Pairing: whatever is drawn, everybody draws the same."""

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import EXPONENTIAL, RING
from swarmtrain_transport.ledger.pairing import (
    arranged,
    check_drawn,
    contributors_of,
    drawn,
    expected_partner,
    link_of,
    order_of,
    pairs_in,
    partner_in,
)
from tests.transport.coordinator.ops.pair_table import pair_plan
from tests.transport.rig import A, B, C, D, E

TAG = 77
PEERS = st.sets(st.sampled_from([bytes([n]) * 32 for n in range(1, 20)]))


def test_the_draw_is_the_order_of_a_hash_of_run_op_and_key():
    head = b"swarmtrain pair 1\0" + TAG.to_bytes(8, "little") + (5).to_bytes(8, "little")
    naive = sorted([A, B, C, D, E], key=lambda peer: hashlib.sha256(head + peer).digest())
    assert drawn(TAG, 5, [E, A, C, B, D, A]) == naive
    assert pairs_in(naive) == [(naive[0], naive[1]), (naive[2], naive[3])]
    assert [drawn(TAG, 6, naive), drawn(TAG + 1, 5, naive)] != [naive, naive]


@given(PEERS, PEERS, st.integers(1, 1000))
def test_everybody_who_is_ready_stands_once_and_expected_pairs_that_are_ready_stand(
    before, ready, op
):
    order = order_of(TAG, op, before, ready)
    assert sorted(order) == sorted(ready)
    for first, second in pairs_in(drawn(TAG, op, before)):
        if {first, second} <= ready:
            assert partner_in(order, first) == second and partner_in(order, second) == first
    assert sum(partner_in(order, peer) is None for peer in order) == len(order) % 2
    shuffled = order_of(TAG, op, sorted(before), sorted(ready, reverse=True))
    assert order == shuffled


@given(PEERS, st.integers(1, 1000), st.data())
def test_one_absent_peer_spoils_one_pair_only(before, op, data):
    if not before:
        return
    absent = data.draw(st.sampled_from(sorted(before)))
    order = order_of(TAG, op, before, before - {absent})
    changed = [
        pair for pair in pairs_in(drawn(TAG, op, before)) if partner_in(order, pair[0]) != pair[1]
    ]
    assert all(absent in pair for pair in changed) and len(changed) <= 1


def test_the_next_partner_is_known_from_the_plan_before():
    plan = pair_plan(tag=TAG)
    order = drawn(TAG, plan.op + 1, contributors_of(plan))
    assert expected_partner(TAG, 2, plan, order[0]) == order[1]
    assert expected_partner(TAG, 2, plan, order[3]) == order[2]
    assert expected_partner(TAG, 2, plan, E) is None
    assert expected_partner(TAG, 2, None, A) is None
    assert expected_partner(TAG, 2, msgspec.structs.replace(plan, kind="gather"), A) is None


@given(PEERS, PEERS, st.integers(1, 1000), st.data())
def test_who_is_at_odds_with_one_or_two_others_is_paired_with_somebody_else(
    before, ready, op, data
):
    """By everybody alike."""
    if len(ready) < 4:
        return
    one = data.draw(st.sampled_from(sorted(ready)))
    others = set(data.draw(st.permutations(sorted(ready - {one})))[:2])
    apart = {one: others} | {other: {one} for other in others}
    order = order_of(TAG, op, before, ready, apart)
    assert sorted(order) == sorted(ready)
    assert partner_in(order, one) not in others
    assert order == order_of(TAG, op, sorted(before), sorted(ready, reverse=True), apart)


def test_two_are_at_odds_and_a_pair_all_the_same_where_there_is_nobody_else():
    assert sorted(order_of(TAG, 2, (A, B), (A, B), {A: {B}, B: {A}})) == [A, B]


def test_a_plan_that_pairs_those_at_odds_is_refused():
    before = pair_plan(tag=TAG)
    order = order_of(TAG, 2, contributors_of(before), (A, B, C, D))
    apart = {order[0]: {order[1]}, order[1]: {order[0]}}
    with pytest.raises(RemoteFault, match="not those that were drawn"):
        check_drawn(TAG, before, pair_plan(order, op=2), apart)
    parted = order_of(TAG, 2, contributors_of(before), order, apart)
    check_drawn(TAG, before, pair_plan(tuple(parted), op=2), apart)


def test_a_plan_whose_partners_are_chosen_is_refused():
    before = pair_plan(tag=TAG)
    order = order_of(TAG, 2, contributors_of(before), (A, B, C, D))
    check_drawn(TAG, before, pair_plan(order, op=2))
    for wrong in ((order[1], order[0], *order[2:]), (order[0], order[2], order[1], order[3])):
        with pytest.raises(RemoteFault, match="not those that were drawn"):
            check_drawn(TAG, before, pair_plan(tuple(wrong), op=2))
    check_drawn(TAG, None, pair_plan(tag=TAG))


def test_a_run_goes_by_pairs_from_its_first_op_or_never():
    pairs = pair_plan(tag=TAG)
    means = msgspec.structs.replace(pairs, kind="mean")
    for before, plan in ((pairs, means), (means, pairs)):
        with pytest.raises(RemoteFault, match="from its first op"):
            check_drawn(TAG, before, plan)
    check_drawn(TAG, None, means)
    check_drawn(TAG, means, means)


def test_a_link_is_a_hash_of_the_op_both_chains_and_both_halves_in_slice_order():
    one, two, three, four = (bytes([n]) * 32 for n in range(4))
    naive = hashlib.sha256(
        b"swarmtrain chain 1\0" + (9).to_bytes(8, "little") + bytes(32) + two + three + four
    ).digest()
    assert link_of(9, (b"", two), (three, four)) == naive
    others = [
        link_of(8, (b"", two), (three, four)), link_of(9, (two, b""), (three, four)),
        link_of(9, (b"", two), (four, three)), link_of(9, (one, three), (three, four)),
    ]  # fmt: skip
    assert naive not in others and len(set(others)) == 4


def met(graph, op, peers):
    return {frozenset(pair) for pair in pairs_in(arranged(graph, TAG, op, peers))}


def test_on_a_ring_all_meet_one_neighbour_and_then_the_other():
    peers = [bytes([n]) * 32 for n in range(8)]
    placed = drawn(TAG, 0, peers)
    edges = {frozenset((placed[place], placed[place - 1])) for place in range(8)}
    odd, even = met(RING, 1, peers), met(RING, 2, peers)
    assert len(odd) == len(even) == 4 and odd | even == edges


def test_on_the_exponential_graph_all_have_heard_of_all_after_its_distances():
    peers = [bytes([n]) * 32 for n in range(8)]
    heard = {peer: {peer} for peer in peers}
    for op in range(3, 6):
        pairs = met(EXPONENTIAL, op, peers)
        assert len(pairs) == 4
        for first, second in map(tuple, pairs):
            heard[first] = heard[second] = heard[first] | heard[second]
    assert all(known == set(peers) for known in heard.values())


@given(PEERS, PEERS, st.integers(1, 1000), st.sampled_from([RING, EXPONENTIAL]))
def test_whoever_is_ready_stands_once_on_a_graph_and_at_most_one_is_left(before, ready, op, graph):
    order = order_of(TAG, op, before, ready, graph=graph)
    assert sorted(order) == sorted(ready)
    assert order == order_of(TAG, op, sorted(before), sorted(ready, reverse=True), graph=graph)
    for pair in met(graph, op, before):
        if pair <= ready:
            first, second = pair
            assert partner_in(order, first) == second


@given(PEERS, st.sampled_from([RING, EXPONENTIAL]))
def test_on_a_graph_everybody_finds_a_partner_within_two_ops(peers, graph):
    alone = [
        {peer for peer in peers if partner_in(arranged(graph, TAG, op, peers), peer) is None}
        for op in range(1, 40)
    ]
    assert all(len(one) == len(peers) % 2 for one in alone)


def test_a_run_stays_on_its_graph():
    plan = pair_plan(tag=TAG)
    ringed = msgspec.structs.replace(plan, op=2, graph=RING)
    with pytest.raises(RemoteFault, match="another graph"):
        check_drawn(TAG, plan, ringed)
