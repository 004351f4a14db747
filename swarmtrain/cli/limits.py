"""`swarmtrain limits show|set`: what a peer may take of its machine."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from swarmtrain.cli.arguments import AsJson, StateDir, Verbose, group, read_by
from swarmtrain.config.caps import parse_rate, parse_size
from swarmtrain.config.options import parse_room
from swarmtrain.config.owner_limits import (
    AT_NEXT_JOIN,
    NICE_MAX,
    THREADS_MAX,
    Limits,
    changed,
    parse_hours,
    parse_share,
    read,
    write,
)
from swarmtrain.console.lines import show, show_json
from swarmtrain.foundation.errors import misuse

limits_app = group("limits", "See and set what a peer may take of this machine.")

Hours = Annotated[
    str | None,
    typer.Option(
        metavar="HOURS", parser=read_by(parse_hours), show_default=False,
        help="When it may train, by this machine's clock: \"22-7, sat-sun 0-24\"; \"\" for always.",
    ),
]  # fmt: skip
Duty = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", parser=read_by(parse_share), show_default=False,
        help="Share of the time in which it computes: 50%.",
    ),
]  # fmt: skip
Battery = Annotated[
    bool | None,
    typer.Option("--battery/--no-battery", show_default=False, help="Train on battery, too."),
]


def link_options(prefix: str = "") -> tuple[Any, Any, Any]:
    """Options of the link: to send, to take in, and of a day. Variables of the environment stand
    for them if their prefix is given."""
    told = (
        ("UP", "RATE", parse_rate, "Send no faster than this: 10mbit in bits, 2MB/s in bytes."),
        ("DOWN", "RATE", parse_rate, "Take in no faster than this."),
        ("DAILY", "SIZE", parse_size, "Move no more than this in a day, both ways: 20GB."),
    )
    return tuple(
        typer.Option(
            metavar=metavar, parser=read_by(parse), show_default=False, help=text,
            envvar=f"{prefix}{name}" if prefix else None,
        )
        for name, metavar, parse, text in told
    )  # fmt: skip


_UP, _DOWN, _DAILY = link_options()
Memory = Annotated[
    int | None,
    typer.Option(
        metavar="SIZE", parser=read_by(parse_size), show_default="enough for one stage",
        help="Memory that this peer may take, where the model is in stages: 2GB.",
    ),
]  # fmt: skip
Keep = Annotated[
    int | None,
    typer.Option(
        metavar="SIZE", parser=read_by(parse_room), show_default="half of what is free",
        help="Disk for states of stages that too few peers serve: 2GB, or 0.",
    ),
]  # fmt: skip


@limits_app.command("set")
def set_limits(
    hours: Hours = None,
    duty: Duty = None,
    battery: Battery = None,
    busy: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", parser=read_by(parse_share), show_default=False,
            help="Rest while others take more of the processor than this; 100% for never.",
        ),
    ] = None,
    nice: Annotated[
        int | None,
        typer.Option(min=0, max=NICE_MAX, show_default=False, help="Niceness of the process."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=0, max=THREADS_MAX, show_default=False,
            help="Threads for training; 0 for as many as `join` was given.",
        ),
    ] = None,
    up: Annotated[int | None, _UP] = None,
    down: Annotated[int | None, _DOWN] = None,
    daily: Annotated[int | None, _DAILY] = None,
    memory: Memory = None,
    keep: Keep = None,
    state_dir: StateDir = None,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Set limits of a peer; those that are not named stay. A peer that runs takes them within
    seconds, memory and disk at its next start, and keeps them when it comes again. An empty
    rate or size is no limit."""
    directory = _directory(state_dir)
    before = read(directory)
    limits = changed(
        before, hours=hours, duty=duty, battery=battery, busy=busy, nice=nice, threads=threads,
        up=up, down=down, daily=daily, memory=memory, disk=keep,
    )  # fmt: skip
    write(directory, limits)
    show(_in_words(limits))
    if any(getattr(limits, key) != getattr(before, key) for key in AT_NEXT_JOIN):
        show("Memory and disk are told at the door: a peer that runs has them from its next start.")


@limits_app.command("show")
def show_limits(
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show the limits of a peer."""
    limits = read(_directory(state_dir))
    if as_json:
        show_json(asdict(limits))
    else:
        show(_in_words(limits))


def _directory(state_dir: Path | None) -> Path:
    from swarmtrain.peer.disk import identity_file, ledger_file
    from swarmtrain.status import newest_state_dir, no_directory

    directory = state_dir or newest_state_dir(beside=(ledger_file.FILE_NAME,))
    if not directory.is_dir():
        raise no_directory(directory)
    # Limits in a wrong place would hold for nobody, and their owner would not hear of it.
    if not any((directory / one.FILE_NAME).exists() for one in (identity_file, ledger_file)):
        raise misuse(
            f"{directory} is no peer's state directory, so limits there would hold for nobody.",
            "Name the directory that `swarmtrain status` shows for your peer, or leave it out for "
            "the newest. A first start takes limits as options of `swarmtrain join`.",
        )
    return directory


def _in_words(limits: Limits) -> str:
    return f"Limits: {limits.in_words() or 'none'}."
