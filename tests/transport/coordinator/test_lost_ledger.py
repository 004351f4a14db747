"""Keys without a ledger: the coordinator lost its log, and peers still have copies of it."""

import hashlib
from typing import Any

import msgspec
import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import (
    GENESIS_HASH,
    Run,
    bodies_of,
    body_of,
    make_record,
    record_from_bytes,
)
from tests.transport.hall import Hall, held, hello_of, join_of, opened
from tests.transport.rig import A, B, C, D, begun_chain, run_body


def lost(**terms: Any) -> Hall:
    """A life that has the run key and nothing else."""
    return Hall(term=1, is_lost=True, **terms)


def newer_hello(hall: Hall) -> dict[str, object]:
    newest = hall.records[-1]
    return {"head_index": newest.index, "head_hash": newest.hash}


def tell(hall: Hall, first: Hall, peer: bytes, join: bytes = b"") -> None:
    """The peer says HELLO and answers TELL with its whole copy."""
    hall.join(peer, **newer_hello(first), joined=join or join_of(first, peer))
    (asked,) = [message for message in hall.sent[peer] if isinstance(message, m.Tell)]
    missing = first.records[asked.first_index :]
    hall.say(peer, m.History(asked.first_index, tuple(r.to_bytes() for r in missing)))


def codes(hall: Hall, peer: bytes) -> list[str]:
    return [message.code for message in hall.sent[peer] if isinstance(message, m.Refused)]


def test_without_its_ledger_a_coordinator_begins_nothing_however_long_it_waits() -> None:
    again = lost()
    assert not again.records
    status = again.machine.status(again.now_s)
    assert status.phase == "ledger missing"
    assert "the ledger is missing" in status.waiting_for
    again.join(D)
    again.tick(1000.0)
    assert not again.records
    assert codes(again, D) == ["SWT-E706"]


def test_the_run_goes_on_from_a_peers_copy() -> None:
    first = opened()
    first.run_op(1, A, B, C)
    again = lost(start_peers=3)
    again.tick(500.0)
    tell(again, first, B)
    assert [record.hash for record in again.records] == [record.hash for record in first.records]
    assert again.machine.writer.term > first.records[-1].term
    again.join(A, C, **held(1), **newer_hello(first))
    again.alive(again.now_s + limits.LEDGER_WAIT_S + 0.1, A, B, C)
    again.run_op(2, A, B, C)
    assert again.machine.view.first.committed == 2
    assert sum(isinstance(body, Run) for body in bodies_of(again.records)) == 1


def test_the_longest_copy_wins_also_where_the_first_one_knows_of_nobody_else() -> None:
    """The first to come back may have left long ago: what it holds is where the run was then."""
    first = opened(A, B)
    first.run_op(1, A, B)
    early = opened(A, B)
    early.records = first.records[:1]
    again = lost()
    tell(again, early, A, join_of(first, A))
    again.alive(again.now_s + limits.LEDGER_WAIT_S - 1.0)
    assert len(again.records) == 1, "something was decided before the others were heard"
    tell(again, first, B)
    assert [record.hash for record in again.records] == [record.hash for record in first.records]


def test_a_ledger_of_another_key_is_not_taken() -> None:
    other = b"k" * 32
    begun = make_record(
        0, GENESIS_HASH, 1, run_body(run_key=other), lambda d: hashlib.sha256(other + d).digest()
    )
    first = opened()
    join = join_of(first, A)
    first.records = [begun]
    again = lost()
    tell(again, first, A, join)
    assert not again.records
    assert codes(again, A) == ["SWT-E562"]


@pytest.mark.parametrize("says", [(), (b"no record",), (begun_chain().records[1].to_bytes(),)])
def test_who_claims_a_copy_and_has_none_changes_nothing(says: tuple[bytes, ...]) -> None:
    again = lost()
    join = join_of(opened(), A)
    for _ in range(5):
        again.join(A, head_index=7, head_hash=b"x" * 32, joined=join)
        again.say(A, m.History(0, says))
        assert codes(again, A) == ["SWT-E562"]
        again.take(again.machine.disconnected(A, again.now_s))
    again.tick(1000.0)
    assert not again.records


def forged(first: Hall, peer: bytes, kind: str) -> bytes:
    """Something in the place of a JOIN that proves nothing."""
    other = record_from_bytes(join_of(first, A))
    if kind == "another's":
        return other.to_bytes()
    if kind == "signed by nobody":
        body = msgspec.structs.replace(body_of(other), peer=peer)
        return make_record(1, other.prev_hash, 1, body, lambda digest: bytes(64)).to_bytes()
    return {"none": b"", "no record": b"\x90", "no JOIN": first.records[0].to_bytes()}[kind]


@pytest.mark.parametrize("kind", ["none", "no record", "no JOIN", "another's", "signed by nobody"])
def test_a_copy_is_taken_from_who_proves_that_it_was_in_and_from_no_stranger(kind: str) -> None:
    first = opened()
    again = lost()
    again.join(D, head_index=10**9, head_hash=b"x" * 32, joined=forged(first, D, kind))
    assert codes(again, D) == ["SWT-E706"]
    assert not any(isinstance(message, m.Tell) for message in again.sent[D])
    assert not again.machine.recovery.proves_membership(D, again_hello(first, D, kind))
    tell(again, first, B)
    assert len(again.records) == len(first.records)
    again.join(D, head_index=10**9, head_hash=b"x" * 32, joined=forged(first, D, kind))
    assert codes(again, D) == ["SWT-E562"], "it claims a longer copy, and is not asked for it"


def again_hello(first: Hall, peer: bytes, kind: str) -> m.Hello:
    return hello_of(peer, joined=forged(first, peer, kind))


def test_who_was_in_proves_it_by_its_join_until_the_ledger_is_back() -> None:
    first = opened()
    again = lost()
    hello = hello_of(A, joined=join_of(first, A), **newer_hello(first))
    assert again.machine.recovery.proves_membership(A, hello)
    assert not Hall().machine.recovery.proves_membership(A, hello), "this one has lost nothing"


def test_with_an_invite_a_stranger_may_bring_the_ledger() -> None:
    first = opened()
    invited = lost()
    invited.sent[D] = []
    hello = hello_of(D, **newer_hello(first))
    invited.take(invited.machine.connected(D, hello, invited.now_s, invite_id="an invite"))
    invited.say(D, m.History(0, tuple(record.to_bytes() for record in first.records)))
    assert not codes(invited, D)


def test_who_left_long_ago_has_no_place_when_the_ledger_that_comes_back_is_full() -> None:
    """It may bring a copy, and waits outside while those of the roster come back."""
    first = opened(A, B, D)
    join = join_of(first, D)
    first.say(D, m.Leave())
    first.join(C)
    again = lost(places=3)
    tell(again, first, D, join)
    assert len(again.records) == len(first.records)
    again.join(A, B, C, **newer_hello(first))
    again.alive(again.now_s + limits.LEDGER_WAIT_S + 1.0, A, B, C)
    assert codes(again, D) == ["SWT-E701"]
    assert set(again.machine.view.roster) == {A, B, C}
