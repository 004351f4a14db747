"""`swarmtrain service install|remove|status`: the peer starts with its user's session."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from swarmtrain.cli.arguments import Verbose, group
from swarmtrain.cli.join import InviteFile, InviteText, invite_text
from swarmtrain.console.lines import show
from swarmtrain_transport.credentials.invite import Invite

service_app = group("service", "Let a peer start with your session, and again after a fault.")


@service_app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def install(
    context: typer.Context,
    invite: InviteText = "",
    invite_file: InviteFile = None,
    show_only: Annotated[
        bool, typer.Option("--show", help="Print what would be installed, and change nothing.")
    ] = False,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Install a service that runs `swarmtrain join` with this invite; further options are those of
    `join`. It leaves after its round when your session ends. Nothing needs an administrator."""
    from swarmtrain.foundation import atomic_file, dirs
    from swarmtrain.service import Installed, Service, launchd_agent, scheduled_task, systemd_unit

    options = list(context.args)
    if invite.startswith("-"):  # the first option of `join`, and no invite stands before it
        options, invite = [invite, *options], ""
    parsed = Invite.parse(invite_text(invite, invite_file))
    place = dirs.peer_dirs(parsed.run, "", "peer")[0]
    secret: Path = place / "service.invite"
    words = (
        sys.executable, "-P", "-m", "swarmtrain", "join", "--yes", "--wait", "--invite-file",
        str(secret), "--state-dir", str(place), *options,
    )  # fmt: skip
    service, installed = Service(words, place), Installed()
    if show_only:
        texts = {
            ".service": systemd_unit, ".plist": lambda one: launchd_agent(one).decode(),
            ".xml": scheduled_task,
        }  # fmt: skip
        show(texts[installed.path.suffix](service))
        return
    dirs.make_private(place)
    atomic_file.write(secret, str(parsed).encode(), mode=0o600)
    installed.install(service)
    show(f"Installed and started: {installed.path}")


@service_app.command()
def remove(verbose: Verbose = False) -> None:
    """Stop the service, which leaves after its round, and forget it. The peer's state stays."""
    from swarmtrain.service import Installed

    show("The service is removed." if Installed().remove() else "There is no service.")


@service_app.command()
def status(verbose: Verbose = False) -> None:
    """Show what the system says of the service."""
    from swarmtrain.service import Installed

    show(Installed().status() or "There is no service.")
