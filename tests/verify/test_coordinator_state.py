"""A coordinator's directory proves its decisions, and says that it proves no more."""

import json
import sqlite3
from pathlib import Path

import pytest

from swarmtrain.cli.main import main
from swarmtrain.coordinator.disk.store import FILE_NAME, Store
from swarmtrain.foundation.errors import UserError
from swarmtrain.verify.coordinator_state import prove_coordinator
from swarmtrain_transport.wire.records import Attest, make_record
from tests.verify.history import RUN, History, usual


@pytest.fixture
def history(tmp_path) -> History:
    made = usual(tmp_path / "ann")
    made.close()
    return made


def kept(history: History, directory: Path) -> Path:
    store = Store.open(directory)
    for record in history.records:
        store.append(record)
    store.close()
    return directory


def altered(directory: Path, statement: str, *values: object) -> Path:
    database = sqlite3.connect(directory / FILE_NAME)
    assert database.execute(statement, values).rowcount == 1
    database.commit()
    database.close()
    return directory


def problem_of(directory: Path) -> str:
    proof = prove_coordinator(directory)
    assert not proof.ok
    return proof.problem


def test_a_whole_log_is_proved_and_the_words_say_what_that_means(history, tmp_path):
    proof = prove_coordinator(kept(history, tmp_path / "up"))
    assert proof.ok and proof.problem == ""
    assert (proof.ops, proof.from_op, proof.to_op) == (6, 0, 6)
    assert proof.state_root == history.roots[5].hex()
    assert proof.run_key == RUN.peer_id.hex()
    assert "no more" in proof.proves and "never saw a weight" in proof.proves


def test_looking_takes_no_term_and_changes_nothing(history, tmp_path):
    directory = kept(history, tmp_path / "up")
    before = (directory / FILE_NAME).read_bytes()
    assert prove_coordinator(directory).ok
    assert (directory / FILE_NAME).read_bytes() == before


def test_an_altered_byte_of_a_record_is_found(history, tmp_path):
    directory = kept(history, tmp_path / "up")
    data = bytearray(history.records[5].to_bytes())
    data[70] ^= 1
    altered(directory, "UPDATE log SET bytes = ? WHERE idx = 5", bytes(data))
    assert "record 5" in problem_of(directory)


@pytest.mark.parametrize(
    ("column", "value"), [("kind", "PLAN"), ("op", 99), ("term", 7), ("prev_hash", b"x" * 32)]
)
def test_a_column_that_is_not_the_records_own_is_found(history, tmp_path, column, value):
    directory = kept(history, tmp_path / "up")
    altered(directory, f"UPDATE log SET {column} = ? WHERE idx = 4", value)
    assert "record 4" in problem_of(directory)


def test_a_record_that_was_taken_out_is_found(history, tmp_path):
    directory = altered(kept(history, tmp_path / "up"), "DELETE FROM log WHERE idx = 3")
    assert "record 3" in problem_of(directory)


def test_a_record_that_the_run_did_not_sign_is_found(history, tmp_path):
    stranger = Attest(6, b"x" * 32)
    record = make_record(
        len(history.records), history.records[-1].hash, 1, stranger, lambda digest: b"s" * 64
    )
    history.records.append(record)
    assert "not signed by the run key" in problem_of(kept(history, tmp_path / "up"))


def test_an_attested_state_of_a_round_that_was_not_decided_is_found(tmp_path):
    made = History(tmp_path / "ann")
    made.close()
    body = Attest(1, b"x" * 32)
    made.records.append(make_record(len(made.records), made.records[-1].hash, 1, body, RUN.sign))
    assert "before its COMMIT" in problem_of(kept(made, tmp_path / "up"))


def test_a_file_that_is_no_database_is_found(history, tmp_path):
    directory = kept(history, tmp_path / "up")
    path = directory / FILE_NAME
    path.write_bytes(b"not a database at all" * 400)
    assert "damaged" in problem_of(directory)


def test_a_running_coordinators_directory_is_not_looked_at(history, tmp_path):
    directory = kept(history, tmp_path / "up")
    store = Store.open(directory)
    with pytest.raises(UserError) as caught:
        prove_coordinator(directory)
    assert caught.value.code == "SWT-E404"
    store.close()


def test_the_command_knows_whose_directory_it_is(history, tmp_path, capsys):
    directory = kept(history, tmp_path / "up")
    assert main(["verify", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "coordinator"
    altered(directory, "DELETE FROM log WHERE idx = 3")
    assert main(["verify", str(directory)]) == 65
    assert "SWT-E807" in capsys.readouterr().err
