"""Lineage of states and chains where ops go by pairs, also after a REWIND."""

import hashlib

import msgspec
import pytest

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger import lineage
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.ledger.transfers import outcome_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import (
    Attest,
    Commit,
    Freeze,
    Rewind,
    SignedRoot,
    Skip,
    bodies_of,
    pack_struct,
)
from tests.transport.coordinator.ops.pair_table import pair_plan
from tests.transport.rig import A, B, C, Chain, D, begun_chain

PEERS = (A, B, C, D)


def half(peer: PeerId, op: int) -> bytes:
    return hashlib.sha256(b"half" + peer + bytes([op])).digest()


def state(peer: PeerId, op: int) -> bytes:
    return hashlib.sha256(b"state" + peer + bytes([op])).digest()


def naive_link(op: int, first: PeerId, second: PeerId, chains: dict[PeerId, bytes]) -> bytes:
    before = chains.get(first, bytes(32)) + chains.get(second, bytes(32))
    data = b"swarmtrain chain 1\0" + op.to_bytes(8, "little") + before
    return hashlib.sha256(data + half(first, op) + half(second, op)).digest()


def exchange(chain: Chain, *pairs: tuple[PeerId, PeerId], order=PEERS) -> int:
    """An op of which these pairs come through."""
    op = chain.view.first.last_op + 1
    plan = pair_plan(order, op=op, previous_outcome=chain.view.first.last_outcome)
    chain.add(plan)
    view = chain.view.first.in_progress
    assert view is not None
    if not pairs:
        chain.add(Skip(op, "too few pairs are left"))
        return op
    roots = {peer: SignedRoot(half(peer, op), b"s") for peer in order}
    chain.add(Freeze(op, tuple(sorted(order)), {}, roots=roots))
    kept = {peer for pair in pairs for peer in pair}
    named = tuple(peer for peer in sorted(order) if peer in kept)
    outcome = outcome_of(view.owners, roots, kept)
    chain.add(Commit(op, view.plan_hash, named, outcome, bytes(32)))
    return op


def attest(chain: Chain, op: int, *peers: PeerId) -> None:
    roots = tuple((peer, state(peer, op)) for peer in peers)
    chain.add(Attest(op, roots[0][1], roots=roots))


def test_chains_of_partners_grow_by_the_same_link_and_those_of_others_do_not():
    chain = begun_chain(PEERS)
    exchange(chain, (A, B))
    one = naive_link(1, A, B, {})
    assert chain.view.first.chains == {A: one, B: one}
    exchange(chain, (A, B), (C, D))
    two, three = naive_link(2, A, B, {A: one, B: one}), naive_link(2, C, D, {})
    assert chain.view.first.chains == {A: two, B: two, C: three, D: three}
    exchange(chain, (B, C), order=(B, C, A, D))
    four = naive_link(3, B, C, {B: two, C: three})
    assert chain.view.first.chains == {A: two, B: four, C: four, D: three}
    exchange(chain)
    assert chain.view.first.chains[B] == four, "a skipped op is no link"
    assert chain.view.first.links[3] == {B: (two, four), C: (three, four)}


def test_rewind_puts_chains_back_and_the_same_ops_may_come_again():
    chain = begun_chain(PEERS)
    exchange(chain, (A, B))
    kept = dict(chain.view.first.chains)
    exchange(chain, (A, B), (C, D))
    exchange(chain)
    exchange(chain, (C, B), order=(C, B, A, D))
    chain.add(Rewind(1, "nobody has it"))
    assert {peer: link for peer, link in chain.view.first.chains.items() if link} == kept
    assert not chain.view.first.links.keys() - {1}
    exchange(chain, (A, B))
    assert chain.view.first.chains[A] == naive_link(2, A, B, kept)


def test_a_rewind_behind_what_is_remembered_begins_all_chains_anew(monkeypatch):
    monkeypatch.setattr(lineage, "OPS_KEPT", 2)
    chain = begun_chain(PEERS)
    for _ in range(4):
        exchange(chain, (A, B), (C, D))
    assert sorted(chain.view.first.links) == [3, 4]
    chain.add(Rewind(1, "nobody has it"))
    assert not any(chain.view.first.chains.values())


def test_every_fold_of_the_same_records_has_the_same_chains():
    chain = begun_chain(PEERS)
    for pairs in (((A, B),), ((A, B), (C, D)), (), ((C, D),)):
        exchange(chain, *pairs)
    again = LedgerView()
    for record, body in zip(chain.records, bodies_of(chain.records), strict=True):
        again.apply(record, body)
    folded, kept = again.first, chain.view.first
    assert (folded.chains, folded.links) == (kept.chains, kept.links)


def test_commit_of_half_a_pair_contradicts_itself():
    chain = begun_chain(PEERS)
    with pytest.raises(RemoteFault, match="not what was decided"):
        exchange(chain, (A, C))
    chain = begun_chain(PEERS)
    with pytest.raises(RemoteFault, match="not what was decided"):
        exchange(chain, (A, B), (C,))


# ---- states


def test_after_a_pair_op_every_reported_root_is_the_runs_and_more_may_be_named_later():
    chain = begun_chain(PEERS)
    op = exchange(chain, (A, B))
    attest(chain, op, A, C)
    view = chain.view.first
    assert view.attests[op] == state(A, op)
    assert view.roots[op] == {A: state(A, op), C: state(C, op)}
    assert view.is_trusted(op, state(C, op), A), "a state that was taken over of C"
    assert view.is_trusted(op, state(B, op), B), "its own, which was not reported in time"
    assert not view.is_trusted(op, state(B, op), A)
    attest(chain, op, B)
    assert view.attests[op] == state(A, op), "the first is whom joiners trust"
    assert set(view.roots[op]) == {A, B, C}


def test_nobodys_state_differs_from_anybodys_after_the_first_pair_op():
    chain = begun_chain(PEERS)
    assert not chain.view.first.may_hold(0, b"x" * 32)
    skipped = exchange(chain)
    assert not chain.view.first.may_hold(skipped, b"x" * 32), "that is still op 0's state"
    op = exchange(chain, (A, B))
    attest(chain, op, A)
    assert chain.view.first.may_hold(op, b"x" * 32)


def test_after_a_rewind_an_unnamed_state_of_a_cancelled_op_is_not_trusted():
    chain = begun_chain(PEERS)
    exchange(chain, (A, B))
    attest(chain, 1, A)
    exchange(chain, (A, B))
    chain.add(Rewind(1, "nobody has it"))
    exchange(chain, (C, D))
    view = chain.view.first
    assert not view.is_trusted(2, state(B, 2), B) and not view.is_trusted(1, state(B, 1), B)
    assert view.is_trusted(1, state(A, 1), A)
    assert 2 not in view.roots and 2 not in view.attests


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (Attest(1, state(A, 1)), "another kind of op"),
        (Attest(1, state(A, 1), roots=()), "another kind of op"),
        (Attest(1, state(A, 1), roots=((A, b"short"),)), "another kind of op"),
        (Attest(1, state(A, 1), roots=((B, state(B, 1)),)), "nobody has"),
        (Attest(2, state(A, 1), roots=((A, state(A, 1)),)), "before its COMMIT"),
    ],
)
def test_an_attest_that_cannot_be_one_is_refused(body, problem):
    chain = begun_chain(PEERS)
    exchange(chain, (A, B))
    with pytest.raises(RemoteFault, match=problem):
        chain.add(body)


def test_mean_ops_have_no_roots_and_their_attest_is_recorded_as_it_was():
    plain = Attest(3, bytes(32), 4, b"L")
    assert b"roots" not in pack_struct(plain)
    assert msgspec.structs.replace(plain, roots=((A, bytes(32)),)) != plain
    chain = begun_chain(PEERS)
    chain.add(chain.plan(PEERS, num_values=24))
    chain.commit(*PEERS)
    with pytest.raises(RemoteFault, match="another kind of op"):
        attest(chain, 1, A)
    chain.add(Attest(1, state(A, 1)))
    with pytest.raises(RemoteFault, match="second ATTEST"):
        chain.add(Attest(1, state(A, 1)))
