"""Models made by a function of an installed package, which the run file names.

A run file comes from a stranger. So no function is called, and no module imported, that whoever
sits at this machine did not name too: otherwise a run file could call anything that is installed.
"""

import importlib
import os

import torch
from torch import Tensor, nn

from swarmtrain.config.models import MODULE
from swarmtrain.config.settings import ModelSection
from swarmtrain.errors import UserError, cleaned

VARIABLE = "SWARMTRAIN_MODULE"
"""Names of functions that may be called, with commas."""


def build_model(
    section: ModelSection, vocabulary: int, seed: int, modules: frozenset[str]
) -> nn.Module:
    """Call the function with the section and the vocabulary, torch's generator set to the seed.

    Args:
        section: of kind ``module:PKG.NAME``.
        vocabulary: V of the logits that the model must give.
        seed: of what it draws.
        modules: functions that may be called, beside those of SWARMTRAIN_MODULE.

    Raises:
        UserError: SWT-E623, it was not allowed, is not there, or makes no module.
    """
    name = section.kind.removeprefix(MODULE)
    allowed = modules | {one.strip() for one in os.environ.get(VARIABLE, "").split(",")}
    if name not in allowed:
        raise UserError(
            "SWT-E623",
            f"This run's model is made by {name}, a function on this machine.",
            "No code that a run names is called unless you name it too.",
            f"If you trust that package: --module {name}, or {VARIABLE}={name}",
        )
    package, _, last = name.rpartition(".")
    try:
        factory = getattr(importlib.import_module(package), last)
    except (ImportError, AttributeError) as error:
        raise UserError(
            "SWT-E623",
            f"This run's model is made by {name}, which is not here: {cleaned(str(error))}.",
            "Every peer has the package installed; the run does not send it.",
            "Install what the organiser tells, into this environment.",
        ) from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = factory(section, vocabulary)
    if not isinstance(model, nn.Module):
        raise UserError(
            "SWT-E623",
            f"{name} made a {type(model).__name__}, and a torch.nn.Module is needed.",
            "It is called with the section [model] and the vocabulary.",
            "Correct it, or name another function in the run file.",
        )
    return model


def check(model: nn.Module, vocabulary: int, section: ModelSection) -> None:
    """Refuse a model whose logits do not fit the run's tokens.

    Raises:
        UserError: SWT-E621.
    """
    tokens_BT = torch.zeros(1, min(2, section.context), dtype=torch.int64)
    training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(tokens_BT)
    model.train(training)
    wanted = (*tokens_BT.shape, vocabulary)
    if not isinstance(logits, Tensor) or logits.shape != wanted:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(
            "SWT-E621",
            f"The run's model gives {found} for tokens of shape {tuple(tokens_BT.shape)}; "
            f"{wanted} is needed.",
            "That is a logit for each token of the vocabulary in each place.",
            "The organiser sets model.vocabulary to the model's, or names another model.",
        )
