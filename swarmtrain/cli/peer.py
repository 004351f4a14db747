"""`swarmtrain peer ...`: the long forms, for those who look for the noun."""

from swarmtrain.cli.arguments import group
from swarmtrain.cli.join import join

peer_app = group("peer", "Commands of one peer.")


@peer_app.callback()
def _peer() -> None:
    """Keep `start` a command of its own while it is the only one."""


peer_app.command("start")(join)
