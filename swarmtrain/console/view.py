"""Display of a run as it goes: sentences, and in a terminal a live table below them."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from swarmtrain.console.lines import harmless, show, wrapped
from swarmtrain.console.table import table_of
from swarmtrain.console.units import human_bytes
from swarmtrain_transport.coordinator.status import PeerStatus

WIDE = 76
"""Columns of a terminal from which on the table has all of its own."""


@dataclass(frozen=True, slots=True)
class Row:
    """One peer in the table. Nothing is known of it yet where `state` is "starting"."""

    name: str
    state: str
    round: int = 0
    loss: float = 0.0
    tokens_per_s: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0

    @classmethod
    def of(cls, peer: PeerStatus) -> "Row":
        """The row of a peer as its coordinator knows it."""
        return cls(*(getattr(peer, field.name) for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class Picture:
    """Current contents of the table and of the lines below it.

    Attributes:
        lines: below them, in words.
        unit: unit of what rows count a second.
    """

    rows: tuple[Row, ...]
    lines: tuple[str, ...]
    unit: str = "tokens"


def open_view(stream: TextIO) -> "View":
    """A live table where somebody can see it, else plain lines."""
    return LiveView(Console(file=stream)) if stream.isatty() else View(stream)


class View:
    """A place on which a run shows itself: a line per sentence; pictures are left out."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, text: str) -> None:
        """A sentence, above the table."""
        show(text, self._stream)

    def show(self, picture: Picture) -> None:
        """The newest picture."""

    def close(self) -> None:
        """No more pictures; sentences may still come."""


class LiveView(View):
    """Sentences, and the table below them, drawn anew as it changes.

    Whatever else the process says on its streams meanwhile comes to stand above the table too.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False)
        self._live.start()

    def say(self, text: str) -> None:
        """See View."""
        self._console.print(Text(harmless(wrapped(text, self._console.width))), soft_wrap=True)

    def show(self, picture: Picture) -> None:
        """See View."""
        self._live.update(render(picture, self._console.width), refresh=True)

    def close(self) -> None:
        """See View."""
        self._live.stop()


def render(picture: Picture, width: int) -> Group:
    """The picture for a terminal that is so wide: rates and what came in are left out of a narrow
    one, and names are cut where it still does not fit."""
    kept = [column for column in _COLUMNS if width >= WIDE or column.is_needed]
    table = table_of(
        [column.title.format(unit=picture.unit) for column in kept],
        [[column.cell(row) for column in kept] for row in picture.rows],
        right=[column.title.format(unit=picture.unit) for column in kept[2:]],
        cut="peer",
        styles=[_STYLES.get(row.state, "") for row in picture.rows],
    )
    shown = [table] if picture.rows else []
    return Group(Text(), *shown, *(Text(harmless(line)) for line in picture.lines))


@dataclass(frozen=True, slots=True)
class _Column:
    """A column; what is not known yet is left empty."""

    title: str
    shown: Callable[[Row], str]
    is_needed: bool = True

    def cell(self, row: Row) -> str:
        return self.shown(row) if row.state != "starting" or self in _COLUMNS[:2] else ""


_COLUMNS = (
    _Column("peer", lambda row: row.name),
    _Column("state", lambda row: row.state),
    _Column("round", lambda row: str(row.round)),
    _Column("loss", lambda row: f"{row.loss:.3f}" if row.loss else ""),
    _Column("{unit}/s", lambda row: f"{row.tokens_per_s:.0f}" if row.tokens_per_s else "",
            is_needed=False),
    _Column("up", lambda row: human_bytes(row.bytes_up)),
    _Column("down", lambda row: human_bytes(row.bytes_down), is_needed=False),
)  # fmt: skip

_STYLES = {
    "killed": "red", "silent": "red", "unreachable": "red", "disconnected": "red",
    "starting": "dim", "left": "dim", "syncing": "yellow",
}  # fmt: skip
