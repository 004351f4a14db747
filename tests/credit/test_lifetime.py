"""Totals for life: each round once, whatever is read again, and nothing that stops a run."""

import os
from pathlib import Path

import msgspec
import pytest

from swarmtrain.credit import lifetime
from swarmtrain.credit.lifetime import (
    KEEP_S,
    Keeper,
    Lifetime,
    file_name,
    kept_in,
    loaded,
    total_words,
)
from swarmtrain_transport.wire.records import Record, Rewind
from tests.credit.real_ledger import CONFIG, RUN_FILE, bodies, ledger_of, of_op
from tests.transport.rig import A, C


def lived(
    folder: Path, records: list[Record], moved: tuple[int, int] = (0, 0), peer: bytes = A
) -> Lifetime:
    """One life of a peer, which ends as it should."""
    keeper = Keeper(folder, peer, "otter")
    for record in records:
        keeper.take(record)
    keeper.knows(RUN_FILE)
    keeper.look(0.0, works=True)
    keeper.look(10.0, works=True)
    keeper.look(500.0, works=False)
    keeper.write(keeper.file(moved, 1_800_000_000.0))
    (found,), damaged = kept_in(folder)
    assert not damaged
    return found


def test_rounds_come_from_the_ledger_and_count_once_in_each_life(tmp_path):
    records = ledger_of(bodies())
    for life in (1, 2, 3):
        found = lived(tmp_path, records, (100, 10))
        assert (found.rounds, found.tokens) == (3, 3 * (CONFIG.round_tokens or 0))
        assert (found.bytes_up, found.bytes_down) == (100 * life, 10 * life)
        assert found.seconds == 10.0 * life, "a pause is no work"
    assert (found.run, found.name, found.peer) == ("run", "otter", A.hex())


def test_rounds_without_its_work_do_not_count(tmp_path):
    assert lived(tmp_path, ledger_of(bodies()), peer=C).rounds == 2


def test_a_rewind_takes_its_rounds_back_also_after_a_restart(tmp_path):
    again = [*bodies(), Rewind(1, "for a test")]
    assert lived(tmp_path, ledger_of(bodies())).rounds == 3
    assert lived(tmp_path, ledger_of(again)).rounds == 1
    assert lived(tmp_path, ledger_of([*again, *of_op(2)])).rounds == 2
    assert lived(tmp_path, ledger_of([*again, *of_op(2)])).merged == {0: {1, 2}}


def test_what_the_state_directory_has_lost_is_kept(tmp_path):
    records = ledger_of(bodies())
    assert lived(tmp_path, records).rounds == 3
    assert lived(tmp_path, records[:1]).rounds == 3
    assert lived(tmp_path, [records[0], *records[-4:]]).rounds == 3, "a copy with a gap"


def test_records_that_fill_a_gap_late_change_nothing(tmp_path):
    records = ledger_of([*bodies(), Rewind(1, "for a test"), *of_op(2), *of_op(3)])
    rewind = next(one.index for one in records if b"REWIND" in one.body)
    late = [*records[: rewind - 1], *records[rewind + 1 :], records[rewind]]
    assert lived(tmp_path, late).rounds == 3


def test_it_is_written_once_a_minute_when_there_is_news(tmp_path):
    keeper, records = Keeper(tmp_path, A, "otter"), ledger_of(bodies())
    assert not keeper.look(KEEP_S, works=True) and keeper.file((1, 1), 0.0) == b""
    for record in records:
        keeper.take(record)
    assert not keeper.look(KEEP_S, works=True), "nobody has let it in yet"
    keeper.knows(RUN_FILE)
    assert keeper.look(KEEP_S, works=True) and not keeper.look(9 * KEEP_S, works=True)


def test_a_damaged_file_is_set_aside_and_rounds_are_read_again(tmp_path):
    records = ledger_of(bodies())
    path = tmp_path / file_name(lived(tmp_path, records, (7, 7)))
    whole = path.read_bytes()
    for damage in (
        b"",
        b"\xc4",
        whole[:-9],
        b"[" * 9999,
        whole.replace(b"[1,2,3]", b"[1,2,{}]"),
        whole.replace(b'"seen_s":1', b'"seen_s":1e300'),
        whole.replace(b":7,", b":-7,"),
    ):
        path.write_bytes(damage)
        keeper = Keeper(tmp_path, A, "otter")
        for record in records:
            keeper.take(record)
        keeper.knows(RUN_FILE)
        keeper.write(keeper.file((5, 5), 0.0))
        found, damaged = kept_in(tmp_path)
        assert [one.rounds for one in found] == [3] and found[0].bytes_up == 5
        assert [one.read_bytes() for one in damaged] == [damage]


def test_a_file_of_another_key_under_this_name_is_not_believed(tmp_path):
    records = ledger_of(bodies())
    path = tmp_path / file_name(lived(tmp_path, records))
    other = msgspec.json.encode(Lifetime("run", "aa", "bb", merged={0: {1, 99}}))
    path.write_bytes(other)
    assert lived(tmp_path, records).rounds == 3


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc").is_dir(), reason="needs /proc")
def test_a_folder_that_cannot_be_made_stops_nothing():
    keeper = Keeper(Path("/proc/nowhere/at/all"), A, "otter")
    for record in ledger_of(bodies()):
        keeper.take(record)
    keeper.knows(RUN_FILE)
    keeper.write(keeper.file((1, 1), 0.0))
    assert loaded(Path("/proc/nowhere/at/all/x.json")) is None


def test_rounds_of_long_ago_become_a_number_and_count_no_second_time(monkeypatch):
    monkeypatch.setattr(lifetime, "ROUNDS_MAX", 4)
    one = Lifetime("run", "aa", "bb")
    for _ in range(2):
        for op in range(1, 40, 2):
            one.add(0, op)
    assert one.rounds == 20 and len(one.merged[0]) <= 4
    one.take_back(0, 36)
    assert one.rounds == 18
    for op in range(1, 10):
        one.add(1, op)
    assert one.rounds == 27 and sum(map(len, one.merged.values())) <= 4


def test_totals_add_what_is_of_one_unit():
    spans = {0: {*range(5)}}
    kept = [
        Lifetime("a", "aa", "bb", round_tokens=100, merged=spans),
        Lifetime("b", "cc", "dd", round_tokens=8, unit="samples", merged=spans),
        Lifetime("in stages", "ee", "ff", merged=spans),
    ]
    assert total_words(kept) == "15 rounds, 40 samples, 500 tokens"
    assert total_words([]) == "0 rounds"
