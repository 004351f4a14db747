"""`swarmtrain join INVITE`: become a peer of a run. `swarmtrain peer start` is its long form."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from swarmtrain.cli.arguments import Device, JsonEvents, StateDir, Verbose, read_by
from swarmtrain.cli.limits import Battery, Duty, Hours, Keep, Memory, link_options
from swarmtrain.cli.log import say
from swarmtrain.cli.mapping import Map, can_ask, may_map
from swarmtrain.cli.situation import Situation
from swarmtrain.config import owner_limits
from swarmtrain.config.caps import Caps, parse_relay, parse_size
from swarmtrain.config.options import (
    DEVICE_AUTO,
    Endpoint,
    JoinOptions,
    Ways,
    check_name,
    default_endpoint,
    parse_advertised,
    parse_endpoint,
    parse_micro_batch,
    parse_span,
)
from swarmtrain.foundation import events, regular_file
from swarmtrain.foundation.errors import UserError, misuse
from swarmtrain_transport.credentials.invite import Invite

INVITE_CHARS_MAX = 4096
"""An invite has under 200; whatever is longer is another file."""

Listen = Annotated[
    Endpoint | None,
    typer.Option(
        metavar="HOST:PORT", parser=read_by(parse_endpoint), help="Address for the other peers.",
        show_default="any port; on loopback if the invite is",
    ),
]  # fmt: skip
Advertise = Annotated[
    Endpoint | None,
    typer.Option(
        metavar="HOST:PORT",
        parser=read_by(parse_advertised),
        show_default="the listening address",
        help="Address that others dial, where it is another: a forwarded port.",
    ),
]
_UP, _DOWN, _DAILY = link_options("SWARMTRAIN_")
InviteText = Annotated[
    str,
    typer.Argument(
        metavar="INVITE", show_default="--invite-file, SWARMTRAIN_INVITE, or asked for",
        help="swarm://host:port/run#secret, in quotes. Given here, other users of this machine "
        "see it in the list of processes.",
    ),
]  # fmt: skip
InviteFile = Annotated[
    Path | None,
    typer.Option(
        help="Read the invite from this file; - is standard input.", metavar="FILE",
        show_default=False,
    ),
]  # fmt: skip
Relay = Annotated[
    int,
    typer.Option(
        metavar="RATE", parser=read_by(parse_relay),
        envvar="SWARMTRAIN_RELAY", show_default="nothing",
        help="Pass on so much for peers that cannot reach each other; what passes is encrypted.",
    ),
]  # fmt: skip
RelayDaily = Annotated[
    int,
    typer.Option(
        metavar="SIZE", parser=read_by(parse_size),
        envvar="SWARMTRAIN_RELAY_DAILY", show_default="no limit",
        help="Pass on no more than this in a day.",
    ),
]  # fmt: skip
Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="Wait until the coordinator is up; whoever was in the run does anyway, until its end.",
    ),
]
Span = Annotated[
    range | None,
    typer.Option(
        metavar="FIRST-LAST", parser=read_by(parse_span), show_default="what the run lacks most",
        help="Stages to serve, where the model is in stages: 1-2, or 1.",
    ),
]  # fmt: skip
Module = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PKG.NAME", show_default=False,
        help="Code of an installed package that the run may use, for its model or its inner "
        "optimizer; can be repeated.",
    ),
]  # fmt: skip
MicroBatch = Annotated[
    int,
    typer.Option(
        metavar="auto|N", parser=read_by(parse_micro_batch), show_default="as the run file says",
        help="Examples that go through the model at a time: fewer take less memory, and the batch "
        "stays the same.",
    ),
]  # fmt: skip
Compile = Annotated[
    bool, typer.Option("--compile", help="Let torch compile the model: faster steps, later.")
]
Data = Annotated[
    str,
    typer.Option(
        metavar="PATH", show_default=False,
        help="Train on this text, which stays here; for runs whose peers bring their own.",
    ),
]  # fmt: skip
FreezeInRound = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        show_default=False,
        help="Rehearsal of a death: stop in the middle of sending in round N.",
    ),
]

PassSeconds = Annotated[
    float,
    typer.Option(
        min=0.0, max=60.0, metavar="SECONDS", show_default=False,
        help="Rehearsal of a slow machine: a pass through a stage takes about so long.",
    ),
]  # fmt: skip


def join(
    context: typer.Context,
    invite: InviteText = "",
    name: Annotated[
        str,
        typer.Option(
            # Said, for typer 0.27 takes a metavar that is the argument's own name for the option's.
            "--name",
            metavar="NAME", parser=check_name, show_default="drawn from the key",
            help="Name shown to others.",
        ),
    ] = "",
    listen: Listen = None,
    advertise: Advertise = None,
    maps: Map = None,
    up: Annotated[int | None, _UP] = None,
    down: Annotated[int | None, _DOWN] = None,
    daily: Annotated[int | None, _DAILY] = None,
    relay: Relay = 0,
    relay_daily: RelayDaily = 0,
    span: Span = None,
    memory: Memory = None,
    keep: Keep = None,
    data: Data = "",
    hours: Hours = None,
    duty: Duty = None,
    battery: Battery = None,
    state_dir: StateDir = None,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Threads for training.")] = 1,
    micro_batch: MicroBatch = 0,
    device: Device = DEVICE_AUTO,
    compile_model: Compile = False,
    module: Module = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    invite_file: InviteFile = None,
    wait: Wait = False,
    freeze_in_round: FreezeInRound = 0,
    pass_seconds: PassSeconds = 0.0,
    json_events: JsonEvents = False,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Join a run with the invite that its organiser sent you. Ctrl+C leaves after the round."""
    parsed = Invite.parse(invite_text(invite, invite_file))
    from swarmtrain.foundation import dirs

    situation = context.ensure_object(Situation)
    own_text = _own_text(data)
    limits = {"hours": hours, "duty": duty, "battery": battery, "up": up, "down": down,
              "daily": daily, "memory": memory, "disk": keep}  # fmt: skip
    caps = Caps(relay=relay, relay_daily=relay_daily)
    told = owner_limits.changed(owner_limits.NO_LIMITS, **limits).in_words(caps)
    _introduce(parsed, own_text, told, ask=not yes and can_ask())
    listening = listen or default_endpoint(parsed)
    mapped = may_map(maps, listening.host, is_useful=advertise is None, asks=not yes and can_ask())
    places = (state_dir,) if state_dir else dirs.peer_dirs(parsed.run, name, "peer")
    situation.state_dir = dirs.make_private(places[0])
    from swarmtrain.peer.run import run_peer

    status = run_peer(
        JoinOptions(
            invite=parsed, name=name, listen=listening, advertise=advertise, maps=mapped,
            state_dirs=places, threads=threads, caps=caps,
            freeze_in_round=freeze_in_round, json_events=json_events, waits=wait,
            span=span, limits={key: one for key, one in limits.items() if one is not None},
            pass_s=pass_seconds, data=own_text,
            ways=Ways(frozenset(module or ()), micro_batch, compile_model, device),
        ),
        say=say, emit=events.write,
    )  # fmt: skip
    raise typer.Exit(status)


def invite_text(argument: str, file: Path | None) -> str:
    """The invite from the command line, a file, the environment or whoever sits there, in this
    order."""
    text = given_invite(argument, file)
    if file is not None:
        return text
    if not text and can_ask():
        text = str(typer.prompt("Paste the invite", err=True)).strip()
    if not text:
        raise UserError(
            "SWT-E310",
            "No invite was given.",
            "An invite says where the run is and lets you in.",
            "Put it into a file: swarmtrain join --invite-file FILE (- for standard input); or set "
            "SWARMTRAIN_INVITE.",
        )
    return text


def given_invite(argument: str, file: Path | None) -> str:
    """The invite from the command line, a file or the environment, "" for none."""
    if argument and file is not None:
        raise misuse("An invite and --invite-file were given.", "Give one of them.")
    if argument:
        return argument.strip()
    if file is not None:
        return _piped_invite() if str(file) == "-" else _read_invite(file)
    return os.environ.get("SWARMTRAIN_INVITE", "").strip()


def _read_invite(file: Path) -> str:
    try:
        return regular_file.read(file, INVITE_CHARS_MAX).decode(errors="replace").strip()
    except OSError as error:
        raise misuse(
            f"The invite file {file} cannot be read: {error.strerror or error}.",
            "Check the path, or pass the invite itself; - reads it from standard input.",
        ) from error


def _piped_invite() -> str:
    """The invite from standard input: whoever starts this process needs not have it yet, and it
    appears in no list of processes. The trainer takes seconds to load, so that comes first."""
    import_module("swarmtrain.peer.run")
    return sys.stdin.buffer.readline(INVITE_CHARS_MAX).decode(errors="replace").strip()


def _own_text(place: str) -> str:
    """Place of the volunteer's text, before anybody is asked to let it in."""
    if not place:
        return ""
    from swarmtrain.data.own import check_there

    return check_there(place)


def _introduce(invite: Invite, own_text: str, limits: str, *, ask: bool) -> None:
    """Say what joining means before anything is sent, and ask once where somebody can answer."""
    say(f"Run         {invite.run}, coordinator {invite.host}:{invite.port}")
    say("You send    compressed differences of the model's weights; where the model is in stages")
    say("            also what these make of text. No files, no user name.")
    say("            The other peers see your IP address.")
    if own_text:
        say(f"You keep    {own_text}: it is read here and never sent.")
    if limits:
        say(f"Limits      {limits}")
    if invite.is_loopback:
        say("Note        this invite names the machine that reads it; it works nowhere else.")
    if ask and not typer.confirm("Join?", default=True, err=True):
        raise typer.Exit
