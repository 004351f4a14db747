"""`up --from`: state directories of peers become an export beside the coordinator's ledger."""

from pathlib import Path

import pytest
import typer

from swarmtrain.cli.main import main
from swarmtrain.cli.up import _place_of
from swarmtrain.coordinator.initial import FOLDER_NAME, Initial
from swarmtrain.foundation.errors import UserError
from tests.trained.test_export import peer


def test_stages_of_several_peers_are_exported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (str(peer(tmp_path / "a", 0, 1)), str(peer(tmp_path / "b", 2)))
    place = _place_of(given, tmp_path, None)
    assert place == tmp_path / FOLDER_NAME and (place / "model.safetensors").is_file()
    assert "stage 2: round 0" in capsys.readouterr().err
    (place / "model.safetensors").write_bytes(b"as it was")
    known = Initial(str(place / "model.safetensors"), b"")
    assert _place_of(given, tmp_path, known) == place
    assert (place / "model.safetensors").read_bytes() == b"as it was"  # the run's for good
    assert "goes on with the weights" in capsys.readouterr().err
    _place_of(given, tmp_path, Initial("/elsewhere/model.safetensors", b""))
    assert (place / "model.safetensors").read_bytes() != b"as it was"


def test_a_folder_with_modules_of_its_own_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (str(peer(tmp_path / "a", 0, 1, 2)),)
    monkeypatch.chdir(tmp_path)
    for name in ("http", "token", "swarmtrain"):
        Path(f"{name}.py").write_text("import os; os._exit(9)")
    assert (_place_of(given, tmp_path, None) / "model.safetensors").is_file()
    with pytest.raises(UserError, match="names nothing"):
        _place_of(("",), tmp_path, None)


def test_what_lacks_a_stage_or_is_no_state_ends_the_command(tmp_path: Path) -> None:
    lacking = str(peer(tmp_path / "a", 0, 1))
    with pytest.raises(typer.Exit) as ended:
        _place_of((lacking,), tmp_path, None)
    assert ended.value.exit_code == 66 and not (tmp_path / FOLDER_NAME).exists()
    with pytest.raises(UserError) as caught:
        _place_of((lacking, str(tmp_path / "nothing")), tmp_path, None)
    assert caught.value.code == "SWT-E806"
    for given in ("nosuchrun", str(tmp_path / "nothing")):
        with pytest.raises(UserError) as caught:
            _place_of((given,), tmp_path, None)
        assert caught.value.code == "SWT-E806"
    (tmp_path / "empty").mkdir()
    for given in (tmp_path / "empty", tmp_path / "weights.safetensors"):  # told by who opens it
        assert _place_of((str(given),), tmp_path / "new", None) == given


def test_an_export_with_moments_still_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(peer(tmp_path / "a", 0, 1, 2))
    words = ["export", place, "--to", str(tmp_path / "out"), "--moments"]
    assert main(words) == 0
    assert main(["generate", str(tmp_path / "out"), "a", "--tokens", "2"]) == 0
    assert main([*words[:3], str(tmp_path / "hf"), "--moments", "--format", "hf"]) == 2
