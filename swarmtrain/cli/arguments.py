"""Options that several commands share, so that they read and behave the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show debugging lines, and tracebacks of faults.")
]
StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", help="Directory for state.", show_default="a directory per run"),
]
JsonEvents = Annotated[
    bool, typer.Option("--json-events", help="Print events as JSON lines on stdout.")
]
