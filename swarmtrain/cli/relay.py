"""`swarmtrain relay`: pass bytes on for peers of a run that cannot reach each other."""

import asyncio
from typing import Annotated

import typer

from swarmtrain.cli.arguments import Verbose, read_by
from swarmtrain.cli.join import Advertise, InviteFile, InviteText, Listen, invite_text
from swarmtrain.cli.log import say
from swarmtrain.config.caps import parse_rate, parse_size
from swarmtrain.config.options import check_name, default_endpoint
from swarmtrain_transport.credentials.invite import Invite

RATE = 6_250_000
"""50 Mbit/s."""


def relay(
    invite: InviteText = "",
    rate: Annotated[
        int,
        typer.Option(
            "--rate", metavar="RATE", parser=read_by(parse_rate), show_default="50mbit",
            help="Pass on no faster than this.",
        ),
    ] = RATE,
    daily: Annotated[
        int,
        typer.Option(
            "--daily", metavar="SIZE", parser=read_by(parse_size), show_default="no limit",
            help="End when so much was passed on.",
        ),
    ] = 0,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", parser=check_name, help="Name shown to others.")
    ] = "",
    listen: Listen = None,
    advertise: Advertise = None,
    invite_file: InviteFile = None,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Pass bytes on for peers of a run that cannot reach each other.

    What passes is encrypted from peer to peer. Needs a port that others reach, no torch, and keeps
    nothing.
    """
    parsed = Invite.parse(invite_text(invite, invite_file))
    from swarmtrain.cli.stopping import run_until_stopped
    from swarmtrain.peer.network.relaying import RelayProcess

    async def main(stop: asyncio.Event) -> None:
        process = RelayProcess(parsed, name, rate, daily, say)
        await process.run(listen or default_endpoint(parsed), advertise, stop)

    run_until_stopped(main, first_words="Leaving; Ctrl+C again to leave at once.")
