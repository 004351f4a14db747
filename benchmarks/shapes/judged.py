"""Shapes, and how they are judged.

The spread of a figure is its standard deviation over seeds, times sqrt(3 / seeds): with 3 seeds it
is the deviation itself, and with more it shrinks as the error of a mean does, so that adding seeds
can settle a question. Where it is larger than the distance that the bar allows, the mean decides
nothing and the shape is "not resolved".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import mean, stdev

from trials import Run, Trial

Runs = Sequence[Sequence[Run]]
"""Runs of each trial of a shape, in their order, one per seed, in the order of seeds."""

_BASE_SEEDS = 3


class Verdict(Enum):
    """Verdict of a shape's figures."""

    HOLDS = "holds"
    NOT_RESOLVED = "not resolved"
    DOES_NOT_HOLD = "does not hold"
    NOT_RUN = "not run"


class Sense(Enum):
    """Comparison of a figure with its bar."""

    AT_MOST = "at most"
    AT_LEAST = "at least"
    WITHIN_SPREAD = "within the spread of"
    NO_WORSE = "no more than the spread above"


@dataclass(frozen=True, slots=True)
class Bar:
    """Bar that a figure must reach.

    Attributes:
        sense: how it is compared.
        value: with what.
        margin: spread up to which the mean decides; None for the distance of the mean from
            the bar, where only the order matters or nothing is drawn.
    """

    sense: Sense
    value: float = 1.0
    margin: float | None = None


def loss_at_most(ratio: float) -> Bar:
    """A ratio of losses that may be above 1 by so much; a spread of so much hides it."""
    return Bar(Sense.AT_MOST, ratio, ratio - 1)


@dataclass(frozen=True, slots=True)
class Figure:
    """Measured values of a shape.

    Attributes:
        values: one per seed; infinite if the run diverged.
        noise: standard deviation over seeds of the loss that it is held against, relative to it;
            None where it is not asked for or there is one seed.
    """

    values: tuple[float, ...]
    noise: float | None = None

    @property
    def mean(self) -> float:
        """Over seeds."""
        return mean(self.values)

    @property
    def spread(self) -> float | None:
        """Over seeds; None for one seed, or if any diverged."""
        if len(self.values) < 2 or not all(map(math.isfinite, self.values)):
            return None
        return stdev(self.values) * math.sqrt(_BASE_SEEDS / len(self.values))


@dataclass(frozen=True, slots=True)
class Shape:
    """One line of the table.

    Attributes:
        name: for `--only`.
        claim: what must show, with its bar, in a sentence.
        trials: what is run.
        measure: makes the figure of all their runs.
        bar: what the figure must reach.
        note: said beside the verdict.
    """

    name: str
    claim: str
    trials: tuple[Trial, ...]
    measure: Callable[[Runs], Figure]
    bar: Bar
    note: str = ""


def judge(bar: Bar, figure: Figure) -> Verdict:
    """Return what the figure says of the bar."""
    middle, spread = figure.mean, figure.spread
    if math.isnan(middle):
        return Verdict.DOES_NOT_HOLD  # both sides diverged
    if bar.sense in (Sense.WITHIN_SPREAD, Sense.NO_WORSE):
        if figure.noise is None:
            return Verdict.NOT_RESOLVED
        apart = middle - bar.value
        if bar.sense is Sense.WITHIN_SPREAD:
            apart = abs(apart)
        return Verdict.HOLDS if apart <= figure.noise else Verdict.DOES_NOT_HOLD
    margin = abs(middle - bar.value) if bar.margin is None else bar.margin
    if spread is not None and spread > margin:
        return Verdict.NOT_RESOLVED
    holds = middle <= bar.value if bar.sense is Sense.AT_MOST else middle >= bar.value
    return Verdict.HOLDS if holds else Verdict.DOES_NOT_HOLD


# ---- figures


def loss(run: Run) -> float:
    """Held-out loss at the end, infinite if the run diverged."""
    return math.inf if run.result.val_loss is None else run.result.val_loss


def ratio(over: float, under: float) -> float:
    """Not a number where both are infinite or nothing."""
    if math.isinf(under) or under == 0:
        return math.nan
    return over / under


def loss_ratio(runs: Runs) -> Figure:
    """The first trial's loss over the second's, seed by seed: both saw the same text."""
    over, under = runs
    return Figure(tuple(ratio(loss(a), loss(b)) for a, b in zip(over, under, strict=True)))


def loss_ratio_and_noise(runs: Runs) -> Figure:
    """As `loss_ratio`, with the spread of the second's loss."""
    figure = loss_ratio(runs)
    losses = [loss(run) for run in runs[1]]
    if len(losses) < 2 or not all(map(math.isfinite, losses)):
        return figure
    return Figure(figure.values, stdev(losses) / mean(losses))


def of_each(measure: Callable[..., float]) -> Callable[[Runs], Figure]:
    """A figure of one seed's runs, one argument per trial, made for every seed."""

    def measured(runs: Runs) -> Figure:
        return Figure(tuple(measure(*of_seed) for of_seed in zip(*runs, strict=True)))

    return measured
