"""A decoder-only transformer from its parts, whatever its blocks are; keys and values of the tokens
that it has read, so that each new one costs one position.

Legend of shapes: B windows, T tokens, C width, V vocabulary, H heads, D width of one head.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from swarmtrain.config.settings import ModelSection

Follow = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""One layer's `KeyValues.follow`."""


class KeyValues:
    """Keys and values of every layer so far. A model that takes one reads tokens that follow it.

    Several tokens at once only go into an empty one, where the causal mask is the usual one.
    """

    def __init__(self) -> None:
        self._layers: list[tuple[Tensor, Tensor]] = []

    @property
    def length(self) -> int:
        """Positions so far."""
        return self._layers[0][0].shape[2] if self._layers else 0

    def follow(self, layer: int, key_BHTD: Tensor, value_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values so far, the new ones last, which are kept.

        Raises:
            ValueError: several new positions follow older ones.
        """
        if layer == len(self._layers):
            self._layers.append((key_BHTD, value_BHTD))
            return key_BHTD, value_BHTD
        if key_BHTD.shape[2] != 1:
            raise ValueError("several tokens at once go into an empty cache only")
        keys, values = self._layers[layer]
        both = torch.cat((keys, key_BHTD), dim=2), torch.cat((values, value_BHTD), dim=2)
        self._layers[layer] = both
        return both


def check_sizes(section: ModelSection) -> None:
    """Refuse sizes that no such model has.

    Raises:
        ValueError: the text names the keys of the run file.
    """
    if min(section.layers, section.width, section.heads, section.context) < 1:
        raise ValueError("[model] layers, width, heads and context must all be at least 1")
    if section.width % (pairs := 2 * section.heads) != 0:  # heads turn their values in pairs
        raise ValueError(f"[model] width {section.width} must be a multiple of 2 x heads = {pairs}")


def fill(model: nn.Module, values: Iterable[tuple[str, Tensor]]) -> None:
    """Give parameters these values, by their names."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, one in values:
            parameters[name].copy_(one)


class Decoder(nn.Module):
    """Logits of the next token for every position.

    Args:
        context: longest T.
        embedding: (B, T) -> (B, T, C).
        blocks: each is called with what comes in, a row of both tables for each position, and its
            layer of the cache, or None.
        norm: norm before the head.
        head: (B, T, C) -> (B, T, V).
        tables: cosines and sines of every position, a row each.
    """

    def __init__(
        self,
        context: int,
        embedding: nn.Embedding,
        blocks: Sequence[nn.Module],
        norm: nn.Module,
        head: nn.Linear,
        tables: tuple[Tensor, Tensor],
    ) -> None:
        super().__init__()
        self.context = context
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.head = head
        self.register_buffer("_cos", tables[0], persistent=False)
        self.register_buffer("_sin", tables[1], persistent=False)
        self._cos: Tensor
        self._sin: Tensor

    def forward(self, tokens_BT: Tensor, cache: KeyValues | None = None) -> Tensor:
        """(B, T) int64 in 0..V-1 -> (B, T, V) logits. Tokens follow those of the cache, which then
        has them too; all together are at most the context."""
        first = cache.length if cache is not None else 0
        stop = first + tokens_BT.shape[1]
        if stop > self.context:
            raise ValueError(f"{stop} tokens are more than the context of {self.context}")
        cos, sin = self._cos[first:stop], self._sin[first:stop]
        hidden_BTC = self.embedding(tokens_BT)
        for layer, block in enumerate(self.blocks):
            follow = partial(cache.follow, layer) if cache is not None else None
            hidden_BTC = block(hidden_BTC, cos, sin, follow)
        logits_BTV: Tensor = self.head(self.norm(hidden_BTC))
        return logits_BTV
