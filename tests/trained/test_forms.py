"""Exports that others read: in Transformers' form, with the run's tokenizer; a full disk."""

import errno
import io
import json
import os
import sys
from pathlib import Path

import pytest
import torch

from swarmtrain import checkpoint
from swarmtrain.cli.main import main
from swarmtrain.config.settings import DataSection, ModelSection, RunConfig, RunSection
from swarmtrain.data.tokenizer import Bytes, JsonTokenizer
from swarmtrain.foundation.errors import UserError
from swarmtrain.trained import writing
from swarmtrain.trained.export import export
from swarmtrain.trained.opened import Trained, open_trained
from tests.trained.test_export import CONFIG, peer, refused

MODEL = ModelSection(
    kind="transformer", layers=1, width=16, heads=2, context=16, vocabulary=256, tied=False
)
LLAMA = RunConfig(run=RunSection(name="tests"), model=MODEL)


def test_transformers_computes_the_same_logits_and_the_folder_is_read_again(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    directory = peer(tmp_path / "a", 0, config=LLAMA)
    export(tmp_path / "hf", [directory], form="hf")
    export(tmp_path / "own", [directory])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokens = torch.tensor([[1, 2, 39, 0, 7]])
    with torch.no_grad():
        wanted = theirs(tokens).logits
        for place in (directory, tmp_path / "hf", tmp_path / "own"):
            model = open_trained(str(place)).model(torch.device("cpu"))
            torch.testing.assert_close(model(tokens), wanted)


def test_a_model_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        export(tmp_path / "out", [peer(tmp_path / "a", 0, 1, 2)], form="hf")
    assert caught.value.code == "SWT-E610" and "byte-transformer" in caught.value.what
    assert not (tmp_path / "out").exists()


def with_words(tmp_path: Path, *words: str) -> tuple[Path, bytes]:
    """A peer's directory of a run whose tokenizer knows these words, and that tokenizer's file."""
    tokenizers = pytest.importorskip("tokenizers")
    indices = {word: index for index, word in enumerate(["[UNK]", *words])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(indices, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    file = made.to_str().encode()
    data = DataSection(tokenizer=JsonTokenizer(file).sha256)
    config = RunConfig(run=RunSection(name="tests"), model=MODEL, data=data)
    directory = peer(tmp_path / "a", 0, config=config)
    (directory / "tokenizer.json").write_bytes(file)
    return directory, file


def test_the_runs_tokenizer_goes_with_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, file = with_words(tmp_path, "once", "upon", "a", "time")
    export(tmp_path / "out", [directory])
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == file
    assert main(["generate", str(tmp_path / "out"), "once upon", "--tokens", "30"]) == 0
    said = capsys.readouterr().out.removeprefix("once upon").split()
    assert said and set(said) <= {"[UNK]", "once", "upon", "a", "time"}


def test_json_tells_how_many_tokens_were_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    export(tmp_path / "out", [peer(tmp_path / "a", 0, 1, 2)])
    monkeypatch.setattr(writing, "written", lambda *asked: iter((*b"Hi", 0, *b"!")))
    assert main(["generate", str(tmp_path / "out"), "x", "--tokens", "9", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["text"], said["tokens"]) == ("Hi", 2)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = peer(tmp_path / "a", 0, 1, 2)

    def full(path: Path, data: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(checkpoint, "write_file", full)
    error = refused(tmp_path, directory)
    assert error.code == "SWT-E401" and "out" in error.what and "taken back" in error.meaning
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a"]


def test_a_peer_without_a_whole_checkpoint_is_told_so(tmp_path: Path) -> None:
    directory = peer(tmp_path / "a", config=CONFIG)
    error = refused(tmp_path, directory)
    assert error.code == "SWT-E811" and "still being" in error.meaning


def test_damage_and_other_models_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(tmp_path / "out", [peer(tmp_path / "a", 0, 1, 2)])
    weights = tmp_path / "out" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    assert main(["generate", str(tmp_path / "out"), "x"]) == 65
    assert "SWT-E803" in capsys.readouterr().err
    assert main(["generate", str(tmp_path / "a"), ""]) == 2
    custom = RunConfig(run=RunSection(name="tests"), model=ModelSection(kind="custom"))
    with pytest.raises(UserError) as caught:
        Trained("tests", custom, {}, Bytes()).model(torch.device("cpu"))
    assert caught.value.code == "SWT-E450"


def test_a_terminal_gets_nothing_that_it_would_obey(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who trained the model might have taught it some; so might who wrote the prompt."""
    export(tmp_path / "out", [peer(tmp_path / "a", 0, config=LLAMA)])
    said = b"\x1b[2J\0ok\r\n\xc2\x9b\xff\xe2\x80\xae\tend"
    monkeypatch.setattr("swarmtrain.trained.writing.written", lambda *given: iter(said))
    command = ["generate", str(tmp_path / "out"), "p\x07\U0001f469\u200d\U0001f52c"]
    assert main(command) == 0
    shown = "p\u2407\U0001f469\u200d\U0001f52c\u241b[2J"
    assert capsys.readouterr().out == shown + "\n"  # a zero byte ends the text
    monkeypatch.setattr(
        "swarmtrain.trained.writing.written", lambda *given: iter(said.replace(b"\0", b""))
    )
    assert main(command) == 0
    assert capsys.readouterr().out == shown + "ok\n\ufffd\ufffd\ufffd\tend\n"
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"].startswith("\x1b[2Jok\r\n\x9b")


def test_a_prompt_is_utf8_in_any_locale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    export(tmp_path / "out", [peer(tmp_path / "a", 0, config=LLAMA)])
    assert main(["generate", str(tmp_path / "out"), "\udcff\udcfe"]) == 2
    assert "The prompt is not text in UTF-8" in capsys.readouterr().err
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("ascii", "surrogateescape"))
    words = "gr\u00fc\u00dfe".encode().decode("ascii", "surrogateescape")
    assert main(["generate", str(tmp_path / "out"), words, "--tokens", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "gr\u00fc\u00dfe"
    piped = io.TextIOWrapper(io.BytesIO(b"gr\xfc"), encoding="latin-1")
    monkeypatch.setattr("sys.stdin", piped)
    assert main(["generate", str(tmp_path / "out"), "-"]) == 2
    assert "SWT-E610" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", [("--device", "meta"), ("--device", "nonsense"), ("--seed", str(1 << 63))]
)
def test_options_that_nothing_can_be_done_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    export(tmp_path / "out", [peer(tmp_path / "a", 0, config=LLAMA)])
    assert main(["generate", str(tmp_path / "out"), "x", *option]) == 2
    assert "bug" not in capsys.readouterr().err


def test_the_library_knows_the_tokenizer_and_where_a_text_ends(tmp_path: Path) -> None:
    """It had no end token, so that its generate never stopped."""
    transformers = pytest.importorskip("transformers")
    directory, _ = with_words(tmp_path, "once", "upon", "<|endoftext|>")
    export(tmp_path / "out", [directory], form="hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (theirs.eos_token_id, theirs.model_max_length) == (3, MODEL.context)
    assert theirs("once upon").input_ids == [1, 2]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.generation_config.eos_token_id == 3


def test_who_lacks_the_library_hears_that_no_end_of_a_text_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = with_words(tmp_path, "once", "upon", "<|endoftext|>")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    said: list[str] = []
    export(tmp_path / "out", [directory], form="hf", tell=said.append)
    assert len(said) == 1 and "which token ends a text" in said[0] and "pip install" in said[0]
    assert "eos_token" not in (tmp_path / "out/tokenizer_config.json").read_text()
