"""Checks of which optimizer [inner] names, without torch and without the package that brings it."""

import re
from collections.abc import Iterator

from swarmtrain.config.asked import loose_problems
from swarmtrain.config.problem import Problem
from swarmtrain.config.settings import InnerSection
from swarmtrain.foundation.errors import cleaned

OPTIMIZERS = ("adamw", "accum_adamw", "muon")

_ARGUMENTS_MAX = 64
_CHARS_MAX = 200
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_GIVEN = ("params", "lr", "weight_decay", "betas")


def is_class(optimizer: str) -> bool:
    """Return True if it names a class of a package, ``pkg.part:Class``."""
    return len(optimizer) <= _CHARS_MAX and _CLASS.fullmatch(optimizer) is not None


def optimizer_problems(inner: InnerSection) -> Iterator[Problem]:
    """Find what cannot work in the optimizer's name and its arguments."""
    name = inner.optimizer
    if name not in OPTIMIZERS and not is_class(name):
        yield Problem(
            "inner.optimizer",
            f"must be one of {', '.join(OPTIMIZERS)}, or a class as package:Class; it is "
            f"{cleaned(name[:_CHARS_MAX])!r}",
            "For instance pytorch_optimizer:SOAP, or torch.optim:RMSprop.",
        )
    elif inner.arguments and not is_class(name):
        yield Problem(
            "inner.arguments",
            f"must be left out with inner.optimizer {name}",
            "They are for a class of a package; this optimizer goes by the other settings.",
        )
    if len(inner.arguments) > _ARGUMENTS_MAX:
        yield Problem("inner.arguments", f"must be at most {_ARGUMENTS_MAX} settings")
    for key, value in inner.arguments.items():
        place = f"inner.arguments.{cleaned(key)}"
        if key in _GIVEN:
            why = "The class gets it from inner.lr, weight_decay, beta1 and beta2."
            yield Problem(place, "must not be there", why)
        yield from loose_problems(place, key, value)
