"""`swarmtrain status`: ask the process of a state directory how it is."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from swarmtrain.cli.arguments import StateDir, Verbose
from swarmtrain.cli.situation import Situation

_COLUMNS = (
    ("name", "peer"),
    ("state", "state"),
    ("round", "round"),
    ("step", "step"),
    ("loss", "loss"),
    ("tokens_per_s", "tok/s"),
    ("bytes_up", "up"),
    ("bytes_down", "down"),
    ("state_root", "state root"),
    ("chain", "chain"),
)

_NOT_SHOWN = ("waiting_seen_s",)
"""Facts that stand in the words of another."""


def status(
    context: typer.Context,
    state_dir: StateDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Verbose = False,
) -> None:
    """Show how a coordinator or a peer is doing.

    Without --state-dir the newest one on this machine is asked.
    """
    context.ensure_object(Situation).begin(verbose=verbose)
    from swarmtrain.status import ask, newest_state_dir

    view = ask(state_dir or newest_state_dir())
    if as_json:
        print(json.dumps(view))
        return
    for line in describe(view):
        print(line)


def describe(view: Mapping[str, Any]) -> Iterator[str]:
    """The answer as lines for people: facts, then a row per peer. Empty facts are left out."""
    from swarmtrain.status import waiting_words

    for key, value in view.items():
        if isinstance(value, list | dict) or value in ("", None) or key in _NOT_SHOWN:
            continue
        if key == "checkpoint_op" and value == -1:
            continue  # there is none
        if key == "waiting_for":
            value = waiting_words(str(value), view.get("waiting_seen_s"), time.time())
        yield f"{key.replace('_', ' '):<16} {_shown(key, value)}"
    losses = view.get("losses")
    if isinstance(losses, dict) and losses:
        newest = max(losses, key=int)
        yield f"{'validation loss':<16} {losses[newest]:.3f} nats after round {newest}"
    yield from _floods(view)
    peers = view.get("peers")
    if isinstance(peers, list) and peers:
        yield ""
        yield from _table([peer for peer in peers if isinstance(peer, dict)])


def _floods(view: Mapping[str, Any]) -> Iterator[str]:
    """Who was cut for saying too much."""
    events = view.get("events")
    for event in events if isinstance(events, list) else ():
        if isinstance(event, dict) and event.get("event") == "flood":
            times = event.get("times", 1)
            often = "once" if times == 1 else f"{times} times"
            yield (
                f"{'flood':<16} peer {str(event.get('peer', ''))[:8]} was cut off {often}"
                f" for too many messages ({event.get('reason', '')})"
            )


def _table(peers: list[dict[str, Any]]) -> Iterator[str]:
    columns = [
        (key, title) for key, title in _COLUMNS if any(peer.get(key, "") != "" for peer in peers)
    ]
    rows = [[title for _, title in columns]]
    rows += [[_shown(key, peer.get(key, "")) for key, _ in columns] for peer in peers]
    yield from aligned(rows)


def aligned(rows: list[list[str]]) -> Iterator[str]:
    """Rows of equal length as lines with columns under each other."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _shown(key: str, value: object) -> str:
    """One value for people: units on bytes, hashes cut to what can be compared by eye."""
    if key.startswith("bytes_") and isinstance(value, int):
        return f"{value / 1e6:.1f} MB"
    if (key.endswith("_root") or key == "chain") and isinstance(value, str):
        return value[:16]
    if isinstance(value, float):
        return f"{value:.3f}" if key == "loss" else f"{value:.1f}"
    return str(value)
