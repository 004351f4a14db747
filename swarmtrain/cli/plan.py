"""`swarmtrain plan run.toml --peers ...`: what a run would be with these peers."""

from pathlib import Path
from typing import Annotated

import typer

from swarmtrain.cli.arguments import AsJson
from swarmtrain.console.lines import show, show_json


def plan(
    run_file: Annotated[
        Path | None,
        typer.Argument(metavar="RUN.TOML", help="The run's settings.", show_default=False),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(
            "--peers",
            metavar="PEERS",
            help="Peers that would join, in this order: 20*laptop@dsl,2*gpu:8GB@20/5:50.",
        ),
    ] = "",
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="STATE_DIR",
            show_default=False,
            help="Put beside it what a run in stages has made, from what it left there.",
        ),
    ] = None,
    costs: Annotated[
        bool,
        typer.Option(
            "--costs",
            help="Tell in place of a plan what each size of model costs: memory, bytes, seconds.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tell who would serve which stages, how much memory that takes, how fast the run would be and
    what one more peer would bring. Nothing is started."""
    from dataclasses import asdict

    from swarmtrain.config import file as config_file
    from swarmtrain.data.places import settle
    from swarmtrain.foundation.errors import misuse
    from swarmtrain.plan import forecast as plans
    from swarmtrain.plan import forecast_costs, suggestion

    if costs:
        sizes = forecast_costs.costs()
        lines = forecast_costs.in_words(sizes)
        show_json([asdict(one) for one in sizes]) if as_json else show("\n".join(lines))
        return
    if run_file is None or not peers:
        raise misuse(
            "A plan is of a run file and of peers.",
            'Give both: swarmtrain plan run.toml --peers "4*laptop@dsl"; or --costs alone.',
        )
    config, _ = settle(config_file.load(run_file), run_file.parent)
    named = plans.parse_peers(peers)
    found = plans.forecast(config, named)
    offered = suggestion.suggested(config, [one.link for one in named], suggestion.last_search())
    ran = None
    if measured is not None:
        from swarmtrain.plan import measured as runs

        ran = runs.measured(measured, config)
    if as_json:
        beside = {} if ran is None else {"measured": asdict(ran)}
        if offered is not None:
            beside["suggestion"] = asdict(offered)
        show_json({**asdict(found), "assumed": plans.assumptions(named), **beside})
    else:
        show("\n".join(plans.in_words(config, found, named)))
        if offered is not None:
            show("\n".join(("", *suggestion.in_words(offered))))
        if ran is not None:
            show("\n".join(("", *runs.beside(ran, found))))
