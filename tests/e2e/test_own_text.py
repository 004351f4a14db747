"""A run on the organiser's own files, over real processes: a folder, a restart, a changed text."""

from pathlib import Path

import pytest
from e2e_rig import SMALL_MODEL, place

pytestmark = pytest.mark.timeout(400)

RUN = f"""
[run]
name = "texts"
rounds = 6
[data]
source = "texts"
piece_bytes = 1024
lease_pieces = 2
validation_pieces = 2
{SMALL_MODEL}
"""

OWN = """source = "own"
validation = "judge.txt"
"""


def write_texts(folder: Path) -> None:
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.md").write_text(f"# Page {number}\n" + "Some words of it.\n" * 60)


def test_a_folder_of_text_is_trained_on_and_a_changed_one_is_noticed(tmp_path: Path):
    write_texts(tmp_path / "texts")
    with place(tmp_path) as home:
        file = home.run_file(RUN)
        up = home.up(file)
        peer = home.join(up.invite, "reader")
        loss = peer.event("evaluated", round=0)["loss"]
        text = up.status_when(lambda view: view["text"]["used"])["text"]
        assert text["used"] <= text["pieces"] and text["pass"] >= 1
        up.running.event("finished")
        assert peer.end() == 0 and up.running.end() == 0
        assert peer.event("evaluated", round=6)["loss"] < loss
        assert str(tmp_path / "texts") not in peer.said + "".join(peer.lines)
        (tmp_path / "texts" / "0.md").write_text("other words " * 90)
        again = home.up(file)
        assert again.running.end() == 78
        assert "SWT-E823" in again.running.said and "--changed-text" in again.running.said


def test_what_a_volunteer_brings_stays_with_it(tmp_path: Path):
    write_texts(tmp_path / "mine")
    (tmp_path / "judge.txt").write_text("# Page\nSome words to judge by.\n" * 90)
    with place(tmp_path) as home:
        file = home.run_file(RUN.replace('source = "texts"', OWN))
        up = home.up(file)
        without = home.join(up.invite, "empty")
        assert without.end() == 78 and "--data PATH" in without.said
        peer = home.join(up.invite, "volunteer", "--data", tmp_path / "mine")
        loss = peer.event("evaluated", round=0)["loss"]
        assert peer.end() == 0 and up.running.end() == 0
        assert peer.event("evaluated", round=6)["loss"] < loss
        assert "never sent" in peer.said
        ours = [path for path in (tmp_path / "coordinator").rglob("*") if path.is_file()]
        assert not [path for path in ours if b"mine" in path.read_bytes()]
