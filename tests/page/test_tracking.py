"""Trackers: a file always, others on wish, and none of them stops anything."""

import json
import threading

import pytest

from swarmtrain.config.options import TRACKERS as NAMES
from swarmtrain.foundation.errors import UserError
from swarmtrain.page import tracking
from swarmtrain.page.tracking import FILE_NAME, TRACKERS, Tracking
from tests.page.test_run_view import history_of, seen
from tests.transport.hall import opened
from tests.transport.rig import A, B


def told_of(rounds: int = 1):
    """What trackers hear of the newest round."""
    hall = opened(A, B)
    for op in range(1, rounds + 1):
        hall.run_op(op, A, B)
    return seen(hall), history_of(hall).rounds[-1:], {rounds: 2.5}


def test_each_round_is_a_line_with_its_own_loss(tmp_path):
    told = Tracking(tmp_path, "tests")
    first, second = told_of(1), told_of(2)
    for heard in (first, second):
        told.tell(*heard)
    told.close()
    lines = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert lines[1]["tokens"] == second[0].tokens and lines[1]["val/loss"] == 2.5
    assert "train/loss" not in lines[1], "nobody has said one"


def test_a_large_file_makes_room_for_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "FILE_BYTES_MAX", 10)
    told = Tracking(tmp_path, "tests")
    for rounds in (1, 2):
        told.tell(*told_of(rounds))
    told.close()
    assert json.loads((tmp_path / "metrics.1.jsonl").read_text())["round"] == 1
    assert json.loads((tmp_path / FILE_NAME).read_text())["round"] == 2


def broken(directory, run):
    def log(values, tokens):
        raise SystemExit("of somebody else's")

    def close():
        raise AssertionError("it was left alone")

    return log, close


def test_a_tracker_that_fails_is_told_once_and_the_file_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(tracking.TRACKERS, "wandb", broken)
    monkeypatch.setattr(tracking, "_check_installed", lambda name: None)
    told = Tracking(tmp_path, "tests", ("wandb",))
    for rounds in (1, 2, 3):
        told.tell(*told_of(rounds))
    told.close()
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == 3
    assert sum("wandb has failed" in record.message for record in caplog.records) == 1


def test_a_tracker_that_stands_still_holds_up_nobody(tmp_path, monkeypatch):
    gate, heard = threading.Event(), told_of(1)
    monkeypatch.setitem(
        tracking.TRACKERS, "wandb", lambda *of: (lambda *said: gate.wait(20), lambda: None)
    )
    monkeypatch.setattr(tracking, "_check_installed", lambda name: None)
    told = Tracking(tmp_path, "tests", ("wandb",))
    for _ in range(1000):
        told.tell(*heard)
    gate.set()
    told.close()


def test_the_names_are_known_and_a_package_that_lacks_is_told(tmp_path):
    assert set(NAMES) == set(TRACKERS)
    with pytest.raises(UserError) as caught:
        Tracking(tmp_path, "tests", ("trackio",))
    assert caught.value.code == "SWT-E102"


def test_tensorboard_gets_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboardX")
    told = Tracking(tmp_path, "tests", ("tensorboard",))
    told.tell(*told_of(1))
    told.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    data = file.read_bytes()
    assert all(name.encode() in data for name in ("round", "val/loss", "swarm/peers"))
