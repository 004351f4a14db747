"""Rules for [data] in settings that travel: they name no files."""

from swarmtrain.config.problem import Problem
from swarmtrain.config.settings import LEASED_TEXT, OWN_TEXT, STDLIB, RunConfig
from swarmtrain.errors import cleaned


def unsettled(config: RunConfig) -> Problem | None:
    """The first setting that only an organiser's own file may hold, or None."""
    data = config.data
    if data.source not in (STDLIB, LEASED_TEXT, OWN_TEXT):
        return Problem("data.source", f"must not travel as {cleaned(data.source)}")
    if data.validation:
        return Problem("data.validation", "must not travel")
    return None
