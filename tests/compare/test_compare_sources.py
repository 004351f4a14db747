"""Keys of kept runs: over settings, versions and the code that a run is made by."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from compare_text import TINY

from swarmtrain.compare import sources
from swarmtrain.compare.plan import Pace
from swarmtrain.compare.sources import code_of, key_of


def test_a_key_is_over_settings_and_code_and_not_over_the_label():
    keys = [
        key_of(TINY, "torch 1", "abc"),
        key_of(replace(TINY, seed=1), "torch 1", "abc"),
        key_of(replace(TINY, inner_lr=0.5), "torch 1", "abc"),
        key_of(replace(TINY, points=3), "torch 1", "abc"),
        key_of(replace(TINY, pace=Pace.DYNAMIC), "torch 1", "abc"),
        key_of(replace(TINY, speeds=(1.0, 1.0, 0.5)), "torch 1", "abc"),
        key_of(TINY, "torch 2", "abc"),
        key_of(TINY, "torch 1", "abd"),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(replace(TINY, label="another"), "torch 1", "abc") == keys[0]


def test_the_digest_follows_what_code_does_and_not_what_is_said_of_it():
    def digest(text: str) -> str:
        return sources.digest_of([("a.py", ast.parse(text))])

    plain = 'def f(x):\n    """One."""\n    return x + 1\n'
    said = '"""A."""\n# why\ndef f(x):\n    """Other."""\n    return x + 1  # so\n'
    assert digest(plain) == digest(said)
    assert digest("Facts(about='x', rates=Rates(1))") == digest("Facts(about='y', rates=Rates(2))")
    assert digest(plain) != digest(plain.replace("+", "-"))


def test_sources_are_what_a_run_imports_and_nothing_that_reads_or_shows():
    found = sources.sources()
    names = {path.name for path in found}
    wanted = {
        "anchored.py",
        "swarm.py",
        "trainer.py",
        "byte_transformer.py",
        "int8.py",
        "settings.py",
    }
    assert wanted <= names
    unread = {"html.py", "session.py", "errors.py", "sweep.py", "seats.py"}
    house = Path(sources.__file__).parents[1]
    assert not unread & {path.name for path in found if path.is_relative_to(house)}
    trees = ((path.name, ast.parse(path.read_text(encoding="utf-8"))) for path in found)
    assert sources.code_digest() == sources.digest_of(trees)


def test_what_lies_beside_a_package_is_not_followed_and_its_own_parts_are(tmp_path):
    texts = {
        "own/__init__.py": "from .rule import Rule\n",
        "own/rule.py": "import torch\nfrom own import parts\nfrom ..beyond import x\n",
        "own/parts.py": "",
        "own/unused.py": "",
        "torch.py": "import own.unused\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def names(first: str, *, with_faces: bool) -> list[str]:
        found = sources.reached(first, tmp_path, with_faces=with_faces)
        return sorted(str(path.relative_to(tmp_path)) for path in found)

    assert names("own", with_faces=True) == ["own/__init__.py", "own/parts.py", "own/rule.py"]
    assert names("own.rule", with_faces=False) == ["own/parts.py", "own/rule.py"]


FACTS = """
from swarmtrain_optimizers.strategies.facts import StrategyFacts
FACTS = StrategyFacts("halves", "halves_rule:Rule", "half of everything")
"""


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """The directory of an installed package that brings the strategy `halves`."""
    info = tmp_path / "halves-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[swarmtrain.strategies]\nhalves = halves:FACTS\n")
    (tmp_path / "halves_rule.py").write_text("Rule = 1\n")
    (tmp_path / "halves.py").write_text(FACTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_of_a_strategy_that_a_package_brings_its_version_and_its_module_count(package):
    first = code_of("halves", "abc")
    assert first.startswith("abc halves 1.0 ")
    (package / "halves_rule.py").write_text("# said\nRule = 1\n")
    assert code_of("halves", "abc") == first
    (package / "halves_rule.py").write_text("Rule = 2\n")
    second = code_of("halves", "abc")
    metadata = package / "halves-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "1.1"))
    assert len({first, second, code_of("halves", "abc")}) == 3


def test_of_swarmtrains_own_strategies_only_its_own_code_counts(package):
    assert code_of("diloco", "abc") == "abc"
