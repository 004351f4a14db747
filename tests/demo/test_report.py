"""Numbers and words at the end of a demo, from facts alone."""

import math
from pathlib import Path

import msgspec
import pytest

from swarmtrain.demo.report import (
    Report,
    data_parallel_bytes,
    disagreement,
    in_words,
    make_report,
    mean_bytes_up,
    order0_loss_of,
)
from swarmtrain.demo.setting import Cast
from swarmtrain.demo.story import Facts, Killed
from swarmtrain.foundation.events import Left
from swarmtrain_transport.coordinator.status import CoordinatorStatus, PeerStatus, RoundEvent

CAST = Cast(("badger", "crane", "otter"), "otter", "newt")


def peer(name: str, bytes_up: int) -> PeerStatus:
    return PeerStatus(
        peer="00", name=name, state="training", round=2, step=3, loss=3.0, tokens_per_s=100.0,
        tokens=5, bytes_up=bytes_up, bytes_down=7, replayed_ops=0, state_root="", silent_s=0.0,
    )  # fmt: skip


def facts(*, newts_root: str = "aa") -> Facts:
    return Facts(
        names={"00": "badger", "01": "crane", "02": "otter", "03": "newt"},
        losses={0: 5.5, 4: 2.5, 5: 2.25},
        committed=dict.fromkeys(range(1, 6), 3),
        left={
            "badger": Left(5, "aa", 1_000, 10),
            "crane": Left(5, "aa", 3_000, 10),
            "newt": Left(5, newts_root, 9_000, 10),
        },
        replayed=[3],
        killed=Killed("otter", 3, "scatter", 4, 9),
        status=CoordinatorStatus(
            run="demo", term=1, round=5, committed=5, rounds=5, phase="finished", wanted_root="",
            num_values=300, peers=(peer("badger", 1), peer("otter", 9)), losses={}, exclusions=(),
            events=(RoundEvent(4, "03", "joined"),), checkpoint_op=5,
        ),
    )  # fmt: skip


def report(found: Facts | None = None) -> Report:
    return make_report(
        found or facts(), CAST, inner_steps=20, order0_loss=3.25, seconds=61.04,
        model_path=Path("/d/model.safetensors"), state_dir=Path("/d"),
    )  # fmt: skip


def test_the_object_has_the_keys_that_were_promised():
    assert msgspec.json.decode(msgspec.json.encode(report())) == {
        "peers": 3,
        "rounds": 5,
        "val_loss_first": 5.5,
        "val_loss_last": 2.25,
        "val_loss_order0": 3.25,
        "state_roots": [
            {"peer": "badger", "root": "aa"},
            {"peer": "crane", "root": "aa"},
            {"peer": "newt", "root": "aa"},
        ],
        "lost": [{"peer": "otter", "round": 3}],
        "joined": [{"peer": "newt", "round": 4}],
        "killed": {
            "peer": "otter", "round": 3, "phase": "scatter", "chunks_sent": 4, "chunks_total": 9,
        },
        "replayed_ops": 1,
        "bytes_up_per_peer": 2_000,
        "bytes_up_data_parallel": 2 * 2 * 4 * 300 * 100 // 3,
        "seconds": 61.0,
        "model_path": "/d/model.safetensors",
        "state_dir": "/d",
    }  # fmt: skip


@pytest.mark.parametrize(("peers", "expected"), [(1, 0), (2, 4_000), (4, 6_000)])
def test_data_parallel_bytes_are_those_of_a_ring(peers, expected):
    assert data_parallel_bytes(peers, num_values=100, inner_steps=10) == expected


def test_while_nobody_has_left_the_mean_is_what_the_coordinator_last_heard():
    running = facts()
    running.left.clear()
    assert mean_bytes_up(running, CAST) == 1
    assert mean_bytes_up(Facts(), CAST) == 0


def test_equal_roots_are_fine_and_different_or_no_roots_are_not():
    assert disagreement(report()) == ""
    assert "NOT hold the same weights" in disagreement(report(facts(newts_root="bb")))
    nobody = facts()
    nobody.left.clear()
    assert disagreement(report(nobody)) != ""


def test_the_words_say_everything_that_a_stranger_asks():
    text = "\n".join(in_words(report(), "def x\n    pass"))
    for part in (
        "5.500 at the start, 2.250 at the end",
        "byte frequencies alone: 3.250",
        "otter was killed in round 3",
        "newt joined in round 4 and replayed 1 result",
        "all 3 peers hold the same bits",
        "  | def x",
        "/d/model.safetensors",
        "80 times as much",
    ):
        assert part in text


def test_different_roots_are_called_different():
    assert "DIFFERENT" in "\n".join(in_words(report(facts(newts_root="bb")), ""))


def test_a_run_that_nobody_measured_has_no_losses():
    silent = facts()
    silent.losses.clear()
    found = report(silent)
    assert found.val_loss_first is None and found.val_loss_last is None
    assert "nobody measured it" in "\n".join(in_words(found, ""))


def paired(told: dict[int, dict[str, tuple[str, str]]], **changes: object) -> Report:
    found = facts(newts_root="bb")
    found.told, found.alone = told, 2
    made = make_report(
        found, CAST, inner_steps=20, order0_loss=3.25, seconds=61.04,
        model_path=Path("/d/model.safetensors"), state_dir=Path("/d"), is_paired=True,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


TOLD = {
    1: {"badger": ("crane", "a1"), "crane": ("badger", "a1")},
    2: {"badger": ("otter", "b2"), "otter": ("badger", "b2")},
    4: {"crane": ("newt", "c4"), "newt": ("crane", "c4"), "badger": ("otter", "d4")},
}


def test_partners_that_tell_the_same_chain_are_what_pairs_show_instead_of_one_root():
    found = paired(TOLD)
    assert disagreement(found) == ""
    shown = msgspec.json.decode(msgspec.json.encode(found))["pairs"]
    assert (shown["equal"], shown["unheard"], shown["alone"]) == (3, 1, 2)
    assert shown["different"] == []
    last = {entry["peer"]: (entry["round"], entry["chain"]) for entry in shown["last"]}
    assert last == {"badger": (4, "d4"), "crane": (4, "c4"), "otter": (2, "b2"), "newt": (4, "c4")}
    words = "\n".join(in_words(found, ""))
    assert "3 exchanges, both partners told the same chain" in words
    assert "state roots" not in words and "began with another peer's state" in words


@pytest.mark.parametrize(
    "one", [("crane", "other"), ("otter", "a1"), ("crane", "")], ids=["chain", "partner", "none"]
)
def test_partners_that_tell_different_things_are_found_out(one: tuple[str, str]):
    found = paired({1: {"badger": one, "crane": ("badger", one[1] if not one[1] else "a1")}})
    assert "do NOT tell the same chain" in disagreement(found)


def test_pairs_that_show_too_little_are_no_success():
    assert "No two partners" in disagreement(paired({}))
    assert "has not fallen" in disagreement(paired(TOLD, val_loss_last=5.5))
    assert "has not fallen" in disagreement(paired(TOLD, val_loss_last=None))
    assert "how many bytes" in disagreement(paired(TOLD, bytes_up_per_peer=0))


def test_order0_loss_is_the_add_one_cross_entropy_of_the_validation_text() -> None:
    # a: 3 + 1 of 4 + 256, b: 1 + 1, c: never seen, 0 + 1.
    expected = -(math.log(4 / 260) + math.log(2 / 260) + math.log(1 / 260)) / 3
    assert order0_loss_of(b"aaab", b"abc") == pytest.approx(expected)


def test_order0_loss_of_python_source_is_far_below_uniform_bytes() -> None:
    source = Path(__file__).read_bytes()
    assert 2.5 < order0_loss_of(source, source) < 3.7 < math.log(256)
