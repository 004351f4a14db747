"""The table of shapes: how figures are judged, and that what is declared can be meant."""

import importlib
import math
from collections import Counter
from typing import Any

import pytest
from shapes_modules import loaded, result_of

from swarmtrain.compare.request import RULES
from swarmtrain_optimizers.strategies.facts import Rates


@pytest.fixture(scope="module")
def load() -> Any:
    with loaded() as importer:
        yield importer


def judge(load: Any, bar: Any, *values: float, noise: float | None = None) -> str:
    judged = load("judged")
    return str(judged.judge(bar, judged.Figure(values, noise)).value)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1.01, 1.015, 1.02), "holds"),
        ((1.02, 1.02, 1.02), "holds"),
        ((1.03, 1.03, 1.031), "does not hold"),
        ((0.97, 1.0, 1.03), "not resolved"),
        ((1.0, 1.04, 1.08), "not resolved"),
        ((1.01,), "holds"),
        ((1.03,), "does not hold"),
        ((1.0, math.inf, 1.0), "does not hold"),
        ((math.nan, 1.0, 1.0), "does not hold"),
    ],
)
def test_a_ratio_of_losses_holds_by_its_mean_unless_seeds_differ_by_more(load, values, verdict):
    bar = load("judged").loss_at_most(1.02)
    assert judge(load, bar, *values) == verdict


def test_where_only_the_order_matters_the_difference_must_exceed_the_spread(load):
    judged = load("judged")
    bar = judged.Bar(judged.Sense.AT_LEAST)
    assert judge(load, bar, 1.02, 1.03, 1.04) == "holds"
    assert judge(load, bar, 0.98, 0.97, 0.96) == "does not hold"
    assert judge(load, bar, 0.99, 1.01, 1.02) == "not resolved"
    assert judge(load, bar, math.inf, 1.2, 1.2) == "holds"


def test_no_difference_beyond_the_spread_is_held_against_the_seeds_of_the_other(load):
    judged = load("judged")
    within = judged.Bar(judged.Sense.WITHIN_SPREAD)
    no_worse = judged.Bar(judged.Sense.NO_WORSE)
    assert judge(load, within, 1.004, 1.005, 1.003, noise=0.005) == "holds"
    assert judge(load, within, 0.99, 0.99, 0.99, noise=0.005) == "does not hold"
    assert judge(load, no_worse, 0.99, 0.99, 0.99, noise=0.005) == "holds"
    assert judge(load, no_worse, 1.01, 1.01, 1.01, noise=0.005) == "does not hold"
    assert judge(load, within, 1.0) == "not resolved"


def test_the_spread_of_three_seeds_is_their_deviation_and_shrinks_with_more(load):
    figure = load("judged").Figure
    assert figure((1.0, 2.0, 3.0)).spread == pytest.approx(1.0)
    six = figure((1.0, 2.0, 3.0) * 2)
    assert six.spread == pytest.approx(math.sqrt(4 / 5) * math.sqrt(3 / 6))
    assert figure((1.0,)).spread is None
    assert figure((1.0, math.inf)).spread is None


def runs_of(load: Any, *losses: tuple[float | None, ...], **more: Any) -> list[list[Any]]:
    """One trial per tuple, one run per seed."""
    trials = load("trials")
    rates = trials.default_rates("diloco")
    plan = trials.Trial("diloco").plan(trials.QUICK, rates, 0)
    return [[trials.Run(plan, result_of(plan, loss, **more)) for loss in mine] for mine in losses]


def test_ratios_are_made_seed_by_seed_and_noise_is_that_of_the_reference(load):
    judged = load("judged")
    runs = runs_of(load, (2.0, 3.0, 4.0), (1.0, 2.0, 3.0))
    assert judged.loss_ratio(runs).values == (2.0, 1.5, pytest.approx(4 / 3))
    assert judged.loss_ratio_and_noise(runs).noise == pytest.approx(1.0 / 2.0)
    assert judged.loss_ratio(runs_of(load, (None,), (1.0,))).values == (math.inf,)
    assert math.isnan(judged.loss_ratio(runs_of(load, (None,), (None,))).values[0])


def test_the_best_rule_is_the_one_whose_worst_attack_is_best_on_average(load):
    declared = load("declared")
    losses = [(2.0, 2.0)]
    for index in range(len(RULES)):
        worst = (2.2, 2.6) if index != 3 else (2.3, 2.3)
        losses += [(2.0, 2.0), worst, (2.1, 2.1)]
    found = declared._best_rule(runs_of(load, *losses))
    assert found.values == (pytest.approx(1.15), pytest.approx(1.15))


def test_bytes_peaks_and_times_are_compared_as_they_are_claimed(load):
    declared = load("declared")
    (whole,), (parts,) = runs_of(load, (2.0,), (2.0,))
    assert declared._peak_in_fragments(whole, parts) == 1 / parts.plan.fragments
    assert declared._exchanges_waited_for(parts, whole) == 2.0  # 0.5 s beside 0.25 s per op
    assert declared._growth(whole, parts, parts) == 1.0
    assert declared._converged(whole) == 0.0
    values = (whole.plan.peers - 1) * 2 * 12288
    assert declared._bytes_per_value(whole) == pytest.approx(1000 / values)


def test_every_shape_can_be_run_in_both_editions_and_has_its_rates_from_a_sweep(load):
    declared, trials, sweeps = load("declared"), load("trials"), load("sweeps")
    names = [shape.name for shape in declared.SHAPES]
    assert len(set(names)) == len(names)
    words: dict[str, Any] = {}
    for shape in declared.SHAPES:
        for trial in shape.trials:
            assert trial.sweep in sweeps.SWEEPS
            assert words.setdefault(trial.label, trial) == trial
            for edition in (trials.FULL, trials.QUICK):
                plan = trial.plan(edition, trials.default_rates(trial.sweep), 3)
                assert (plan.label, plan.seed) == (trial.label, 3)
                assert plan.steps % plan.inner_steps == 0
                if plan.strategy == "streaming":
                    assert plan.inner_steps % plan.fragments == 0


def test_a_shape_has_either_one_seed_in_all_of_its_trials_or_in_none(load):
    declared, spans = load("declared"), load("trials").FULL.spans
    for shape in declared.SHAPES:
        assert len({spans[trial.length].is_single for trial in shape.trials}) == 1, shape.name


def test_all_sweeps_have_the_same_effort_and_no_seed_of_a_shape(load):
    sweeps, trials = load("sweeps"), load("trials")
    assert {len(sweep.grid) for sweep in sweeps.SWEEPS.values()} == {16}
    assert all(count == 1 for s in sweeps.SWEEPS.values() for count in Counter(s.grid).values())
    assert sweeps.SEED not in range(load("making").SEEDS_MAX)
    for sweep in sweeps.SWEEPS.values():
        plans = sweep.plans(trials.FULL)
        assert {(p.inner_lr, p.outer_lr, p.outer_momentum) for p in plans} == {
            (r.inner_lr, r.outer_lr, r.outer_momentum) for r in sweep.grid
        }


def ended(load: Any, plans: Any, losses: Any) -> list[Any]:
    return [
        load("trials").Run(plan, result_of(plan, loss))
        for plan, loss in zip(plans, losses, strict=True)
    ]


def test_finalists_are_the_best_of_each_outer_step_and_of_ddp_the_best_rates(load):
    sweeps, edition = load("sweeps"), load("trials").FULL
    for name, losses, wanted in (
        # Two of the first outer step are the best of all: only one of them runs again.
        ("diloco", [1.0 if i in (0, 4) else 2.0 + i / 100 for i in range(16)], {0, 1, 2}),
        ("diloco", [None if i < 4 else 3.0 - i / 100 for i in range(16)], {13, 14, 15}),
        ("ddp", [abs(i - 7.1) for i in range(16)], {6, 7, 8}),
    ):
        sweep = sweeps.SWEEPS[name]
        found = sweeps.finalists(sweep, edition, ended(load, sweep.plans(edition), losses))
        assert {sweep.grid.index(rates) for rates in found} == wanted
        assert len(found) == edition.finalists
        plans = sweep.finals(edition, found)
        assert {plan.steps for plan in plans} == {1000}
        assert [plan.inner_lr for plan in plans] == [rates.inner_lr for rates in found]
    with pytest.raises(ValueError, match="diverged"):
        sweeps.finalists(sweep, edition, ended(load, sweep.plans(edition), [None] * 16))


def test_the_lowest_loss_at_full_length_wins_and_the_end_of_a_grid_is_said(load):
    sweeps, edition = load("sweeps"), load("trials").FULL
    sweep = sweeps.SWEEPS["diloco"]
    finals = [sweep.grid[i] for i in (6, 15, 8)]

    def won(*losses: float | None) -> Any:
        runs = ended(load, sweep.finals(edition, finals), losses)
        return sweeps.winner(sweep, edition, finals, runs)

    middle = won(1.5, 2.0, None)
    assert (middle.rates, middle.loss, middle.is_at_edge) == (sweep.grid[6], 1.5, False)
    assert middle.runs == 19
    assert won(1.5, 1.4, 2.0).is_at_edge
    with pytest.raises(ValueError, match="diverged"):
        won(None, None, None)


def test_an_outer_rate_at_the_end_of_those_that_vary_alone_is_said_too(load):
    sweeps, edition = load("sweeps"), load("trials").FULL
    sweep = sweeps.SWEEPS["sparseloco"]  # momentum is 0 everywhere
    finals = [sweep.grid[i] for i in (5, 6, 7)]  # of one inner rate, which lies inside
    for best, is_at_edge in ((5, False), (6, False), (7, True)):
        losses = [1.5 if i == best else 2.0 for i in (5, 6, 7)]
        runs = ended(load, sweep.finals(edition, finals), losses)
        assert sweeps.winner(sweep, edition, finals, runs).is_at_edge is is_at_edge


def test_winners_are_written_into_the_facts_of_a_strategy(load):
    tuned_facts = load("sweeps").tuned_facts
    for name in ("ddp", "diloco", "streaming", "delayed", "eager", "co2", "noloco", "sparseloco"):
        module = importlib.import_module(f"swarmtrain_optimizers.strategies.{name}")
        with open(module.__file__, encoding="utf-8") as file:
            source = file.read()
        assert tuned_facts(source, module.FACTS.rates, module.FACTS.swept) == source
        text = tuned_facts(source, Rates(1e-3 * 2 ** (5 / 3), 0.7, 0.5), "abc")
        made: dict[str, Any] = {"__name__": module.__name__}
        exec(text, made)
        assert (made["FACTS"].rates, made["FACTS"].swept) == (Rates(0.003175, 0.7, 0.5), "abc")
