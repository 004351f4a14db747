"""Places of the organiser's text, apart from what the run file says of it to everybody.

A run file on the organiser's disk names files; the settings that travel name none. `settle` parts
the two: the source becomes "text", and paths stay on this machine. The text itself is named by its
manifest, whose hash the coordinator keeps.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from swarmtrain.config import limits
from swarmtrain.config.built_in import vocabulary_of
from swarmtrain.config.data import lacks_bytes
from swarmtrain.config.settings import BYTES, IDS, LEASED_TEXT, OWN_TEXT, STDLIB, RunConfig
from swarmtrain.data.documents import HF, Kind, find
from swarmtrain.data.tokenizer import FILE_BYTES_MAX, Bytes, JsonTokenizer
from swarmtrain.foundation import regular_file
from swarmtrain.foundation.errors import UserError


@dataclass(frozen=True, slots=True)
class Places:
    """Files of the organiser, as absolute paths; "" for none.

    Attributes:
        source: a file, a folder, or "hf:NAME".
        validation: the same, for the text that all peers judge by.
        tokenizer: contents of the `tokenizer.json`; empty without one.
        documents: number of documents to read of the source, 0 for all.
    """

    source: str = ""
    validation: str = ""
    tokenizer: bytes = b""
    documents: int = 0


NOWHERE = Places()


def settle(config: RunConfig, folder: Path) -> tuple[RunConfig, Places]:
    """Return the settings that travel, and what stays here.

    Args:
        config: run file as the organiser wrote it.
        folder: folder of the run file; its paths are relative to this folder.

    Raises:
        UserError: SWT-E820, there is no text; E824, the tokenizer cannot be read or is not for this
            model; and as `JsonTokenizer`.
    """
    data = config.data
    # In the settings that travel LEASED_TEXT names no place; in a file it is one like any other.
    is_named = data.source not in (STDLIB, OWN_TEXT)
    # The standard library's sources are known by their bytes; as other tokens, or with another text
    # to judge by, they are any text.
    is_other = data.tokenizer != BYTES or bool(data.validation)
    is_leased = is_named or (data.source == STDLIB and is_other)
    file, tokenizer = b"", data.tokenizer
    if tokenizer == BYTES and is_named:
        holds = find(_absolute(data.source, folder)).kind
        tokenizer = IDS if holds is Kind.TOKENS else BYTES  # as bytes they would be no text
    if tokenizer not in (BYTES, IDS):
        file = _file(_absolute(tokenizer, folder))
        config, tokenizer = _for_tokenizer(config, JsonTokenizer(file))
    elif tokenizer == BYTES and lacks_bytes(config):
        raise _no_place(config, Bytes.vocabulary, f"its vocabulary is {vocabulary_of(config)}")
    places = Places(
        source=(_absolute(data.source, folder) if is_named else STDLIB) if is_leased else "",
        validation=_absolute(data.validation, folder),
        tokenizer=file,
        documents=data.documents,
    )
    settled = msgspec.structs.replace(
        data, source=LEASED_TEXT if is_leased else data.source, validation="",
        tokenizer=tokenizer, documents=0,
    )  # fmt: skip
    return msgspec.structs.replace(config, data=settled), places


def _for_tokenizer(config: RunConfig, tokenizer: JsonTokenizer) -> tuple[RunConfig, str]:
    """The run file with a model for these tokens, and the tokenizer's name in it."""
    model, words = config.model, tokenizer.vocabulary
    if model.kind not in ("byte-transformer", "huggingface") and not model.vocabulary:
        model = msgspec.structs.replace(model, vocabulary=words)
        config = msgspec.structs.replace(config, model=model)
    problem = limits.first_problem(config)
    if vocabulary_of(config) < words or problem is not None:
        fits = f"its vocabulary is {vocabulary_of(config)}" if problem is None else problem.text
        raise _no_place(config, words, fits)
    return config, tokenizer.sha256


def _no_place(config: RunConfig, words: int, fits: str) -> UserError:
    return UserError(
        "SWT-E824",
        f"The tokenizer has {words} tokens, and model.kind = {config.model.kind} has no place for"
        f" them: {fits}.",
        "A model has one output for each token; without data.tokenizer tokens are bytes.",
        'Set model.kind = "transformer" and leave model.vocabulary out, or take a tokenizer'
        " with fewer tokens.",
    )


def _file(place: str) -> bytes:
    try:
        return regular_file.read(place, FILE_BYTES_MAX)
    except OSError as error:
        raise UserError(
            "SWT-E824",
            f"The tokenizer {place} cannot be read: {error.strerror or error}.",
            'data.tokenizer is "bytes", "ids" or the path of a tokenizer.json, relative to the'
            " run file.",
            "Check the path.",
        ) from error


def _absolute(place: str, folder: Path) -> str:
    if not place:
        return ""
    if place.startswith(HF):
        local = folder / Path(place.removeprefix(HF)).expanduser()
        return f"{HF}{local.absolute()}" if local.exists() else place
    return str((folder / Path(place).expanduser()).absolute())
