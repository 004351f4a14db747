"""SparseLoCo: a few of the values, two bits each; the rest waits in error feedback.

Everybody gets every contribution (`OpKind.GATHER`) and makes the mean of them in the order of the
peers' ids, which is what `apply` is given. There is no outer momentum: old differences are let go
slowly by the error feedback, which takes its place. The choice of values and their bits are the
codec's (chunked top-k), so the strategy itself is as dense as DiLoCo. Exclusions and skips follow
protocol.md rule 9, as in every strategy whose ops are waited for.

References:
    Sarfi et al., Communication Efficient LLM Pre-training with SparseLoCo, arXiv 2508.15706. Only
    its abstract was read, so no section is named; the rule is as the report on Covenant-72B states
    it.
"""

import torch

from swarmtrain_optimizers.outer import sgd
from swarmtrain_optimizers.strategies.base import Exchange, OpKind
from swarmtrain_optimizers.strategies.synchronous import Synchronous


class SparseLoCo(Synchronous):
    """With phi the anchor, theta the weights, e the residual, zero in op 0, beta its decay, alpha
    the rate, a what is due and c what is sent of it: Delta = phi - theta; a = beta e + Delta;
    c = top-k of a in two bits; e <- a - c; d = mean of the included c, with 0 where a peer chose
    nothing; phi' = phi - alpha d; theta <- phi'.

    The mean is over all contributors, not over those alone that chose a value: the latter, which
    is found in public code, makes up to peers times larger steps where few chose.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round.
        lr: alpha; 1, and about 0.65 late in a run.
        beta: share of the residual that is sent again, 0.95 in the paper.
        dtype: float32; float64 for oracles.

    Raises:
        ValueError: `beta` is outside 0..1.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        lr: float = 1.0,
        beta: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not 0 <= beta <= 1:
            raise ValueError(f"beta is {beta}; above 1 the residual would grow without end")
        super().__init__(
            num_values, inner_steps=inner_steps, outer=sgd(lr), feedback_beta=beta, dtype=dtype
        )

    def exchange(self, op: int) -> Exchange:
        """Every contribution to everybody, waited for."""
        return Exchange(OpKind.GATHER, ((0, self._num_values),))
