"""The table as text: markdown for RESULTS.md, lines for `--list`, every run's figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from estimate import total_s
from judged import Bar, Figure, Sense, Verdict
from making import Judged, Making
from sweeps import SWEEPS, Winner
from trials import Edition

from swarmtrain.compare.results import RunResult, rows
from swarmtrain.console.units import human_bytes, human_seconds

COMMAND = "python benchmarks/shapes/run.py"


@dataclass(frozen=True, slots=True)
class Occasion:
    """Circumstances that a figure is quoted with.

    Attributes:
        date: of the report.
        machine: processor and cores.
        commit: of the sources, or what is known of them.
        code: digest of what the bits depend on.
        versions: of torch and the text.
        values: parameters of each model, by its name.
        winners_file: where the sweeps' winners are.
    """

    date: str
    machine: str
    commit: str
    code: str
    versions: str
    values: Mapping[str, int]
    winners_file: str


def report(
    judged: Sequence[Judged],
    winners: Mapping[str, Winner],
    results: Sequence[RunResult],
    edition: Edition,
    occasion: Occasion,
) -> str:
    """All of it in markdown."""
    sizes = ", ".join(f"{name} {count:,}".replace(",", " ") for name, count in
                      occasion.values.items())  # fmt: skip
    head = [
        "# Shapes",
        "",
        f"Made by `{COMMAND}` ({edition.name}) on {occasion.date}, commit {occasion.commit}, "
        f"sources {occasion.code}, {occasion.versions}, {occasion.machine}. Parameters: {sizes}.",
        "Spread: standard deviation over seeds x sqrt(3 / seeds). Ratios of losses are of held-out "
        "loss at the end, seed by seed, after equal tokens; bytes are payload, seconds modelled.",
        "",
    ]
    return "\n".join(
        [*head, *table(judged), "", *_winners(winners, occasion), "", *_runs(results), ""]
    )


def table(judged: Sequence[Judged]) -> list[str]:
    """Return the table's lines for benchmarks/RESULTS.md."""
    return [
        "| shape | bar | measured | seeds | verdict | command |",
        "|---|---|---|---|---|---|",
        *(_line(one) for one in judged),
    ]


def _line(one: Judged) -> str:
    verdict = one.verdict.value
    if one.verdict is not Verdict.HOLDS:
        verdict = f"**{verdict}**"
    note = f" ({one.shape.note})" if one.shape.note else ""
    cells = (
        one.shape.claim + note,
        bar_text(one.shape.bar, one.figure),
        _figure_text(one.figure),
        str(one.seeds) if one.seeds else "",
        verdict,
        f"`--only {one.shape.name}`",
    )
    return f"| {' | '.join(cells)} |"


def bar_text(bar: Bar, figure: Figure | None) -> str:
    """``at most 1.02``; of a spread, how large it is."""
    if bar.sense not in (Sense.WITHIN_SPREAD, Sense.NO_WORSE):
        return f"{bar.sense.value} {bar.value:g}"
    noise = "" if figure is None or figure.noise is None else f" ± {figure.noise:.4f}"
    return f"{bar.sense.value} {bar.value:g}{noise}"


def _figure_text(figure: Figure | None) -> str:
    if figure is None:
        return ""
    mean = f"{figure.mean:.0f}" if 100 <= figure.mean < float("inf") else f"{figure.mean:.4g}"
    return mean if figure.spread is None else f"{mean} ± {figure.spread:.2g}"


def _winners(winners: Mapping[str, Winner], occasion: Occasion) -> list[str]:
    lines = [
        f"## Rates, from sweeps of equal effort ({occasion.winners_file})",
        "",
        "| sweep | runs | inner lr | outer lr | outer momentum | loss | |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in winners.items():
        edge = "at the end of its grid" if found.is_at_edge else ""
        loss = "" if found.loss is None else f"{found.loss:.4f}"
        lines.append(
            f"| {name} | {found.runs} | {found.rates.inner_lr:.3g} | {found.rates.outer_lr:g} "
            f"| {found.rates.outer_momentum:g} | {loss} | {edge} |"
        )
    return lines


def _runs(results: Sequence[RunResult]) -> list[str]:
    lines = [
        "## Every run",
        "",
        "| run | codec | seeds | loss | spread | bytes per peer | peak per step | modelled s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows(results):
        loss = "diverged" if row.loss is None else f"{row.loss:.4f}"
        spread = "" if row.spread is None else f"{row.spread:.4f}"
        lines.append(
            f"| {row.strategy} | {row.codec} | {row.seeds} | {loss} | {spread} "
            f"| {human_bytes(row.bytes_up_per_peer)} | {human_bytes(row.peak_bytes_per_step)} "
            f"| {row.modelled_seconds:.1f} |"
        )
    return lines


def listing(making: Making, judged: Sequence[Judged], winners: Mapping[str, Winner],
            processes: int) -> str:  # fmt: skip
    """Shapes, their runs and what is left of each, alone."""
    slower = making.slower()
    lines = []
    for name, sweep in SWEEPS.items():
        plans = making.sweep_plans(sweep)
        left = making.missing(plans)
        cost = human_seconds(total_s(left, processes, slower))
        lines.append(f"sweep {name}: {len(plans)} runs, {len(left)} left, {cost}")
    for one in judged:
        seeds = making.base_seeds(one.shape)
        plans = making.plans(one.shape, winners, range(seeds))
        left = making.missing(plan for of_trial in plans for plan in of_trial)
        lines.append(f"{one.shape.name}: {one.shape.claim}")
        labels = "; ".join(trial.label for trial in one.shape.trials)
        lines.append(f"    {labels}")
        lines.append(
            f"    {seeds * len(plans)} runs, {len(left)} left, "
            f"{human_seconds(total_s(left, processes, slower))}; {one.verdict.value}"
        )
    return "\n".join(lines)
