"""Options that several commands share, so that they read and behave the same everywhere."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from swarmtrain.cli.situation import Situation
from swarmtrain.config.options import parse_device

T = TypeVar("T")


def group(name: str, about: str) -> typer.Typer:
    """Make a noun that has commands."""
    return typer.Typer(name=name, help=about, no_args_is_help=True, rich_markup_mode=None)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
EndsAsJson = Annotated[bool, typer.Option("--json", help="End with one JSON object on stdout.")]


def _begin(context: typer.Context, verbose: bool) -> bool:
    """Set up the log, whatever the option says: no command has to."""
    context.ensure_object(Situation).begin(verbose=verbose)
    return verbose


Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", callback=_begin, help="Show debugging lines, and tracebacks of faults."
    ),
]
"""A command that takes it has a log from its beginning, and need not look at it."""

OfRun = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|STATE_DIR...",
        help="A run's name, or state directories of its peers, or a folder of them.",
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", help="Directory for state.", show_default="a directory per run"),
]
NewDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", help="Directory for state.", show_default="a new temporary directory"
    ),
]
JsonEvents = Annotated[
    bool, typer.Option("--json-events", help="Print events as JSON lines on stdout.")
]


def read_by(parse: Callable[[str], T]) -> Callable[[str | T], T]:
    """Parser of an option whose default is a value already, as typer hands that to it too."""
    return lambda given: parse(given) if isinstance(given, str) else given


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Parser of an option that is one of these words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(choices)}.")
        return text

    return parse


Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda:N|mps", parser=read_by(parse_device),
        help="Where the model computes; auto is a card, where torch finds one.",
    ),
]  # fmt: skip
