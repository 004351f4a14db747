"""A volunteer's own text: the same sources as an organiser's, in the run's tokens.

It is read here and stays here. The run's demands on it are checked before any round: that it is
text, that there is enough of it, and that its tokens are the run's.
"""

import hashlib
from pathlib import Path

from msgspec.structs import replace

from swarmtrain.config.settings import BYTES, IDS, LEASED_TEXT, RunConfig
from swarmtrain.data.documents import HF, Kind, find
from swarmtrain.data.places import Places
from swarmtrain.data.stored import StoredText, Tell, open_text
from swarmtrain.data.tokenizer import FILE, FILE_BYTES_MAX
from swarmtrain.foundation.errors import UserError


def check_there(place: str) -> str:
    """The absolute form of a place where something is.

    Raises:
        UserError: SWT-E820, there is nothing.
    """
    if place.startswith(HF):
        return place
    path = str(Path(place).expanduser().absolute())
    find(path)
    return path


def open_own(
    config: RunConfig,
    source: str,
    tokenizer: bytes,
    folder: Path,
    tell: Tell,
    *,
    sets_aside: bool,
) -> StoredText:
    """Open a volunteer's text.

    Args:
        config: run file.
        source: a folder, a file, or "hf:NAME".
        tokenizer: contents of the run's `tokenizer.json`; empty without one.
        folder: folder that keeps facts of the text.
        tell: hears what was found.
        sets_aside: a share of it is judged by; else all of it is trained on.

    Raises:
        UserError: SWT-E826, it is made of other tokens; and as `open_text`.
    """
    if find(source).kind is Kind.TOKENS:
        _check_tokens(config, Path(source))
    data = replace(config.data, source=LEASED_TEXT)
    places = Places(source=source, tokenizer=tokenizer)
    return open_text(replace(config, data=data), places, folder, tell, sets_aside=sets_aside)


def _check_tokens(config: RunConfig, place: Path) -> None:
    """Tokens on the disk are the run's if the tokenizer that lies beside them is."""
    name = config.data.tokenizer
    if name == IDS:
        return
    beside = (place if place.is_dir() else place.parent) / FILE
    if name != BYTES and beside.is_file() and beside.stat().st_size <= FILE_BYTES_MAX:
        if hashlib.sha256(beside.read_bytes()).hexdigest() == name:
            return
        what = f"{beside} is another tokenizer than the run's, whose SHA-256 is {name}"
    elif name == BYTES:
        what = f"{place} holds token ids, and the tokens of this run are bytes of text"
    else:
        what = f"{place} holds token ids, and no {FILE} beside it says by which tokenizer"
    raise UserError(
        "SWT-E826",
        f"{what}.",
        "The model would learn other words than the other peers teach it, so nothing was trained.",
        "Bring the text itself; it becomes tokens of the run here.",
    )
