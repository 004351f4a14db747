"""A decoder-only transformer in the shape of Llama, of any size.

Norm before each part (RMSNorm, arXiv 1910.07467), rotary positions (RoFormer, arXiv 2104.09864,
section 3.2), a gated feed-forward part (SwiGLU, arXiv 2002.05202), keys and values that heads may
share (GQA, arXiv 2305.13245), no biases. Its parameters fit `LlamaForCausalLM` of the transformers
library one to one (`models.hf`), so what was trained can be used wherever that is known.

Not here: sizes by name (`config.built_in`), and training.

Legend of shapes: B windows, T tokens, C width, H heads, D width of one head, V vocabulary.
"""

import hashlib
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swarmtrain.config.built_in import (
    built_in_parameters,
    head_width_of,
    kv_heads_of,
    mlp_width_of,
    tokens_of,
)
from swarmtrain.config.settings import ModelSection
from swarmtrain.models.decoder import Decoder, Follow, check_sizes, fill

NORM_EPS = 1e-5
"""Added to the mean square under a norm's root, as Llama 2 has it."""

INIT_STD = 0.02
"""Standard deviation of fresh matrices (GPT-2). Those that add to the residual stream have less, by
the root of how many add: the stream begins alike at every depth."""


class Transformer(Decoder):
    """Logits of the next token for every position.

    Args:
        section: sizes; of `kind` ``transformer``.

    Raises:
        ValueError: the sizes do not fit together; the text names the key of the run file.
    """

    def __init__(self, section: ModelSection) -> None:
        vocabulary = tokens_of(section)
        width, heads, kv_heads = section.width, section.heads, kv_heads_of(section)
        check_sizes(section)
        if heads % kv_heads != 0:
            raise ValueError(f"[model] heads {heads} must be a multiple of kv_heads = {kv_heads}")
        super().__init__(
            section.context,
            nn.Embedding(vocabulary, width),
            [_Block(section) for _ in range(section.layers)],
            _norm(section),
            nn.Linear(width, vocabulary, bias=False),
            rotary_tables(section),
        )
        if section.tied:
            self.head.weight = self.embedding.weight


class _Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to its input."""

    def __init__(self, section: ModelSection) -> None:
        super().__init__()
        width, inner = section.width, mlp_width_of(section)
        self._head_width = head_width_of(section)
        keys = kv_heads_of(section) * self._head_width
        self._is_shared = keys < width
        self.attention_norm = _norm(section)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, keys, bias=False)
        self.value = nn.Linear(width, keys, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = _norm(section)
        self.mlp_gate = nn.Linear(width, inner, bias=False)
        self.mlp_up = nn.Linear(width, inner, bias=False)
        self.mlp_down = nn.Linear(inner, width, bias=False)

    def forward(
        self, hidden_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor, follow: Follow | None = None
    ) -> Tensor:
        normed_BTC = self.attention_norm(hidden_BTC)
        query_BHTD = _rotate(self._by_head(self.query(normed_BTC)), cos_TD, sin_TD)
        key_BHTD = _rotate(self._by_head(self.key(normed_BTC)), cos_TD, sin_TD)
        value_BHTD = self._by_head(self.value(normed_BTC))
        is_causal = True
        if follow is not None:
            key_BHTD, value_BHTD = follow(key_BHTD, value_BHTD)
            is_causal = hidden_BTC.shape[1] > 1
        mixed_BHTD = F.scaled_dot_product_attention(
            query_BHTD, key_BHTD, value_BHTD, is_causal=is_causal, enable_gqa=self._is_shared
        )
        mixed_BTC = mixed_BHTD.transpose(1, 2).reshape(hidden_BTC.shape)
        hidden_BTC = hidden_BTC + self.attention_out(mixed_BTC)
        normed_BTC = self.mlp_norm(hidden_BTC)
        inner = F.silu(self.mlp_gate(normed_BTC)) * self.mlp_up(normed_BTC)
        out: Tensor = hidden_BTC + self.mlp_down(inner)
        return out

    def _by_head(self, values: Tensor) -> Tensor:
        """(B, T, heads x D) -> (B, heads, T, D)."""
        num_windows, num_positions, _ = values.shape
        return values.view(num_windows, num_positions, -1, self._head_width).transpose(1, 2)


def build_model(section: ModelSection, seed: int) -> Transformer:
    """The model with fresh weights: the same bits for the same seed and torch.

    Raises:
        ValueError: the sizes do not fit together.
    """
    with torch.device("meta"):
        model = Transformer(section)
    model.to_empty(device="cpu")
    if section.tied:  # to_empty makes two of what was one
        model.head.weight = model.embedding.weight
    cos_TD, sin_TD = rotary_tables(section)
    model._cos.copy_(cos_TD)
    model._sin.copy_(sin_TD)
    fill(model, initial_values(section, seed))
    return model


def initial_values(
    section: ModelSection, seed: int, wanted: frozenset[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Name and fresh float32 values of parameters in the model's order, made one at a time.

    Each has a generator of its own, so those of a part of the model are the bits of the whole and
    the others need not be drawn.

    Args:
        section: sizes.
        seed: seed of the draws.
        wanted: names to make; all if None.
    """
    less = 1 / math.sqrt(2 * section.layers)
    for name, shape, _ in built_in_parameters(section):
        if wanted is not None and name not in wanted:
            continue
        if len(shape) == 1:
            yield name, torch.ones(shape)
            continue
        digest = hashlib.sha256(b"swarmtrain weights 1" + seed.to_bytes(8, "big") + name.encode())
        generator = torch.Generator().manual_seed(int.from_bytes(digest.digest()[:8], "big"))
        adds = name.endswith(("attention_out.weight", "mlp_down.weight"))
        std = INIT_STD * (less if adds else 1.0)
        yield name, torch.empty(shape).normal_(mean=0.0, std=std, generator=generator)


def rotary_tables(section: ModelSection) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position, (context, D) float32 each; the second half of a row is
    the first again, and the first half of the sines is negative."""
    head_width = head_width_of(section)
    exponents = torch.arange(0, head_width, 2, dtype=torch.float32) / head_width
    frequencies = 1.0 / section.rotary_base**exponents
    angles = torch.arange(section.context, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def _rotate(values_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Turn each pair (value i, value i + D/2) by its position's angle."""
    swapped = values_BHTD.roll(values_BHTD.shape[-1] // 2, dims=-1)
    return values_BHTD * cos_TD.to(values_BHTD.dtype) + swapped * sin_TD.to(values_BHTD.dtype)


def _norm(section: ModelSection) -> nn.Module:
    if section.norm == "layer":
        return nn.LayerNorm(section.width, eps=NORM_EPS, bias=False)
    return nn.RMSNorm(section.width, eps=NORM_EPS)
