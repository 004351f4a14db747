"""What people see of a demo: sentences as they come, and in a terminal a live table below them."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from swarmtrain.demo.report import data_parallel_bytes, mean_bytes_up
from swarmtrain.demo.setting import Cast
from swarmtrain.demo.story import Facts


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


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture of the demo.

    Attributes:
        rows: a row per peer.
        committed: rounds with a result.
        rounds: rounds that shall be committed.
        losses: validation losses so far in the order of the rounds, in nats per byte.
        order0_loss: what byte frequencies alone reach.
        bytes_up: what a surviving founder has sent, in the mean.
        bytes_data_parallel: what each had sent by now in data-parallel training.
    """

    rows: tuple[Row, ...]
    committed: int
    rounds: int
    losses: tuple[float, ...]
    order0_loss: float
    bytes_up: int
    bytes_data_parallel: int


def make_scene(
    facts: Facts, cast: Cast, rounds: int, inner_steps: int, order0_loss: float, old: Scene | None
) -> Scene:
    """The picture of what is known now.

    Args:
        facts: of the story.
        cast: who takes part.
        rounds: rounds that shall be committed.
        inner_steps: of one round.
        order0_loss: see Scene.
        old: the picture before; a peer that is gone keeps its last numbers.
    """
    known = {row.name: row for row in old.rows} if old is not None else {}
    for peer in facts.status.peers if facts.status is not None else ():
        known[peer.name] = Row(
            peer.name, peer.state, peer.round, peer.loss, peer.tokens_per_s,
            peer.bytes_up, peer.bytes_down,
        )  # fmt: skip
    for name, left in facts.left.items():
        row = known.get(name, Row(name, "left"))
        known[name] = Row(
            name, "left", left.round, row.loss, 0.0, left.bytes_up, left.bytes_down
        )  # fmt: skip
    if facts.killed is not None and facts.killed.peer in known:
        row = known[facts.killed.peer]
        known[row.name] = Row(
            row.name, "killed", row.round, row.loss, 0.0, row.bytes_up, row.bytes_down
        )  # fmt: skip
    names = [*cast.founders]
    if cast.newcomer is not None and facts.killed is not None:
        names.append(cast.newcomer)
    num_values = facts.status.num_values if facts.status is not None else 0
    return Scene(
        rows=tuple(known.get(name, Row(name, "starting")) for name in names),
        committed=len(facts.committed),
        rounds=rounds,
        losses=tuple(loss for _, loss in sorted(facts.losses.items())),
        order0_loss=order0_loss,
        bytes_up=mean_bytes_up(facts, cast),
        bytes_data_parallel=data_parallel_bytes(
            len(cast.founders), num_values, len(facts.committed) * inner_steps
        ),
    )


class View(Protocol):
    """Where the demo shows itself."""

    def say(self, seconds: float, text: str) -> None:
        """A sentence, so many seconds after the start."""

    def show(self, scene: Scene) -> None:
        """The newest picture."""

    def close(self) -> None:
        """No more pictures; lines may still come."""

    def lines(self, lines: Iterable[str]) -> None:
        """Lines as they are, after the end."""


def open_view(stream: TextIO) -> View:
    """A live table where somebody can see it, else plain lines."""
    if stream.isatty():
        return LiveView(Console(file=stream))
    return PlainView(stream)


class PlainView:
    """A line per sentence; pictures are left out."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, seconds: float, text: str) -> None:
        """See View."""
        print(stamped(seconds, text), file=self._stream, flush=True)

    def show(self, scene: Scene) -> None:
        """See View."""

    def close(self) -> None:
        """See View."""

    def lines(self, lines: Iterable[str]) -> None:
        """See View."""
        for line in lines:
            print(line, file=self._stream, flush=True)


class LiveView:
    """The same sentences, and the table below them, drawn anew as it changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=False)
        self._live.start()

    def say(self, seconds: float, text: str) -> None:
        """See View."""
        self._print(stamped(seconds, text))

    def show(self, scene: Scene) -> None:
        """See View."""
        self._live.update(render(scene), refresh=True)

    def close(self) -> None:
        """See View."""
        self._live.stop()

    def lines(self, lines: Iterable[str]) -> None:
        """See View."""
        for line in lines:
            self._print(line)

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def stamped(seconds: float, text: str) -> str:
    """A sentence with its time since the start."""
    return f"{int(seconds) // 60:3d}:{int(seconds) % 60:02d}  {text}"


def render(scene: Scene) -> Group:
    """The picture for a terminal: the table, the loss, the bytes."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title, align in (
        ("peer", "left"), ("state", "left"), ("round", "right"), ("loss", "right"),
        ("tokens/s", "right"), ("MB up", "right"), ("MB down", "right"),
    ):  # fmt: skip
        table.add_column(title, justify="right" if align == "right" else "left", no_wrap=True)
    for row in scene.rows:
        table.add_row(*_cells(row), style=_STYLES.get(row.state, ""))
    return Group(Text(), table, Text(loss_line(scene)), Text(bytes_line(scene)))


_STYLES = {"killed": "red", "starting": "dim", "left": "dim", "syncing": "yellow"}


def _cells(row: Row) -> tuple[str, ...]:
    if row.state == "starting":
        return (row.name, row.state, "", "", "", "", "")
    return (
        row.name,
        row.state,
        str(row.round),
        f"{row.loss:.3f}" if row.loss else "",
        f"{row.tokens_per_s:.0f}" if row.tokens_per_s else "",
        f"{row.bytes_up / 1e6:.1f}",
        f"{row.bytes_down / 1e6:.1f}",
    )


def loss_line(scene: Scene) -> str:
    """Rounds and validation loss in one line."""
    done = f"round {scene.committed} of {scene.rounds} committed"
    if not scene.losses:
        return done
    return (
        f"{done} | validation loss {scene.losses[0]:.3f} -> {scene.losses[-1]:.3f}"
        f" (byte frequencies alone: {scene.order0_loss:.3f})"
    )


def bytes_line(scene: Scene) -> str:
    """Bytes sent beside those of data-parallel training, in one line."""
    return (
        f"bytes sent per peer {scene.bytes_up / 1e6:.1f} MB"
        f" | data-parallel training by now: {scene.bytes_data_parallel / 1e6:.1f} MB"
    )


def stream_for(*, is_json: bool) -> TextIO:
    """With --json stdout is for the object alone."""
    return sys.stderr if is_json else sys.stdout
