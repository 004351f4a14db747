"""Experts as one model: the next token's chances are those of the likeliest experts, mixed.

p(next | context) = sum over k of p(k | context) p_k(next | context), of the two likeliest k alone,
whose shares are scaled to 1 (c-BTM, arXiv 2303.14177, section 2.4); of all where the context says
nothing yet, as its first two bytes do. Experts are asked no farther than a place needs them.

Legend of shapes: B texts, T tokens, V vocabulary, K experts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from swarmtrain.data.clusters import Router

MIXED = 2
"""Experts that answer for a place."""

_OPEN = 2
"""First places of a text, at which the router knows nothing: it goes by triples."""


class Mixture(nn.Module):
    """Several models of one shape and the router between them. Tokens are bytes.

    Args:
        experts: give (B, T, V) logits.
        router: as many centres.
        mixed: experts that answer for a place.
    """

    def __init__(self, experts: Sequence[nn.Module], router: Router, mixed: int = MIXED) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        self._router = router
        self._mixed = min(mixed, len(experts))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, V) logarithms of the mixed chances."""
        shares_BTK = self._shares(tokens_BT)
        mixed_BTV: Tensor | None = None
        for index, expert in enumerate(self.experts):
            share_BT = shares_BTK[..., index]
            is_whole_B = share_BT[:, _OPEN:].any(dim=1)
            for length, rows_B in ((tokens_BT.shape[1], is_whole_B), (_OPEN, ~is_whole_B)):
                if not share_BT[rows_B, :length].any():
                    continue
                chances = torch.softmax(expert(tokens_BT[rows_B, :length]).float(), dim=-1)
                if mixed_BTV is None:
                    mixed_BTV = chances.new_zeros((*tokens_BT.shape, chances.shape[-1]))
                mixed_BTV[rows_B, :length] += chances * share_BT[rows_B, :length, None]
        assert mixed_BTV is not None
        return mixed_BTV.log()

    def _shares(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, K) share of each expert, given the text up to and with each place."""
        texts = [bytes(row) for row in tokens_BT.cpu().tolist()]
        chances_BTK = torch.stack(
            [torch.from_numpy(self._router.chances_along(text)) for text in texts]
        )
        kept, places = chances_BTK.topk(self._mixed, dim=-1)
        kept /= kept.sum(dim=-1, keepdim=True)
        shares = torch.zeros_like(chances_BTK).scatter_(-1, places, kept)
        shares[:, :_OPEN] = chances_BTK[:, :_OPEN]
        return shares.to(tokens_BT.device)
