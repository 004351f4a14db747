"""`swarmtrain chaos`: a run of real processes that are killed, stopped and cut off on purpose."""

from pathlib import Path
from typing import Annotated

import typer

from swarmtrain.cli.arguments import Verbose
from swarmtrain.cli.options import ChaosOptions, parse_duration
from swarmtrain.cli.situation import Situation, say
from swarmtrain.error_table import EXIT_DONE

EXIT_VIOLATED = 1


def chaos(
    context: typer.Context,
    for_: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long: 90s, 10m, 2h.")
    ] = "2m",
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is done when.")] = 0,
    peers: Annotated[int, typer.Option(min=3, max=14, help="Peers at the start.")] = 4,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object on stdout.")
    ] = False,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory for state.",
            show_default="a temporary one, removed when everything holds",
        ),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Break a run of real processes at random, and check what the exchange promises.

    They are killed, stopped, cut off, asked to leave, and come back. The exit status is 1 if
    anything was violated.
    """
    options = ChaosOptions(
        seconds=parse_duration(for_), seed=seed, peers=peers, state_dir=state_dir
    )  # fmt: skip
    context.ensure_object(Situation).begin(verbose=verbose)
    import msgspec

    from swarmtrain.chaos.report import in_words
    from swarmtrain.chaos.run import run_chaos

    report = run_chaos(options, say)
    if as_json:
        print(msgspec.json.encode(report).decode(), flush=True)
    else:
        for line in in_words(report):
            print(line, flush=True)
    raise typer.Exit(EXIT_VIOLATED if report.violations else EXIT_DONE)
