"""The inner optimizer that a run file names: AdamW, AdamW whose moments see the mean of several
steps, Muon for hidden matrices beside AdamW, or a class of an installed package.

A class is tried on a few values first: it must take its settings, step without a closure, go by the
learning rate that is set before each step, as every rule for a changing swarm does, and go on from
weights that a round has replaced, which one that keeps copies of them does not.

Not here: the learning rate (`swarmtrain_optimizers.schedule`), which whoever steps it sets.
"""

import inspect
from typing import Any

import torch
from torch import nn

from swarmtrain.config.inner import is_class
from swarmtrain.config.settings import InnerSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.foundation.installed import CODE, installed, said
from swarmtrain_optimizers.inner.accum_adamw import AccumAdamW
from swarmtrain_optimizers.inner.muon import MatrixScale, Muon, muon_groups
from swarmtrain_optimizers.inner.uncompiled import AdamW

_TRIAL_STEPS = 10
"""Steps of each part of a trial: a slow copy of weights is mixed in every fifth step or so."""

_TRIAL_RATE, _ELSEWHERE = 1e-3, 1e4
"""Rate and distance of a trial: steps so small undo no tenth of the way, nor if relative."""

_TORCHS = "torch.optim:"
"""Classes that are here in any case, and may be used without a word."""


def make_optimizer(
    model: nn.Module, inner: InnerSection, modules: frozenset[str] = frozenset()
) -> torch.optim.Optimizer:
    """The optimizer of a model, or of a stage of one, with fresh state.

    Args:
        model: holds the parameters to step.
        inner: section that may come from a stranger.
        modules: code of installed packages that may be used, see `installed`.

    Raises:
        UserError: SWT-E623, a package's class may not be used here, is not here, or does not fit.
    """
    if is_class(inner.optimizer):
        kind = _class_of(inner.optimizer, modules)
        _try(kind, inner)
        return _made(kind, model, inner)
    if inner.optimizer == "muon":
        return _make_muon(model, inner)
    rates: dict[str, Any] = {"lr": inner.lr, "betas": (inner.beta1, inner.beta2), "eps": 1e-8}
    if inner.optimizer == "accum_adamw":
        return AccumAdamW(_decaying(model, inner), every=inner.moments_every, **rates)
    # The fused kernel takes a third of the time of the others on one CPU thread. Its bits may
    # differ between machines, which is of no account: inner steps differ between peers anyway.
    return AdamW(_decaying(model, inner), fused=True, **rates)


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


def _class_of(name: str, modules: frozenset[str]) -> type[torch.optim.Optimizer]:
    if name.startswith(_TORCHS):
        found = getattr(torch.optim, name.removeprefix(_TORCHS), None)
    else:
        found = installed(name.replace(":", "."), modules, "This run's inner steps are made by")
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise _unfit(name, "it is no class of torch.optim.Optimizer's kind")
    return found


def _made(
    kind: type[torch.optim.Optimizer], model: nn.Module, inner: InnerSection
) -> torch.optim.Optimizer:
    given: dict[str, Any] = {"lr": inner.lr, **inner.arguments}
    betas = inspect.signature(kind).parameters.get("betas")
    if betas is not None and isinstance(betas.default, tuple) and len(betas.default) == 2:
        given["betas"] = (inner.beta1, inner.beta2)
    groups = [group for group in _decaying(model, inner) if group["params"]]
    return kind(groups, **given)


def _try(kind: type[torch.optim.Optimizer], inner: InnerSection) -> None:
    """Make steps of a matrix and a vector: at no rate, which must leave them alone, at a small one,
    and once more after other weights have taken their place.

    Raises:
        UserError: SWT-E623, it cannot, or does not.
    """
    trial = nn.Linear(4, 4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        before = [one.detach().clone() for one in trial.parameters()]
        try:
            optimizer = _made(kind, trial, inner)
            _step(optimizer, trial, rate=0.0)
            is_still = all(map(torch.equal, before, trial.parameters()))
            _step(optimizer, trial, rate=_TRIAL_RATE)
            for one in trial.parameters():
                one.data.add_(_ELSEWHERE)
            there = [one.detach().clone() for one in trial.parameters()]
            _step(optimizer, trial, rate=_TRIAL_RATE)
        except (Exception, SystemExit) as error:  # whatever somebody's class does
            raise _unfit(inner.optimizer, said(error)) from error
    if not is_still:
        raise _unfit(inner.optimizer, "it moves weights at a learning rate of 0")
    if not all(one.isfinite().all() for one in trial.parameters()):
        raise _unfit(inner.optimizer, "after a few steps its weights are no numbers")
    now = [one.detach() for one in trial.parameters()]
    away = max(float((a - b).abs().max()) for a, b in zip(there, now, strict=True))
    if away > _ELSEWHERE / 10:
        raise _unfit(inner.optimizer, "it goes back to weights that were replaced")


def _step(optimizer: torch.optim.Optimizer, trial: nn.Module, *, rate: float) -> None:
    for _ in range(_TRIAL_STEPS):
        for one in trial.parameters():
            one.grad = torch.randn(one.shape)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()


def _unfit(name: str, why: str) -> UserError:
    return UserError(
        CODE,
        f"{name} cannot make this run's inner steps: {why}.",
        "A class is made with parameters, lr, weight_decay by group, betas where it takes them, "
        "and [inner.arguments]; it steps without a closure, at the lr of its groups.",
        "The organiser corrects [inner.arguments], or names another optimizer.",
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
