"""Keys without a ledger: the coordinator lost its log, and peers still have copies of it."""

import hashlib

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import GENESIS_HASH, Run, bodies_of, make_record
from tests.transport.hall import Hall, held, hello_of, opened
from tests.transport.rig import A, B, C, D, begun_chain, run_body


def lost(**terms: int) -> Hall:
    """A life that has the run key and nothing else."""
    return Hall(term=1, is_lost=True, **terms)


def newer_hello(hall: Hall) -> dict[str, object]:
    newest = hall.records[-1]
    return {"head_index": newest.index, "head_hash": newest.hash}


def tell(hall: Hall, first: Hall, peer: bytes) -> None:
    """The peer says HELLO and answers TELL with its whole copy."""
    hall.join(peer, **newer_hello(first))
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
    tell(again, early, A)
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
    first.records = [begun]
    again = lost()
    tell(again, first, A)
    assert not again.records
    assert codes(again, A) == ["SWT-E562"]


@pytest.mark.parametrize("says", [(), (b"no record",), (begun_chain().records[1].to_bytes(),)])
def test_who_claims_a_copy_and_has_none_changes_nothing(says: tuple[bytes, ...]) -> None:
    again = lost()
    for _ in range(5):
        again.join(A, head_index=7, head_hash=b"x" * 32)
        again.say(A, m.History(0, says))
        assert codes(again, A) == ["SWT-E562"]
        again.take(again.machine.disconnected(A, again.now_s))
    again.tick(1000.0)
    assert not again.records


def test_who_brought_the_ledger_needs_to_be_in_it_or_an_invite() -> None:
    """The door lets in whoever claims a copy, since it has forgotten whom it let in."""
    first = opened()
    again = lost()
    tell(again, first, D)
    assert len(again.records) == len(first.records)
    assert codes(again, D) == ["SWT-E313"]
    invited = lost()
    invited.sent[D] = []
    hello = hello_of(D, **newer_hello(first))
    invited.take(invited.machine.connected(D, hello, invited.now_s, invite_id="an invite"))
    invited.say(D, m.History(0, tuple(record.to_bytes() for record in first.records)))
    assert not codes(invited, D)
