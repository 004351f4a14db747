"""Runs that the table needs, those of them that are there, and what they say of every shape."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from estimate import factor
from judged import Figure, Shape, Verdict, judge
from kept import Kept, Results
from sweeps import SWEEPS, Sweep, Winner, finalists, winner
from trials import Edition, Run, default_rates

from swarmtrain.compare.plan import Plan
from swarmtrain.compare.seats import run_plans
from swarmtrain.compare.sources import key_of
from swarmtrain.data.corpus import Corpus
from swarmtrain_optimizers.strategies.facts import Rates

SEEDS_MAX = 8


@dataclass(frozen=True, slots=True)
class Judged:
    """A shape with its figures.

    Attributes:
        shape: which.
        figure: None if it has not been run.
        verdict: of the figure.
        seeds: of which it was made.
    """

    shape: Shape
    figure: Figure | None
    verdict: Verdict
    seeds: int


class Making:
    """The table at one scale, as far as it has been made.

    Args:
        edition: the scale.
        results: finished runs.
        corpus: the text.
        versions: of what computes, for keys.
        code: digest of the sources, for keys.
        processes: runs side by side.
        deadline_s: monotonic time after which no run is begun.
        tell: hears of every finished run.
        given: winners of sweeps that are not made, because somebody has made them before.
    """

    def __init__(
        self,
        edition: Edition,
        results: Results,
        corpus: Corpus,
        *,
        versions: str,
        code: str,
        processes: int,
        deadline_s: float,
        tell: Callable[[str], None],
        given: Mapping[str, Winner] | None = None,
    ) -> None:
        self.edition = edition
        self._results = results
        self._corpus = corpus
        self._versions = versions
        self._code = code
        self._processes = processes
        self._deadline_s = deadline_s
        self._tell = tell
        self._given = given or {}

    # ---- what there is

    def key(self, plan: Plan) -> str:
        """Name of the run."""
        return key_of(plan, self._versions, self._code)

    def find(self, plan: Plan) -> Run | None:
        """The run, if it is finished."""
        result = self._results.find(self.key(plan), plan.label)
        return None if result is None else Run(plan, result)

    def missing(self, plans: Iterable[Plan]) -> list[Plan]:
        """Those that are not finished, each once."""
        open_ = {self.key(plan): plan for plan in plans if self.find(plan) is None}
        return list(open_.values())

    def slower(self) -> float:
        """Return how many times longer this machine takes than estimated."""
        return factor(self._results.costs)

    def make(self, plans: Iterable[Plan]) -> None:
        """Run what is missing, as long as there is time."""
        missing = self.missing(plans)

        def may_begin() -> bool:
            return time.monotonic() < self._deadline_s

        finished = run_plans(missing, self._processes, may_begin, self._corpus)
        for count, (plan, result, seconds) in enumerate(finished, 1):
            self._results.keep(Kept(self.key(plan), seconds, plan, result))
            end = "diverged" if result.val_loss is None else f"{result.val_loss:.4f}"
            where = f"{count} of {len(missing)}"
            self._tell(f"{where}: {plan.label}, seed {plan.seed}: {end} in {seconds:.0f} s")

    # ---- sweeps

    def sweep_plans(self, sweep: Sweep) -> list[Plan]:
        """List the plans of the grid and of its finalists; before these are known, the grid's first
        stand in. None of a sweep whose winner is given."""
        if sweep.name in self._given:
            return []
        num_finals = self.edition.num_finalists(sweep.final)
        finals = self._finalists(sweep) or sweep.points(self.edition)[:num_finals]
        return [*sweep.plans(self.edition), *sweep.finals(self.edition, finals)]

    def make_sweeps(self, sweeps: Sequence[Sweep]) -> None:
        """Every grid, then every final, but of those whose winner is given."""
        sweeps = [sweep for sweep in sweeps if sweep.name not in self._given]
        self.make(plan for sweep in sweeps for plan in sweep.plans(self.edition))
        self.make(
            plan for sweep in sweeps for plan in sweep.finals(self.edition, self._finalists(sweep))
        )

    def winners(self, sweeps: Iterable[Sweep]) -> dict[str, Winner]:
        """Return the winners of those sweeps that are finished or whose winner is given."""
        found = {}
        for sweep in sweeps:
            if sweep.name in self._given:
                found[sweep.name] = self._given[sweep.name]
                continue
            finals = self._finalists(sweep)
            runs = self._all_of(sweep.finals(self.edition, finals))
            if runs:
                found[sweep.name] = winner(sweep, self.edition, finals, runs)
        return found

    def _finalists(self, sweep: Sweep) -> tuple[Rates, ...]:
        """None as long as the grid is not finished."""
        runs = self._all_of(sweep.plans(self.edition))
        return finalists(sweep, self.edition, runs) if runs else ()

    def _all_of(self, plans: Sequence[Plan]) -> list[Run]:
        """Return the run of every plan, or nothing."""
        runs = [run for run in map(self.find, plans) if run is not None]
        return runs if len(runs) == len(plans) else []

    # ---- shapes

    def is_single(self, shape: Shape) -> bool:
        """Return True if one seed is enough for all of its trials."""
        return all(self.edition.spans[trial.length].is_single for trial in shape.trials)

    def base_seeds(self, shape: Shape) -> int:
        """Return with how many seeds it is run at first."""
        return 1 if self.is_single(shape) else self.edition.seeds

    def plans(
        self, shape: Shape, winners: Mapping[str, Winner], seeds: Iterable[int]
    ) -> list[list[Plan]]:
        """List for each trial one plan per seed; with stand-ins for rates that are not chosen
        yet."""
        return [
            [
                trial.plan(
                    self.edition,
                    winners[trial.sweep].rates
                    if trial.sweep in winners
                    else default_rates(trial.sweep),
                    seed,
                )
                for seed in seeds
            ]
            for trial in shape.trials
        ]

    def judged(self, shape: Shape, winners: Mapping[str, Winner]) -> Judged:
        """With all seeds that every one of its trials has been run with."""
        none = Judged(shape, None, Verdict.NOT_RUN, 0)
        if not all(trial.sweep in winners for trial in shape.trials):
            return none
        limit = 1 if self.is_single(shape) else SEEDS_MAX
        runs: list[list[Run]] = [[] for _ in shape.trials]
        for seed in range(limit):
            found = [self.find(plans[0]) for plans in self.plans(shape, winners, [seed])]
            whole = [run for run in found if run is not None]
            if len(whole) < len(found):
                break
            for mine, run in zip(runs, whole, strict=True):
                mine.append(run)
        seeds = len(runs[0])
        if seeds < self.base_seeds(shape):
            return none
        figure = shape.measure(runs)
        return Judged(shape, figure, judge(shape.bar, figure), seeds)

    def make_shapes(self, shapes: Sequence[Shape], winners: Mapping[str, Winner]) -> None:
        """The first seeds of those shapes whose sweeps are finished."""
        self.make(
            plan
            for shape in shapes
            if all(trial.sweep in winners for trial in shape.trials)
            for plans in self.plans(shape, winners, range(self.base_seeds(shape)))
            for plan in plans
        )

    def make_more_seeds(self, shapes: Sequence[Shape], winners: Mapping[str, Winner]) -> None:
        """One seed more, again and again, of what is not resolved."""
        for seed in range(self.edition.seeds, SEEDS_MAX):
            unresolved = [
                shape
                for shape in shapes
                if not self.is_single(shape)
                and self.judged(shape, winners).verdict is Verdict.NOT_RESOLVED
            ]
            self.make(
                plan
                for shape in unresolved
                for plans in self.plans(shape, winners, [seed])
                for plan in plans
            )


def sweeps_of(shapes: Iterable[Shape]) -> list[Sweep]:
    """Those that shapes take their rates from."""
    return [SWEEPS[name] for name in dict.fromkeys(t.sweep for s in shapes for t in s.trials)]
