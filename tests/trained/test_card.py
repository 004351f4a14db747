"""The card of a model says what the ledger knows, and what nobody knows."""

from pathlib import Path

import pytest

from swarmtrain.config.settings import ModelSection, RunConfig, RunSection
from swarmtrain.trained.card import text_of
from swarmtrain.trained.collect import collect
from swarmtrain.trained.history import History
from swarmtrain_transport.wire.text_place import TextPlace
from tests.trained.test_export import MODEL, peer

HISTORY = History(
    rounds=7, skipped=2, peers=5, contributors=4, tokens=12_345, are_counted=True,
    losses={op: 5.0 - op / 100 for op in range(100)}, is_whole=True,
)  # fmt: skip


def card(folder: Path, model: ModelSection = MODEL, **changes: object) -> str:
    built = RunConfig(run=RunSection(name="tests", rounds=9), model=MODEL)
    found = collect([peer(folder / "a", 0, config=built)])
    object.__setattr__(found, "config", RunConfig(run=built.run, model=model))
    history = History(**{**{f: getattr(HISTORY, f) for f in HISTORY.__slots__}, **changes})
    return text_of(found, history, 1234, "ab" * 32)


def test_it_tells_rounds_peers_tokens_and_some_of_the_losses(tmp_path: Path) -> None:
    shown = card(tmp_path)
    assert "| rounds | 7 of 9 committed, 2 without a result, the run goes on |" in shown
    assert "| peers | 4 contributed, 5 were let in |" in shown
    assert "| tokens | 12 345, by the contributors' own counts |" in shown
    assert "| 0 | 5.0000 | 7.2135 |" in shown and "| 99 | 4.0100 | 5.7852 |" in shown
    assert "| tokens are | bytes of UTF-8" in shown
    assert shown.count("| 4.") < 15
    assert "swarmtrain generate" in shown and str(tmp_path) not in shown


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 0}, "none: these are the first weights"),
        ({"tokens": 0}, "not known: the ledger does not count them"),
        ({"are_counted": False}, "about 12 345: what the run file asks"),
        ({"is_whole": False}, "were let in since the oldest record that is here"),
        ({"losses": {}}, "the coordinator keeps them, and it was not at hand"),
    ],
)
def test_it_says_what_is_not_known(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    assert words in card(tmp_path, **changes)


def test_of_a_model_of_ones_own_it_promises_no_text(tmp_path: Path) -> None:
    shown = card(tmp_path, ModelSection(kind="custom"))
    assert "generate" not in shown and "text-generation" not in shown


def test_it_tells_how_much_of_the_text_was_read(tmp_path: Path) -> None:
    shown = card(tmp_path, text=TextPlace(2, 13, 60))
    assert "standard library; pass 2, 13 of 60 pieces used |" in shown
