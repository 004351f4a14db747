"""The comparison as lines of text."""

from collections.abc import Sequence

from swarmtrain.compare.results import Row
from swarmtrain.console.table import plain_lines, table_of
from swarmtrain.console.units import human_bytes

_HEAD = (
    "strategy", "codec", "seeds", "loss", "spread", "rounds", "bytes/peer", "peak/step",
    "s/round", "modelled s",
)  # fmt: skip
"""Titles of the columns."""

_PIPELINE_HEAD = ("route shares", "redone", "lost")

_LEGEND = (
    "loss: held-out, in nats per byte; spread: its standard deviation over seeds; rounds: "
    "exchanges with a result; bytes/peer: payload that a peer sends; peak/step: most of it per "
    "inner step; s/round: modelled seconds from one exchange to the next; modelled s: of the "
    "whole run."
)
"""Their meanings."""

_PIPELINE_LEGEND = (
    " route shares: parts of a stage's micro-batches that its peers counted, in percent; redone: "
    "micro-batches that a stage's other peer got after one had failed; lost: those that did not "
    "come back."
)
"""Meanings of the columns that are there where a row is a pipeline's."""


def text_table(rows: Sequence[Row]) -> str:
    """Draw aligned columns; `legend` says what they hold."""
    head, *lines = table_lines(rows)
    table = table_of(head, lines, right=head[2:])
    return "\n".join(plain_lines(table))


def table_lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The titles, then each row's text for each column."""
    piped = any(row.route_shares for row in rows)
    head = (*_HEAD, *_PIPELINE_HEAD) if piped else _HEAD
    return [head, *((*_cells(row), *_piped_cells(row))[: len(head)] for row in rows)]


def legend(rows: Sequence[Row]) -> str:
    """Meanings of the columns."""
    return _LEGEND + _PIPELINE_LEGEND * any(row.route_shares for row in rows)


def _cells(row: Row) -> tuple[str, ...]:
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


def _piped_cells(row: Row) -> tuple[str, ...]:
    if not row.route_shares:
        return "-", "-", "-"
    shares = ":".join(f"{100 * share:.0f}" for share in row.route_shares)
    return shares, f"{row.redone:g}", f"{row.lost:g}"


def _rounds(row: Row) -> str:
    """Rounds with a result, and of how many if some had none."""
    return f"{row.ops:g} of {row.ops + row.skipped:g}" if row.skipped else f"{row.ops:g}"
