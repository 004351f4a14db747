"""`swarmtrain simulate`: the production machines in drawn worlds, with faults."""

import math
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from swarmtrain.cli.arguments import EndsAsJson, Verbose, read_by
from swarmtrain.cli.log import say
from swarmtrain.config.options import parse_duration
from swarmtrain.console.lines import counted, show, show_json
from swarmtrain.foundation.error_table import EXIT_DONE
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR

EXIT_VIOLATED = 1


class Kind(StrEnum):
    """Kinds of op."""

    MEAN = MEAN
    GATHER = GATHER
    PAIR = PAIR


def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="How many worlds.")] = 100,
    peers: Annotated[int, typer.Option(min=1, max=512, help="Peers of each at its start.")] = 4,
    cells: Annotated[
        int, typer.Option(min=1, max=8, help="Cells in which they sum; 1: all sum together.")
    ] = 1,
    ops: Annotated[int, typer.Option(min=1, max=10_000, help="Commits of each.")] = 10,
    fragments: Annotated[
        int, typer.Option(min=1, max=16, help="Parts of the vector that rounds move in turn.")
    ] = 1,
    kind: Annotated[Kind, typer.Option(help="Kind of op: mean, gather or pair.")] = Kind.MEAN,
    strategy: Annotated[
        str, typer.Option(metavar="NAME", show_default="drawn", help="Strategy of the peers.")
    ] = "",
    experts: Annotated[
        int,
        typer.Option(min=0, max=8, help="So many experts, each with peers of its own; 0: none."),
    ] = 0,
    groups: Annotated[
        int | None,
        typer.Option(
            min=1, max=2, show_default="drawn", help="2: some peers are in a second group, too."
        ),
    ] = None,
    text: Annotated[
        int,
        typer.Option(min=0, max=10_000, metavar="PIECES", help="Peers also lease so much text."),
    ] = 0,
    extended: Annotated[
        bool,
        typer.Option("--extended", help="The organiser adds rounds, also to a finished run."),
    ] = False,
    routers: Annotated[
        bool,
        typer.Option("--routers", help="Peers are behind routers, and meet by ways that break."),
    ] = False,
    guarded: Annotated[
        bool,
        typer.Option("--guarded", help="The loss leaps now and then, and the run goes back."),
    ] = False,
    pipelines: Annotated[
        bool,
        typer.Option(
            "--pipelines",
            help="Peers that serve stages of a model instead; --peers, --ops, --fragments, --kind "
            "and --groups are drawn then; --text and --extended are of other worlds.",
        ),
    ] = False,
    stages: Annotated[
        bool,
        typer.Option(
            "--stages", help="Whole runs in stages instead, with sessions, disks and small models."
        ),
    ] = False,
    first_seed: Annotated[int, typer.Option(min=0, help="The first world's seed.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Run this one world alone.", show_default=False)
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print a line per event; needs --seed.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Worlds side by side.")] = 1,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="TIME", parser=read_by(parse_duration), show_default=False,
            help="Begin no world after 90s, 10m or 1h, and say which seed is next.",
        ),
    ] = None,
    as_json: EndsAsJson = False,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Run the exchange in simulated worlds with faults, and check what it promises.

    The exit status is 1 if anything was violated.
    """
    if trace and seed is None:
        raise typer.BadParameter("a trace is of one world: name it with --seed")
    if kind is Kind.PAIR and peers < 2:
        raise typer.BadParameter("nobody is a pair alone: --kind pair needs two --peers")
    if cells > 1:
        is_mean = kind is Kind.MEAN and not (experts or pipelines or stages)
        _check_cells(cells, peers, is_mean=is_mean)
    chosen = range(first_seed, first_seed + seeds) if seed is None else range(seed, seed + 1)
    budget_s = math.inf if budget is None else budget
    if pipelines or stages:
        raise typer.Exit(
            _simulate_pipelines(
                chosen, processes, budget_s, is_whole=stages, trace=trace, as_json=as_json
            )
        )
    from swarmtrain.simulate.seeds import SeedResult, drawn, run_seed, run_seeds, until
    from swarmtrain.simulate.seeds import simulate as run

    def tell(result: SeedResult) -> None:
        for found in result.violations:
            say(f"seed {result.seed}, at {found.time_s:.3f} s: {found.invariant}: {found.story}")

    drawn_with = {
        "fragments": fragments, "kind": kind.value, "text_pieces": text, "extended": extended,
        "routers": routers, "guarded": guarded, "cells": cells,
    } | ({"groups": groups} if groups is not None else {})  # fmt: skip
    if experts:
        drawn_with |= {"groups": experts, "are_experts": True}
    if trace and seed is not None:
        others = drawn(seed, kind.value, fragments, strategy)
        run_seed(seed, peers, ops, _show, **(others | drawn_with))
    results = until(
        run_seeds(chosen, peers, ops, processes, strategy=strategy, **drawn_with), budget_s
    )
    summary = run(results, tell)
    _say_next(chosen, summary.seeds)
    if as_json:
        show_json(asdict(summary))
    else:
        show(
            f"{summary.seeds} worlds, {summary.ops} ops: {summary.commits} commits, "
            f"{summary.skips} skips, {sum(summary.faults.values())} faults, "
            f"{len(summary.violations)} violations, {summary.seconds} s"
        )
    raise typer.Exit(EXIT_VIOLATED if summary.violations else EXIT_DONE)


def _check_cells(cells: int, peers: int, *, is_mean: bool) -> None:
    """Refuse cells where there are none."""
    from swarmtrain_transport.coordinator.ops.planning import CELL_LEAST

    if not is_mean:
        raise typer.BadParameter(
            "only means of one group have cells: leave out --cells, or --kind, --experts, "
            "--pipelines and --stages"
        )
    if peers < CELL_LEAST * cells:
        raise typer.BadParameter(
            f"a cell has {CELL_LEAST} peers at least: --cells {cells} needs --peers "
            f"{CELL_LEAST * cells} or more"
        )


def _say_next(seeds: range, done: int) -> None:
    """Say how to go on, if the time was too short for all worlds."""
    if done < len(seeds):
        left = len(seeds) - done
        say(f"{counted(left, 'world')} left: go on with --first-seed {seeds[done]} --seeds {left}.")


def _simulate_pipelines(
    seeds: range, processes: int, budget_s: float, *, is_whole: bool, trace: bool, as_json: bool
) -> int:
    """Simulate pipelines, or whole runs in stages, and return the exit status."""
    from swarmtrain.simulate.pipelines.seeds import SeedResult, run_seed, run_seeds
    from swarmtrain.simulate.pipelines.seeds import simulate as run
    from swarmtrain.simulate.seeds import until

    def tell(result: SeedResult) -> None:
        if result.invariant:
            where = f"seed {result.seed}, at {result.virtual_s:.3f} s"
            say(f"{where}: {result.invariant}: {result.story}")

    if is_whole:
        from swarmtrain.simulate.stages.world import run_seed
    if trace:
        run_seed(seeds[0], _show)
    summary = run(until(run_seeds(seeds, processes, run_seed), budget_s), tell)
    _say_next(seeds, summary.seeds)
    if as_json:
        show_json(asdict(summary))
    elif is_whole:
        counts = summary.counts
        show(
            f"{summary.seeds} runs in stages, {counts.get('books', 0)} rounds, "
            f"{counts.get('Commit', 0)} commits, {counts.get('Skip', 0)} skips, "
            f"{len(summary.violations)} violations, {summary.seconds} s"
        )
    else:
        counts = summary.counts
        show(
            f"{summary.seeds} pipelines, {counts.get('rounds', 0)} rounds, "
            f"{counts.get('made', 0)} micro-batches: in rounds with faults "
            f"{counts.get('whole', 0)} whole, {counts.get('partial', 0)} in some stages, "
            f"{counts.get('none', 0)} in none; "
            f"{len(summary.violations)} violations, {summary.seconds} s"
        )
    return EXIT_VIOLATED if summary.violations else EXIT_DONE


def _show(time_s: float, who: str, what: str) -> None:
    """A line of a trace."""
    show(f"{time_s:12.6f}  {who:<12} {what}")
