"""`swarmtrain demo`: one coordinator and some peers on this machine, training for two minutes."""

from typing import Annotated

import typer

from swarmtrain.cli.arguments import EndsAsJson, NewDir, Verbose, one_of
from swarmtrain.config.options import DEMO_PIPELINE_PEERS, DemoOptions
from swarmtrain_optimizers.strategies.registry import BUILT_IN

STRATEGIES = tuple(facts.name for facts in BUILT_IN.values() if facts.demo)
"""Strategies that say how they are shown."""


def demo(
    peers: Annotated[
        int | None,
        typer.Option(min=1, max=16, help="Peers at the start.", show_default="4; 7 in stages"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds to commit.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the model and the data.")] = 0,
    no_churn: Annotated[
        bool, typer.Option("--no-churn", help="Kill no peer and let none in.")
    ] = False,
    strategy: Annotated[
        str,
        typer.Option(
            parser=one_of(STRATEGIES),
            metavar=f"[{'|'.join(STRATEGIES)}]",
            help="When peers exchange, and what they make of it.",
        ),
    ] = "diloco",
    pipeline: Annotated[
        bool, typer.Option("--pipeline", help="Cut the model into stages that peers serve.")
    ] = False,
    as_json: EndsAsJson = False,
    state_dir: NewDir = None,
    verbose: Verbose = False,
) -> None:
    """Train one model with peers on this machine.

    In round 3 a peer is killed, in round 4 one joins, and all end with the same bits; with noloco
    both of every pair end with the same chain, and with --pipeline all of every stage with the same
    bits.
    """
    if peers is None:
        peers = DEMO_PIPELINE_PEERS if pipeline else 4
    options = DemoOptions(
        peers=peers, rounds=rounds, seed=seed, churn=not no_churn, json=as_json,
        state_dir=state_dir, strategy=strategy, pipeline=pipeline,
    )  # fmt: skip
    from swarmtrain.demo.run import run_demo

    raise typer.Exit(run_demo(options))
