"""Finished runs: what is kept of one, where it is kept, and what several say together.

A run is one JSON file named by its plan's key, written beside its place and moved there, so a
sweep that is stopped leaves whole files only. A file that cannot be read is made anew.
"""

import errno
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev

from swarmtrain.foundation import atomic_file, dirs
from swarmtrain.foundation.errors import UserError


@dataclass(frozen=True, slots=True)
class Point:
    """The run at one moment.

    Attributes:
        tokens: trained on by all peers together.
        bytes_up_per_peer: sent so far.
        modelled_seconds: passed so far.
        val_loss: nats per byte of the anchor; None if it is not finite.
        replica_spread: root mean square of replicas' distance from their mean, relative to it.
    """

    tokens: int
    bytes_up_per_peer: int
    modelled_seconds: float
    val_loss: float | None
    replica_spread: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """One finished run.

    Attributes:
        strategy: name as it was asked for, with settings that differ from the others.
        codec: codec of the exchange.
        seed: seed of the run.
        val_loss: nats per byte at the end; None if it is not finite.
        replica_loss: loss of one replica, where replicas differ, and of the best one where a last
            merge came after; else None.
        replica_spread: root mean square of replicas' distance from their mean, relative to it.
        held_back: values kept at the end for a later op, averaged over peers, relative to the way
            that the anchor went in the whole run: what a codec lost, where it is fed back, and what
            strategies that run late have given to ops that did not take it.
        num_values: length of the model's vector, with the zeros that fill the last block.
        tokens: trained on by all peers together.
        ops: exchanges that were committed.
        skipped: exchanges without a result.
        left_out: contributions that are in no result: lost, or refused by the codec.
        bytes_up_per_peer: payload that a peer sent, averaged over peers.
        peak_bytes_per_step: most that one peer sends per inner step.
        modelled_seconds: modelled time of inner steps and of the exchanges that they do not hide.
        exchange_seconds: part of it in which nobody trains.
        state_roots: the state at the end; one if all peers have the same. Where nothing is ever
            exchanged, of each peer's own weights.
        curve: judgements at equal distances in tokens.
        route_shares: share of a stage's micro-batches that each peer counted, by stage.
        redone: micro-batches that went to another peer of a stage after the first had failed.
        lost: micro-batches that did not come back.
        stage_spreads: `replica_spread` of each stage's peers as they give their parts, mean
            over ops.
        seconds_by_net: `modelled_seconds` over each link, by its name; of pipelines none.
        losses_without: loss without each of the stages between the first and the last, where routes
            leave stages out.
    """

    strategy: str
    codec: str
    seed: int
    val_loss: float | None
    replica_loss: float | None
    replica_spread: float
    held_back: float
    num_values: int
    tokens: int
    ops: int
    skipped: int
    left_out: int
    bytes_up_per_peer: int
    peak_bytes_per_step: int
    modelled_seconds: float
    exchange_seconds: float
    state_roots: tuple[str, ...]
    curve: tuple[Point, ...]
    route_shares: tuple[tuple[float, ...], ...] = ()
    redone: int = 0
    lost: int = 0
    stage_spreads: tuple[float, ...] = ()
    seconds_by_net: Mapping[str, float] = field(default_factory=dict, hash=False)
    losses_without: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """All seeds of one strategy.

    Attributes:
        loss: mean over seeds, None if any is not finite.
        spread: standard deviation over seeds, None for one seed.
        ops: exchanges of a seed that were committed, mean over seeds.
        skipped: ops without a result.
        round_seconds: modelled, from one exchange to the next; None where there is none.
        route_shares: shares of each place in a pipeline's stage, mean over stages and seeds.
        redone: micro-batches that were sent again, mean over seeds.
        lost: micro-batches that were lost, mean over seeds.
        seconds_by_net: modelled, of the whole run over each link.
    """

    strategy: str
    codec: str
    seeds: int
    loss: float | None
    spread: float | None
    ops: float
    skipped: float
    bytes_up_per_peer: float
    peak_bytes_per_step: float
    modelled_seconds: float
    round_seconds: float | None
    route_shares: tuple[float, ...] = ()
    redone: float = 0.0
    lost: float = 0.0
    seconds_by_net: Mapping[str, float] = field(default_factory=dict, hash=False)


def finite(value: float) -> float | None:
    """JSON has no other numbers."""
    return value if math.isfinite(value) else None


def rows(results: Sequence[RunResult]) -> list[Row]:
    """One row per strategy and codec, in the order of their first run."""
    kinds = dict.fromkeys((result.strategy, result.codec) for result in results)
    return [_row([r for r in results if (r.strategy, r.codec) == kind]) for kind in kinds]


def _row(runs: Sequence[RunResult]) -> Row:
    losses = [run.val_loss for run in runs if run.val_loss is not None]
    is_whole = len(losses) == len(runs)
    shares = [of_stage for run in runs for of_stage in run.route_shares]
    rounds = [run.modelled_seconds / (run.ops + run.skipped) for run in runs if _exchanges(run)]
    return Row(
        strategy=runs[0].strategy,
        codec=runs[0].codec,
        seeds=len(runs),
        loss=mean(losses) if is_whole else None,
        spread=stdev(losses) if is_whole and len(losses) > 1 else None,
        ops=mean(run.ops for run in runs),
        skipped=mean(run.skipped for run in runs),
        bytes_up_per_peer=mean(run.bytes_up_per_peer for run in runs),
        peak_bytes_per_step=mean(run.peak_bytes_per_step for run in runs),
        modelled_seconds=mean(run.modelled_seconds for run in runs),
        round_seconds=mean(rounds) if rounds else None,
        route_shares=tuple(map(mean, zip(*shares, strict=True))),
        redone=mean(run.redone for run in runs),
        lost=mean(run.lost for run in runs),
        seconds_by_net={
            name: mean(run.seconds_by_net[name] for run in runs) for name in runs[0].seconds_by_net
        },
    )


def _exchanges(run: RunResult) -> bool:
    return run.ops + run.skipped > 0


class Shelf:
    """Finished runs in a directory.

    Args:
        directory: made if it is not there; None keeps nothing.
        unkept: called once, for a directory that nobody asked for, with why nothing more is kept
            there. None raises it instead.

    Raises:
        UserError: SWT-E403, it cannot be made or nothing can be written there.
    """

    def __init__(
        self, directory: Path | None, unkept: Callable[[UserError], None] | None = None
    ) -> None:
        self._unkept = unkept
        self._directory = directory
        try:
            if directory is not None:
                dirs.make_owned(directory)
                if not os.access(directory, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            self._give_up(directory, error)

    @property
    def directory(self) -> Path | None:
        """Folder in which runs are kept; None if they are not."""
        return self._directory

    def find(self, key: str) -> RunResult | None:
        """The run of this key, if it is here and whole."""
        if self._directory is None:
            return None
        try:
            return _from_json((self._directory / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError, KeyError):
            return None  # not there, or not readable: it is made anew

    def keep(self, key: str, plan_json: str, result: RunResult) -> None:
        """Keep a run, whole or not at all.

        Raises:
            UserError: SWT-E403, it cannot be written.
        """
        if self._directory is None:
            return
        try:
            self._write(self._directory, key, plan_json, result)
        except OSError as error:
            self._give_up(self._directory, error)

    def _give_up(self, directory: Path | None, cause: OSError) -> None:
        self._directory = None
        error = UserError(
            "SWT-E403",
            f"Cannot keep finished runs in {directory}: {cause.strerror or cause}.",
            "A comparison that is stopped would begin anew.",
            "Name a directory that you own, on a disk with space, with --out.",
        )
        if self._unkept is None:
            raise error from cause
        self._unkept(error)

    def _write(self, directory: Path, key: str, plan_json: str, result: RunResult) -> None:
        place = directory / f"{key}.json"
        text = json.dumps({"plan": json.loads(plan_json), "result": asdict(result)}, indent=1)
        atomic_file.write(place, text.encode())


def _from_json(text: str) -> RunResult:
    found = json.loads(text)["result"]
    found["curve"] = tuple(Point(**point) for point in found["curve"])
    found["state_roots"] = tuple(found["state_roots"])
    found["route_shares"] = tuple(tuple(shares) for shares in found["route_shares"])
    found["stage_spreads"] = tuple(found["stage_spreads"])
    found["losses_without"] = tuple(found.get("losses_without", ()))
    return RunResult(**found)
