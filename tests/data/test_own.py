"""A volunteer's own text: the run's tokens, or one clear error before any round."""

from pathlib import Path

import pytest

from swarmtrain.config.settings import DataSection, ModelSection, RunConfig, RunSection
from swarmtrain.data.own import check_there, open_own
from swarmtrain.data.tokenizer import packed
from swarmtrain.foundation.errors import UserError
from tests.data.test_sources import words_file


def config_of(tokenizer: str = "bytes", vocabulary: int = 0) -> RunConfig:
    return RunConfig(
        run=RunSection(name="t"),
        model=ModelSection(context=8, vocabulary=vocabulary),
        data=DataSection(source="own", tokenizer=tokenizer, piece_bytes=1024),
    )


def opened(tmp_path: Path, config: RunConfig, place: Path, tokenizer: bytes = b"", **more: bool):
    return open_own(
        config, str(place), tokenizer, tmp_path / "state", lambda line: None,
        **{"sets_aside": True, **more},
    )  # fmt: skip


def code(tmp_path: Path, config: RunConfig, place: Path, tokenizer: bytes = b"") -> str:
    with pytest.raises(UserError) as caught:
        opened(tmp_path, config, place, tokenizer)
    return caught.value.code


def test_text_becomes_pieces_and_a_share_is_judged_by_unless_other_text_is(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("".join(f"line {n}\n" for n in range(900)))
    text = opened(tmp_path, config_of(), tmp_path / "mine.txt")
    assert text.train and text.validation
    whole = opened(tmp_path, config_of(), tmp_path / "mine.txt", sets_aside=False)
    assert not whole.validation and whole.num_bytes == text.num_bytes


def test_bad_text_is_told_before_any_round(tmp_path: Path):
    (tmp_path / "picture.png").write_bytes(b"\0" * 900)
    (tmp_path / "note.txt").write_text("hi")
    assert code(tmp_path, config_of(), tmp_path / "picture.png") == "SWT-E821"
    assert code(tmp_path, config_of(), tmp_path / "note.txt") == "SWT-E822"
    with pytest.raises(UserError, match="SWT-E820"):
        check_there(str(tmp_path / "nothing"))


def test_tokens_are_taken_only_with_the_runs_tokenizer_beside_them(tmp_path: Path):
    pytest.importorskip("tokenizers")
    import hashlib

    (tmp_path / "ids.bin").write_bytes(packed([7] * 500 + list(range(50)) * 30, 2))
    assert code(tmp_path, config_of(), tmp_path / "ids.bin") == "SWT-E826"
    file = words_file(tmp_path).read_bytes()
    config = config_of(hashlib.sha256(file).hexdigest())
    assert opened(tmp_path, config, tmp_path / "ids.bin", file).train
    (tmp_path / "tokenizer.json").write_bytes(file + b" ")
    assert code(tmp_path, config, tmp_path / "ids.bin", file) == "SWT-E826"
    (tmp_path / "tokenizer.json").unlink()
    assert code(tmp_path, config, tmp_path / "ids.bin", file) == "SWT-E826"
    assert opened(tmp_path, config_of("ids", 256), tmp_path / "ids.bin").train
