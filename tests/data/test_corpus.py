import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from swarmtrain.data import corpus as corpus_module
from swarmtrain.data.corpus import Corpus, CorpusMissing, SourceFile, build_corpus

PIECE_BYTES = 65_536


@pytest.fixture(scope="module")
def built_in() -> Corpus:
    return build_corpus(PIECE_BYTES)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small standard library: 60 files of about 100 bytes, in folders."""
    for index in range(60):
        path = tmp_path / f"package{index % 3}" / f"module{index}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"# module %d\n" % index + b"x = 1\n" * 15)
    return tmp_path


def text_of(corpus: Corpus, hashes: tuple[str, ...]) -> bytes:
    return b"".join(corpus.piece(piece_hash) for piece_hash in hashes)


def num_bytes_of(corpus: Corpus) -> int:
    return len(text_of(corpus, corpus.train + corpus.validation))


def test_every_piece_has_the_hash_that_it_is_named_by(built_in: Corpus) -> None:
    for piece_hash in built_in.train + built_in.validation:
        assert hashlib.sha256(built_in.piece(piece_hash)).hexdigest() == piece_hash


def test_all_pieces_but_each_parts_last_have_the_length_asked_for(built_in: Corpus) -> None:
    for hashes in (built_in.train, built_in.validation):
        lengths = [len(built_in.piece(piece_hash)) for piece_hash in hashes]
        assert set(lengths[:-1]) == {PIECE_BYTES}
        assert 0 < lengths[-1] <= PIECE_BYTES


def test_pieces_cover_every_file_once(library: Path) -> None:
    corpus = build_corpus(1000, root=library)
    text = text_of(corpus, corpus.train) + text_of(corpus, corpus.validation)
    files = text.split(corpus_module.SEPARATOR)[:-1]
    assert sorted(files) == sorted(path.read_bytes() for path in library.rglob("*.py"))


def test_the_built_in_text_is_the_library_without_its_tests(built_in: Corpus) -> None:
    manifest = json.loads(built_in.manifest)
    paths = [path for path, _, _ in manifest["files"]]
    assert paths == sorted(paths)
    assert "argparse.py" in paths
    assert not [path for path in paths if set(path.split("/")) & corpus_module.SKIPPED_FOLDERS]
    assert 8e6 < num_bytes_of(built_in) < 16e6


def test_validation_is_three_to_five_percent_of_the_text(built_in: Corpus) -> None:
    validation_bytes = len(text_of(built_in, built_in.validation))
    assert 0.03 < validation_bytes / num_bytes_of(built_in) < 0.05


def test_no_validation_file_stands_in_the_training_text(built_in: Corpus) -> None:
    train_files = set(text_of(built_in, built_in.train).split(corpus_module.SEPARATOR)) - {b""}
    validation = set(text_of(built_in, built_in.validation).split(corpus_module.SEPARATOR)) - {b""}
    assert len(validation) > 10
    assert not train_files & validation
    assert not set(built_in.train) & set(built_in.validation)


def test_files_with_equal_contents_stay_in_one_part(library: Path) -> None:
    for path in list(library.rglob("*.py")):
        path.with_name(f"copy_of_{path.name}").write_bytes(path.read_bytes())
    train, validation = corpus_module.split_files(corpus_module.read_sources(library))
    assert validation
    assert not {file.data for file in train} & {file.data for file in validation}


def test_the_split_goes_by_contents_and_not_by_name(library: Path) -> None:
    _, before = corpus_module.split_files(corpus_module.read_sources(library))
    for path in list(library.rglob("*.py")):
        path.rename(path.with_name(f"renamed_{path.name}"))
    _, after = corpus_module.split_files(corpus_module.read_sources(library))
    assert {file.data for file in before} == {file.data for file in after}


def test_one_large_file_does_not_become_the_validation_text(library: Path) -> None:
    (library / "large.py").write_bytes(b"y = 2\n" * 10_000)
    _, validation = corpus_module.split_files(corpus_module.read_sources(library))
    assert validation
    assert "large.py" not in {file.path for file in validation}


def test_the_same_sources_give_the_same_manifest_and_one_changed_byte_another(
    library: Path,
) -> None:
    first = build_corpus(1000, root=library)
    assert build_corpus(1000, root=library).manifest_hash == first.manifest_hash
    assert build_corpus(999, root=library).manifest_hash != first.manifest_hash
    (library / "package0" / "module0.py").write_bytes(b"# changed\n")
    assert build_corpus(1000, root=library).manifest_hash != first.manifest_hash


def test_skipped_folders_other_files_and_empty_files_are_left_out(library: Path) -> None:
    for folder in ("test", "site-packages/x", "package0/tests"):
        (library / folder).mkdir(parents=True)
        (library / folder / "hidden.py").write_bytes(b"hidden")
    (library / "notes.txt").write_bytes(b"hidden")
    (library / "empty.py").write_bytes(b"")
    assert len(corpus_module.read_sources(library)) == 60


def test_fewer_validation_pieces_are_spread_over_the_text(library: Path) -> None:
    every = build_corpus(40, root=library)
    assert len(every.validation) > 4
    kept = build_corpus(40, root=library, validation_pieces=2)
    assert kept.validation == (every.validation[0], every.validation[len(every.validation) // 2])
    assert kept.train == every.train
    assert num_bytes_of(kept) < num_bytes_of(every)


def test_a_python_without_sources_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CorpusMissing, match="ordinary CPython"):
        build_corpus(PIECE_BYTES, root=tmp_path / "python311.zip")


def test_too_few_files_to_split_are_refused(tmp_path: Path) -> None:
    (tmp_path / "only.py").write_bytes(b"x = 1\n")
    with pytest.raises(CorpusMissing, match="too few"):
        build_corpus(PIECE_BYTES, root=tmp_path)


def test_an_unknown_piece_is_a_key_error(built_in: Corpus) -> None:
    with pytest.raises(KeyError):
        built_in.piece("0" * 64)


@pytest.mark.parametrize(("piece_bytes", "validation_pieces"), [(0, None), (1, 0)])
def test_sizes_below_one_are_refused(piece_bytes: int, validation_pieces: int | None) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        build_corpus(piece_bytes, validation_pieces=validation_pieces)


def test_unreadable_files_are_left_out(library: Path) -> None:
    (library / "dangling.py").symlink_to(library / "nowhere.py")
    assert len(corpus_module.read_sources(library)) == 60


def test_joined_files_end_with_a_separator_each() -> None:
    files = (SourceFile("a.py", b"a"), SourceFile("b.py", b"b"))
    assert corpus_module.join_files(files) == b"a\0b\0"


def test_building_the_text_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from swarmtrain.data.corpus import build_corpus; build_corpus(65536); "
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
