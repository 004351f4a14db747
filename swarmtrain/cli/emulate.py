"""`swarmtrain emulate`: copies of one's own training script as peers of a run on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from swarmtrain.cli.arguments import EndsAsJson, NewDir, Verbose, one_of, read_by
from swarmtrain.config.options import EmulateOptions, parse_duration
from swarmtrain.console.lines import show_json
from swarmtrain.foundation.error_table import EXIT_BUG, EXIT_DONE
from swarmtrain.foundation.errors import misuse
from swarmtrain_transport.limits import CELL_PEERS_MAX

KINDS = ("auto", "namespaces", "modelled")


def emulate(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN.TOML] [-- COMMAND...]", show_default="the built-in model",
            help="Run file, if not a new one; and the program that every peer runs.",
        ),
    ] = None,
    peers: Annotated[
        int, typer.Option(min=1, max=CELL_PEERS_MAX, help="Copies of the program.")
    ] = 4,
    rounds: Annotated[
        int | None, typer.Option(min=1, show_default="8", help="Rounds to commit.")
    ] = None,
    inner_steps: Annotated[
        int | None,
        typer.Option(min=1, show_default="20", help="Steps of each peer between two exchanges."),
    ] = None,
    net: Annotated[
        str,
        typer.Option(
            metavar="LINK", show_default="no limits",
            help="Link of each peer: dsl, mobile, fibre, lan, or Mbit/s and ms as 10/50:30.",
        ),
    ] = "",
    links: Annotated[
        str,
        typer.Option(
            parser=one_of(KINDS), metavar=f"[{'|'.join(KINDS)}]", show_default="auto",
            help="How links are made: namespaces if root may, else modelled by relays.",
        ),
    ] = "auto",
    routers: Annotated[
        str,
        typer.Option(
            metavar="KIND,...", show_default="none",
            help="Routers that peers are behind, in turn: restricted, symmetric, cone, none. Needs "
            "root.",
        ),
    ] = "",
    kill_every: Annotated[
        float,
        typer.Option(
            metavar="TIME", parser=read_by(parse_duration), show_default="never",
            help="Kill a peer so often, and start it again.",
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the run and of the deaths.")] = 0,
    as_json: EndsAsJson = False,
    state_dir: NewDir = None,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Run copies of a training script as peers on this machine.

    swarmtrain emulate --peers 4 --net dsl --kill-every 30s -- python train.py
    """
    run_file, command = _split(words or [])
    if run_file is not None and (rounds, inner_steps) != (None, None):
        raise misuse(
            f"{run_file} says already how many rounds and inner steps there are.",
            "Leave out --rounds and --inner-steps, or the run file.",
        )
    options = EmulateOptions(
        peers=peers, command=command, run_file=run_file,
        rounds=rounds or 8, inner_steps=inner_steps or 20, net=net,
        links=links, routers=routers, kill_every_s=kill_every, seed=seed,
        json=as_json, state_dir=state_dir,
    )  # fmt: skip

    from swarmtrain.emulate.run import run_emulation

    report = run_emulation(options)
    if as_json:
        show_json(report)
    raise typer.Exit(EXIT_BUG if report.equal is False else EXIT_DONE)


def _split(words: list[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Return the run file, which ends in .toml as no program does, and the command."""
    if words and words[0].endswith(".toml"):
        return Path(words[0]), tuple(words[1:])
    return None, tuple(words)
