"""`swarmtrain chaos`: a run of real processes that are killed, stopped and cut off on purpose."""

from pathlib import Path
from typing import Annotated

import typer

from swarmtrain.cli.arguments import EndsAsJson, Verbose, read_by
from swarmtrain.cli.log import say
from swarmtrain.config.options import ChaosOptions, parse_duration
from swarmtrain.console.lines import show, show_json
from swarmtrain.foundation.error_table import EXIT_DONE
from swarmtrain.foundation.errors import misuse

EXIT_VIOLATED = 1


def chaos(
    for_: Annotated[
        float,
        typer.Option(
            "--for", metavar="TIME", parser=read_by(parse_duration), show_default="2m",
            help="How long: 90s, 10m, 2h.",
        ),
    ] = 120.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is done when.")] = 0,
    peers: Annotated[int, typer.Option(min=3, max=14, help="Peers at the start.")] = 4,
    hostile: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            show_default=False,
            help="One of the peers misbehaves, and nothing else is broken: all, or boast,drag,...",
        ),
    ] = "",
    as_json: EndsAsJson = False,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory for state.",
            show_default="a temporary one, removed when everything holds",
        ),
    ] = None,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Break a run of real processes at random, and check what the exchange promises.

    They are killed, stopped, cut off, asked to leave, and come back. The exit status is 1 if
    anything was violated.
    """
    options = ChaosOptions(
        seconds=for_, seed=seed, peers=peers, state_dir=state_dir,
        hostile=_offences(hostile),
    )  # fmt: skip

    from swarmtrain.chaos.run import Chaos, run_chaos
    from swarmtrain.chaos.siege.run import Siege

    report = run_chaos(options, say, Siege if options.hostile else Chaos)
    if as_json:
        show_json(report)
    else:
        for line in report.in_words():
            show(line)
    raise typer.Exit(EXIT_VIOLATED if report.violations else EXIT_DONE)


def _offences(text: str) -> tuple[str, ...]:
    """Names of offences, each once; "all" for every one."""
    if not text:
        return ()
    from swarmtrain.chaos.siege.offences import Offence

    known = [str(offence) for offence in Offence]
    named = known if text == "all" else list(dict.fromkeys(text.split(",")))
    if unknown := [name for name in named if name not in known]:
        raise misuse(
            f"--hostile {text}: {unknown[0]!r} is no offence.", f"There are: {', '.join(known)}."
        )
    return tuple(named)
