"""The log of a command: lines on stderr, without the secrets of invites."""

import logging
import os
import sys

from swarmtrain.cli.situation import redact

_OWN = ("swarmtrain", "swarmtrain_transport", "swarmtrain_optimizers")


class _Redacting(logging.Formatter):
    """A line that may be shown to anybody."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def set_up(*, verbose: bool) -> None:
    """Send the log to stderr; -v or SWARMTRAIN_LOG_LEVEL choose how much.

    Own lines are shown from INFO on, those of libraries from WARNING on.
    """
    chosen = os.environ.get("SWARMTRAIN_LOG_LEVEL", "").upper()
    level = chosen if chosen in logging.getLevelNamesMapping() else ""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Redacting("%(asctime)s %(levelname)s %(name)s %(message)s", datefmt="%H:%M:%S")
    )
    logging.basicConfig(level=level or "WARNING", handlers=[handler], force=True)
    for name in _OWN:
        logging.getLogger(name).setLevel("DEBUG" if verbose else level or "INFO")
