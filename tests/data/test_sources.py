"""Sources that are not plain text: tokens on the disk, JSONL, datasets, a tokenizer.json."""

import json
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from swarmtrain.config import file as config_file
from swarmtrain.config.settings import DataSection, ModelSection, RunConfig, RunSection
from swarmtrain.data import places as places_module
from swarmtrain.data.places import settle
from swarmtrain.data.stored import StoredText, open_text
from swarmtrain.data.tokenizer import Bytes, packed, tokenizer_of, unpacked
from swarmtrain.foundation.errors import UserError
from swarmtrain_transport.errors import RemoteFault

ROWS = [f"Row {number} says grüße to row {number + 1}." * 3 for number in range(90)]


def settled(folder: Path, vocabulary: int = 0, **data: object):
    config = RunConfig(
        run=RunSection(name="t"),
        model=ModelSection(context=8, vocabulary=vocabulary),
        data=DataSection(**{"piece_bytes": 1024, "validation_pieces": 4096, **data}),
    )
    return settle(config, folder)


def opened(folder: Path, vocabulary: int = 0, **data: object) -> StoredText:
    config, places = settled(folder, vocabulary, **data)
    return open_text(config, places, folder / "state", lambda line: None)


def fails(folder: Path, vocabulary: int = 0, **data: object) -> str:
    with pytest.raises(UserError) as caught:
        opened(folder, vocabulary, **data)
    return f"{caught.value.code} {caught.value}"


def whole(text: StoredText, names: tuple[str, ...]) -> bytes:
    return b"".join(text.piece(one) for one in names)


def words_file(folder: Path) -> Path:
    """A tokenizer of some hundred words, with an end of text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted({word for row in ROWS for word in row.replace(".", " .").split()})
    known = {"<unk>": 0, "<|endoftext|>": 1} | {word: i + 2 for i, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def jsonl(path: Path, key: str = "text") -> None:
    path.write_text("".join(json.dumps({"id": i, key: row}) + "\n" for i, row in enumerate(ROWS)))


# ---- JSONL and datasets


@pytest.mark.parametrize("source", ["rows.jsonl", "folder", "hf:folder"])
def test_every_row_is_a_document_on_one_side(tmp_path: Path, source: str):
    (tmp_path / "folder").mkdir()
    jsonl(tmp_path / "rows.jsonl", "content")
    jsonl(tmp_path / "folder" / "rows.jsonl", "content")
    if source.startswith("hf:"):
        pytest.importorskip("datasets")
    text = opened(tmp_path, source=source, field="content")
    train, judged = whole(text, text.train), whole(text, text.validation)
    assert sorted((train + judged).decode().split("\0")[:-1]) == sorted(ROWS)
    assert judged


def test_only_so_many_documents_are_read(tmp_path: Path):
    jsonl(tmp_path / "rows.jsonl")
    text = opened(tmp_path, source="rows.jsonl", documents=10)
    assert whole(text, text.train + text.validation).count(b"\0") == 10


def test_a_row_without_text_names_file_line_and_keys(tmp_path: Path):
    jsonl(tmp_path / "rows.jsonl", "content")
    said = fails(tmp_path, source="rows.jsonl")
    assert "SWT-E821" in said and "line 1" in said and "id, content" in said
    assert "data.field" in said
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\nno json\n')
    assert "line 2 is not JSON" in fails(tmp_path, source="rows.jsonl")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"text": {"of": "it"}}', 'line 1 has an object under "text"'),
        (b'{"text": null}', 'has null under "text", and text is needed'),
        (b'{"text": "gr\xfc\xdfe"}', "line 1 is not UTF-8"),
        (b"[" * 100_000, "line 1 is not JSON"),
    ],
)
def test_a_line_of_no_text_says_what_it_has(tmp_path: Path, line: bytes, words: str):
    (tmp_path / "rows.jsonl").write_bytes(line + b"\n")
    said = fails(tmp_path, source="rows.jsonl")
    assert "SWT-E821" in said and words in said


def test_half_a_character_becomes_a_mark(tmp_path: Path):
    """JSON can write halves of a character, and datasets of the web have them; UTF-8 has none."""
    (tmp_path / "rows.jsonl").write_text('{"text": "half \\ud83d, whole \\ud83d\\ude00."}\n' * 9)
    text = opened(tmp_path, source="rows.jsonl")
    assert "half \ufffd, whole \U0001f600.\0".encode() in whole(text, text.train)


def test_a_dataset_that_is_nowhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    datasets = pytest.importorskip("datasets")

    def nowhere(*args: object, **options: object) -> None:
        raise FileNotFoundError("no such dataset on the hub")

    monkeypatch.setattr(datasets, "load_dataset", nowhere)
    said = fails(tmp_path, source="hf:nobody/nothing")
    assert "SWT-E820" in said and "no such dataset" in said


# ---- tokens


def nano(path: Path, ids: list[int]) -> None:
    path.write_bytes(packed(ids, 2))


def llm_c(path: Path, ids: list[int], magic: int, version: int, width: int) -> None:
    header = array("i", [magic, version, len(ids), *[0] * 253])
    path.write_bytes(header.tobytes() + packed(ids, width))


IDS = [number * 7 % 50_000 for number in range(6000)]


def test_tokens_of_nanogpt_are_taken_as_they_lie(tmp_path: Path):
    nano(tmp_path / "train.bin", IDS)
    config, places = settled(tmp_path, 50_257, source="train.bin")
    text = open_text(config, places, tmp_path / "state", lambda line: None)
    assert config.data.tokenizer == "ids"
    joined = whole(text, text.train) + whole(text, text.validation)
    assert list(unpacked(joined, 2)) == IDS
    assert not list((tmp_path / "state").glob("*.bin"))


def test_val_bin_in_a_folder_is_judged_by(tmp_path: Path):
    nano(tmp_path / "train.bin", IDS)
    nano(tmp_path / "val.bin", IDS[:100])
    (tmp_path / "meta.pkl").write_bytes(b"x")
    config, places = settled(tmp_path, 50_257, source=".")
    text = open_text(config, places, tmp_path / "state", lambda line: None)
    assert list(unpacked(whole(text, text.validation), 2)) == IDS[:100] and text.skipped == 1


@pytest.mark.parametrize(("magic", "version", "width"), [(20240520, 1, 2), (20240801, 7, 4)])
def test_tokens_of_llm_c_are_read_behind_their_header(
    tmp_path: Path, magic: int, version: int, width: int
):
    llm_c(tmp_path / "a.bin", IDS, magic, version, width)
    for vocabulary in (50_257, 128_256):
        config, places = settled(tmp_path, vocabulary, source="a.bin")
        text = open_text(config, places, tmp_path / f"state{vocabulary}", lambda line: None)
        joined = whole(text, text.train) + whole(text, text.validation)
        assert list(unpacked(joined, 2 if vocabulary < 65_537 else 4)) == IDS


def test_tokens_below_256_train_the_byte_transformer(tmp_path: Path):
    nano(tmp_path / "train.bin", [one % 65 for one in IDS])
    text = opened(tmp_path, source="train.bin")
    joined = whole(text, text.train) + whole(text, text.validation)
    assert list(joined) == [one % 65 for one in IDS]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: nano(path, IDS), "and the model's vocabulary is 256"),
        (lambda path: path.write_bytes(b"abc"), "whole tokens"),
        (lambda path: llm_c(path, IDS[:-1], 20240520, 1, 4), "its length is another one"),
        (lambda path: llm_c(path, IDS, 20240520, 9, 2), "version 9"),
    ],
)
def test_tokens_that_do_not_fit_are_one_clear_error(tmp_path: Path, make, words: str):
    make(tmp_path / "train.bin")
    said = fails(tmp_path, source="train.bin")
    assert "SWT-E825" in said and words in said


# ---- tokenizers


def test_bytes_and_ids_come_back(tmp_path: Path):
    plain = Bytes()
    assert plain.decode(plain.encode("grüße")) == "grüße"
    assert plain.decode([300, 65]) == "\ufffdA"
    for width in (1, 2, 4):
        ids = [0, 1, 255, (1 << 8 * width) - 1]
        assert list(unpacked(packed(ids, width) + b"\1"[: width - 1], width)) == ids
    with pytest.raises(OverflowError):
        packed([256], 1)


def test_a_tokenizer_json_makes_tokens_with_an_end_after_each_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("tokenizers")
    jsonl(tmp_path / "rows.jsonl")
    file = words_file(tmp_path)
    config, places = settled(tmp_path, source="rows.jsonl", tokenizer="tokenizer.json")
    made = tokenizer_of(config.data, places.tokenizer)
    assert config.data.tokenizer == made.sha256 and places.tokenizer == file.read_bytes()
    text = open_text(config, places, tmp_path / "state", lambda line: None)
    ids = list(unpacked(whole(text, text.train) + whole(text, text.validation), 1))
    assert ids.count(1) == len(ROWS) and max(ids) < made.vocabulary <= 256
    assert made.decode(made.encode("Row 5 says")) == "Row 5 says"
    assert config_file.from_canonical(config_file.canonical(config)) == config


def test_a_folder_may_be_called_as_text_is_in_settings_that_travel(tmp_path: Path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("words " * 9999)
    config, places = settled(tmp_path, source="text")
    assert (config.data.source, places.source) == ("text", str(tmp_path / "text"))
    with pytest.raises(UserError, match="SWT-E820"):
        settled(tmp_path / "text", source="text")


def test_the_librarys_own_text_takes_a_tokenizer_too(tmp_path: Path):
    pytest.importorskip("tokenizers")
    words_file(tmp_path)
    config, places = settled(tmp_path, tokenizer="tokenizer.json")
    assert (config.data.source, places.source) == ("text", "python-stdlib")


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read: No such file"), (b"{}", "cannot be read"), (b"\xff", "cannot")],
)
def test_a_file_that_is_no_tokenizer_is_one_clear_error(tmp_path: Path, content, words: str):
    pytest.importorskip("tokenizers")
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    said = fails(tmp_path, tokenizer="tokenizer.json")
    assert "SWT-E824" in said and words in said


def test_a_tokenizer_with_more_tokens_than_the_model_has_outputs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("tokenizers")
    words_file(tmp_path)
    monkeypatch.setattr(places_module, "vocabulary_of", lambda config: 50)
    assert "has no place for them: its vocabulary is 50" in fails(
        tmp_path, tokenizer="tokenizer.json"
    )


def test_another_tokenizer_than_the_runs_is_refused(tmp_path: Path):
    data = DataSection(tokenizer="a" * 64)
    for file in (None, b"{}"):
        with pytest.raises(UserError, match="SWT-E824") as caught:
            tokenizer_of(data, file)
        assert "SHA-256" in str(caught.value)
    with pytest.raises(UserError, match="token ids"):
        tokenizer_of(DataSection(tokenizer="ids"), None)


def test_settings_that_name_files_do_not_travel():
    for data in (
        DataSection(source="/texts"), DataSection(validation="v"), DataSection(tokenizer="t.json"),
        DataSection(field="x" * 300),
    ):  # fmt: skip
        sent = config_file.canonical(RunConfig(run=RunSection(name="t"), data=data))
        with pytest.raises(RemoteFault, match="data"):
            config_file.from_canonical(sent)


def test_files_are_read_without_torch_numpy_and_the_extras(tmp_path: Path):
    (tmp_path / "a.txt").write_text("some words\n" * 900)
    code = (
        "import sys; from pathlib import Path; "
        "from swarmtrain.config.settings import *; from swarmtrain.data.places import settle; "
        "from swarmtrain.data.stored import open_text; "
        "c, p = settle(RunConfig(run=RunSection(name='t'), data=DataSection(source='a.txt')), "
        f"Path({str(tmp_path)!r})); open_text(c, p, Path({str(tmp_path)!r}) / 's', print); "
        "sys.exit(bool({'torch', 'numpy', 'tokenizers', 'datasets'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_model_without_an_output_for_each_byte_is_refused_text(tmp_path: Path):
    (tmp_path / "text.txt").write_text("some text " * 100)
    model = ModelSection(kind="transformer", context=8, vocabulary=100)
    for source in ("text.txt", "python-stdlib", "own"):
        config = RunConfig(run=RunSection(name="t"), model=model, data=DataSection(source=source))
        with pytest.raises(UserError, match="256 tokens") as told:
            settle(config, tmp_path)
        assert told.value.code == "SWT-E824"
    with pytest.raises(RemoteFault, match="256 at least"):
        config_file.from_canonical(config_file.canonical(config))
