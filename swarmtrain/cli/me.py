"""`swarmtrain me`: what this user's peers have given to all runs, kept for life."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmtrain.cli.arguments import AsJson, Verbose
from swarmtrain.console.lines import show, show_json

if TYPE_CHECKING:
    from swarmtrain.credit.lifetime import Lifetime

_FROM_LEDGER, _OWN_WORD = ("rounds", "tokens"), ("bytes_up", "bytes_down", "seconds")
_FIELDS = ("run", "run_key", "peer", "name", *_FROM_LEDGER, *_OWN_WORD, "unit", "seen_s")


def me(
    card: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Draw the totals as a card to show to others."),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show what your peers have given to all runs: merged rounds and tokens, bytes, hours.

    It is kept when a run's state directory is gone. Nobody is asked and nothing is sent.
    """
    from swarmtrain.credit.lifetime import kept_in, total_words
    from swarmtrain.foundation import dirs

    folder = dirs.lifetime_dir()
    kept, damaged = kept_in(folder)
    if card is not None:
        _draw(card, kept)
    if as_json:
        runs = [{name: getattr(one, name) for name in _FIELDS} for one in kept]
        show_json({"runs": runs, "from_ledger": _FROM_LEDGER, "own_word": _OWN_WORD,
                   "folder": str(folder), "damaged": [str(path) for path in damaged]})  # fmt: skip
        return
    if kept:
        _show(kept)
        show(f"\nIn all {total_words(kept)}.")
        show(
            "Rounds and tokens are those in results, counted from each run's signed ledger;"
            " `swarmtrain receipts save FOLDER` proves them to others, round by round, while the"
            " state directory is here. * Bytes and time are this machine's own word."
        )
    else:
        show(f"Nothing yet: totals begin when a peer of yours comes into a run (in {folder}).")
    for path in damaged:
        show(f"{path} is damaged and was left out.")
    if card is not None:
        show(f"The card is in {card}.")


def _show(kept: "list[Lifetime]") -> None:
    from swarmtrain.console.table import plain_lines, table_of
    from swarmtrain.console.units import human_bytes, human_seconds

    rows = [
        (
            one.run, f"{one.name} ({one.peer[:8]})", f"{one.rounds:,}",
            "-" if one.tokens is None else f"{one.tokens:,} {one.unit}",
            human_bytes(one.bytes_up), human_bytes(one.bytes_down), human_seconds(one.seconds),
            time.strftime("%Y-%m-%d", time.localtime(one.seen_s)),
        )
        for one in kept
    ]  # fmt: skip
    titles = ("run", "peer", "rounds", "merged", "sent*", "received*", "time*", "last seen")
    right = titles[2:7]
    show("\n".join(plain_lines(table_of(titles, rows, right=right))))


def _draw(card: Path, kept: "list[Lifetime]") -> None:
    from swarmtrain.credit.card import drawn
    from swarmtrain.foundation import atomic_file
    from swarmtrain.foundation.errors import UserError, misuse, translate

    if not kept:
        raise UserError(
            "SWT-E814",
            "There is nothing to draw on a card yet.",
            "No peer of yours has been in a run since totals are kept.",
            "`swarmtrain join` a run first.",
        )
    try:
        atomic_file.write(card, drawn(kept).encode())
    except OSError as error:
        raise translate(error) or misuse(
            f"{card} cannot be written: {error.strerror}.", "Name a file in a folder that exists."
        ) from error
