"""`swarmtrain plan run.toml --peers ...`: what a run would be with these peers."""

import json
from pathlib import Path
from typing import Annotated

import typer

from swarmtrain.cli.arguments import AsJson


def plan(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The run's settings.")],
    peers: Annotated[
        str,
        typer.Option(
            metavar="PEERS", help="Who would join, in this order: 20*laptop@dsl,2*gpu@fibre."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Tell who would serve which stages, how much memory that takes, how fast the run would be and
    what one more peer would bring. Nothing is started."""
    from dataclasses import asdict

    from swarmtrain import forecast as plans
    from swarmtrain.config import file as config_file

    config = config_file.load(run_file)
    named = plans.parse_peers(peers)
    found = plans.forecast(config, named)
    if as_json:
        print(json.dumps({**asdict(found), "assumed": plans.assumptions(named)}))
    else:
        print("\n".join(plans.in_words(config, found, named)))
