"""The store on PostgreSQL: what it keeps, who leads, and what becomes of one that does not."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from swarmtrain.coordinator.disk.certificate import load_or_create, note_begun
from swarmtrain.coordinator.disk.postgres import PostgresDatabase
from swarmtrain.coordinator.disk.register import InviteRow
from swarmtrain.coordinator.disk.sealed_keys import SealedKeys
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.disk.store_errors import (
    StoreConflict,
    StoreFailed,
    StoreLost,
    StoreOfLaterVersion,
)
from swarmtrain.foundation.errors import UserError
from swarmtrain_transport.wire.records import Skip
from tests.coordinator.postgres_rig import Server, server
from tests.coordinator.rig import WALL_S, Chain, join_body, run_body

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as one:
        yield one


def leader(postgres: Server, run: str) -> PostgresDatabase:
    database = PostgresDatabase(postgres.url(), run)
    while not database.leads():  # the server hears of the end of a session a moment later
        pass
    return database


def opened(postgres: Server, run: str) -> Store:
    return Store.begin(leader(postgres, run))


def test_records_invites_and_text_are_there_again_in_the_next_life(postgres: Server) -> None:
    store = opened(postgres, "again")
    chain = Chain(store.term)
    row = InviteRow("i", b"h" * 32, 0, 2, 1.0, 0.0, False, "for Ana", "observer")
    store.add_invite(row)
    with pytest.raises(StoreConflict, match="exists already"):
        store.add_invite(row)
    for body in (run_body(), join_body(b"a" * 32, "i"), Skip(1, "late")):
        store.append(chain.next(body))
    store.note_ban(b"b" * 32, "spam")
    store.note_ban(b"b" * 32, "more spam")
    store.close_door(closed=True)
    store.begin_text(b"m" * 32)
    store.keep_uses({b"p" * 32: 1})
    store.keep_uses({b"p" * 32: 2})
    store.keep_losses({1: 2.5})
    records = store.records()
    store.close()
    again = opened(postgres, "again")
    assert again.term == store.term + 1 and again.records() == records and len(records) == 3
    assert again.invites() == (dataclasses.replace(row, uses=1),)
    assert again.is_admitted(b"a" * 32) and again.admitted_by("i") == (b"a" * 32,)
    assert again.ban_reason(b"b" * 32) == "more spam" and again.is_closed
    assert again.text_manifest() == b"m" * 32 and again.text_uses() == {b"p" * 32: 2}
    assert again.losses() == {1: 2.5} and again.read(1, 3) == list(records[1:])
    again.close()
    again.close()


def test_an_op_has_one_outcome_and_a_record_continues_the_newest(postgres: Server) -> None:
    store = opened(postgres, "one")
    chain = Chain(store.term)
    store.append(chain.next(run_body()))
    before = chain.next(Skip(7, "late"))
    store.append(before)
    with pytest.raises(StoreConflict, match="does not continue"):
        store.append(before)
    with pytest.raises(StoreConflict, match="second outcome of op 7"):
        store.append(chain.next(Skip(7, "again")))
    assert len(store.records()) == 2
    store.close()


def test_one_leads_and_the_next_does_when_it_is_gone(postgres: Server) -> None:
    first, second = leader(postgres, "two"), PostgresDatabase(postgres.url(), "two")
    other_run = leader(postgres, "another")  # by name, in the same database
    assert not second.leads()
    first.close()
    while not second.leads():
        pass
    second.close()
    other_run.close()


def test_who_was_taken_for_gone_writes_nothing_any_more(postgres: Server) -> None:
    """Its lock was taken back while it slept; even with a session that lives it is fenced off."""
    asleep = opened(postgres, "asleep")
    chain = Chain(asleep.term)
    asleep.append(chain.next(run_body()))
    asleep._db.read("SELECT pg_advisory_unlock_all()::text")
    next_one = opened(postgres, "asleep")
    writes = (
        lambda: asleep.append(chain.next(Skip(1, "late"))),
        lambda: asleep.close_door(closed=True),
        lambda: asleep.keep_uses({b"p" * 32: 1}),
        lambda: asleep.adopt((), asleep.term),
        lambda: asleep.keep_losses({1: 1.0}),
    )
    for write in writes:
        with pytest.raises(StoreLost, match="Another coordinator leads") as caught:
            write()
        assert caught.value.code == "SWT-E412"
    assert len(next_one.records()) == 1 and not next_one.is_closed
    assert not next_one.text_uses() and not next_one.losses()
    for store in (asleep, next_one):
        store.close()


def test_the_server_ends_a_session_that_says_nothing(postgres: Server) -> None:
    database = leader(postgres, "silent")
    with psycopg.connect(postgres.url(), autocommit=True) as other:
        query = "SELECT setting FROM pg_settings WHERE name = 'idle_session_timeout'"
        assert database.read(query) == [("6000",)] and other.execute(query).fetchall() == [("0",)]
        # As the server does when the time is over.
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'swarmtrain silent'"
        )
    with pytest.raises(StoreLost, match="was lost") as caught:
        database.hold()
    assert caught.value.code == "SWT-E413"
    database.close()


def test_a_server_that_answers_nothing_is_given_up(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmtrain.coordinator.disk.postgres.ANSWER_S", 0.2)
    store = opened(postgres, "frozen")
    postgres.freeze()
    try:
        with pytest.raises(StoreLost):
            store.append(Chain(store.term).next(run_body()))
        with pytest.raises(StoreLost):
            store.losses()
        store.close()
    finally:
        postgres.thaw()
    again = opened(postgres, "frozen")
    assert len(again.records()) <= 1
    again.close()


def test_a_crash_of_the_server_loses_nothing(postgres: Server) -> None:
    store = opened(postgres, "crash")
    chain = Chain(store.term)
    store.append(chain.next(run_body()))
    kept = store.records()
    postgres.stop()
    with pytest.raises(StoreLost):
        store.append(chain.next(Skip(1, "late")))
    store.close()
    with pytest.raises(StoreLost, match="cannot be used") as caught:
        PostgresDatabase(postgres.url(), "crash")
    assert "pgpass" in caught.value.remedy
    postgres.start()
    again = opened(postgres, "crash")
    assert again.records() == kept
    again.close()


def test_a_later_version_s_tables_are_left_alone(postgres: Server) -> None:
    opened(postgres, "later").close()
    database = leader(postgres, "later")
    database.change("UPDATE meta SET value = 9 WHERE key = 'schema'")
    with pytest.raises(StoreOfLaterVersion):
        Store.begin(database)
    again = leader(postgres, "later")
    assert again.schema() == 9
    again.close()


def test_a_user_without_rights_is_told_so_and_no_password_is_shown(postgres: Server) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as other:
        other.execute("CREATE ROLE guest LOGIN PASSWORD 'hidden-word'")
    url = postgres.url().replace("postgres@", "guest:hidden-word@")
    database = PostgresDatabase(url, "guest")
    with pytest.raises(StoreFailed, match="permission denied") as caught:
        database.leads()
    assert caught.value.code == "SWT-E414"
    database.close()
    with pytest.raises(StoreLost) as unknown:
        PostgresDatabase(url.replace("/postgres", "/nothing"), "guest")
    for error in (caught.value, unknown.value):
        assert "hidden" not in str(error) + repr(error.__cause__) + repr(error.__context__)


@pytest.mark.parametrize("written", ["p%zzw", "sec ret", "se@cret"])
def test_an_address_that_cannot_be_read_shows_nothing_of_its_password(written: str) -> None:
    with pytest.raises(StoreLost, match="written as %XX") as caught:
        PostgresDatabase(f"postgresql://ann:{written}@db.example/runs", "any")
    assert caught.value.code == "SWT-E413"
    for part in ("zz", "sec", "ret"):
        assert part not in str(caught.value)


def test_a_run_s_tables_can_be_set_aside(postgres: Server) -> None:
    for number in (1, 2):
        store = opened(postgres, "aside")
        assert not store.records()
        store.append(Chain(store.term).next(run_body()))
        store.close()
        database = leader(postgres, "aside")
        assert database.set_aside() == f"swarmtrain aside before {number}"
        database.close()


def test_texts_are_texts_in_a_database_without_an_encoding(postgres: Server) -> None:
    """As initdb makes it where no locale is set."""
    with psycopg.connect(postgres.url(), autocommit=True) as other:
        other.execute("CREATE DATABASE bare ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    for _ in range(2):
        database = PostgresDatabase(postgres.url("bare"), "bare")
        while not database.leads():
            pass
        store = Store.begin(database)
        if not store.records():
            store.append(Chain(store.term).next(run_body()))
            store.note_ban(b"b" * 32, "schön böse")
        assert store.ban_reason(b"b" * 32) == "schön böse" and len(store.records()) == 1
        store.close()


def test_names_of_any_length_have_tables_of_their_own(postgres: Server) -> None:
    stores = [opened(postgres, "n" * 60 + end) for end in ("aaaa", "bbbb")]
    stores[0].append(Chain(stores[0].term).next(run_body()))
    assert [len(store.records()) for store in stores] == [1, 0]
    for store in stores:
        store.close()


def test_keys_in_the_database_open_with_their_passphrase_alone(postgres: Server) -> None:
    store = opened(postgres, "keys")
    secret = b"a passphrase that is long"
    keys = load_or_create(SealedKeys(store, secret), may_create=True, wall_s=WALL_S)
    assert not keys.have_begun
    note_begun(keys)
    again = load_or_create(SealedKeys(store, secret), may_create=False, wall_s=WALL_S)
    assert again.have_begun and again.run_key_public == keys.run_key_public
    assert again.cert_sha256 == keys.cert_sha256 and again.server_context() is not None
    with pytest.raises(UserError) as caught:
        load_or_create(SealedKeys(store, b"another passphrase"), may_create=True, wall_s=WALL_S)
    assert caught.value.code == "SWT-E415"
    sealed = b"".join(data for (data,) in store._db.read("SELECT sealed FROM sealed_keys"))
    assert b"PRIVATE" not in sealed and keys.run_key.private_bytes_raw() not in sealed
    store.close()


def test_sqlite_keeps_sealed_keys_as_well(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    place = SealedKeys(store, b"a passphrase that is long")
    place.write("one", b"pem")
    place.write("one", b"never replaced")
    assert place.read("one") == b"pem" and place.read("two") is None
    store.close()
