"""The picture of a demo, made of what is known; `swarmtrain.console.view` shows it."""

import sys
from dataclasses import dataclass, replace
from typing import TextIO

from swarmtrain.console.units import human_bytes
from swarmtrain.console.view import Picture, Row
from swarmtrain.demo.report import data_parallel_bytes, mean_bytes_up
from swarmtrain.demo.setting import Cast
from swarmtrain.demo.story import Facts


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture of the demo.

    Attributes:
        committed: rounds with a result.
        losses: validation losses so far in the order of the rounds, in nats per byte.
        order0_loss: loss that byte frequencies alone reach.
        bytes_up: bytes that a surviving founder has sent, in the mean.
        bytes_data_parallel: bytes that each had sent by now in data-parallel training.
    """

    rows: tuple[Row, ...]
    committed: int
    rounds: int
    losses: tuple[float, ...]
    order0_loss: float
    bytes_up: int
    bytes_data_parallel: int


def picture_of(scene: Scene) -> Picture:
    """The scene as a terminal shows it."""
    return Picture(scene.rows, (loss_line(scene), bytes_line(scene)))


def make_scene(
    facts: Facts, cast: Cast, rounds: int, inner_steps: int, order0_loss: float, old: Scene | None
) -> Scene:
    """The picture of what is known now.

    Args:
        inner_steps: inner steps of one round.
        old: the picture before; a peer that is gone keeps its last numbers.
    """
    known = {row.name: row for row in old.rows} if old is not None else {}
    for peer in facts.status.peers if facts.status is not None else ():
        known[peer.name] = Row.of(peer)
    for name, left in facts.left.items():
        known[name] = replace(
            known.get(name, Row(name, "left")), state="left", round=left.round, tokens_per_s=0.0,
            bytes_up=left.bytes_up, bytes_down=left.bytes_down,
        )  # fmt: skip
    if facts.killed is not None and (row := known.get(facts.killed.peer)) is not None:
        known[row.name] = replace(row, state="killed", tokens_per_s=0.0)
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


def loss_line(scene: Scene) -> str:
    """Rounds and validation loss in one line."""
    done = f"round {scene.committed} of {scene.rounds} committed"
    if not scene.losses:
        return done
    first, last = scene.losses[0], scene.losses[-1]
    shown = f"{first:.3f} -> {last:.3f}" if len(scene.losses) > 1 else f"{first:.3f}"
    return f"{done} | validation loss {shown} (byte frequencies alone: {scene.order0_loss:.3f})"


def bytes_line(scene: Scene) -> str:
    """Bytes sent beside those of data-parallel training, in one line."""
    return (
        f"bytes sent per peer {human_bytes(scene.bytes_up)}"
        f" | data-parallel training by now: {human_bytes(scene.bytes_data_parallel)}"
    )


def stream_for(*, is_json: bool) -> TextIO:
    """With --json stdout is for the object alone."""
    return sys.stderr if is_json else sys.stdout
