"""A model writes on: the same with a cache as without, drawn as asked, in whole characters."""

import pytest
import torch
from torch import Tensor, nn

from swarmtrain.config.settings import ModelSection
from swarmtrain.data.tokenizer import Bytes
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.trained.tokens import TextStream
from swarmtrain.trained.writing import Taste, drawn, written

MODEL = ModelSection(layers=2, width=32, heads=2, context=16)
GREEDY = Taste(temperature=0)


class WithoutCache(nn.Module):
    """The same model, which takes none."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, tokens_BT: Tensor) -> Tensor:
        logits: Tensor = self.inner(tokens_BT)
        return logits


@pytest.fixture
def model() -> nn.Module:
    made = build_model(MODEL, seed=1)
    with torch.no_grad():  # fresh ones add nothing to the stream: attention would not matter
        generator = torch.Generator().manual_seed(7)
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return made.eval()


def test_a_cache_changes_no_token_within_the_context(model: nn.Module) -> None:
    prompt = [1, 2, 3, 4]
    with_cache = list(written(model, prompt, 12, 16, GREEDY, 256))
    assert with_cache == list(written(WithoutCache(model), prompt, 12, 16, GREEDY, 256))
    assert len(set(with_cache)) > 2


def test_beyond_the_context_it_writes_on_from_the_newer_half(model: nn.Module) -> None:
    found = list(written(model, list(range(40)), 60, 16, GREEDY, 256))
    # The prompt's last 16 fill the cache: token 1 comes of them, token 2 of the last 8.
    known = [*range(40), found[0]]
    assert found[1] == int(model(torch.tensor([known[-8:]]))[0, -1].argmax())
    assert len(found) == 60


def test_the_same_seed_gives_the_same_text_and_another_one_does_not(model: nn.Module) -> None:
    texts = [list(written(model, [5], 10, 16, Taste(seed=seed), 256)) for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


def test_tokens_that_mean_nothing_are_never_drawn(model: nn.Module) -> None:
    assert max(written(model, [5], 50, 16, Taste(temperature=3.0), 9)) < 9


@pytest.mark.parametrize(
    ("taste", "expected"),
    [
        (Taste(temperature=1, top_k=2), {1, 3}),
        (Taste(temperature=1, top_p=0.6), {1, 3}),
        (Taste(temperature=1, top_p=0.0001), {1}),
        (Taste(temperature=1), {0, 1, 2, 3}),
        (Taste(temperature=0), {1}),
    ],
)
def test_only_the_likeliest_are_drawn(taste: Taste, expected: set[int]) -> None:
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log()
    generator = torch.Generator().manual_seed(0)
    if taste.top_p == 0.0001:  # torch.multinomial must still have one to draw
        assert drawn(logits, taste, generator) == 1
    assert {drawn(logits, taste, generator) for _ in range(300)} == expected


def streamed(data: bytes) -> list[str]:
    stream = TextStream(Bytes(), [])
    return [*(stream.take(value) for value in data), stream.rest()]


def test_a_character_is_shown_when_all_of_it_is_there() -> None:
    assert streamed("aé€".encode()) == ["a", "", "é", "", "", "€", ""]


def test_bytes_that_are_no_text_are_shown_as_such_and_hold_nothing_up() -> None:
    shown = streamed(b"\xff" * 20 + b"ok")
    assert "".join(shown) == "\N{REPLACEMENT CHARACTER}" * 20 + "ok"
    assert shown[7] and streamed(b"\xe2\x82")[-1]


def test_the_prompts_last_tokens_are_not_said_again() -> None:
    stream = TextStream(Bytes(), list("né".encode()))
    assert stream.take(ord("e")) == "e"
