"""`swarmtrain doctor`: is this machine fit for a run, and what is to be done if it is not?"""

from typing import TYPE_CHECKING, Annotated

import typer

from swarmtrain.cli.arguments import AsJson, StateDir, Verbose
from swarmtrain.cli.join import InviteFile, Listen, given_invite
from swarmtrain.config.options import Endpoint, default_endpoint
from swarmtrain.console.lines import columns, show, show_json, wrapped
from swarmtrain_transport.credentials.invite import Invite

if TYPE_CHECKING:
    from swarmtrain.doctor.findings import Finding


def doctor(
    invite: Annotated[
        str,
        typer.Argument(
            metavar="INVITE", show_default="--invite-file or SWARMTRAIN_INVITE",
            help="Look also at the way to the run of this invite. Nothing is joined.",
        ),
    ] = "",
    listen: Listen = None,
    state_dir: StateDir = None,
    invite_file: InviteFile = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Look whether this machine is fit to take part, and with an invite whether the run can be
    reached. Nothing is changed. The exit status is 0 if all that is needed is well."""
    text = given_invite(invite, invite_file)
    parsed = Invite.parse(text) if text else None

    from swarmtrain.doctor import examination, findings
    from swarmtrain.foundation import dirs

    if state_dir is None:
        state_dir = dirs.peer_dirs(parsed.run, "", "peer")[0] if parsed else dirs.runs_dir()

    def tell(found: "Finding") -> None:
        if not as_json:
            import sys

            for line in findings.in_words(found):
                show(wrapped(line, columns(sys.stdout)))

    known = examination.examine(parsed, state_dir, _listening(parsed, listen), tell)
    if as_json:
        show_json(findings.as_json(known))
    else:
        show(findings.conclusion(known))
    raise typer.Exit(findings.exit_status(known))


def _listening(invite: Invite | None, listen: Endpoint | None) -> Endpoint | None:
    return listen or (default_endpoint(invite) if invite else None)
