"""Lets a model write on, a token at a time.

With a cache of keys and values a new token costs one position. When the context is full, the newer
half of what was written is read anew: so no token sees less than half a context once there is one,
and the cost stays even. A model that takes no cache reads its whole window for each token.

Legend of shapes: T tokens, V vocabulary.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from swarmtrain.foundation.errors import no_numbers
from swarmtrain.models.decoder import KeyValues


@dataclass(frozen=True, slots=True)
class Taste:
    """Settings of the draw of the next token.

    Attributes:
        temperature: 0 takes the likeliest token each time, 1 draws as the model believes.
        top_k: only among so many of the likeliest; 0 for all.
        top_p: only among the likeliest that have so much of the probability together (nucleus
            sampling, arXiv 1904.09751); 1 for all.
        seed: seed of the draws.
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


def written(
    model: nn.Module, prompt: Sequence[int], num_tokens: int, context: int, taste: Taste,
    vocabulary: int,
) -> Iterator[int]:  # fmt: skip
    """The tokens after a prompt, one by one. The same seed gives the same on one machine.

    Args:
        model: gives (1, T, V) logits.
        prompt: tokens, at least one; the newest `context` count.
        num_tokens: number of tokens to write.
        context: longest T that the model takes.
        taste: settings of the draw.
        vocabulary: tokens that mean something; the model may know more, which are never drawn.
    """
    generator = torch.Generator().manual_seed(taste.seed)
    tokens = list(prompt)
    ask = _asking(model, context)
    for _ in range(num_tokens):
        with torch.inference_mode():
            logits_V = ask(tokens)[:vocabulary].float().cpu()
            token = drawn(logits_V, taste, generator)
        tokens.append(token)
        yield token


def drawn(logits_V: Tensor, taste: Taste, generator: torch.Generator) -> int:
    """Draw one token.

    Raises:
        UserError: SWT-E455, the logits, (V,), are no numbers.
    """
    highest = logits_V.amax()
    if not highest.isfinite():
        raise no_numbers("The logits of the next token")
    if taste.temperature == 0:
        return int(logits_V.argmax())
    temperature = max(taste.temperature, 1e-30)  # far less is zero in float32
    chances_V = torch.softmax((logits_V - highest) / temperature, dim=-1)
    sorted_V, order_V = chances_V.sort(descending=True, stable=True)
    if taste.top_k:
        sorted_V = sorted_V[: taste.top_k]
    if taste.top_p < 1:
        before_V = sorted_V.cumsum(0) - sorted_V
        sorted_V = sorted_V[: max(1, int((before_V < taste.top_p).sum()))]
    return int(order_V[torch.multinomial(sorted_V, 1, generator=generator)])


def _asking(model: nn.Module, context: int) -> Callable[[list[int]], Tensor]:
    """A function from all tokens so far to the logits, (V,), of the next one."""
    device = next(model.parameters()).device

    def window(tokens: Sequence[int]) -> Tensor:
        return torch.tensor([tokens], device=device)

    if "cache" not in inspect.signature(model.forward).parameters:
        return lambda tokens: model(window(tokens[-context:]))[0, -1]
    cache = KeyValues()

    def ask(tokens: list[int]) -> Tensor:
        nonlocal cache
        if cache.length == 0 or cache.length == context:
            is_first = cache.length == 0
            cache = KeyValues()
            new = tokens[-context:] if is_first else tokens[-max(1, context // 2) :]
        else:
            new = tokens[-1:]
        logits_V: Tensor = model(window(new), cache=cache)[0, -1]
        return logits_V

    return ask
