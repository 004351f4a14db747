"""The picture that people see of a demo."""

import io
import sys

from rich.console import Console
from test_report import CAST, facts

from swarmtrain.console.lines import timed
from swarmtrain.console.view import LiveView, Row, View, open_view, render
from swarmtrain.demo.setting import Cast
from swarmtrain.demo.story import Facts
from swarmtrain.demo.view import (
    Scene,
    bytes_line,
    loss_line,
    make_scene,
    picture_of,
)

SCENE = Scene(
    rows=(
        Row("badger", "training", 2, 2.5, 4321.0, 1_500_000, 2_500_000),
        Row("otter", "killed", 2, 2.75, 0.0, 900_000, 800_000),
        Row("newt", "starting"),
    ),
    committed=3, rounds=8, losses=(5.5, 3.0, 2.5), order0_loss=3.25,
    bytes_up=1_500_000, bytes_data_parallel=90_000_000,
)  # fmt: skip


def drawn(scene: Scene, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render(picture_of(scene), width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_has_a_row_per_peer_with_its_numbers():
    text = drawn(SCENE)
    badger, otter, newt = (
        next(line for line in text.splitlines() if line.startswith(name))
        for name in ("badger", "otter", "newt")
    )
    assert badger.split() == ["badger", "training", "2", "2.500", "4321", "1.5", "MB", "2.5", "MB"]
    assert otter.split() == ["otter", "killed", "2", "2.750", "900", "kB", "800", "kB"]
    assert newt.split() == ["newt", "starting"]


def test_a_narrow_terminal_keeps_the_numbers_that_matter_whole():
    text = drawn(SCENE, 40)
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "tokens/s" not in text
    badger = next(line for line in text.splitlines() if line.startswith("badger"))
    assert badger.split() == ["badger", "training", "2", "2.500", "1.5", "MB"]


def test_loss_and_bytes_stand_beside_what_they_are_compared_with():
    assert loss_line(SCENE) == (
        "round 3 of 8 committed | validation loss 5.500 -> 2.500 (byte frequencies alone: 3.250)"
    )
    assert bytes_line(SCENE) == (
        "bytes sent per peer 1.5 MB | data-parallel training by now: 90 MB"
    )


def test_a_picture_can_be_made_before_anything_is_known():
    scene = make_scene(Facts(), CAST, 8, 20, 3.25, None)
    assert [row.state for row in scene.rows] == ["starting"] * 3
    assert loss_line(scene) == "round 0 of 8 committed"


def test_peers_that_are_gone_keep_their_row_and_say_how_they_went():
    running = facts()
    running.left.clear()
    running.killed = None
    before = make_scene(running, CAST, 5, 20, 3.25, None)
    assert [row.name for row in before.rows] == ["badger", "crane", "otter"]
    after = make_scene(facts(), CAST, 5, 20, 3.25, before)
    assert {row.name: row.state for row in after.rows} == {
        "badger": "left", "crane": "left", "otter": "killed", "newt": "left",
    }  # fmt: skip
    assert after.rows[0].loss == before.rows[0].loss
    assert after.losses == (5.5, 2.5, 2.25)
    assert after.bytes_up == 2_000


def test_without_churn_nobody_new_appears():
    scene = make_scene(Facts(), Cast(("badger",), None, None), 2, 20, 3.25, None)
    assert [row.name for row in scene.rows] == ["badger"]


def test_without_a_terminal_there_are_plain_lines_alone():
    stream = io.StringIO()
    view = open_view(stream)
    assert type(view) is View
    view.say(timed("otter is in " * 20, 75.9))
    view.show(picture_of(SCENE))
    view.close()
    view.say("")
    view.say("done")
    assert stream.getvalue() == f"  1:15  {'otter is in ' * 20}\n\ndone\n"


def test_in_a_terminal_the_sentences_stay_and_the_table_follows_them():
    stream = io.StringIO()
    view = LiveView(Console(file=stream, force_terminal=True, width=100, height=40))
    view.say(timed("otter is in [really]", 3))
    view.show(picture_of(SCENE))
    view.close()
    view.say("after")
    text = stream.getvalue()
    assert "otter is in [really]" in text
    assert text.index("otter is in") < text.index("4321") < text.index("after")


def test_times_are_minutes_and_seconds():
    assert timed("x", 0.2) == "  0:00  x"
    assert timed("x", 3_600) == " 60:00  x"


def test_what_else_is_said_stands_above_the_table(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    view = LiveView(Console(file=stream, force_terminal=True, width=100, height=40))
    view.show(picture_of(SCENE))
    print("a word of the log", file=sys.stderr, flush=True)
    view.close()
    text = stream.getvalue()
    assert sys.stderr is stream
    assert text.index("4321") < text.index("a word of the log") < text.rindex("4321")


def test_a_long_sentence_goes_on_under_its_first_word():
    stream = io.StringIO()
    view = LiveView(Console(file=stream, force_terminal=True, width=60, height=40))
    view.close()
    view.say(timed("otter stops after sending four of nine chunks of round 3, and is killed", 3))
    text = stream.getvalue()
    assert "  0:03  otter stops after sending four of nine chunks of\n" in text
    assert text.endswith("\n        round 3, and is killed\n")
