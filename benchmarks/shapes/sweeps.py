"""The joint sweeps: every strategy's rates are chosen with the same number of runs, ddp's too.

A grid is 4 learning rates of the inner optimizer by 4 outer steps (rate, momentum), 16 runs of one
seed that no shape uses, at two fifths of the length. ddp has no outer step, so its 16 runs are 16
learning rates, over a wider range and three times as fine; its batch is that of all peers together,
as many tokens per step as the others make between them.

Outer momentum pays late: of 8 rounds alone one would choose too little of it. So finalists run
again, the best outer steps with their best learning rates (of ddp, the best rates), as long as runs
that will be judged by them, and the lowest loss among them wins: 3 for 20 rounds, and for 80, about
which 8 say least, all 4. A winner at the end of its grid's
learning rates is marked: a better one may lie beyond.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from trials import ASYNCHRONOUS, UNEQUAL, Edition, Length, Run, Trial

from swarmtrain.compare.plan import Plan
from swarmtrain.foundation import atomic_file
from swarmtrain_optimizers.strategies.facts import Rates

SEED = 100
"""No shape has it, so nothing is chosen by the figures that it is judged by."""

_INNER = (2e-3, 4e-3, 8e-3, 1.6e-2)
_OUTER = ((1.0, 0.0), (0.7, 0.5), (0.9, 0.8), (0.7, 0.9))
_CO2 = ((1.0, 0.2), (1.0, 0.5), (1.0, 0.8), (0.7, 0.5))
_EAGER = ((1.0, 0.0), (0.7, 0.0), (0.7, 0.5), (0.5, 0.5))

_WITHIN = ((1.0, 0.0), (1.0, 0.3), (1.0, 0.6), (1.0, 0.8))


def _joint(*outer: tuple[float, float]) -> tuple[Rates, ...]:
    return tuple(Rates(lr, *pair) for lr, pair in product(_INNER, outer))


@dataclass(frozen=True, slots=True)
class Sweep:
    """A grid for one strategy.

    Attributes:
        name: what trials say in `tuned`.
        trial: what is run at each of its points.
        grid: the points.
        final: how long its finalists run.
    """

    name: str
    trial: Trial
    grid: tuple[Rates, ...]
    final: Length = Length.FINAL

    def points(self, edition: Edition) -> tuple[Rates, ...]:
        """All of the grid, or its first points where the table is tiny."""
        return self.grid[: edition.grid] if edition.grid else self.grid

    def plans(self, edition: Edition) -> list[Plan]:
        """One per point."""
        return [self.trial.plan(edition, rates, SEED) for rates in self.points(edition)]

    def finals(self, edition: Edition, finalists: Sequence[Rates]) -> list[Plan]:
        """One per finalist, at full length."""
        trial = replace(self.trial, length=self.final)
        return [trial.plan(edition, rates, SEED) for rates in finalists]


def _sweep(name: str, words: str, grid: tuple[Rates, ...], final: Length = Length.FINAL) -> Sweep:
    return Sweep(name, Trial(words, length=Length.SWEEP), grid, final)


def _in_part(words: str, outer: tuple[tuple[float, float], ...]) -> Sweep:
    """Grid for runs of peers with own text of which half are in a round."""
    trial = Trial(words, length=Length.MERGE_SWEEP, peers=8, noniid=True)
    return Sweep(f"{trial.strategy}-part", trial, _joint(*outer), Length.MERGE)


_DDP = tuple(Rates(1e-3 * 2 ** (i / 3), 1.0, 0.0) for i in range(16))
# A step by the sign moves every value by the whole rate: a quarter of AdamW's.
_DEMO = tuple(replace(rates, inner_lr=rates.inner_lr / 4) for rates in _DDP)


SWEEPS: Mapping[str, Sweep] = {
    sweep.name: sweep
    for sweep in (
        _sweep("ddp", "ddp", _DDP),
        _sweep("decoupled_momentum", "decoupled_momentum", _DEMO),
        _sweep("diloco", "diloco", _joint(*_OUTER)),
        # The same grids; finalists run as long as the runs that are judged by them.
        _sweep("ddp-far", "ddp", _DDP, Length.FAR),
        _sweep("decoupled_momentum-far", "decoupled_momentum", _DEMO, Length.FAR),
        _sweep("diloco-far", "diloco", _joint(*_OUTER), Length.FAR),
        _sweep("diloco-500", "diloco", _joint(*_OUTER), Length.LONG),
        _sweep("diloco-muon", "diloco:inner=muon", _joint(*_OUTER)),
        # 2 fragments divide the sweep's rounds of 50 steps.
        _sweep("streaming", "streaming:codec=int8:fragments=2", _joint(*_OUTER)),
        # What is a round late wants less momentum, and a delayed step at most half of the rate.
        _sweep("eager", "eager", _joint(*_EAGER)),
        _sweep("delayed", "delayed", _joint((0.5, 0.0), (0.35, 0.5), (0.45, 0.8), (0.7, 0.5))),
        _sweep("co2", "co2", _joint(*_CO2)),
        # An op holds a part of the peers, so there are more steps and each says less.
        Sweep(
            "asynchronous", Trial(ASYNCHRONOUS, length=Length.SWEEP, speeds=UNEQUAL),
            _joint((0.7, 0.0), (0.5, 0.0), (0.5, 0.5), (0.7, 0.8)),
        ),
        _sweep("eager-far", "eager", _joint(*_EAGER), Length.FAR),
        # Its rate must be above its momentum, and its pull too.
        _sweep("noloco", "noloco", _joint((0.7, 0.5), (0.9, 0.5), (0.7, 0.3), (1.0, 0.0))),
        _in_part("diloco:drop=0.5", _OUTER),
        _in_part("fedavg_m:drop=0.5", _WITHIN),
        _in_part("scaffold_m:drop=0.5", _WITHIN),
        # No outer momentum: error feedback takes its place.
        _sweep(
            "sparseloco", "sparseloco:codec=topk-256",
            _joint((0.65, 0.0), (1.0, 0.0), (1.3, 0.0), (1.7, 0.0)),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Winner:
    """The best point of a grid.

    Attributes:
        rates: of the point.
        loss: that it ended with at full length; None if a file did not say it.
        runs: how many were made to find it.
        is_at_edge: whether its learning rate is the lowest or the highest of the grid, or its outer
            rate where these have all the same momentum.
    """

    rates: Rates
    loss: float | None
    runs: int
    is_at_edge: bool


def finalists(sweep: Sweep, edition: Edition, runs: Sequence[Run]) -> tuple[Rates, ...]:
    """The points that run again: the best of each outer step, then the best of all others.

    Args:
        sweep: whose.
        edition: says which points were run, and how many run again.
        runs: of these points, in their order.

    Raises:
        ValueError: no run of the grid ended with a finite loss.
    """
    ranked = _ranked(sweep, sweep.points(edition), runs)
    best = {(rates.outer_lr, rates.outer_momentum): rates for _, rates in reversed(ranked)}
    order = [rates for _, rates in ranked if rates in best.values()]
    order += [rates for _, rates in ranked if rates not in order]
    return tuple(order[: edition.num_finalists(sweep.final)])


def winner(sweep: Sweep, edition: Edition, finals: Sequence[Rates], runs: Sequence[Run]) -> Winner:
    """The finalist with the lowest loss at full length.

    Args:
        sweep: whose.
        edition: says which points were run before.
        finals: what `finalists` has found.
        runs: of these, in their order.

    Raises:
        ValueError: none of them ended with a finite loss.
    """
    loss, rates = _ranked(sweep, finals, runs)[0]
    points = sweep.points(edition)
    return Winner(rates, loss, len(points) + len(runs), _is_at_edge(rates, points))


def _is_at_edge(rates: Rates, points: Sequence[Rates]) -> bool:
    """Return True at an edge of the inner rates, or of the outer ones where these vary alone."""
    inner = sorted({point.inner_lr for point in points})
    outer = sorted({point.outer_lr for point in points})
    varies_alone = len({point.outer_momentum for point in points}) == 1 and len(outer) > 1
    is_outer_at_edge = varies_alone and rates.outer_lr in (outer[0], outer[-1])
    return is_outer_at_edge or rates.inner_lr in (inner[0], inner[-1])


def _ranked(
    sweep: Sweep, points: Sequence[Rates], runs: Sequence[Run]
) -> list[tuple[float, Rates]]:
    found = [
        (run.result.val_loss, rates)
        for run, rates in zip(runs, points, strict=True)
        if run.result.val_loss is not None
    ]
    if not found:
        raise ValueError(f"every run of the sweep {sweep.name} diverged: its grid is too hot")
    return sorted(found, key=lambda pair: pair[0])


def write_winners(path: Path, winners: Mapping[str, Winner]) -> None:
    """As JSON, whole or not at all."""
    text = json.dumps({name: asdict(found) for name, found in winners.items()}, indent=1)
    atomic_file.write(path, f"{text}\n".encode())


def read_winners(path: Path) -> dict[str, Winner]:
    """Read what `write_winners` wrote.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file.
    """
    text = path.read_text(encoding="utf-8")
    try:
        found = {
            name: Winner(**{**said, "rates": Rates(**said["rates"])})
            for name, said in json.loads(text).items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is no winners.json of this script: {error}") from error
    for name, winner_ in found.items():
        rates = winner_.rates
        for value in (rates.inner_lr, rates.outer_lr, rates.outer_momentum):
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{path} has rates of {name} that are no numbers: {value!r}")
    unknown = sorted(set(found) - set(SWEEPS))
    if unknown:
        raise ValueError(f"{path} names sweeps that there are not: {', '.join(unknown)}")
    return found


def tuned_facts(source: str, rates: Rates, commit: str) -> str:
    """The text of a strategy's facts with these rates.

    Args:
        source: the file as it is.
        rates: of the winner.
        commit: that has found them.

    Raises:
        ValueError: the text has no rates.
    """
    numbers = f"{rates.inner_lr:.4g}, {rates.outer_lr!r}, {rates.outer_momentum!r}"
    said = f'rates=Rates({numbers}),\n    swept="{commit}"'
    text, count = re.subn(r'rates=Rates\([^)]*\)(,\s*swept="[^"]*")?', said, source)
    if count != 1:
        raise ValueError(f"there are {count} places for rates in these facts")
    return text
