"""A small decoder-only transformer over bytes, made to learn visibly on two CPU cores.

Bytes instead of a tokenizer: nothing to download, and 256 values suit any text. Choices that
differ from larger models were measured on one CPU thread: LayerNorm without bias is 2.7 times as
fast there as RMSNorm, and squared ReLU (Primer, arXiv 2109.08668, section 3) 9 times as fast as
GELU while it learns faster. Positions are rotary (RoFormer, arXiv 2104.09864, section 3.2), so no
parameter depends on the context.

Not here: training, and any other size than the run file asks for.

Legend of shapes: B windows, T bytes, C width, H heads, D width of one head, V byte values.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swarmtrain.config.built_in import built_in_parameters
from swarmtrain.config.settings import ModelSection
from swarmtrain.models.decoder import Decoder, Follow, check_sizes, fill

NUM_BYTE_VALUES = 256

MLP_RATIO = 4
"""Inner width of the feed-forward part, in widths: the usual ratio since the first transformer."""

ROTARY_BASE = 10_000.0
"""Longest wavelength of the positions in radians per byte (RoFormer's value)."""

INIT_STD = 0.04
"""Standard deviation of fresh matrices inside the blocks; twice GPT-2's value, as the width of a
demo is small. Matrices that add to the residual stream start at zero (Fixup, arXiv 1901.09321)."""

TABLE_STD = 0.02
"""Deviation for embedding and head: small enough that the first loss is close to ln 256."""


class ByteTransformer(Decoder):
    """Logits of the next byte for every position.

    Args:
        section: sizes; of `kind` ``byte-transformer``.

    Raises:
        ValueError: the sizes do not fit together; the text names the key of the run file.
    """

    def __init__(self, section: ModelSection) -> None:
        check_sizes(section)
        width, heads = section.width, section.heads
        super().__init__(
            section.context,
            nn.Embedding(NUM_BYTE_VALUES, width),
            [_Block(width, heads) for _ in range(section.layers)],
            nn.LayerNorm(width, bias=False),
            # Not the transposed table: 4 % more parameters, and a first loss of ln 256.
            nn.Linear(width, NUM_BYTE_VALUES, bias=False),
            rotary_tables(section),
        )


class _Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp_up = nn.Linear(width, MLP_RATIO * width, bias=False)
        self.mlp_down = nn.Linear(MLP_RATIO * width, width, bias=False)

    def forward(
        self, hidden_BTC: Tensor, cos_TC: Tensor, sin_TC: Tensor, follow: Follow | None = None
    ) -> Tensor:
        num_windows, num_positions, width = hidden_BTC.shape
        qkv_BTC = self.query_key_value(self.attention_norm(hidden_BTC))
        turned_BTC = _rotate(qkv_BTC[..., : 2 * width], cos_TC, sin_TC, width // self.heads)
        pair = turned_BTC.view(num_windows, num_positions, 2, self.heads, width // self.heads)
        query_BHTD, key_BHTD = pair.permute(2, 0, 3, 1, 4)
        value_BTHD = qkv_BTC[..., 2 * width :].view(pair.shape[:2] + pair.shape[3:])
        value_BHTD = value_BTHD.transpose(1, 2)
        is_causal = True
        if follow is not None:
            key_BHTD, value_BHTD = follow(key_BHTD, value_BHTD)
            is_causal = num_positions > 1
        mixed_BHTD = F.scaled_dot_product_attention(
            query_BHTD, key_BHTD, value_BHTD, is_causal=is_causal
        )
        mixed_BTC = mixed_BHTD.transpose(1, 2).reshape(num_windows, num_positions, width)
        hidden_BTC = hidden_BTC + self.attention_out(mixed_BTC)
        inner = F.relu(self.mlp_up(self.mlp_norm(hidden_BTC))).square()
        out: Tensor = hidden_BTC + self.mlp_down(inner)
        return out


def build_model(section: ModelSection, seed: int) -> ByteTransformer:
    """The model of a run file with fresh weights: the same bits for the same seed and torch.

    The global random state is left as it was. A run does not rely on the seed: its op 0 is the
    bytes that the first peer offers.

    Raises:
        ValueError: the sizes do not fit together.
    """
    with torch.random.fork_rng(devices=[]):
        model = ByteTransformer(section)
    fill(model, initial_values(section, seed))
    return model


def initial_values(section: ModelSection, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Name and fresh float32 values of each parameter in the model's order, made one at a time.

    To have some of them alone, take them all and drop the others: the draws follow each other. So a
    part of the model has the bits of the whole, which need not be made.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, shape, _ in built_in_parameters(section):
        if len(shape) == 1:
            yield name, torch.ones(shape)
        elif name.endswith(("attention_out.weight", "mlp_down.weight")):
            yield name, torch.zeros(shape)
        else:
            std = INIT_STD if name.startswith("blocks.") else TABLE_STD
            yield name, torch.empty(shape).normal_(mean=0.0, std=std, generator=generator)


def rotary_tables(section: ModelSection) -> tuple[Tensor, Tensor]:
    """Cosines, and sines with their signs, of what queries and keys are multiplied by.

    Returns:
        Both (context, 2 x width) float32: one row for the queries and keys of all heads. The first
        half of each head's sines is negative.
    """
    head_width = section.width // section.heads
    exponents = torch.arange(0, head_width, 2, dtype=torch.float32) / head_width
    angles = torch.arange(section.context, dtype=torch.float32)[:, None] * ROTARY_BASE**-exponents
    cos, sin = angles.cos(), angles.sin()
    cos_TD, sin_TD = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return cos_TD.repeat(1, 2 * section.heads), sin_TD.repeat(1, 2 * section.heads)


def _rotate(heads_BTC: Tensor, cos_TC: Tensor, sin_TC: Tensor, head_width: int) -> Tensor:
    """Turn each pair (value i, value i + D/2) of every head by its position's angle.

    All heads at once, queries and keys side by side: rows as long as that make it 2.5 times as
    fast on one CPU thread as head by head, with the same bits.

    Args:
        heads_BTC: (B, T, C), C a multiple of D.
        cos_TC: cosines of `rotary_tables`.
        sin_TC: the same.
        head_width: D.
    """
    by_head = heads_BTC.reshape(*heads_BTC.shape[:2], -1, head_width)
    swapped_BTC = by_head.roll(head_width // 2, dims=-1).view(heads_BTC.shape)
    return heads_BTC * cos_TC + swapped_BTC * sin_TC
