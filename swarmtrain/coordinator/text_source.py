"""The run's text as the coordinator finds it: read, and compared with that of before.

Not here: who reads which piece (`corpus_service`).
"""

from pathlib import Path

from swarmtrain.config.settings import LEASED_TEXT, OWN_TEXT, RunConfig
from swarmtrain.coordinator.corpus_service import Text
from swarmtrain.coordinator.disk.register import Register
from swarmtrain.coordinator.disk.run_directory import Tell
from swarmtrain.data.corpus import CorpusMissing, build_corpus
from swarmtrain.data.places import Places
from swarmtrain.data.stored import open_text
from swarmtrain.foundation.errors import UserError, translate


def text_of(config: RunConfig, places: Places, folder: Path, tell: Tell) -> Text | None:
    """Read and hash the text, beside the loop that hears Ctrl+C; None where peers bring all."""
    data = config.data
    if data.source == OWN_TEXT and not places.validation:
        return None
    if data.source in (LEASED_TEXT, OWN_TEXT):
        try:
            return open_text(config, places, folder, tell)
        except OSError as exc:
            raise translate(exc, at_coordinator=True) or unreadable(exc) from exc
    try:
        return build_corpus(data.piece_bytes, validation_pieces=data.validation_pieces)
    except CorpusMissing as exc:
        raise UserError(
            "SWT-E801",
            "No training text was found on this machine.",
            "The built-in text is the standard library's own sources, which this Python lacks.",
            str(exc),
        ) from exc


def is_another(store: Register, text: Text) -> bool:
    """Return True if the run began with another text; False where it has begun with none."""
    return store.text_manifest() not in (None, bytes.fromhex(text.manifest_hash))


def check_same_text(store: Register, text: Text | None, takes_changed: bool, tell: Tell) -> None:
    """The text must be the one that the run began with, unless its organiser says otherwise.

    Raises:
        UserError: SWT-E823.
    """
    if text is None:
        return
    is_other = is_another(store, text)
    if is_other and not takes_changed:
        raise other_text()
    if is_other:
        tell("The text is another one than before: its first pass begins.")
    if is_other or store.text_manifest() is None:
        store.begin_text(bytes.fromhex(text.manifest_hash))


def other_text() -> UserError:
    """The training text is not the one that the run began with."""
    return UserError(
        "SWT-E823",
        "The training text is not the one that this run began with.",
        "Files were added, changed or removed, or the text lies elsewhere; pieces that peers"
        " hold would not be found again.",
        "Bring the old files back, or go on with the text as it is: swarmtrain up RUN.TOML"
        " --changed-text.",
    )


def unreadable(error: OSError) -> UserError:
    """A text that cannot be read."""
    return UserError(
        "SWT-E820",
        f"The text cannot be read: {error}.",
        "No run was started.",
        "Check the files that data.source names, and the disk.",
    )
