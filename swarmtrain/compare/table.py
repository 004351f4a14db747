"""The comparison as lines of text."""

from collections.abc import Sequence

from swarmtrain.compare.results import Row

HEAD = (
    "strategy", "codec", "seeds", "loss", "spread", "bytes/peer", "peak/step", "s/round",
    "modelled s",
)  # fmt: skip
"""Titles of the columns."""

_TEXT_COLUMNS = 2


def text_table(rows: Sequence[Row]) -> str:
    """Aligned columns: loss in nats per byte with its standard deviation over seeds, payload that
    a peer sends, most of it per inner step, and modelled seconds from one exchange to the next and
    of the whole run."""
    lines = [HEAD, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < _TEXT_COLUMNS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def cells(row: Row) -> tuple[str, ...]:
    """What a row shows in each column."""
    return (
        row.strategy,
        row.codec,
        str(row.seeds),
        f"{row.loss:.4f}" if row.loss is not None else "diverged",
        f"{row.spread:.4f}" if row.spread is not None else "-",
        human_bytes(row.bytes_up_per_peer),
        human_bytes(row.peak_bytes_per_step),
        f"{row.round_seconds:.3f}" if row.round_seconds is not None else "-",
        f"{row.modelled_seconds:.1f}",
    )


def human_bytes(count: float) -> str:
    """``0``, ``812 B``, ``1.29 MB``: decimal units."""
    if count < 1000:
        return f"{count:.0f} B" if count else "0"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} TB"
