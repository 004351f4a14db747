"""A run in stages as it was, beside its forecast: micro-batches a second, by stage and by peer.

A round's books say how many each peer has counted, how long the round took by the coordinator's
clock, and for how much of that time the peer's passes ran, by its own word. So a state directory of
the coordinator, or of a peer, shows where a forecast was wrong.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swarmtrain.config.file import config_hash
from swarmtrain.config.settings import RunConfig
from swarmtrain.console.table import plain_lines, table_of
from swarmtrain.console.units import human_seconds
from swarmtrain.foundation.errors import UserError, misuse
from swarmtrain.peer.disk import ledger_file
from swarmtrain.peer.disk.storage import beginning_in
from swarmtrain.plan.forecast import Forecast, range_words
from swarmtrain.status import no_directory, nothing_ran_in
from swarmtrain.verify.coordinator_state import is_coordinators, read_records
from swarmtrain.why.story import name_of
from swarmtrain_transport.ledger.snapshots import from_image
from swarmtrain_transport.wire.records import (
    Books,
    Join,
    Record,
    Run,
    body_of,
    outline_of,
    tag_of,
)

_READ = {tag_of(kind) for kind in (Run, Join, Books)}


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one peer at one span.

    Attributes:
        span: first and last stage.
        micro_batches_s: micro-batches counted in a second of the rounds that it was in.
        busy: part of that time in which its passes ran, by its own word; 0 if it says nothing.
    """

    name: str
    span: tuple[int, int]
    micro_batches_s: float
    busy: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A run as its books tell it.

    Attributes:
        rounds: number of rounds of known length.
        seconds: their time together, from the begin of each until it was closed.
        micro_batches_s: micro-batches a second that all stages have counted.
        tokens_s: tokens a second in these.
        stage_rates: micro-batches a second that each stage has counted.
        peers: work of each peer at each span.
    """

    rounds: int
    seconds: float
    micro_batches_s: float
    tokens_s: float
    stage_rates: tuple[float, ...]
    peers: tuple[Work, ...]


def measured(directory: Path, config: RunConfig) -> Measured:
    """Read what a run of this file has made.

    Raises:
        UserError: SWT-E610, its model is in one piece; E806, nothing has run there; E606, another
            run file; E808, no round is over; E404, the coordinator runs; E812, books that no
            coordinator writes.
    """
    if config.pipeline.num_stages == 1:
        raise misuse(
            f"The model of {config.run.name} is in one piece, and --measured reads of stages.",
            "Leave --measured out, or cut the model with [pipeline] in the run file.",
        )
    records, names, found_hash = _records(directory)
    books: list[Books] = []
    for record in records:
        body = body_of(record) if outline_of(record).kind in _READ else None
        if isinstance(body, Run):
            found_hash = body.config_hash
        elif isinstance(body, Join):
            names[body.peer] = name_of(body.peer, body.name, names)
        elif isinstance(body, Books) and body.seconds:
            books.append(body)
    if found_hash != config_hash(config):
        raise UserError(
            "SWT-E606",
            f"The run in {directory} was not one of this file.",
            "A forecast of other settings says nothing of it.",
            "Name the run file that it began with.",
        )
    if not books:
        raise UserError(
            "SWT-E808",
            f"The ledger in {directory} has no round that is over.",
            "Micro-batches are in the ledger once their round is booked.",
            "Wait for the first round; `swarmtrain status` shows how far the run is.",
        )
    if not all(_may_be(one, config.pipeline.num_stages) for one in books):
        raise UserError(
            "SWT-E812",
            f"The books of rounds in {directory} hold what no coordinator writes.",
            "The run's records were made up, or are of another version.",
            "Take the directory of somebody whom you trust.",
        )
    return _worked_out(books, names, config.pipeline.micro_batch * config.model.context)


def _records(directory: Path) -> tuple[Sequence[Record], dict[bytes, str], bytes]:
    """All records that are there; names and the run file's hash from before the first of them."""
    if not directory.is_dir():
        raise no_directory(directory)
    if is_coordinators(directory):
        return read_records(directory), {}, b""
    if not (directory / ledger_file.FILE_NAME).exists():
        raise nothing_ran_in(directory)
    records = ledger_file.read(directory / ledger_file.FILE_NAME).records
    begins = beginning_in(directory, records)
    if begins is None:
        return records, {}, b""
    view, _ = from_image(begins.image)
    names: dict[bytes, str] = {}
    for peer, name in view.names.items():
        names[peer] = name_of(peer, name, names)
    return records, names, view.first.config_hash


def _may_be(books: Books, num_stages: int) -> bool:
    """Return True if a coordinator may have written this: somebody else's folder says anything."""
    spans = [range(one.first, one.first + len(one.counted)) for one in books.members]
    times_s = [books.seconds, *(one.busy_s for one in books.members)]
    return (
        len(books.counted) == num_stages
        and all(span and span[0] >= 0 and span[-1] < num_stages for span in spans)
        and all(time_s >= 0 and math.isfinite(time_s) for time_s in times_s)
    )


def _worked_out(books: Sequence[Books], names: dict[bytes, str], tokens: int) -> Measured:
    seconds = sum(one.seconds for one in books)
    counts: dict[tuple[bytes, int, int], int] = defaultdict(int)
    there_s: dict[tuple[bytes, int, int], float] = defaultdict(float)
    busy_s: dict[tuple[bytes, int, int], float] = defaultdict(float)
    for one in books:
        for member in one.members:
            key = member.peer, member.first, member.first + len(member.counted) - 1
            counts[key] += max(member.counted)
            there_s[key] += one.seconds
            busy_s[key] += min(member.busy_s, one.seconds)
    peers = [
        Work(
            names.get(peer, peer.hex()[:8]), (first, last),
            count / there_s[peer, first, last],
            busy_s[peer, first, last] / there_s[peer, first, last],
        )
        for (peer, first, last), count in counts.items()
    ]  # fmt: skip
    rate = sum(one.whole for one in books) / seconds
    stages = zip(*(one.counted for one in books), strict=True)
    return Measured(
        len(books), seconds, rate, rate * tokens, tuple(sum(some) / seconds for some in stages),
        tuple(sorted(peers, key=lambda one: (one.span, one.name))),
    )  # fmt: skip


def beside(found: Measured, predicted: Forecast) -> list[str]:
    """A run beside its forecast, as lines."""
    titles = ["peer", "stages", "micro-batches/s", "busy", "alone", "predicted"]
    rows = []
    for one in found.peers:
        alone = one.micro_batches_s / one.busy if one.busy else 0.0
        rates = sorted({s.micro_batches_s for s in predicted.seats if s.span == one.span})
        rows.append([
            one.name, range_words(one.span), f"{one.micro_batches_s:.3g}",
            f"{100 * one.busy:.0f} %" if one.busy else "-",
            f"{alone:.3g}" if alone else "-",
            " or ".join(f"{rate:.3g}" for rate in rates) or "-",
        ])  # fmt: skip
    pairs = zip(found.stage_rates, predicted.stage_rates, strict=True)
    stages = ", ".join(f"{was:.3g} of {most:.3g}" for was, most in pairs)
    part = found.micro_batches_s / predicted.micro_batches_s
    return [
        f"Measured     rounds: {found.rounds}, {human_seconds(found.seconds)}",
        *plain_lines(table_of(titles, rows, right=titles[2:])),
        "",
        f"Stages       {stages} micro-batches a second that their peers allow, as predicted",
        f"Run          {found.micro_batches_s:.3g} micro-batches a second, {found.tokens_s:.3g} "
        f"tokens; {predicted.micro_batches_s:.3g} were predicted: {100 * part:.0f} %",
    ]
