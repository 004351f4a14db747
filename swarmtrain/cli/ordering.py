"""Orders to the coordinator on this machine: what `invite`, `peers` and `run` have in common."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

Peer = Annotated[str, typer.Argument(metavar="PEER", help="Its name, or the beginning of its id.")]
Reason = Annotated[
    str, typer.Option(help="Shown to the peer, and kept on this machine alone.", show_default="")
]


def obeyed(state_dir: Path | None, order: str, **more: object) -> dict[str, Any]:
    """The coordinator's answer. Without a directory the one that began last on this machine is
    meant.

    Args:
        order: the order's name in `coordinator.organiser.order_forms`.
        more: fields of the order; None for those that are left to the coordinator.
    """
    from swarmtrain import status
    from swarmtrain.coordinator.disk.store import MARKS

    directory = state_dir or status.newest_state_dir(beside=MARKS)
    said = {key: value for key, value in more.items() if value is not None}
    return status.order(directory, {"order": order, **said})


def moment(wall_s: float) -> str:
    """A time for people, in their own zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(wall_s))
