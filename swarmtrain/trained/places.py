"""State directories of peers on this machine, by the run's name or by their path."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from swarmtrain.foundation import dirs
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain.peer.disk import ledger_file
from swarmtrain.verify.coordinator_state import is_coordinators

_LISTED_MAX = 8


def state_dirs(given: Sequence[str | Path]) -> list[Path]:
    """Directories of peers that the words name, each once.

    Args:
        given: each a state directory, a folder of such, or a run's name.

    Raises:
        UserError: SWT-E806, one of them names none.
    """
    return list(dict.fromkeys(found for one in given for found in _named(one)))


def run_folder(name: str | Path) -> Path | None:
    """The folder of a run's default state directories, None where nothing is kept under the
    name."""
    said, folder = str(name), dirs.runs_dir() / name
    is_name = said not in ("", ".", "..") and Path(said).name == said
    return folder if is_name and folder.is_dir() else None


def _named(given: str | Path) -> list[Path]:
    place = Path(given)
    found = _inside(place)
    if not found and (folder := run_folder(given)) is not None:
        found = list(_below(folder / "peers"))
    if found:
        return found
    raise UserError("SWT-E806", _what(given), *_remedy(place))


def _inside(place: Path) -> list[Path]:
    """The directory, if it is a peer's; else those in it."""
    return [place] if _is_peers(place) else list(_below(place))


def _below(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (one for one in sorted(folder.iterdir()) if _is_peers(one))


def _is_peers(place: Path) -> bool:
    return (place / ledger_file.FILE_NAME).is_file()


def _what(given: str | Path) -> str:
    shown = cleaned(str(given))
    if (folder := run_folder(given)) is not None:
        return f"No peer of the run {shown} has its state on this machine, in {folder / 'peers'}."
    return f"{shown} is no state directory of a peer, has none in it, and is no run's name here."


def _remedy(place: Path) -> tuple[str, str]:
    if is_coordinators(place):
        return "It is a coordinator's, which never has the model.", "Name a peer's directory."
    folder = dirs.runs_dir()
    known = [one.parent.name for one in folder.glob("*/peers")] if folder.is_dir() else []
    runs = f" Runs with peers here: {', '.join(sorted(known)[:_LISTED_MAX])}." if known else ""
    return (
        "A peer keeps its ledger there in ledger.bin.",
        f"Name what was given as --state-dir, or the folder of all peers of a run.{runs}",
    )
