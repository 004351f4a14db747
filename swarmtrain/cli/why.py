"""`swarmtrain why`: the story of one round, from the ledger of a coordinator or a peer."""

import json
from pathlib import Path
from typing import Annotated

import typer

from swarmtrain.cli.arguments import AsJson, StateDir, Verbose
from swarmtrain.cli.situation import Situation


def why(
    context: typer.Context,
    number: Annotated[int, typer.Argument(metavar="ROUND", help="The round's number.", min=0)],
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    group: Annotated[int, typer.Option(help="Whose round: a group of peers.", min=0)] = 0,
) -> None:
    """Say what happened in a round: who was in it, who was left out and why, how it ended.

    Without --state-dir the newest one on this machine is read.
    """
    context.ensure_object(Situation).begin(verbose=verbose)
    from swarmtrain.errors import UserError
    from swarmtrain.status import newest_state_dir, no_directory

    directory = state_dir or newest_state_dir()
    if not directory.is_dir():
        raise no_directory(directory)
    lines = _lines(directory, number, group)
    if not lines:
        raise UserError(
            "SWT-E808",
            f"The ledger in {directory} has no round {number}.",
            "It was not planned yet, or this directory knows only an earlier part of the run.",
            "See `swarmtrain status` for the newest round.",
        )
    print(json.dumps({"round": number, "story": lines}) if as_json else "\n".join(lines))


def _lines(directory: Path, number: int, group: int) -> list[str]:
    """A running coordinator holds its ledger locked, so it is asked; all else is read."""
    from swarmtrain.status import NotRunning, ask, nothing_ran_in
    from swarmtrain.verify.coordinator_state import is_coordinators, read_records
    from swarmtrain.why.story import explain_round

    if is_coordinators(directory):
        try:
            told = ask(directory, f"/why/{number}?group={group}").get("story", [])
            return [str(line) for line in told]
        except NotRunning:
            return explain_round(read_records(directory), number, group)
    from swarmtrain.peer.disk.ledger_file import FILE_NAME

    if not (directory / FILE_NAME).exists():
        raise nothing_ran_in(directory)
    return _of_peer(directory, number, group)


def _of_peer(directory: Path, number: int, group: int) -> list[str]:
    """Tell it from a peer's copy of the ledger, of which older records may be missing."""
    from swarmtrain.errors import UserError
    from swarmtrain.peer.disk.ledger_file import FILE_NAME, read
    from swarmtrain.peer.disk.storage import beginning_in
    from swarmtrain.why.story import explain_round
    from swarmtrain_transport.ledger.snapshots import from_image

    records = read(directory / FILE_NAME).records
    begins = beginning_in(directory, records)
    if begins is None:
        return explain_round(records, number, group)
    view, reader = from_image(begins.image)
    last_op = view.groups[group].last_op if group in view.groups else -1
    if number > last_op:
        after = [record for record in records if record.index > begins.snapshot.index]
        return explain_round(after, number, group, known=(view, reader))
    before = [record for record in records if record.index <= begins.known[0]]
    if lines := explain_round(before, number, group):
        return lines
    raise UserError(
        "SWT-E808",
        f"The ledger in {directory} does not tell of round {number}.",
        f"This peer began with a snapshot of the ledger after round {last_op}, and holds"
        " not all records before it.",
        "Use a complete ledger: --state-dir of the coordinator, or of a peer that was there then.",
    )
