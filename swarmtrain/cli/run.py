"""`swarmtrain run ...`: whether a run takes newcomers."""

import json

import typer

from swarmtrain.cli.arguments import StateDir, Verbose
from swarmtrain.cli.ordering import AsJson, obeyed

run_app = typer.Typer(
    name="run", help="Close a run to newcomers, or open it.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip


@run_app.command()
def close(
    context: typer.Context,
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Let nobody new in, whatever invite they have. Peers that were in come back as ever."""
    done = obeyed(context, state_dir, verbose=verbose, order="door", closed=True)
    print(json.dumps(done) if as_json else "Nobody new is let in; peers come back as ever.")


@run_app.command("open")
def open_again(
    context: typer.Context,
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Let newcomers in again, with an invite."""
    done = obeyed(context, state_dir, verbose=verbose, order="door", closed=False)
    print(json.dumps(done) if as_json else "Whoever has an open invite is let in again.")
