"""`swarmtrain why`: the story of one round, from the ledger of a coordinator or a peer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmtrain.cli.arguments import AsJson, StateDir, Verbose
from swarmtrain.console.lines import show, show_json

if TYPE_CHECKING:
    from swarmtrain.why.story import Story


def why(
    number: Annotated[int, typer.Argument(metavar="ROUND", help="The round's number.", min=0)],
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    group: Annotated[
        int | None,
        typer.Option(help="Group of peers, or stage of a model, whose round it is.", min=0),
    ] = None,
) -> None:
    """Say what happened in a round: who was in it, who was left out and why, how it ended. For a
    model in stages also which micro-batches were made and counted, and which were lost where.

    Without --state-dir the newest one on this machine is read.
    """
    from swarmtrain.foundation.errors import UserError
    from swarmtrain.status import newest_state_dir, no_directory

    directory = state_dir or newest_state_dir()
    if not directory.is_dir():
        raise no_directory(directory)
    story = _story(directory, number, group)
    if not story.lines:
        raise UserError(
            "SWT-E808",
            f"The ledger in {directory} has no round {number}.",
            "It was not planned yet, or this directory knows only an earlier part of the run.",
            "See `swarmtrain status` for the newest round.",
        )
    if as_json:
        show_json({"round": number, **story.fields()})
    else:
        show("\n".join(story.lines))


def _story(directory: Path, number: int, group: int | None) -> "Story":
    """A running coordinator holds its ledger locked, so it is asked; all else is read."""
    from swarmtrain.status import NotRunning, ask, nothing_ran_in
    from swarmtrain.verify.coordinator_state import is_coordinators, read_records
    from swarmtrain.why.story import Story, story_of

    if is_coordinators(directory):
        try:
            told = ask(directory, f"/why/{number}{'' if group is None else f'?group={group}'}")
            return Story([str(line) for line in told.get("story", ())], told.get("stages", []))
        except NotRunning:
            return story_of(read_records(directory), number, group)
    from swarmtrain.peer.disk.ledger_file import FILE_NAME

    if not (directory / FILE_NAME).exists():
        raise nothing_ran_in(directory)
    return _of_peer(directory, number, group)


def _of_peer(directory: Path, number: int, group: int | None) -> "Story":
    """Tell it from a peer's copy of the ledger, of which older records may be missing."""
    from swarmtrain.foundation.errors import UserError
    from swarmtrain.peer.disk.ledger_file import FILE_NAME, read
    from swarmtrain.peer.disk.storage import beginning_in
    from swarmtrain.why.story import story_of
    from swarmtrain_transport.ledger.snapshots import from_image

    records = read(directory / FILE_NAME).records
    begins = beginning_in(directory, records)
    if begins is None:
        return story_of(records, number, group)
    view, reader = from_image(begins.image)
    last_op = view.groups[group or 0].last_op if (group or 0) in view.groups else -1
    if number > last_op:
        after = [record for record in records if record.index > begins.snapshot.index]
        return story_of(after, number, group, known=(view, reader))
    before = [record for record in records if record.index <= begins.known[0]]
    story = story_of(before, number, group)
    if story.lines:
        return story
    raise UserError(
        "SWT-E808",
        f"The ledger in {directory} does not tell of round {number}.",
        f"This peer began with a snapshot of the ledger after round {last_op}, and holds"
        " not all records before it.",
        "Use a complete ledger: --state-dir of the coordinator, or of a peer that was there then.",
    )
