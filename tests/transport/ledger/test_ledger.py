"""The chain: what may follow what, and whose signature counts."""

import hashlib

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport.coordinator.ops.planning import pace_of
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.peer.ledger_copy import LedgerCopy
from swarmtrain_transport.wire.records import (
    GENESIS_HASH,
    Record,
    Skip,
    body_of,
    make_record,
    pack_struct,
    record_from_bytes,
)
from tests.transport.rig import (
    A,
    B,
    Chain,
    begun_chain,
    join_body,
    plan_body,
    run_body,
    sign,
    verify,
)


def refused(ledger: Ledger, record: Record, reason: str) -> None:
    before = (len(ledger), ledger.head_hash, ledger.term)
    with pytest.raises(RemoteFault) as caught:
        ledger.append(record)
    assert caught.value.reason == reason
    assert (len(ledger), ledger.head_hash, ledger.term) == before


def test_a_chain_of_records_is_taken_and_read_back() -> None:
    chain = Chain(run_body(), join_body(A), join_body(B))
    assert chain.ledger.head_index == 2
    assert [body_of(record) for record in chain.ledger.since(1)] == [join_body(A), join_body(B)]
    assert chain.ledger.hash_at(1) == chain.records[2].prev_hash
    assert chain.ledger.hash_at(3) is None
    assert chain.ledger.hash_at(-1) is None


def test_an_empty_ledger_has_no_run_and_the_genesis_hash() -> None:
    ledger = Ledger(verify)
    assert (ledger.head_index, ledger.head_hash, ledger.term) == (-1, GENESIS_HASH, 0)
    with pytest.raises(LocalFault):
        ledger.run  # noqa: B018


@pytest.mark.parametrize("index", [-1, 0, 1, 3, 1 << 62])
def test_a_wrong_index_is_refused(index: int) -> None:
    chain = Chain(run_body(), join_body(A))
    record = make_record(index, chain.ledger.head_hash, 1, join_body(B), sign)
    refused(chain.ledger, record, "chain")


def test_a_wrong_previous_hash_is_refused() -> None:
    chain = Chain(run_body(), join_body(A))
    for other in (GENESIS_HASH, chain.records[0].hash, b"", b"x" * 32):
        refused(chain.ledger, make_record(2, other, 1, join_body(B), sign), "chain")


def test_an_older_term_is_refused_and_a_newer_one_taken() -> None:
    chain = Chain(run_body())
    chain.add(join_body(A), term=4)
    refused(chain.ledger, chain.next_record(join_body(B), term=3), "chain")
    chain.add(join_body(B), term=4)
    chain.add(join_body(B), term=9)
    assert chain.ledger.term == 9


def test_a_signature_by_another_key_or_over_other_bytes_is_refused() -> None:
    chain = Chain(run_body(), join_body(A))
    good = chain.next_record(join_body(B))
    stolen = chain.records[1].signature
    stranger = hashlib.sha256(b"another key" + good.hash).digest()
    for signature in (b"", stolen, stranger, good.signature[:-1]):
        refused(chain.ledger, msgspec.structs.replace(good, signature=signature), "signature")
    body = pack_struct(join_body(A, b"other boot"))
    refused(chain.ledger, msgspec.structs.replace(good, body=body), "signature")
    refused(chain.ledger, msgspec.structs.replace(good, term=2), "signature")


def test_run_is_record_zero_and_nothing_else_is() -> None:
    chain = Chain(run_body(), join_body(A))
    refused(chain.ledger, chain.next_record(run_body()), "chain")
    other = run_body(run_key=b"an attacker's key".ljust(32))
    refused(chain.ledger, chain.next_record(other), "chain")
    refused(Ledger(verify), make_record(0, GENESIS_HASH, 1, join_body(A), sign), "chain")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgpack.packb({"k": "NOSUCH"}),
        msgpack.packb({"k": "SKIP", "op": "1", "reason": "x"}),
        msgpack.packb({"k": "SKIP", "op": 1, "reason": "x", "more": 1}),
        msgpack.packb({"k": "SKIP", "op": 1}),
        msgpack.packb([1, 2, 3]),
        msgpack.packb({"k": "SKIP", "op": 1 << 63, "reason": b"\xff"}),
        msgpack.packb({(1, 2): 3}),
    ],
)
def test_a_body_that_is_no_decision_is_refused(body: bytes) -> None:
    chain = Chain(run_body())
    unsigned = Record(1, chain.ledger.head_hash, 1, body, b"")
    record = msgspec.structs.replace(unsigned, signature=sign(unsigned.hash))
    with pytest.raises(RemoteFault):
        chain.ledger.append(record)
    assert len(chain.ledger) == 1


def test_the_signature_is_not_part_of_the_hash_and_everything_else_is() -> None:
    record = Chain(run_body()).next_record(join_body(A))
    assert msgspec.structs.replace(record, signature=b"other").hash == record.hash
    for change in ({"index": 2}, {"term": 2}, {"prev_hash": bytes(32)}, {"body": b"x"}):
        assert msgspec.structs.replace(record, **change).hash != record.hash


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_a_remote_fault(data: bytes) -> None:
    try:
        record = record_from_bytes(data)
    except RemoteFault:
        return
    assert record_from_bytes(record.to_bytes()) == record


def test_every_record_survives_its_canonical_bytes() -> None:
    chain = begun_chain()
    chain.add(chain.plan())
    chain.add(Skip(1, "deadline"))
    assert [record_from_bytes(record.to_bytes()) for record in chain.records] == chain.records


def test_a_copy_takes_each_record_once_and_in_order() -> None:
    chain = begun_chain()
    copy = LedgerCopy(verify, ())
    for record in chain.records:
        taken = copy.take(record.to_bytes())
        assert taken is not None and taken[0] == record
        assert copy.take(record.to_bytes()) is None
    assert copy.view.roster == chain.view.roster
    later = [chain.add(chain.plan()), chain.add(Skip(1, "deadline"))]
    with pytest.raises(RemoteFault):
        copy.take(later[1].to_bytes())
    assert copy.take(later[0].to_bytes()) is not None


def test_a_copy_refuses_an_illegal_plan_each_time_that_it_comes() -> None:
    """A refusal must not leave half of a record behind."""
    chain = begun_chain()
    copy = LedgerCopy(verify, chain.records)
    illegal = chain.next_record(chain.plan(deadline_s=-1.0)).to_bytes()
    head = copy.ledger.head_index
    for _ in range(2):
        with pytest.raises(RemoteFault) as caught:
            copy.take(illegal)
        assert caught.value.reason == "plan"
        assert copy.ledger.head_index == head
    assert copy.take(chain.next_record(chain.plan()).to_bytes()) is not None


def test_a_copy_refuses_a_contradiction_each_time_that_it_comes() -> None:
    chain = begun_chain()
    copy = LedgerCopy(verify, chain.records)
    contradiction = chain.next_record(plan_body(op=7)).to_bytes()
    for _ in range(2):
        with pytest.raises(RemoteFault) as caught:
            copy.take(contradiction)
        assert caught.value.reason == "order"
    assert copy.ledger.head_index == chain.ledger.head_index


def test_what_came_later_to_a_plan_is_written_only_where_it_says_something() -> None:
    # The bytes of plans that say nothing new are those of old ledgers.
    old = plan_body(op=1, previous_outcome=bytes(32))
    terms = {"result_codec": "int8", "rule": "median", "fastest_steps_per_s": 2.5}
    for plan, is_there in ((old, False), (msgspec.structs.replace(old, **terms), True)):
        record = make_record(0, bytes(32), 1, plan, sign)
        assert body_of(record) == plan
        assert all((name.encode() in record.body) is is_there for name in terms)
    unknown = msgspec.structs.replace(old, fastest_steps_per_s=pace_of([None], hurries=False))
    records = [make_record(0, bytes(32), 1, plan, sign) for plan in (unknown, old)]
    assert records[0].body == records[1].body
