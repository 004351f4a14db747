"""`swarmtrain page`: the run's page on a peer's own machine."""

import asyncio
from typing import Annotated

import typer

from swarmtrain.cli.arguments import StateDir, Verbose
from swarmtrain.cli.log import say
from swarmtrain.cli.stopping import run_until_stopped
from swarmtrain.console.lines import show
from swarmtrain.foundation.errors import misuse


def page(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine alone; 0 for any.")
    ] = 8401,
    state_dir: StateDir = None,
    verbose: Verbose = False,
) -> None:
    """Show a peer's run as a page, on this machine alone, until Ctrl+C: how it is with you, the
    rounds, what everybody gave, and a prompt for the model. It reads the state directory, also of a
    peer that was stopped.

    Without --state-dir the newest one on this machine is shown. A coordinator prints the address of
    its own page when it starts.
    """
    from swarmtrain.status import newest_state_dir
    from swarmtrain.trained.local_page import serve
    from swarmtrain.verify.coordinator_state import is_coordinators

    directory = state_dir or newest_state_dir()
    if is_coordinators(directory):
        raise misuse(
            f"{directory} is a coordinator's.",
            "It shows its page itself, at the address that `swarmtrain up` prints.",
        )

    async def main(stop: asyncio.Event) -> None:
        await serve(directory, port, stop, _ready)

    run_until_stopped(main, first_words="Stopping.")


def _ready(link: str) -> None:
    say("Open this in a browser of this machine; Ctrl+C ends it:")
    show(link)
