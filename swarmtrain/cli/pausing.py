"""`swarmtrain pause`, `resume`, `finish` and `leave`: a volunteer's orders to the own peer."""

from pathlib import Path
from typing import Annotated, Any

import typer

from swarmtrain.cli.arguments import StateDir, Verbose, read_by
from swarmtrain.config.options import parse_pause
from swarmtrain.console.lines import show


def pause(
    seconds: Annotated[
        float | None,
        typer.Option(
            "--for", metavar="TIME", parser=read_by(parse_pause),
            show_default="until `swarmtrain resume`", help="For how long: 90s, 30m, 2h.",
        ),
    ] = None,
    state_dir: StateDir = None,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Let the peer on this machine rest when its round has ended. Nothing is lost: it stays in the
    run, nobody waits for it, and it goes on where the run is then."""
    said = {} if seconds is None else {"seconds": seconds}
    answer = _told(state_dir, "pause", **said)
    show(f"The peer rests when its round has ended: {answer['paused']}.")


def resume(state_dir: StateDir = None, verbose: Verbose = False) -> None:
    """End a pause: the peer trains on from where the run is."""
    answer = _told(state_dir, "resume")
    rests = answer["paused"]
    show(f"The pause is over, but it still rests: {rests}." if rests else "The peer trains on.")


def finish(state_dir: StateDir = None, verbose: Verbose = False) -> None:
    """Let the peer finish its round, and leave. `swarmtrain join` brings it back."""
    _told(state_dir, "finish")
    show("The peer leaves when its round has ended.")


def leave(state_dir: StateDir = None, verbose: Verbose = False) -> None:
    """Let the peer leave before its next step. What it has trained on since the last round is not
    given; its state is kept. `swarmtrain join` brings it back."""
    _told(state_dir, "leave")
    show("The peer leaves.")


def _told(state_dir: Path | None, order: str, **more: object) -> dict[str, Any]:
    """The peer's answer. Without a directory the one that began last on this machine is meant."""
    from swarmtrain import status
    from swarmtrain.peer.disk.ledger_file import FILE_NAME

    directory = state_dir or status.newest_state_dir(beside=(FILE_NAME,))
    return status.order(directory, {"order": order, **more})
