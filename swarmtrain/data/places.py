"""Places of the organiser's text, apart from what the run file says of it to everybody.

A run file on the organiser's disk names files; the settings that travel name none. `settle` parts
the two: the source becomes "text", and paths stay on this machine. What the text is, its manifest
says, whose hash the coordinator keeps.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from swarmtrain.config.settings import LEASED_TEXT, OWN_TEXT, STDLIB, RunConfig

HF = "hf:"
"""Begins the name of a dataset of the datasets library."""


@dataclass(frozen=True, slots=True)
class Places:
    """Files of the organiser, as absolute paths; "" for none.

    Attributes:
        source: a file, a folder, or "hf:NAME".
        validation: the same, for the text that all peers judge by.
    """

    source: str = ""
    validation: str = ""


NOWHERE = Places()


def settle(config: RunConfig, folder: Path) -> tuple[RunConfig, Places]:
    """Return the settings that travel, and what stays here.

    Args:
        config: as the organiser wrote it.
        folder: that of the run file; paths in it are relative to this folder.
    """
    data = config.data
    is_named = data.source not in (STDLIB, OWN_TEXT, LEASED_TEXT)
    places = Places(
        source=_absolute(data.source, folder) if is_named else "",
        validation=_absolute(data.validation, folder),
    )
    settled = msgspec.structs.replace(
        data, source=LEASED_TEXT if is_named else data.source, validation=""
    )
    return msgspec.structs.replace(config, data=settled), places


def _absolute(place: str, folder: Path) -> str:
    if not place:
        return ""
    if place.startswith(HF):
        local = folder / Path(place.removeprefix(HF)).expanduser()
        return f"{HF}{local.absolute()}" if local.exists() else place
    return str((folder / Path(place).expanduser()).absolute())
