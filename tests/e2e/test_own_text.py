"""A run on the organiser's own files, over real processes: a folder, a restart, a changed text."""

from pathlib import Path

import pytest
from e2e_rig import SMALL_MODEL, place

pytestmark = pytest.mark.timeout(400)

RUN = f"""
[run]
name = "texts"
rounds = 3
[data]
source = "texts"
piece_bytes = 4096
{SMALL_MODEL}
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
        up.running.event("finished")
        assert peer.end() == 0 and up.running.end() == 0
        assert peer.event("evaluated", round=3)["loss"] < loss
        assert str(tmp_path / "texts") not in peer.said + "".join(peer.lines)
        (tmp_path / "texts" / "0.md").write_text("other words " * 90)
        again = home.up(file)
        assert again.running.end() == 78
        assert "SWT-E823" in again.running.said and "--changed-text" in again.running.said
