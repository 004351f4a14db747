"""`swarmtrain explain`: what an error id means and what to do."""

import difflib
from typing import Annotated

import typer

from swarmtrain.console.lines import show
from swarmtrain.foundation.error_table import TABLE
from swarmtrain.foundation.errors import UserError, cleaned


def explain(
    code: Annotated[
        str, typer.Argument(metavar="CODE", help="Error id, as SWT-E203.", show_default=False)
    ] = "",
) -> None:
    """Say what an error id means. Without an id, list them all."""
    if not code:
        for kind in TABLE.values():
            show(f"{kind.code}  exit {kind.exit_status:<3} {kind.title}")
        return
    kind = TABLE[_known(code)]
    show(f"{kind.code}  {kind.title}   [exit {kind.exit_status}]\n\n{kind.explanation}")


def _known(code: str) -> str:
    word = code.strip().upper()
    for candidate in (word, f"SWT-{word}", f"SWT-E{word}"):
        if candidate in TABLE:
            return candidate
    near = difflib.get_close_matches(word, TABLE, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UserError(
        "SWT-E612",
        f"{cleaned(code)!r} is no error id of this version.{hint}",
        "",
        "`swarmtrain explain` lists them all.",
    )
