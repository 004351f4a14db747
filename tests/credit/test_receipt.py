"""Receipts: made from a ledger, and everything that is none refused with its reason."""

from collections.abc import Callable

import msgspec
import pytest

from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig
from swarmtrain.credit import receipt
from swarmtrain.credit.receipt import (
    BYTES_MAX,
    CANCELLED,
    COUNTS,
    UNKNOWN,
    Proven,
    Receipt,
    checked,
    judged,
)
from swarmtrain.foundation.errors import UserError
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.wire.records import Record, Rewind
from tests.credit.real_ledger import CONFIG, RUN_KEY, bodies, ledger_of, of_op, receipts
from tests.transport.rig import A, C, D


def refused(data: bytes) -> str:
    with pytest.raises(UserError) as caught:
        checked(data)
    assert caught.value.code == "SWT-E813"
    return caught.value.what


def test_a_receipt_says_what_the_ledger_says():
    found = receipts(ledger_of(bodies()))
    assert [*found] == [1, 2, 3]
    proven = checked(found[2])
    assert (proven.run, proven.peer, proven.round, proven.group) == ("run", A.hex(), 2, 0)
    assert proven.run_key == RUN_KEY.peer_id.hex() and proven.contributors == 2
    assert proven.tokens == CONFIG.round_tokens and proven.unit == "tokens"
    assert len(found[2]) < 4096


def test_who_was_left_out_has_no_receipt_of_that_round():
    assert [*receipts(ledger_of(bodies()), C)] == [1, 3]
    assert not receipts(ledger_of(bodies()), D)


def test_a_gap_takes_no_more_than_the_rounds_in_it():
    records = ledger_of(bodies())
    plan = next(r.index for r, b in zip(records, bodies(), strict=True) if b == of_op(2)[0])
    assert [*receipts([*records[:plan], *records[plan + 1 :]])] == [1, 3]


def damages() -> dict[str, tuple[Callable[[Receipt], Receipt], str]]:
    """Forgeries of a right receipt of round 2, and the word by which each is refused."""
    change = msgspec.structs.replace
    records = ledger_of(bodies())
    other = msgspec.msgpack.decode(receipts(records)[3], type=Receipt)
    mallory = Identity.from_secrets(b"mallory.".ljust(32), bytes(32))
    foreign = msgspec.msgpack.decode(receipts(ledger_of(bodies(), mallory))[2], type=Receipt)
    return {
        "another peer": (lambda one: change(one, peer=C), "without the work"),
        "no key": (lambda one: change(one, peer=b""), "without the work"),
        "another plan": (lambda one: change(one, plan=other.plan), "records"),
        "another commit": (lambda one: change(one, commit=other.commit), "records"),
        "commit twice": (lambda one: change(one, plan=one.commit), "place"),
        "no run": (lambda one: change(one, run=one.plan), "place"),
        "foreign run": (lambda one: change(one, run=foreign.run), "not signed"),
        "foreign commit": (lambda one: change(one, commit=foreign.commit), "not signed"),
        "another run file": (lambda one: change(one, run_file=b"\x80"), "run file"),
        "cut record": (lambda one: change(one, commit=one.commit[:-9]), "cut"),
    }


@pytest.mark.parametrize("name", damages())
def test_what_was_changed_proves_nothing(name):
    forge, word = damages()[name]
    right = msgspec.msgpack.decode(receipts(ledger_of(bodies()))[2], type=Receipt)
    assert word in refused(msgspec.msgpack.encode(forge(right)))


def test_what_is_cut_too_long_or_no_receipt_proves_nothing():
    data = receipts(ledger_of(bodies()))[2]
    for cut in (*range(0, len(data), 7), len(data) - 1):
        assert "proves nothing" in refused(data[:cut])
    assert "longer" in refused(bytes(BYTES_MAX + 1))
    for odd in (data + b"\0", b"{}", b"\x91" * 5000, msgspec.msgpack.encode([1, 2, 3])):
        assert "no receipt" in refused(odd)


def test_every_flipped_bit_is_noticed():
    data = receipts(ledger_of(bodies()))[2]
    for place in range(len(data)):
        with pytest.raises(UserError):
            checked(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


def test_one_history_has_one_record_at_an_index():
    mine = checked(receipts(ledger_of(bodies()))[2])
    lie = msgspec.structs.replace(mine, digest="00" * 32)
    with pytest.raises(UserError, match="two histories"):
        judged([mine, lie])
    assert judged([mine, mine]) == [(mine, COUNTS)]


def rewound() -> tuple[list[Record], Proven]:
    """A run that goes back to round 1 and makes rounds 2 and 3 again; the first round 2."""
    first = ledger_of(bodies())
    again = [*bodies(), Rewind(1, "for a test"), *of_op(2), *of_op(3)]
    return ledger_of(again), checked(receipts(first)[2])


def test_a_rewind_takes_a_receipt_back_where_the_ledger_is_known():
    records, old = rewound()
    new = {op: checked(data) for op, data in receipts(records).items()}
    assert [*new] == [1, 2, 3] and new[2].record > old.record
    assert judged([old], records) == [(old, CANCELLED)]
    assert judged(new.values(), records) == [(one, COUNTS) for one in new.values()]
    assert judged([new[3]], records[:-1]) == [(new[3], UNKNOWN)]
    assert judged([old], records[:1]) == [(old, UNKNOWN)] and judged([old]) == [(old, COUNTS)]


def test_of_two_results_of_one_round_the_later_counts():
    records, old = rewound()
    new = checked(receipts(records)[2])
    assert judged([new, old]) == [(old, CANCELLED), (new, COUNTS)]


def test_a_receipt_beside_another_ledger_is_refused():
    mine = checked(receipts(ledger_of(bodies()))[2])
    mallory = Identity.from_secrets(b"mallory.".ljust(32), bytes(32))
    with pytest.raises(UserError, match="another run"):
        judged([mine], ledger_of(bodies(), mallory))
    with pytest.raises(UserError, match="two histories"):
        judged([mine], ledger_of([*bodies()[:4], *bodies()[3:]]))


def test_a_run_file_of_another_version_leaves_the_round_and_hides_the_tokens(monkeypatch):
    data = receipts(ledger_of(bodies()))[2]

    def refuse(raw: bytes) -> RunConfig:
        raise UserError("SWT-E608", "another schema")

    receipt._tokens.cache_clear()
    monkeypatch.setattr(config_file, "from_canonical", refuse)
    assert checked(data).tokens is None
    receipt._tokens.cache_clear()
