"""The inner optimizer that a run file names: AdamW, or Muon for hidden matrices beside it.

Not here: the learning rate (`swarmtrain_optimizers.schedule`), which whoever steps it sets.
"""

import torch
from torch import nn

from swarmtrain.config.settings import InnerSection
from swarmtrain_optimizers.inner.muon import MatrixScale, Muon, muon_groups


def make_optimizer(model: nn.Module, inner: InnerSection) -> torch.optim.Optimizer:
    """The optimizer of a model, or of a stage of one, with fresh state."""
    return _make_muon(model, inner) if inner.optimizer == "muon" else _make_adamw(model, inner)


def ramp_steps(inner: InnerSection) -> int:
    """Steps over which the rate of a fresh optimizer rises in the midst of a run: as many as its
    second moments remember, and no more than the run's own warm-up has."""
    return min(inner.warmup_steps, round(1 / (1 - inner.beta2)))


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


def _make_adamw(model: nn.Module, inner: InnerSection) -> torch.optim.AdamW:
    """AdamW (arXiv 1711.05101, algorithm 2); matrices decay, gains of norms do not.

    The fused kernel takes a third of the time of the others on one CPU thread. Its bits may differ
    between machines, which is of no account: inner steps differ between peers anyway.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        [
            {
                "params": [parameter for parameter in parameters if parameter.ndim >= 2],
                "weight_decay": inner.weight_decay,
            },
            {
                "params": [parameter for parameter in parameters if parameter.ndim < 2],
                "weight_decay": 0.0,
            },
        ],
        lr=inner.lr,
        betas=(inner.beta1, inner.beta2),
        eps=1e-8,
        fused=True,
    )
