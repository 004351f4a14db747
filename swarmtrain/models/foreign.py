"""Models made by a function of an installed package, which the run file names.

It is called only where whoever sits at this machine named it too (`foundation.installed`).
"""

from typing import Any

import torch
from torch import Tensor, nn

from swarmtrain.config.models import MODULE
from swarmtrain.config.settings import ModelSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.foundation.installed import installed, said

_ROUNDING = 1e-5
"""Share of the largest logit by which the same place may differ. Causal models of the transformers
library differ by nothing, others by a thousandth at least, with their first weights."""


def build_model(
    section: ModelSection, vocabulary: int, seed: int, modules: frozenset[str]
) -> nn.Module:
    """Call the function with the section and the vocabulary, torch's generator set to the seed.

    Args:
        section: section of kind ``module:PKG.NAME``.
        vocabulary: V of the logits that the model must give.
        seed: seed of its draws.
        modules: functions that may be called, beside those of SWARMTRAIN_MODULE.

    Raises:
        UserError: SWT-E623, it was not allowed, is not there, or makes no module.
    """
    name = section.kind.removeprefix(MODULE)
    factory = installed(name, modules, "This run's model is made by")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = factory(section, vocabulary)
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # whatever somebody's function does
            raise UserError(
                "SWT-E623",
                f"{name} made no model: {said(error)}.",
                "It is called with the section [model] and the vocabulary.",
                "Correct it, or the settings of [model] that it goes by.",
            ) from error
    if not isinstance(model, nn.Module):
        raise UserError(
            "SWT-E623",
            f"{name} made a {type(model).__name__}, and a torch.nn.Module is needed.",
            "It is called with the section [model] and the vocabulary.",
            "Correct it, or name another function in the run file.",
        )
    return model


def check(model: nn.Module, vocabulary: int, section: ModelSection) -> None:
    """Refuse a model that is no causal language model of the run's tokens.

    Raises:
        UserError: SWT-E621, it has nothing to train, its logits do not fit, or those of a place
            depend on later tokens, which are what it has to foretell.
    """
    if not any(one.requires_grad and not one.is_meta for one in model.parameters()):
        raise _unfit(
            "The run's model has no parameter that can be trained.",
            "Peers exchange what has requires_grad and lies in memory, and there is nothing.",
        )
    tokens_BT = torch.zeros(1, min(2, section.context), dtype=torch.int64)
    logits = _asked(model, tokens_BT)
    wanted = (*tokens_BT.shape, vocabulary)
    if not isinstance(logits, Tensor) or logits.shape != wanted:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise _unfit(
            f"The run's model gives {found} for tokens of shape {tuple(tokens_BT.shape)}; "
            f"{wanted} is needed.",
            "That is a logit for each token of the vocabulary in each place.",
            "The organiser sets model.vocabulary to the model's, or names another model.",
        )
    other_BT = tokens_BT.clone()
    other_BT[:, 1:] = vocabulary - 1
    before_BV, after_BV = logits[:, 0], _asked(model, other_BT)[:, 0]
    if (before_BV - after_BV).abs().max() > _ROUNDING * before_BV.abs().max():
        raise _unfit(
            "The run's model sees tokens that come after the place that it judges.",
            "It would learn to copy the next token, its loss would fall to nothing, and it could"
            " not write.",
            "The organiser names a causal model; a config of the BERT kind says is_decoder: true.",
        )


def _asked(model: nn.Module, tokens_BT: Tensor) -> Any:
    """Whatever the model makes of tokens, without dropout."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return model(tokens_BT)
    except Exception as error:  # whatever somebody's model does
        raise _unfit(
            f"The run's model cannot read tokens: {said(error)}.",
            f"It was given token ids, int64, of shape {tuple(tokens_BT.shape)}.",
        ) from error
    finally:
        model.train(training)


def _unfit(what: str, meaning: str, remedy: str = "The organiser names another.") -> UserError:
    return UserError("SWT-E621", what, meaning, remedy)
