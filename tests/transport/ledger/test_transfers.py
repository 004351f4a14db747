"""Transfers: who gives, who takes, and what can move, for each kind of op."""

import pytest

from swarmtrain_transport.ledger.transfers import Transfer, transfers_of
from swarmtrain_transport.wire.records import Member, Plan, SliceSpec

A, B, C, D = (bytes([number]) * 32 for number in range(4))


def plan(kind: str, weights: dict[bytes, int]) -> Plan:
    members = tuple(Member(peer, b"", weight) for peer, weight in weights.items())
    owners = [peer for peer, weight in weights.items() if weight]
    slices = tuple(SliceSpec(0, 64, owner) for owner in owners)
    return Plan(
        op=1, previous_outcome=b"", members=members, slices=slices, codec="int8", exact=True,
        block=64, chunk_values=64, e_min=-8, e_max=8, min_contributors=1, deadline_s=1.0,
        checkpoint_by=b"", evaluate_by=b"", kind=kind,
    )  # fmt: skip


def test_in_a_mean_all_contributors_give_all_members_take_and_slices_move():
    found = transfers_of(plan("mean", {A: 1, B: 2, C: 0}))
    assert found == tuple(Transfer(index, (A, B), (A, B, C), True) for index in range(2))


def test_in_a_gather_one_gives_everybody_else_takes_and_nothing_moves():
    found = transfers_of(plan("gather", {A: 1, B: 2, C: 0}))
    assert found == (Transfer(0, (A,), (B, C), False), Transfer(1, (B,), (A, C), False))


@pytest.mark.parametrize("num_receivers", [0, 1])
def test_in_a_pair_op_only_the_partner_takes_and_an_odd_one_has_none(num_receivers):
    receivers = {D: 0} if num_receivers else {}
    found = transfers_of(plan("pair", {A: 1, B: 1, C: 1} | receivers))
    assert [one.takers for one in found] == [(B,), (A,), ()]
    assert [one.givers for one in found] == [(A,), (B,), ()]
    assert [one.needs for one in found] == [(1,), (0,), ()]
    assert all(one.is_verbatim for one in found)
