"""Lines for people on stderr: those that a command says, and its log among them."""

import contextlib
import logging
import os
import re
import sys

from swarmtrain.console.lines import columns, show, stamped, wrapped

_OWN = ("swarmtrain", "swarmtrain_transport", "swarmtrain_optimizers")

_SECRET = re.compile(r"(swarm://[^\s#\"']*#)[A-Za-z0-9_-]{16,}")


def redact(text: str) -> str:
    """The text without the secrets of invites."""
    return _SECRET.sub(r"\1...", text)


def say(text: str) -> None:
    """A line for people, on stderr: stdout is for results.

    It may be that nobody reads it any more: that is no reason to stop anything.
    """
    with contextlib.suppress(OSError):
        show(wrapped(redact(text), columns(sys.stderr)), sys.stderr)


class _Saying(logging.Handler):
    """Says a record as anything else is said; with -v also where it comes from."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__()
        form = "%(levelname)s %(name)s %(message)s" if verbose else "%(message)s"
        self.setFormatter(logging.Formatter(form))
        self._verbose = verbose

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        try:
            text = self.format(record)
            if record.levelno >= logging.WARNING and not self._verbose:
                text = f"{record.levelname.capitalize()}: {text}"
            say(stamped(text, sys.stderr))
        except Exception:
            self.handleError(record)


def set_up(*, verbose: bool) -> None:
    """Send the log to stderr; -v or SWARMTRAIN_LOG_LEVEL choose how much.

    Own lines are shown from INFO on, those of libraries from WARNING on.
    """
    chosen = os.environ.get("SWARMTRAIN_LOG_LEVEL", "").upper()
    level = chosen if chosen in logging.getLevelNamesMapping() else ""
    logging.basicConfig(level=level or "WARNING", handlers=[_Saying(verbose=verbose)], force=True)
    for name in _OWN:
        logging.getLogger(name).setLevel("DEBUG" if verbose else level or "INFO")
