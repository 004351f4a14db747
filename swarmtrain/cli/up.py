"""`swarmtrain up run.toml`: the coordinator of a run, until Ctrl+C or the last round."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmtrain.cli.arguments import JsonEvents, StateDir, Verbose, read_by
from swarmtrain.cli.log import say
from swarmtrain.cli.mapping import Map, can_ask, may_map
from swarmtrain.cli.situation import Situation
from swarmtrain.config.caps import parse_relay
from swarmtrain.config.options import (
    RELAY_BYTES_PER_S,
    Endpoint,
    UpOptions,
    check_host,
    parse_endpoint,
    parse_linger,
    parse_store,
    parse_tracker,
)
from swarmtrain.console.lines import stamped
from swarmtrain.foundation import events
from swarmtrain.foundation.errors import UserError, misuse
from swarmtrain.foundation.signals import tell
from swarmtrain.port_mapping.answers import is_private
from swarmtrain_transport.credentials.invite import Invite, names_its_reader
from swarmtrain_transport.limits import LINGER_LATE_S

if TYPE_CHECKING:
    from types import ModuleType

    from swarmtrain.config.settings import RunConfig
    from swarmtrain.coordinator.corpus_service import Text
    from swarmtrain.coordinator.initial import Initial
    from swarmtrain.coordinator.sharing import Shared

LISTEN = Endpoint("127.0.0.1", 8400)


def up(
    context: typer.Context,
    run_file: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The run's settings.")],
    listen: Annotated[
        Endpoint,
        typer.Option(
            metavar="HOST:PORT", parser=read_by(parse_endpoint), help="Address for the peers."
        ),
    ] = LISTEN,
    public_host: Annotated[
        str,
        typer.Option(
            metavar="HOST", parser=check_host, show_default="the listening host",
            help="Name or address that invites carry.",
        ),
    ] = "",
    public_port: Annotated[
        int,
        typer.Option(
            min=0, max=65_535, metavar="PORT", show_default="the listening port",
            help="Port that invites carry, where a router forwards another one.",
        ),
    ] = 0,
    maps: Map = None,
    state_dir: StateDir = None,
    new_run: Annotated[
        bool,
        typer.Option(
            "--new-run",
            help="Begin another run where one was: new keys, a new invite; the old files are kept.",
        ),
    ] = False,
    changed_text: Annotated[
        bool,
        typer.Option(
            "--changed-text",
            help="Go on although the training text was changed; its first pass begins anew.",
        ),
    ] = False,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", min=0, max=1_000_000_000, show_default="as the run file or log says",
            help="Add rounds to a run that has begun: it ends after so many.",
        ),
    ] = 0,
    begins_with: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="RUN|DIR", show_default=False,
            help="Begin with the weights of another run: its name or its peers' state directories "
            "(repeat it for several), an export, or any safetensors that fit.",
        ),
    ] = None,
    linger: Annotated[
        float,
        typer.Option(
            metavar="TIME", parser=read_by(parse_linger), show_default="30m",
            help="Stay so long for who helped lately and was away as the run ended; 0 for nobody.",
        ),
    ] = LINGER_LATE_S,
    relay: Annotated[
        int,
        typer.Option(
            "--relay", metavar="RATE", parser=read_by(parse_relay), show_default="10mbit",
            help="Pass on so much between peers that nothing else brings together; 0 for nothing.",
        ),
    ] = RELAY_BYTES_PER_S,
    track: Annotated[
        list[str] | None,
        typer.Option(
            "--track", metavar="TRACKER", parser=read_by(parse_tracker), show_default=False,
            help="Log rounds to tensorboard, wandb (offline), mlflow or trackio, too; can be "
            "repeated. metrics.jsonl in the state directory is written always.",
        ),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            metavar="URL", parser=parse_store, envvar="SWARMTRAIN_STORE",
            show_default="the state directory", show_envvar=False,
            help="Keep log and keys in PostgreSQL (postgresql://...). Several coordinators may "
            "share it: one leads, another takes over.",
        ),
    ] = "",
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file", metavar="FILE", show_default="a passphrase is asked for",
            help="Secret that seals the run's keys in --store; the same at all coordinators.",
        ),
    ] = None,
    json_events: JsonEvents = False,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Start the coordinator of a run, and print an invite.

    On an existing state directory it goes on from the last commit.
    """
    options = UpOptions(
        run_file=run_file, listen=listen, public_host=public_host, state_dir=state_dir,
        json_events=json_events, new_run=new_run,
        takes_changed_text=changed_text, rounds=rounds,
        begins_with=tuple(begins_with or ()),
        linger_s=linger, public_port=public_port,
        maps=maps, relay_bytes_per_s=relay, trackers=tuple(track or ()),
        store=store, key_file=key_file,
    )  # fmt: skip
    situation = context.ensure_object(Situation)
    situation.at_coordinator = True
    _serve(options, situation)


def _serve(options: UpOptions, situation: Situation) -> None:
    import asyncio

    from swarmtrain.cli.stopping import run_until_stopped
    from swarmtrain.config import file as config_file
    from swarmtrain.config import limits as config_limits
    from swarmtrain.data.places import settle
    from swarmtrain.foundation import dirs

    config, places = settle(config_file.load(options.run_file), options.run_file.parent)
    for warning in config_limits.warnings(config):
        say(f"Warning: {warning}")
    directory = options.state_dir or dirs.coordinator_dir(config.run.name)
    if not options.store:
        _check_stays_here(options, directory)
    situation.state_dir = dirs.make_private(directory)
    if options.rounds:
        say(_rate_words(config))
        if _extend_running(directory, options.rounds):
            return
    from swarmtrain.cli.watching import watched
    from swarmtrain.coordinator import outside
    from swarmtrain.coordinator.disk.run_directory import set_aside
    from swarmtrain.coordinator.service import serve
    from swarmtrain.coordinator.text_source import text_of

    if options.new_run:
        if options.store:  # who is refused for that has lost nothing
            _sharing().check_nobody_leads(options.store, config.run.name)
        set_aside(directory, say, has_log=not options.store)
    config, initial = _beginning(options, config, directory)
    read_text = cache(partial(text_of, config, places, directory / "text", tell_stamped))
    shared = _shared(options, config, directory, read_text) if options.store else None
    is_private_here = is_private(outside.reachable_host(options.listen.host))
    maps = may_map(
        options.maps, options.listen.host, is_useful=is_private_here and not options.public_host,
        asks=can_ask() and not options.json_events,
    )  # fmt: skip
    options = replace(options, maps=maps)
    result = ""

    part = None
    if config.experts.count > 1:
        from swarmtrain.data.clusters import parted

        part = partial(parted, config.experts.count, config.run.seed)

    pages: list[str] = []

    from swarmtrain.page.tracking import Tracking

    tracking = Tracking(directory, config.run.name, options.trackers)

    def announce(invite: Invite) -> None:
        _announce(options, directory, invite, *pages[-1:])

    async def main(stop: asyncio.Event) -> None:
        nonlocal result
        life = partial(
            serve, config, directory, options.listen.host, options.listen.port, options.public_host,
            on_ready=announce, stop=stop, tell=tell_stamped, read_text=read_text,
            watched=None if options.json_events else watched,
            places=places, takes_changed_text=options.takes_changed_text, rounds=options.rounds,
            initial=initial, linger_s=options.linger_s,
            public_port=options.public_port, maps=maps,
            relay_bytes_per_s=options.relay_bytes_per_s, part=part, on_page=pages.append,
            tracking=tracking,
        )  # fmt: skip
        if shared is None:
            result = await life()
        else:
            result = await shared.in_turn(
                lambda lead: life(lead=lead), stop, is_new=options.new_run
            )

    try:
        run_until_stopped(main, first_words="Stopping; Ctrl+C again to leave at once.")
    finally:
        tracking.close()
    if not result:
        say("The coordinator has stopped. The same command goes on from here.")
    elif options.json_events:
        events.write(events.Finished(result))


def tell_stamped(text: str) -> None:
    """Tell the organiser something, with the time of day."""
    say(stamped(text, sys.stderr))


def _check_stays_here(options: UpOptions, directory: Path) -> None:
    """Refuse, where no --store was given, what belongs to a run in a database."""
    from swarmtrain import status
    from swarmtrain.coordinator.disk.store import FILE_NAME, LOCK_FILE

    if options.key_file is not None:
        raise misuse(
            "--key-file seals keys in a database, and no --store names one.",
            "Add --store, or leave --key-file out: without a database the keys lie unsealed in the "
            "state directory.",
        )
    was_shared = all((directory / name).exists() for name in (LOCK_FILE, status.WHERE_FILE))
    if was_shared and not (directory / FILE_NAME).exists() and not options.new_run:
        raise misuse(
            f"The run of {directory} has its log in a database, and no --store names that.",
            "Name it with --store, or begin another run here with --new-run.",
        )


def _shared(
    options: UpOptions, config: "RunConfig", directory: Path, read_text: Callable[[], "Text | None"]
) -> "Shared":
    """This coordinator's part among those that share a database."""
    import time

    from swarmtrain.coordinator.disk import sealed_keys
    from swarmtrain.coordinator.disk.store import FILE_NAME
    from swarmtrain.coordinator.outside import reachable_host

    sharing = _sharing()
    if (directory / FILE_NAME).exists():
        raise misuse(
            f"{directory} holds a run with a log of its own, which --store does not move.",
            "Go on without --store, or name another --state-dir, where the run in the database "
            "has its text and its status.",
        )
    if options.key_file is not None:
        secret = sealed_keys.read_secret(options.key_file)
        if os.name != "nt" and options.key_file.stat().st_mode & 0o077:
            say(
                "Warning: other users of this machine may read the key file, which opens the run's"
                f" keys. Keep them out: chmod 600 {options.key_file}"
            )
    elif sys.stdin.isatty():
        typed = typer.prompt(
            "Passphrase of the run's keys", hide_input=True, confirmation_prompt=True, err=True
        )
        secret = sealed_keys.checked_secret(typed.encode(), "The passphrase")
    else:
        raise misuse(
            "--store needs a secret that seals the run's keys, and nobody is here to type one.",
            "Name a file with --key-file. One is made by: openssl rand -hex 32 > FILE",
        )
    port = options.public_port or options.listen.port
    host = options.public_host or reachable_host(options.listen.host)
    address = (host, port) if port else None
    shared: Shared = sharing.Shared(
        directory, options.store, secret, config, address, tell_stamped, time.time, read_text
    )
    return shared


def _sharing() -> "ModuleType":
    """The module of coordinators that share a database, which needs a package of its own."""
    try:
        from swarmtrain.coordinator import sharing
    except ModuleNotFoundError as exc:
        raise UserError(
            "SWT-E102",
            "--store needs psycopg, which is not installed.",
            "All else works without it.",
            "Install it: pip install 'swarmtrain[postgres]'",
        ) from exc
    return sharing


def _beginning(
    options: UpOptions, config: "RunConfig", directory: Path
) -> tuple["RunConfig", "Initial | None"]:
    """The settings with the name of the weights that the run begins with, and these; known from the
    directory where the run has begun."""
    from msgspec import structs

    from swarmtrain.config import file as config_file
    from swarmtrain.config.asked import begins_from_nothing
    from swarmtrain.coordinator import initial as weights

    if config.model.initial:
        raise misuse(
            "model.initial in the run file is filled by `swarmtrain up --from`.",
            "Leave it out, and name the weights with --from.",
        )
    known = weights.kept(directory)
    found = known
    if options.begins_with:
        place = _place_of(options.begins_with, directory, known)
        found = weights.open_initial(place, config)
        if warning := weights.other_tokens(place, config):
            say(f"Warning: {warning}")
        if known is not None and known.name != found.name:
            raise misuse(
                f"A run that began otherwise is in {directory}; --from begins a new one.",
                "Add --new-run, or name another --state-dir.",
            )
    if found is None:
        config_file.refuse(options.run_file, begins_from_nothing(config))
        return config, None
    model = structs.replace(config.model, initial=found.name)
    return structs.replace(config, model=model), found


def _place_of(given: tuple[str, ...], directory: Path, known: "Initial | None") -> Path:
    """The file or folder with the weights that --from names: one that it names itself, or an export
    of the state directories that it names, which lies beside the ledger.

    Another process makes the export: torch would stay in the memory of this one.
    """
    import shutil
    import subprocess

    from swarmtrain.coordinator import initial as weights
    from swarmtrain.foundation.errors import UserError
    from swarmtrain.trained.places import state_dirs
    from swarmtrain.verify.coordinator_state import is_coordinators

    if not all(given):
        raise misuse("--from names nothing.", "Name a run, a state directory or a file.")
    place = Path(given[0])
    if len(given) == 1 and weights.is_weights(place):
        return place
    try:
        state_dirs(given)
    except UserError:
        is_some_folder = place.is_dir() and not is_coordinators(place)
        if len(given) == 1 and (is_some_folder or place.suffix):
            return place  # who opens it knows what people have in place of weights
        raise
    made = directory.absolute() / weights.FOLDER_NAME
    if known is not None and Path(known.path).parent == made:
        say("The run goes on with the weights that it began with; --from changes nothing any more.")
        return made
    shutil.rmtree(made, ignore_errors=True)
    # -P: modules of the folder that the organiser stands in, perhaps of somebody else, are none.
    words = (
        sys.executable, "-P", "-m", "swarmtrain", "export", "--moments", "--to", str(made), "--"
    )  # fmt: skip
    done = subprocess.run((*words, *given), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)  # it has said why
    say(f"The run begins with what lies in {made}, of:\n{done.stdout.split(str(made))[0].strip()}")
    return made


def _extend_running(directory: Path, rounds: int) -> bool:
    """Have the coordinator add rounds that runs there; False if none does."""
    from swarmtrain import status

    try:
        answer = status.order(directory, {"order": "extend", "rounds": rounds})
    except status.NotRunning:
        return False
    say(f"The coordinator of {directory} runs; its run ends after round {answer['rounds']}.")
    return True


def _rate_words(config: "RunConfig") -> str:
    """Tell what added rounds do to the learning rate."""
    if config.model.kind == "custom":
        return "More rounds: learning rates are those of the peers' own programs."
    lowest = config.inner.lr * config.inner.lr_end_fraction
    return (
        f"More rounds leave the learning rate as the run file has it: it falls until inner step "
        f"{config.schedule_steps} and then stays at {lowest:g}."
    )


def for_others(options: UpOptions, invite: Invite) -> str:
    """Say what an invite takes that works on other machines, of what was not given already."""
    public = "--public-host with a name or address of this machine that they can reach"
    if options.public_host:
        public += f", not {options.public_host}"
    if names_its_reader(options.listen.host):
        return (
            f"For others give --listen 0.0.0.0:{invite.port}, and {public}; or --map, at home "
            "behind a router."
        )
    return f"For others give {public}."


def from_elsewhere(options: UpOptions, invite: Invite) -> str:
    """Say what an invite with a private address takes to work in other networks."""
    by_itself = "" if options.maps else "by itself with --map, or by hand: "
    return (
        f"This invite names {invite.host}, which only machines of this network reach. For others "
        f"let the router forward a port to this machine, {by_itself}then give its address and port "
        "with --public-host and --public-port."
    )


def _announce(options: UpOptions, directory: Path, invite: Invite, page: str = "") -> None:
    """The invite alone on stdout, so that a script can take it; everything else on stderr."""
    if options.json_events:
        where = invite.host, invite.port, invite.run, str(directory)
        ready = events.Ready(str(invite), *where, page)
        events.write(ready)
        return
    say(f"Coordinator of {invite.run} on {invite.host}:{invite.port}, state in {directory}")
    if invite.is_loopback:
        say("This invite names the machine that reads it, so it works on this machine only.")
        say(for_others(options, invite))
    elif is_private(invite.host):
        say(from_elsewhere(options, invite))
    if page:
        say(f"Watch it: {page}")
    if sys.stdout.isatty():
        say(
            "Send this invite to those who shall join; whoever has it can come in. They run "
            "`swarmtrain join` and paste it:"
        )
    tell(str(invite), sys.stdout)
