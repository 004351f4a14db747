"""`swarmtrain logs bundle`: an archive for a bug report, without what concerns nobody else."""

from pathlib import Path
from typing import Annotated

import typer

from swarmtrain.cli.arguments import Verbose, group
from swarmtrain.console.lines import show

logs_app = group("logs", "What to send with a bug report.")


@logs_app.callback()
def _logs() -> None:
    """Have the one command keep its name."""


@logs_app.command()
def bundle(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|STATE_DIR...]", show_default="the newest on this machine",
            help="A run's name, or state directories of its peers or coordinator.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE.tar.gz", show_default="swarmtrain-logs.tar.gz",
            help="Archive to write; it must not be there.",
        ),
    ] = None,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Gather versions, settings, status, ledger, numbers and logs of a run in one archive, without
    keys, invites, addresses, names and training text. Nothing is sent."""
    from swarmtrain.console.units import human_bytes
    from swarmtrain.doctor import bundle as bundled

    path = out or Path("swarmtrain-logs.tar.gz")
    files = bundled.gathered(bundled.directories_of(given or ()))
    bundled.write(path, files)
    for name, data in files.items():
        show(f"{human_bytes(len(data)):>8}  {name}")
    show(
        f"\n{path} holds these files; nothing was sent. Keys, invites, addresses and names were "
        f"taken out as far as a program can tell. Look before you send it:\n  tar xzf {path}"
    )
