"""From a run to its use, by the commands alone: a model is trained, exported, asked and judged."""

import json

import pytest
import safetensors.torch
import torch
from e2e_rig import SMALL_MODEL, answer, place

from swarmtrain.console.lines import harmless

pytestmark = pytest.mark.timeout(300)

RUN = f"""
[run]
name = "tiny"
rounds = 2
{SMALL_MODEL}
"""


def test_a_run_is_exported_used_extended_and_another_one_begins_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    with place(tmp_path) as here:
        run_file = here.run_file(RUN)
        up = here.up(run_file)
        words = ("join", up.invite, "--yes", "--json-events")
        ann = here.command(*words, "--name", "ann")  # in the usual place: the run's name finds it
        assert ann.end() == 0 and up.running.end() == 0

        model = tmp_path / "model"
        made = json.loads(answer("export", "tiny", "--to", model, "--json"))
        assert [part["op"] for part in made["stages"]] == [2]
        card = (model / "README.md").read_text()
        assert made["stages"][0]["state_root"] in card
        assert "| rounds | 2 of 2 committed |" in card
        assert "| 1 contributed, 1 were let in |" in card

        words = ("def ", "--tokens", 40, "--temperature", 0)
        text = answer("generate", model, *words)
        assert text.startswith("def ") and len(text) > 30
        again = json.loads(answer("generate", "tiny", *words, "--json"))
        # For people, what a terminal would obey is shown as pictures.
        assert text == harmless(again["prompt"] + again["text"]) + "\n"

        (tmp_path / "text").mkdir()
        (tmp_path / "text" / "some.txt").write_text("def f(x):\n    return x\n" * 9)
        found = json.loads(answer("evaluate", "tiny", "--data", tmp_path / "text", "--json"))
        assert found["tokens"] == 9 * 23 - 1 and found["windows"] == -(-found["tokens"] // 32)
        assert 2.0 < found["loss"] < 5.6  # ln 256 is 5.55

        # The finished run goes on, with its peer as it was, and its directory proves all of it.
        up = here.up(run_file, "--rounds", 3)
        ann = here.command("join", up.invite, "--yes", "--json-events", "--name", "ann")
        assert ann.end() == 0 and up.running.end() == 0
        assert "3 rounds" in up.running.event("finished")["result"]
        assert "stays at 0.0001" in up.running.said
        proof = answer("verify", next(tmp_path.glob("**/peers/ann")), "--json")
        assert json.loads(proof)["to_op"] == 3

        answer("export", "tiny", "--to", tmp_path / "later")
        card = (tmp_path / "later" / "README.md").read_text()
        assert "| rounds | 3 of 3 committed, 1 of them added later |" in card

        # Another run begins with the export, also after a restart of its coordinator.
        next_file = here.run_file(RUN.replace("tiny", "next").replace("rounds = 2", "rounds = 1"))
        up = here.up(next_file, "--from", model, state="next")
        assert up.invite
        up.stop()
        up = here.up(next_file, state="next")
        bob = here.join(up.invite, "bob")
        assert bob.end() == 0 and up.running.end() == 0, bob.said
        begun = safetensors.torch.load_file(
            tmp_path / "bob" / "checkpoints" / "op-000000" / "model.safetensors"
        )
        whole = safetensors.torch.load_file(model / "model.safetensors")
        assert all(torch.equal(begun[name], whole[name]) for name in whole)
        other = here.run_file(RUN.replace("width = 16", "width = 8"), "other")
        wrong = here.up(other, "--from", model, state="other").running
        assert wrong.end() == 78 and "SWT-E451" in wrong.said and "should be" in wrong.said
