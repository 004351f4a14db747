"""A model's measure: every token but a document's first is foretold once, whatever the windows."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from swarmtrain.cli.main import main
from swarmtrain.data.tokenizer import Bytes
from swarmtrain.foundation.errors import UserError
from swarmtrain.trained.judged import judged, text_at

TEXT = "abcabcabcab"


class Foretells(nn.Module):
    """Gives every byte the same chance but its successor in abcabc, which is `odds` as likely."""

    def __init__(self, odds: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.odds = math.log(odds)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        following = torch.tensor([ord("b"), ord("c"), ord("a")])[tokens_BT - ord("a")]
        return nn.functional.one_hot(following, 256).float() * self.odds + self.bias


@pytest.mark.parametrize("context", [1, 3, 4, 10, 64])
def test_loss_is_that_of_every_token_but_the_first(context: int) -> None:
    found = judged(
        Foretells(257.0), Bytes(), context, [[TEXT], [], [TEXT[:4], TEXT[4:5], TEXT[5:]]]
    )
    assert found.loss == pytest.approx(math.log((255 + 257) / 257), rel=1e-5)
    assert found.perplexity == pytest.approx(512 / 257, rel=1e-5)
    assert (found.tokens, found.documents, found.bytes) == (20, 2, 22)
    assert found.windows >= 2 * -(-10 // context)
    assert found.bits_per_byte == pytest.approx(found.loss * 20 / 22 / math.log(2), rel=1e-6)


def test_it_stops_after_so_many_windows() -> None:
    found = judged(Foretells(2.0), Bytes(), 2, [[TEXT]] * 3, most_windows=7)
    assert (found.windows, found.tokens, found.documents) == (7, 14, 2)
    assert found.bytes == round(11 + 11 * 4 / 10)


def test_too_little_text_is_told() -> None:
    with pytest.raises(UserError) as caught:
        judged(Foretells(2.0), Bytes(), 2, [["a"], [""]])
    assert caught.value.code == "SWT-E452"


def test_what_is_no_text_is_left_out_and_nothing_else_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.dat").write_bytes(b"\0\1\2")
    found, skipped = text_at(str(tmp_path))
    assert ["".join(one) for one in found] == ["text"] and skipped == 1
    (tmp_path / "rows.jsonl").write_text('{"words": "one"}\n{"words": "two"}\n')
    rows, _ = text_at(str(tmp_path / "rows.jsonl"), "words")
    assert ["".join(one) for one in rows] == ["one", "two"]
    assert main(["evaluate", "nowhere", "--data", str(tmp_path / "b.dat")]) == 65
    assert "SWT-E821" in capsys.readouterr().err
    assert main(["evaluate", "nowhere", "--data", str(tmp_path / "none")]) == 66
    assert "SWT-E820" in capsys.readouterr().err
    assert main(["evaluate", "nowhere", "--data", str(tmp_path / "a.txt")]) == 66
    assert "SWT-E806" in capsys.readouterr().err
