"""`swarmtrain invite ...`: who may come in, and for how long."""

from typing import Annotated, Any

import typer

from swarmtrain.cli.arguments import AsJson, StateDir, Verbose, group, read_by
from swarmtrain.cli.log import say
from swarmtrain.cli.ordering import moment, obeyed
from swarmtrain.config.options import parse_duration
from swarmtrain.console.lines import counted, show, show_json
from swarmtrain.foundation.errors import cleaned, misuse

invite_app = group("invite", "Make, list and withdraw invites.")

_USES_MAX = 1_000_000_000
_HOURS_MAX = 1_000_000


def parse_hours(text: str) -> float:
    """A duration in hours, 0 for never.

    Raises:
        UserError: SWT-E610, it is none.
    """
    if text == "never":
        return 0.0
    hours = parse_duration(text) / 3600 if text and not text[-1].isdigit() else 0.0
    if not 0.0 < hours <= _HOURS_MAX:
        raise misuse(f"{cleaned(text)!r} is no duration.", "Write 90m, 24h, 7d or never.")
    return hours


def parse_role(text: str) -> str:
    """Read the role of an invite: the things that it opens.

    Raises:
        UserError: SWT-E610, there is no such role.
    """
    if text not in ("peer", "observer"):
        raise misuse(f"{cleaned(text)!r} is no role.", "Give peer or observer.")
    return text


@invite_app.command()
def create(
    uses: Annotated[
        int | None,
        typer.Option(
            min=0, max=_USES_MAX, show_default="as the run file says",
            help="New peers that it lets in; 0 without limit.",
        ),
    ] = None,
    expires: Annotated[
        float | None,
        typer.Option(
            metavar="TIME", parser=read_by(parse_hours), show_default="as the run file says",
            help="For how long: 90m, 24h, 7d; never.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Your word for it; it stays on this machine.")] = "",
    role: Annotated[
        str,
        typer.Option(
            metavar="peer|observer", parser=read_by(parse_role),
            help="Who has it may train along, or only look at the run's page.",
        ),
    ] = "peer",
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Make an invite and print it, this once: only a hash of it is kept."""
    made = obeyed(
        state_dir, "invite-create", uses=uses, hours=expires,
        name=name, role=role,
    )  # fmt: skip
    if as_json:
        show_json(made)
        return
    if role != "peer":
        until = f" until {moment(made['expires_at'])}" if made["expires_at"] else ""
        say(f"Link {made['id']} shows the run{until}. It is shown this once; who has it can look:")
        show(made["invite"])
        return
    many = "any number of peers" if not made["uses_max"] else counted(made["uses_max"], "new peer")
    until = f" until {moment(made['expires_at'])}" if made["expires_at"] else ""
    say(f"Invite {made['id']} lets in {many}{until}. It is shown this once; who has it can join:")
    show(made["invite"])


@invite_app.command("ls")
def list_invites(
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """List all invites, those that open nothing any more too. Their secrets are not known."""
    answer = obeyed(state_dir, "invite-ls")
    if as_json:
        show_json(answer)
        return
    from swarmtrain.console.table import plain_lines, table_of

    titles = ("id", "name", "role", "state", "used", "made", "expires")
    show("\n".join(plain_lines(table_of(titles, [_row(one) for one in answer["invites"]]))))


def _row(one: dict[str, Any]) -> list[str]:
    used = f"{one['uses']} of {one['uses_max']}" if one["uses_max"] else str(one["uses"])
    expires = moment(one["expires_at"]) if one["expires_at"] else "never"
    return [
        one["id"],
        one["name"],
        one["role"],
        one["state"],
        used,
        moment(one["created_at"]),
        expires,
    ]


@invite_app.command()
def revoke(
    invite: Annotated[str, typer.Argument(help="Its name, or the beginning of its id.")],
    members: Annotated[
        bool, typer.Option("--members", help="Remove also the peers that came with it.")
    ] = False,
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Withdraw an invite: it lets nobody new in. Peers that came with it stay, unless --members
    sends them away too; they need another invite then."""
    done = obeyed(state_dir, "invite-revoke", invite=invite, members=members)
    if as_json:
        show_json(done)
        return
    show(f"Invite {done['id']} lets nobody in any more.")
    if members:
        removed = counted(len(done["removed"]), "peer")
        show(f"{removed} removed; {done['members']} need another invite.")
    elif done["members"]:
        came = counted(done["members"], "peer")
        show(f"{came} that came with it may stay; --members removes them.")
