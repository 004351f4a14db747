"""The comparison as lines of text."""

from collections.abc import Sequence

from swarmtrain.compare.results import Row
from swarmtrain.console.table import plain_lines, table_of
from swarmtrain.console.units import human_bytes

HEAD = (
    "strategy", "codec", "seeds", "loss", "spread", "rounds", "bytes/peer", "peak/step",
    "s/round", "modelled s",
)  # fmt: skip
"""Titles of the columns."""

LEGEND = (
    "loss: held-out, in nats per byte; spread: its standard deviation over seeds; rounds: "
    "exchanges with a result; bytes/peer: payload that a peer sends; peak/step: most of it per "
    "inner step; s/round: modelled seconds from one exchange to the next; modelled s: of the "
    "whole run."
)
"""Their meanings."""


def text_table(rows: Sequence[Row]) -> str:
    """Draw aligned columns; `LEGEND` says what they hold."""
    table = table_of(HEAD, [cells(row) for row in rows], right=HEAD[2:])
    return "\n".join(plain_lines(table))


def cells(row: Row) -> tuple[str, ...]:
    """Return a row's text for each column."""
    return (
        row.strategy,
        row.codec,
        str(row.seeds),
        f"{row.loss:.4f}" if row.loss is not None else "diverged",
        f"{row.spread:.4f}" if row.spread is not None else "-",
        _rounds(row),
        human_bytes(row.bytes_up_per_peer),
        human_bytes(row.peak_bytes_per_step),
        f"{row.round_seconds:.3f}" if row.round_seconds is not None else "-",
        f"{row.modelled_seconds:.1f}",
    )


def _rounds(row: Row) -> str:
    """Rounds with a result, and of how many if some had none."""
    return f"{row.ops:g} of {row.ops + row.skipped:g}" if row.skipped else f"{row.ops:g}"
