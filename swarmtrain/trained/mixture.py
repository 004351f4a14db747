"""Experts as one model: the next token's chances are those of the likeliest experts, mixed.

p(next | context) = sum over k of p(k | context) p_k(next | context), of the two k alone that the
router finds likeliest (c-BTM, arXiv 2303.14177, section 2.4); of all where the context says nothing
yet, as its first two bytes do. Experts are asked no farther than a place needs them.

Between the two the text so far decides as well: p(k | context) is as the router's chance times
p_k(context)^EVIDENCE, as those two have told what came before anyway.

Legend of shapes: B texts, T tokens, V vocabulary, K experts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from swarmtrain.data.clusters import Router

MIXED = 2
"""Experts that answer for a place."""

EVIDENCE = 0.5
"""Weight of what experts have said of the text so far: bytes are no independent witnesses."""

_LEAST = 1e-6
"""Chance of an expert that answers, so that evidence may still speak for it."""

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
        routed_BTK = self._routed(tokens_BT)
        is_kept_BTK = routed_BTK > 0
        told_BTKV, heard_BTK = None, torch.zeros_like(routed_BTK)
        for index, expert in enumerate(self.experts):
            is_whole_B = is_kept_BTK[:, _OPEN:, index].any(dim=1)
            for length, rows_B in ((tokens_BT.shape[1], is_whole_B), (_OPEN, ~is_whole_B)):
                if not is_kept_BTK[rows_B, :length, index].any():
                    continue
                logs_BTV = torch.log_softmax(expert(tokens_BT[rows_B, :length]).float(), dim=-1)
                if told_BTKV is None:
                    told_BTKV = logs_BTV.new_zeros((*routed_BTK.shape, logs_BTV.shape[-1]))
                told_BTKV[rows_B, :length, index] = logs_BTV
                came_BT1 = tokens_BT[rows_B, 1:length, None].long()
                said_BT = logs_BTV[:, :-1].gather(-1, came_BT1).squeeze(-1)
                heard_BTK[rows_B, 1:length, index] = said_BT.cumsum(dim=1)
        assert told_BTKV is not None
        shares_BTK = torch.log_softmax(routed_BTK.log() + EVIDENCE * heard_BTK, dim=-1)
        return torch.logsumexp(shares_BTK[..., None] + told_BTKV, dim=2)

    def _routed(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, K) chance of each expert, given the text up to and with each place; 0 for those
        that do not answer there."""
        texts = [bytes(row) for row in tokens_BT.cpu().tolist()]
        chances_BTK = torch.stack(
            [torch.from_numpy(self._router.chances_along(text)) for text in texts]
        )
        kept, places = chances_BTK.topk(self._mixed, dim=-1)
        routed = torch.zeros_like(chances_BTK).scatter_(-1, places, kept.clamp(min=_LEAST))
        routed[:, :_OPEN] = chances_BTK[:, :_OPEN]
        return routed.to(tokens_BT.device)
