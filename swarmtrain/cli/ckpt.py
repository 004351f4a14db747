"""`swarmtrain ckpt ls|verify|prune`: the checkpoints in peers' state directories."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from swarmtrain.cli.arguments import AsJson, OfRun, Verbose, group
from swarmtrain.cli.log import say
from swarmtrain.console.lines import show, show_json

if TYPE_CHECKING:
    from pathlib import Path

    from swarmtrain.trained.kept import Kept

ckpt_app = group("ckpt", "List, check and remove checkpoints of peers.")


@ckpt_app.command("ls")
def list_checkpoints(given: OfRun, as_json: AsJson = False) -> None:
    """List checkpoints: part of the model, round, state, size, age, and if the ledger beside them
    attests that state. Files are not read; `ckpt verify` does that. Peers may run."""
    _tell(_found(given, check=False), as_json=as_json)


@ckpt_app.command("verify")
def verify_checkpoints(given: OfRun, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Read checkpoints byte by byte, and compare them with their manifests and with the states that
    the ledger beside them attests. Peers may run. `swarmtrain verify` replays the rounds, too."""
    found = _found(given, check=True)
    _tell(found, as_json=as_json)
    bad = [one for one in found if one.problem or not one.checked]
    if not bad:
        return
    from swarmtrain.console.lines import counted
    from swarmtrain.foundation.errors import UserError

    raise UserError(
        "SWT-E803",
        f"{counted(len(bad), 'checkpoint')} of {len(found)} cannot be trusted: "
        f"{bad[0].problem or bad[0].ledger}",
        "A peer passes them over, and takes an older one or what others have.",
        "Keep a copy as evidence, or remove its folder.",
    )


@ckpt_app.command("prune")
def prune_checkpoints(
    given: OfRun,
    keep: Annotated[
        int, typer.Option("--keep", min=1, metavar="N", help="So many of each part stay.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; else they are named.")] = False,
    verbose: Verbose = False,
) -> None:
    """Remove checkpoints of peers that do not run, but for the newest N that hold of each part.

    Those that stay are read first, byte by byte; damaged ones count for none. How many a peer
    keeps while it runs, checkpoint.keep of the run file says.
    """
    from swarmtrain.console.lines import counted
    from swarmtrain.foundation.errors import UserError
    from swarmtrain.trained import kept
    from swarmtrain.trained.places import state_dirs

    directories = state_dirs(given)
    gone: list[Path] = []
    refused: list[UserError] = []
    for directory in directories:
        try:
            gone += kept.prune(directory, keep, removes=yes)
        except UserError as error:
            refused.append(error)
            if len(refused) == len(directories):  # nothing was looked at
                raise
            say(f"{directory} is left as it is. {error.what}")
    for path in gone:
        show(str(path))
    if not gone:
        newest = "the newest that holds" if keep == 1 else f"the newest {keep} that hold"
        show(f"Nothing is older than {newest}.")
    elif yes:
        show(f"Removed {counted(len(gone), 'checkpoint')}.")
    else:
        show(f"{counted(len(gone), 'checkpoint')} would be removed. With --yes they are.")


def _found(given: list[str], *, check: bool) -> "list[Kept]":
    from swarmtrain.trained.kept import kept_in
    from swarmtrain.trained.places import state_dirs

    return [one for place in state_dirs(given) for one in kept_in(place, check=check)]


def _tell(found: "Sequence[Kept]", *, as_json: bool) -> None:
    if as_json:
        show_json({"checkpoints": found})
        return
    from swarmtrain.console.table import plain_lines, table_of
    from swarmtrain.console.units import human_bytes, human_seconds

    titles = ("part", "round", "state", "size", "age", "ledger", "files", "in")
    rows = [
        (
            one.part, str(one.round), one.state_root[:16], human_bytes(one.num_bytes),
            human_seconds(one.age_s), one.ledger if len(one.ledger) < 16 else "of no use",
            "damaged" if one.problem else "checked" if one.checked else "not read", one.path,
        )
        for one in found
    ]  # fmt: skip
    for line in plain_lines(table_of(titles, rows, right=("round", "size", "age"))):
        show(line)
    for one in found:
        if one.problem:
            show(f"\n{one.problem}")
    if not found:
        show("There is no checkpoint yet.")
