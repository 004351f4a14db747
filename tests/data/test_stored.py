import hashlib
from pathlib import Path

import pytest

from swarmtrain.config.settings import DataSection, ModelSection, RunConfig, RunSection
from swarmtrain.data.places import settle
from swarmtrain.data.stored import StoredText, open_text
from swarmtrain.data.stretches import Extent, Stream
from swarmtrain.foundation.errors import UserError


def config_of(source: Path | str, **data: object) -> RunConfig:
    return RunConfig(
        run=RunSection(name="t"),
        model=ModelSection(context=16),
        data=DataSection(source=str(source), **{"piece_bytes": 1024, **data}),
    )


def opened(tmp_path: Path, source: Path | str, said: list[str] | None = None, **data: object):
    config, places = settle(config_of(source, **data), tmp_path)
    heard = said if said is not None else []
    return open_text(config, places, tmp_path / "state" / "text", heard.append)


def whole(text: StoredText, hashes: tuple[str, ...]) -> bytes:
    return b"".join(text.piece(one) for one in hashes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """120 files of different text, some of them in folders."""
    root = tmp_path / "texts"
    for index in range(120):
        path = root / f"part{index % 3}" / f"{index}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Text number {index}, grüße. " * (20 + index % 7))
    return root


def test_every_file_is_in_one_part_whole_and_once(tmp_path: Path, folder: Path):
    text = opened(tmp_path, folder, validation_pieces=4096)
    train, judged = whole(text, text.train), whole(text, text.validation)
    files = sorted(path.read_bytes() for path in folder.rglob("*.txt"))
    assert sorted((train + judged).split(b"\0")[:-1]) == files
    assert 0 < len(judged) < 0.13 * len(train)


def test_a_single_file_is_judged_by_its_end(tmp_path: Path):
    path = tmp_path / "book.txt"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(9000)))
    text = opened(tmp_path, "book.txt")
    joined = whole(text, text.train) + whole(text, text.validation)
    assert joined == path.read_bytes() + b"\0" and len(text.validation) > 1


def test_what_is_no_text_is_skipped_and_counted(tmp_path: Path, folder: Path):
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "latin.txt").write_bytes(b"gr\xfc\xdfe " * 100)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("hidden")
    said: list[str] = []
    text = opened(tmp_path, folder, said)
    assert text.skipped == 2 and "2 files that are no text were skipped" in said[-1]
    (folder / "latin.txt").unlink()
    opened(tmp_path, folder, said)
    assert "; 1 file that is no text was skipped" in said[-1]


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, "SWT-E820"), (b"\0\1\2", "SWT-E821"), (b"", "SWT-E821"), (b"short", "SWT-E822")],
)
def test_bad_text_is_one_clear_error(tmp_path: Path, content: bytes | None, code: str):
    if content is not None:
        (tmp_path / "data.txt").write_bytes(content)
    with pytest.raises(UserError) as caught:
        opened(tmp_path, "data.txt")
    assert caught.value.code == code


def test_validation_text_of_the_organisers_is_taken_as_it_is(tmp_path: Path, folder: Path):
    (tmp_path / "judge.txt").write_text("judged by this. " * 100)
    text = opened(tmp_path, folder, validation="judge.txt")
    assert whole(text, text.validation) == (tmp_path / "judge.txt").read_bytes() + b"\0"
    assert whole(text, text.train).count(b"\0") == 120


def test_a_second_opening_reads_no_file_and_a_changed_one_is_noticed(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    first = opened(tmp_path, folder)
    with monkeypatch.context() as patch:
        patch.setattr("swarmtrain.data.stored.text_digest", lambda path: pytest.fail("read"))
        again = opened(tmp_path, folder)
    assert again.manifest_hash == first.manifest_hash and again.train == first.train
    folder.rename(tmp_path / "elsewhere")
    moved = opened(tmp_path, tmp_path / "elsewhere")
    assert moved.manifest_hash == first.manifest_hash, "a text is what it says, not where it lies"
    (tmp_path / "elsewhere" / "part0" / "0.txt").write_text("changed " * 100)
    with pytest.raises(OSError, match=r"other contents|shorter"):
        whole(moved, moved.train + moved.validation)
    assert opened(tmp_path, tmp_path / "elsewhere").manifest_hash != first.manifest_hash


def test_no_path_is_in_the_settings_that_travel(tmp_path: Path, folder: Path):
    config, places = settle(config_of(folder.name, validation="~/v"), tmp_path)
    assert (config.data.source, config.data.validation) == ("text", "")
    assert places.source == str(folder) and places.validation == str(Path.home() / "v")


def test_the_built_in_text_is_judged_by_the_text_that_is_named_for_that(tmp_path: Path):
    """It was left out without a word."""
    (tmp_path / "judge.txt").write_text("Judged by this alone. " * 200)
    text = opened(tmp_path, "python-stdlib", validation="judge.txt", piece_bytes=65_536)
    assert whole(text, text.validation).startswith(b"Judged by this alone.")
    assert b"Judged by this alone." not in text.piece(text.train[0]) and len(text.train) > 50


def test_a_large_text_is_never_in_memory(tmp_path: Path):
    import tracemalloc

    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        for number in range(400):
            file.write(b"%07d " % number * 8192)
    tracemalloc.start()
    opened(tmp_path, path, piece_bytes=65_536)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 25e6 and peak < 5e6


@pytest.mark.parametrize("at", range(12))
def test_a_stream_parts_anywhere_and_loses_nothing(tmp_path: Path, at: int):
    (tmp_path / "a").write_bytes(b"0123456")
    stream = Stream(
        (Extent(str(tmp_path / "a"), 1, 3, b"|"), Extent(str(tmp_path / "a"), 0, 6, b"|"))
    )
    plain = b"123|012345|"
    assert len(stream) == 11 and stream.read(0, 99) == plain
    before, after = (Stream(part) for part in stream.parted(at))
    assert before.read(0, 99) + after.read(0, 99) == plain
    assert all(stream.read(at, n) == plain[at : at + n] for n in range(12))


def test_equal_pieces_are_one_and_none_is_in_both_parts(tmp_path: Path):
    (tmp_path / "same.txt").write_bytes(b"x" * 1024 * 40)
    (tmp_path / "judge.txt").write_bytes(b"x" * 1024 + b"y" * 2000)
    text = opened(tmp_path, "same.txt", validation="judge.txt")
    assert [len(text.piece(one)) for one in text.train] == [1], "the separator alone is left"
    assert len(text.validation) == 2 + 1
    for one in text.train + text.validation:
        assert hashlib.sha256(text.piece(one)).hexdigest() == one


def test_what_is_judged_by_is_not_trained_on(tmp_path: Path, folder: Path):
    """A validation text inside the source was cut at other places, and so trained on, too."""
    (folder / "judge.txt").write_text("judged by this and no more. " * 100)
    said: list[str] = []
    text = opened(tmp_path, folder, said, validation=str(folder / "part1" / ".." / "judge.txt"))
    assert b"judged" not in whole(text, text.train)
    assert b"judged" in whole(text, text.validation)
    assert "1 file of data.source is in data.validation too" in said[0]
    with pytest.raises(UserError, match=r"All text of data\.source is in data\.validation") as told:
        opened(tmp_path, folder, validation=str(folder))
    assert told.value.code == "SWT-E822"


@pytest.mark.parametrize("name", ["no\0where", "n" * 5000])
def test_a_name_that_no_file_can_have_is_no_fault(tmp_path: Path, name: str):
    with pytest.raises(UserError) as told:
        opened(tmp_path, name)
    assert told.value.code == "SWT-E820" and "\0" not in told.value.what
