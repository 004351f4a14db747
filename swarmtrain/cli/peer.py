"""`swarmtrain peer ...`: the long forms, for those who look for the noun."""

import typer

from swarmtrain.cli.join import join

peer_app = typer.Typer(
    name="peer", help="Commands of one peer.", no_args_is_help=True, rich_markup_mode=None
)


@peer_app.callback()
def _peer() -> None:
    """Keep `start` a command of its own while it is the only one."""


peer_app.command("start")(join)
