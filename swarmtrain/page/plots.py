"""plotly's own script, from its wheel: for pages, and for reports that need nothing else."""

import contextlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from swarmtrain.foundation.errors import UserError


@cache
def script() -> bytes:
    """The script, in UTF-8. Nothing of plotly is imported, which would take a second.

    Raises:
        UserError: SWT-E102, plotly is not installed.
    """
    found = find_spec("plotly")
    for folder in found.submodule_search_locations or () if found is not None else ():
        with contextlib.suppress(OSError):
            return (Path(folder) / "package_data" / "plotly.min.js").read_bytes()
    raise UserError(
        "SWT-E102",
        "Pictures need plotly, which is not installed.",
        "All else works without it.",
        "Install it with: pip install plotly",
    )
