"""Code of installed packages that a run file names: a model's function, an optimizer's class.

A run file comes from a stranger. So nothing is called, and no module imported, that whoever sits at
this machine did not name too: otherwise a run file could call anything that is installed. Nothing
is ever fetched.
"""

import importlib
import os
from typing import Any

from swarmtrain.foundation.errors import UserError, cleaned

VARIABLE = "SWARMTRAIN_MODULE"
"""Names that may be used, with commas."""

CODE = "SWT-E623"


def installed(name: str, modules: frozenset[str], what: str) -> Any:
    """Import what a run file names.

    Args:
        name: ``pkg.name``.
        modules: names that whoever sits here gave, ``pkg.name`` or ``pkg:name``, beside those of
            SWARMTRAIN_MODULE.
        what: begins the sentence that its name ends: "This run's model is made by".

    Raises:
        UserError: SWT-E623, it was not allowed, or is not there.
    """
    given = modules | {one.strip() for one in os.environ.get(VARIABLE, "").split(",")}
    if name not in {one.replace(":", ".") for one in given}:
        raise UserError(
            CODE,
            f"{what} {name}, of a package on this machine.",
            "No code that a run names is imported or called unless you name it too.",
            f"If you trust that package: --module {name}, or {VARIABLE}={name}",
        )
    package, _, last = name.rpartition(".")
    try:
        return getattr(importlib.import_module(package), last)
    except (Exception, SystemExit) as error:  # importing a package runs it
        raise UserError(
            CODE,
            f"{what} {name}, which is not here: {said(error)}.",
            "Every peer has the package installed; the run does not send it.",
            "Install what the organiser tells, into this environment.",
        ) from error


def said(error: BaseException) -> str:
    """An exception of somebody's code, for a person to read."""
    return cleaned(f"{type(error).__name__}: {error}")
