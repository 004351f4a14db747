import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from swarmtrain.coordinator.disk.register import InviteRow
from swarmtrain.coordinator.disk.run_directory import set_aside
from swarmtrain.coordinator.disk.store import FILE_NAME, Replay, Store
from swarmtrain.coordinator.disk.store_errors import (
    StoreConflict,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreOfEarlierVersion,
    StoreOfLaterVersion,
)
from swarmtrain_transport.wire.records import Commit, Record, Rewind, Skip
from tests.coordinator.rig import Chain, join_body, run_body

ROOT = Path(__file__).resolve().parents[2]


def filled(directory: Path, count: int) -> tuple[Store, Chain]:
    store = Store.open(directory)
    chain = Chain(store.term)
    store.append(chain.next(run_body()))
    for number in range(count - 1):
        store.append(chain.next(join_body(bytes([number]) * 32)))
    return store, chain


def records_after_reopening(directory: Path) -> tuple[Record, ...]:
    store = Store.open(directory)
    try:
        return store.records()
    finally:
        store.close()


def test_records_come_back_in_order_and_the_term_grows_with_every_life(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, 4)
    kept = store.records()
    assert (store.term, [record.index for record in kept]) == (1, [0, 1, 2, 3])
    store.close()
    again = Store.open(tmp_path)
    assert (again.term, again.records()) == (2, kept)
    again.close()
    again.close()


def test_the_file_is_the_owners_alone(tmp_path: Path) -> None:
    store, _ = filled(tmp_path / "new" / "state", 1)
    modes = {path.name: path.stat().st_mode & 0o777 for path in store._db.path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    store.close()


def test_a_second_coordinator_on_the_same_directory_is_refused_at_once(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, 1)
    with pytest.raises(StoreLocked) as caught:
        Store.open(tmp_path)
    assert caught.value.exit_status == 75 and str(tmp_path) in caught.value.what
    code = (
        "import sys; from pathlib import Path\n"
        "from swarmtrain.coordinator.disk.store import Store\n"
        "from swarmtrain.coordinator.disk.store_errors import StoreLocked\n"
        "try: Store.open(Path(sys.argv[1]))\nexcept StoreLocked: print('locked')"
    )
    assert in_another_process(code, tmp_path).stdout == "locked\n"
    store.close()
    assert len(records_after_reopening(tmp_path)) == 1


def in_another_process(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(directory)], env=environment(), text=True,
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip


def environment() -> dict[str, str]:
    paths = [ROOT, ROOT / "transport", ROOT / "optimizers"]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


def test_only_the_record_that_continues_the_log_in_this_term_is_kept(tmp_path: Path) -> None:
    store, chain = filled(tmp_path, 2)
    before = store.records()
    later = Chain(store.term, before)
    later.length += 1
    forked = Chain(store.term, before)
    forked.head = bytes(32)
    other_term = Chain(store.term + 1, before)
    for wrong in (later, forked, other_term, Chain(store.term)):
        with pytest.raises(StoreConflict):
            store.append(wrong.next(join_body(b"w" * 32)))
    assert store.records() == before
    store.append(chain.next(join_body(b"r" * 32)))
    store.close()


def test_records_that_are_appended_together_are_synced_once_and_kept_all_or_not_at_all(
    tmp_path: Path,
) -> None:
    store, chain = filled(tmp_path, 2)
    said: list[str] = []
    store._db.connection.set_trace_callback(said.append)
    peers = [bytes([number]) * 32 for number in range(100, 150)]
    store.append(*(chain.next(join_body(peer)) for peer in peers))
    assert said.count("COMMIT") == 1 and all(map(store.is_admitted, peers))
    before = store.records()
    assert len(before) == 52
    good = [chain.next(join_body(bytes([number]) * 32)) for number in (200, 201)]
    chain.length += 1
    with pytest.raises(StoreConflict):
        store.append(*good, chain.next(join_body(b"w" * 32)))
    assert store.records() == before and not store.is_admitted(bytes([200]) * 32)
    store.append(*good)
    assert store.records() == (*before, *good)
    store.close()


def test_an_op_has_one_outcome(tmp_path: Path) -> None:
    store, chain = filled(tmp_path, 1)
    store.append(chain.next(Skip(7, "test")))
    for second in (Skip(7, "again"), Commit(7, bytes(32), (), (), bytes(32))):
        with pytest.raises(StoreConflict, match="second outcome of op 7"):
            store.append(Chain(store.term, store.records()).next(second))
    store.append(chain.next(Skip(8, "test")))
    assert len(store.records()) == 3
    store.close()


def test_a_log_that_grows_is_read_on_where_it_was_left(tmp_path: Path) -> None:
    store, chain = filled(tmp_path, 2)
    replay = Replay(store._db)
    assert len(list(replay.more())) == 2 and not list(replay.more())
    for body in (Skip(1, "a"), Skip(2, "a"), Rewind(0, "lost"), Skip(1, "b")):
        store.append(chain.next(body))
        assert [one.hash for one in replay.more()] == [chain.head]
    assert len(list(Replay(store._db).more())) == 6
    store.close()


def test_an_outcome_that_is_cancelled_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, chain = filled(tmp_path, 1)
    store.append(chain.next(Skip(1, "a")))
    replay = Replay(store._db)
    page = replay._page

    def overtaken(first: int) -> list[tuple[object, ...]]:
        rows = page(first)
        if first == 0:
            store.append(chain.next(Rewind(0, "lost")))
        return rows

    monkeypatch.setattr(replay, "_page", overtaken)
    assert [one.index for one in replay.more()] == [0, 1, 2]
    store.close()


def test_a_log_with_a_rewind_is_read_again_and_its_cancelled_rounds_have_new_outcomes(
    tmp_path: Path,
) -> None:
    store, chain = filled(tmp_path, 1)
    bodies = (Skip(1, "a"), Skip(2, "a"), Rewind(1, "lost"), Skip(2, "b"), Skip(3, "b"),
              Rewind(0, "lost"), Skip(1, "c"), Skip(2, "c"))  # fmt: skip
    for body in bodies:
        store.append(chain.next(body))
    kept = store.records()
    store.close()
    assert records_after_reopening(tmp_path) == kept and len(kept) == 9
    rows = sqlite3.connect(tmp_path / FILE_NAME)
    rows.execute("UPDATE log SET op = 9 WHERE idx = 4")
    rows.commit()
    rows.close()
    with pytest.raises(StoreDamaged, match="record 4 is missing or altered"):
        records_after_reopening(tmp_path)


def test_a_use_is_counted_once_per_new_key_and_together_with_its_join(tmp_path: Path) -> None:
    store, chain = filled(tmp_path, 1)
    store.add_invite(InviteRow("i", b"h" * 32, 0, 2, 0.0, 0.0, revoked=False))
    for peer in (b"a" * 32, b"a" * 32, b"b" * 32, b"a" * 32):
        store.append(chain.next(join_body(peer, "i")))
    row = store.invite_of_secret(b"h" * 32)
    assert row is not None and row.uses == 2 and row.is_used_up()
    before = store.records()
    with pytest.raises(StoreConflict, match="no use left"):
        store.append(chain.next(join_body(b"c" * 32, "i")))
    assert store.records() == before and not store.is_admitted(b"c" * 32)
    store.close()
    again = Store.open(tmp_path)
    assert again.is_admitted(b"a" * 32) and again.invites() == (row,)
    assert again.revoke_invite("i") and not again.revoke_invite("unknown")
    again.close()


def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, 2)
    (pages,) = store._db.connection.execute("PRAGMA page_count").fetchone()
    store._db.connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    kept = list(store.records())
    with pytest.raises(StoreFull) as caught:
        for number in range(1000):
            record = Chain(store.term, tuple(kept)).next(Skip(number, "x" * 1000))
            store.append(record)
            kept.append(record)
    assert caught.value.exit_status == 73
    assert list(store.records()) == kept and len(kept) > 2
    with pytest.raises(StoreFull):
        store.append(record)
    store._db.connection.execute("PRAGMA max_page_count = 1000000")
    store.append(record)
    store.close()
    assert list(records_after_reopening(tmp_path)) == [*kept, record]


def test_killed_in_the_middle_of_appends_it_has_everything_that_was_confirmed(
    tmp_path: Path,
) -> None:
    # The child prints an index only after append returned. Whatever was printed must be there.
    code = (
        "import sys; from pathlib import Path; from tests.coordinator.rig import *\n"
        "store = Store.open(Path(sys.argv[1])); chain = Chain(store.term, store.records())\n"
        "if not chain.length: store.append(chain.next(run_body()))\n"
        "while True:\n"
        "    record = chain.next(join_body(chain.length.to_bytes(32, 'big')))\n"
        "    store.append(record); print(record.index, flush=True)\n"
    )
    confirmed = -1
    for life in range(1, 4):
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], env=environment(), text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout is not None
        for _ in range(20 + life):
            confirmed = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        confirmed = int(rest[-1]) if rest else confirmed
        records = records_after_reopening(tmp_path)
        assert len(records) in (confirmed + 1, confirmed + 2)
        assert records[-1].term == 2 * life - 1


def test_a_torn_write_ahead_log_gives_a_whole_prefix(tmp_path: Path) -> None:
    source = tmp_path / "source"
    store, _ = filled(source, 12)
    records = store.records()
    names = sorted(path.name for path in source.iterdir())
    assert names == [FILE_NAME, FILE_NAME + "-wal"]
    wal_bytes = (source / (FILE_NAME + "-wal")).stat().st_size
    seen = set()
    for cut in range(1, wal_bytes, wal_bytes // 23):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(source, copy)
        os.truncate(copy / (FILE_NAME + "-wal"), wal_bytes - cut)
        found = records_after_reopening(copy)
        assert found == records[: len(found)]
        seen.add(len(found))
    store.close()
    assert 11 in seen and len(seen) > 5


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, 5)
    store.close()
    (tmp_path / FILE_NAME).rename(tmp_path / "whole")

    def damaged(change: str) -> StoreError:
        shutil.copy(tmp_path / "whole", tmp_path / FILE_NAME)
        database = sqlite3.connect(tmp_path / FILE_NAME)
        database.execute(change)
        database.commit()
        database.close()
        with pytest.raises(StoreDamaged) as caught:
            records_after_reopening(tmp_path)
        assert caught.value.exit_status == 65
        return caught.value

    assert "record 2 is missing" in damaged("DELETE FROM log WHERE idx = 2").what
    assert (
        "record 3 is missing or altered"
        in damaged(
            "UPDATE log SET bytes = (SELECT bytes FROM log WHERE idx = 2) WHERE idx = 3"
        ).what
    )
    assert "record 1 does not decode" in damaged("UPDATE log SET bytes = x'c1' WHERE idx = 1").what
    assert "format -1" in damaged("UPDATE meta SET value = -1 WHERE key = 'schema'").what


def test_a_foreign_file_in_its_place_is_refused_and_left_alone(tmp_path: Path) -> None:
    foreign = b"this is not a database " * 100
    (tmp_path / FILE_NAME).write_bytes(foreign)
    with pytest.raises(StoreDamaged):
        Store.open(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == foreign


def test_every_commit_waits_for_the_disk(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, 1)
    settings = {
        name: store._db.connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "locking_mode")
    }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "locking_mode": "exclusive"}
    store.close()


def test_a_log_of_a_later_version_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    filled(tmp_path, 3)[0].close()
    with sqlite3.connect(tmp_path / FILE_NAME) as raw:
        raw.execute("UPDATE meta SET value = 9 WHERE key = 'schema'")
    raw.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    for look in (Store.open, Store.open_to_read):
        with pytest.raises(StoreOfLaterVersion, match=r"form 9.*up to 4") as caught:
            look(tmp_path)
        assert caught.value.code == "SWT-E703"
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_tables_of_the_form_before_are_brought_to_this_one(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, 3)
    records = store.records()
    store.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as raw:
        raw.execute("DROP TABLE sealed_keys")
        raw.execute("DROP TABLE coordinators")
        raw.execute("UPDATE meta SET value = 3 WHERE key = 'schema'")
    raw.close()
    read = Store.open_to_read(tmp_path)
    assert read.records() == records
    read.close()
    again = Store.open(tmp_path)
    again.note_coordinator("one.example", 8400, 5.0)
    assert again.coordinators(6.0) == [("one.example", 8400)] and again.records() == records
    again.close()


def test_a_log_of_an_earlier_version_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    filled(tmp_path, 3)[0].close()
    with sqlite3.connect(tmp_path / FILE_NAME) as raw:
        raw.execute("UPDATE meta SET value = 2 WHERE key = 'schema'")
        before = raw.execute("SELECT * FROM meta").fetchall()
    raw.close()
    for look in (Store.open, Store.open_to_read):
        with pytest.raises(StoreOfEarlierVersion) as caught:
            look(tmp_path)
        assert caught.value.code == "SWT-E810"
    raw = sqlite3.connect(tmp_path / FILE_NAME)
    assert raw.execute("SELECT * FROM meta").fetchall() == before
    raw.close()
    set_aside(tmp_path, lambda text: None)
    assert not (tmp_path / FILE_NAME).exists(), "another run may begin there"
