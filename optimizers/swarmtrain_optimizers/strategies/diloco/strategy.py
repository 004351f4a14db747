"""DiLoCo: inner steps alone, then one outer Nesterov step on the mean pseudo-gradient.

A peer whose part was left out follows protocol.md rules 9 and 10, as in every strategy whose ops
are waited for (`synchronous`).

References:
    Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models,
    arXiv 2311.08105, section 2 and Alg. 1, with PyTorch's form of Nesterov's step. Charles et al.,
    Communication-Efficient Language Model Training Scales Reliably and Robustly, arXiv 2503.09799
    (the learning rate by contributors).
"""

from typing import Literal

import torch

from swarmtrain_optimizers.outer import nesterov
from swarmtrain_optimizers.scaling import effective_contributors, outer_lr
from swarmtrain_optimizers.strategies.base import SwarmFacts
from swarmtrain_optimizers.strategies.synchronous import Synchronous


class DiLoCo(Synchronous):
    """DiLoCo with optional error feedback.

    With phi the anchor, theta the weights after the inner steps, m the outer momentum buffer, zero
    in op 0, mu its decay and eta the learning rate: Delta = phi - theta; d = weighted mean of the
    included Delta; m <- mu m + d; phi' = phi - eta (mu m + d), with the new m; theta <- phi'.

    Args:
        num_values: length of the padded vector.
        inner_steps: inner steps per round.
        lr: eta.
        momentum: mu; 0 is plain averaging scaled by eta (FedAvg with eta 1).
        error_feedback: keep what compression lost, or an exclusion held back, for the next op.
        lr_rule: ``fixed``; with ``contributors`` eta is what `scaling.outer_lr` says for an op's
            contributors and mu, instead of `lr`.
        dtype: float32; float64 for oracles.
    """

    def __init__(
        self,
        num_values: int,
        *,
        inner_steps: int,
        lr: float,
        momentum: float,
        error_feedback: bool,
        lr_rule: Literal["fixed", "contributors"] = "fixed",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(
            num_values,
            inner_steps=inner_steps,
            outer=nesterov(lr, momentum),
            feedback_beta=1.0 if error_feedback else None,
            dtype=dtype,
        )
        self._momentum = momentum
        self._lr_by_swarm = lr_rule == "contributors"

    def hear_of_swarm(self, facts: SwarmFacts) -> None:
        """Take in how many contribute, should the learning rate follow them (arXiv 2503.09799)."""
        if self._lr_by_swarm and facts.weights:
            lr = outer_lr(effective_contributors(facts.weights), momentum=self._momentum)
            self._outer = nesterov(lr, self._momentum)
