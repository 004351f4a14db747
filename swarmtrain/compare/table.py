"""The comparison as lines of text."""

from collections.abc import Sequence

from swarmtrain.compare.results import Row

_HEAD = ("strategy", "codec", "seeds", "loss", "spread", "bytes/peer", "peak/step", "modelled s")
_TEXT_COLUMNS = 2


def text_table(rows: Sequence[Row]) -> str:
    """Aligned columns: loss in nats per byte with its standard deviation over seeds, payload that
    a peer sends, most of it per inner step, and modelled seconds."""
    lines = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < _TEXT_COLUMNS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.strategy,
        row.codec,
        str(row.seeds),
        f"{row.loss:.4f}" if row.loss is not None else "diverged",
        f"{row.spread:.4f}" if row.spread is not None else "-",
        human_bytes(row.bytes_up_per_peer),
        human_bytes(row.peak_bytes_per_step),
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
