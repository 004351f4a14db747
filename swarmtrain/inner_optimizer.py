"""The inner optimizer that a run file names: AdamW, AdamW whose moments see the mean of several
steps, or Muon for hidden matrices beside AdamW.

Not here: the learning rate (`swarmtrain_optimizers.schedule`), which whoever steps it sets.
"""

from typing import Any

import torch
from torch import nn

from swarmtrain.config.settings import InnerSection
from swarmtrain_optimizers.inner.accum_adamw import AccumAdamW
from swarmtrain_optimizers.inner.muon import MatrixScale, Muon, muon_groups


def make_optimizer(model: nn.Module, inner: InnerSection) -> torch.optim.Optimizer:
    """The optimizer of a model, or of a stage of one, with fresh state."""
    if inner.optimizer == "muon":
        return _make_muon(model, inner)
    rates: dict[str, Any] = {"lr": inner.lr, "betas": (inner.beta1, inner.beta2), "eps": 1e-8}
    if inner.optimizer == "accum_adamw":
        return AccumAdamW(_decaying(model, inner), every=inner.moments_every, **rates)
    # The fused kernel takes a third of the time of the others on one CPU thread. Its bits may
    # differ between machines, which is of no account: inner steps differ between peers anyway.
    return torch.optim.AdamW(_decaying(model, inner), fused=True, **rates)


def ramp_steps(inner: InnerSection) -> int:
    """Steps over which the rate of a fresh optimizer rises in the midst of a run: as many as its
    second moments remember, and no more than the run's own warm-up has."""
    every = inner.moments_every if inner.optimizer == "accum_adamw" else 1
    return min(inner.warmup_steps, round(every / (1 - inner.beta2)))


def _make_muon(model: nn.Module, inner: InnerSection) -> Muon:
    """Muon for hidden matrices, AdamW for embedding, head and gains.

    Steps of matrices are scaled to AdamW's size: one `lr` and `weight_decay` serve both, and a run
    that changes its optimizer keeps them.
    """
    return Muon(
        muon_groups(model.named_parameters(), weight_decay=inner.weight_decay),
        lr=inner.lr,
        momentum=inner.beta1,
        betas=(inner.beta1, inner.beta2),
        scale=MatrixScale.ADAMW,
    )


def _decaying(model: nn.Module, inner: InnerSection) -> list[dict[str, Any]]:
    """Return AdamW's groups (arXiv 1711.05101, algorithm 2): matrices decay, gains of norms do
    not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    gains = [parameter for parameter in parameters if parameter.ndim < 2]
    return [
        {"params": matrices, "weight_decay": inner.weight_decay},
        {"params": gains, "weight_decay": 0.0},
    ]
