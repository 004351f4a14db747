"""Rules for [data] in settings that travel: they name no files."""

import re

from swarmtrain.config.built_in import vocabulary_of
from swarmtrain.config.problem import Problem
from swarmtrain.config.settings import BYTES, IDS, LEASED_TEXT, OWN_TEXT, STDLIB, RunConfig
from swarmtrain.foundation.errors import cleaned

_SHA256 = re.compile(r"[0-9a-f]{64}")

FIELD_CHARS_MAX = 256

BYTE_VALUES = 256


def unsettled(config: RunConfig) -> Problem | None:
    """The first setting that only an organiser's own file may hold, or None."""
    data = config.data
    if data.source not in (STDLIB, LEASED_TEXT, OWN_TEXT):
        return Problem("data.source", f"must not travel as {cleaned(data.source)}")
    if data.validation:
        return Problem("data.validation", "must not travel")
    if data.tokenizer not in (BYTES, IDS) and not _SHA256.fullmatch(data.tokenizer):
        return Problem("data.tokenizer", "must travel as a SHA-256")
    if lacks_bytes(config):
        return Problem("model.vocabulary", "must be 256 at least, as tokens are bytes")
    if len(data.field) > FIELD_CHARS_MAX:
        return Problem("data.field", f"must have at most {FIELD_CHARS_MAX} characters")
    return None


def lacks_bytes(config: RunConfig) -> bool:
    """True if tokens are bytes, and the model has not an output for each of them."""
    return (
        config.data.tokenizer == BYTES
        and config.model.kind != "custom"
        and vocabulary_of(config) < BYTE_VALUES
    )
