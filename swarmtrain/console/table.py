"""Tables for people, drawn by rich: in a live view, or as plain lines that no width breaks."""

import io
from collections.abc import Collection, Sequence
from itertools import zip_longest

from rich.console import Console
from rich.table import Table
from rich.text import Text

from swarmtrain.console.lines import harmless

_UNBOUNDED = 10_000
"""Columns of a page that has no edge."""


def table_of(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    cut: str = "",
    styles: Sequence[str] = (),
) -> Table:
    """Make a table without lines, its columns two spaces apart.

    Args:
        rows: a cell per column; nothing in them is markup.
        right: titles of columns that are aligned to the right.
        cut: the column that is cut first where there is no room; the others keep their titles.
        styles: styles of the rows, as rich names them; none for plain ones.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(
            Text(title),
            justify="right" if title in right else "left",
            no_wrap=True,
            min_width=None if title == cut else len(title),
        )
    for row, style in zip_longest(rows, styles):
        table.add_row(*(Text(" ".join(harmless(cell).splitlines())) for cell in row), style=style)
    return table


def plain_lines(table: Table) -> list[str]:
    """Draw a table as lines of plain text, for whatever reads them."""
    page = Console(file=io.StringIO(), width=_UNBOUNDED, color_system=None)
    with page.capture() as drawn:
        page.print(table)
    return [line.rstrip() for line in drawn.get().splitlines()]
