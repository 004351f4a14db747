#!/usr/bin/env python3
"""The table of strategies: which shapes of the papers show here, judged against bars.

    run.py                           # everything that is missing, then the report
    run.py --only diloco-4 --budget 20m
    run.py --more-seeds              # up to 8 for what is not resolved
    run.py --list                    # shapes, their runs, what is left and how long it takes
    run.py --quick                   # all of it tiny: does it work?
    run.py --winners benchmarks/shapes/winners.json    # no sweeps: rates that were found before
    run.py --write-tuned   # the winners as compare's own rates, in the strategies' facts

Every finished run is a line of OUT/runs.jsonl, so it may be stopped at any time and goes on where
it was. The report is OUT/report.md, the sweeps' winners are in OUT/winners.json, and the curves,
where plotly is installed, in OUT/curves-*.html. Nothing is downloaded: the text is the standard
library's sources.
"""

import argparse
import datetime
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import sweeps
import written
from declared import SHAPES
from estimate import total_s
from judged import Shape
from kept import Results
from making import Judged, Making, sweeps_of
from sweeps import Winner
from trials import FULL, QUICK, Edition

import swarmtrain
from swarmtrain.compare import html
from swarmtrain.compare.plan import SIZES
from swarmtrain.compare.results import RunResult
from swarmtrain.compare.seats import cores
from swarmtrain.compare.shards import PIECE_BYTES
from swarmtrain.compare.sources import code_digest
from swarmtrain.compare.sweep import versions
from swarmtrain.console.units import human_seconds
from swarmtrain.data.corpus import Corpus, build_corpus
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.page import plots
from swarmtrain_optimizers import strategies
from swarmtrain_optimizers.strategies.registry import BUILT_IN

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

UNITS_S = {"s": 1, "m": 60, "h": 3600}
INCOMPLETE = 1


def seconds(text: str) -> float:
    """``90s``, ``20m``, ``1.5h``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 90s, 20m or 1.5h")
    return float(found[1]) * UNITS_S[found[2]]


def _winners(text: str) -> dict[str, Winner]:
    try:
        return sweeps.read_winners(Path(text))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="names of shapes, with commas between")
    parser.add_argument("--budget", type=seconds, default=math.inf,
                        help="begin no run after 90s, 20m or 1.5h")  # fmt: skip
    parser.add_argument("--more-seeds", action="store_true", help="up to 8 where not resolved")
    parser.add_argument("--processes", type=int, default=cores(),
                        help="runs side by side; default: one per core")  # fmt: skip
    parser.add_argument("--out", type=Path, default=None, help="default: out/ beside this script")
    parser.add_argument("--list", action="store_true", help="what there is and how long it takes")
    parser.add_argument("--quick", action="store_true", help="all of it tiny, in one process")
    parser.add_argument(
        "--winners",
        type=_winners,
        default={},
        metavar="FILE",
        help="rates of an earlier table's winners.json; sweeps that it holds are not made",
    )
    parser.add_argument("--write-tuned", action="store_true",
                        help="put the winners into the facts of the strategies")  # fmt: skip
    args = parser.parse_args(words)
    if args.processes < 1:
        parser.error(f"--processes is {args.processes}; at least 1 is needed")
    if args.winners and args.write_tuned:
        parser.error("--write-tuned writes what sweeps have found, and --winners makes none")
    known = {shape.name for shape in SHAPES}
    args.names = [name for name in args.only.split(",") if name]
    for name in args.names:
        if name not in known:
            parser.error(f"{name!r} is no shape; there are: {', '.join(sorted(known))}")
    return args


def main(words: Sequence[str] | None = None) -> int:
    args = arguments(words)
    edition = QUICK if args.quick else FULL
    out = args.out or HERE / "out" / edition.name
    out.mkdir(parents=True, exist_ok=True)
    processes = 1 if args.quick else args.processes
    corpus = _corpus(edition)
    making = Making(
        edition, Results(out / "runs.jsonl"), corpus, versions=versions(corpus),
        code=code_digest(), processes=processes,
        deadline_s=time.monotonic() + args.budget, tell=_say,
        given=args.winners,
    )  # fmt: skip
    shapes = [shape for shape in SHAPES if not args.names or shape.name in args.names]
    needed = sweeps_of(shapes)
    winners = making.winners(needed)
    if args.list:
        judged = [making.judged(shape, winners) for shape in shapes]
        print(written.listing(making, judged, winners, processes))
    _say(_left(making, shapes, winners, processes))
    if args.list:
        return 0
    making.make_sweeps(needed)
    winners = making.winners(needed)
    making.make_shapes(shapes, winners)
    if args.more_seeds:
        making.make_more_seeds(shapes, winners)
    is_whole = _report(making, shapes, out, corpus)
    if args.write_tuned:
        _write_tuned(making.winners(sweeps.SWEEPS.values()))
    if not is_whole:
        _say(_left(making, shapes, winners, processes))
    return 0 if is_whole else INCOMPLETE


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _corpus(edition: Edition) -> Corpus:
    if edition is QUICK:
        return build_corpus(512, root=Path(swarmtrain.__file__).parent / "data")
    return build_corpus(PIECE_BYTES)


def _left(
    making: Making, shapes: Sequence[Shape], winners: dict[str, Winner], processes: int
) -> str:
    plans = [plan for sweep in sweeps_of(shapes) for plan in making.sweep_plans(sweep)]
    for shape in shapes:
        for of_trial in making.plans(shape, winners, range(making.base_seeds(shape))):
            plans += of_trial
    left = making.missing(plans)
    cost = human_seconds(total_s(left, processes, making.slower()))
    return f"{len(left)} runs are left, about {cost} in {processes} processes"


def _report(making: Making, shapes: Sequence[Shape], out: Path, corpus: Corpus) -> bool:
    """Write it, of all shapes that there are figures for, and show the lines of those asked for."""
    winners = making.winners(sweeps.SWEEPS.values())
    sweeps.write_winners(out / "winners.json", winners)
    judged = [making.judged(shape, winners) for shape in SHAPES]
    results = _results(making, judged, winners)
    lengths = {
        trial.length: making.edition.spans[trial.length] for s in SHAPES for trial in s.trials
    }
    occasion = written.Occasion(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=_machine(), commit=_commit(), code=code_digest(), versions=versions(corpus),
        values={span.size: _num_parameters(span.size) for span in lengths.values()},
        winners_file=str(out / "winners.json"),
    )  # fmt: skip
    flat = [result for of_length in results.values() for result in of_length]
    text = written.report(judged, winners, flat, making.edition, occasion)
    html.write(out / "report.md", text)
    _write_curves(out, results)
    asked = [one for one in judged if one.shape in shapes]
    print("\n".join(written.table(asked)))
    _say(f"report: {out / 'report.md'}")
    return all(one.figure is not None for one in asked)


def _results(
    making: Making, judged: Sequence[Judged], winners: dict[str, Winner]
) -> dict[str, list[RunResult]]:
    """Every run that a figure was made of, once, by its length."""
    found: dict[str, dict[str, RunResult]] = {}
    for one in judged:
        plans = making.plans(one.shape, winners, range(one.seeds))
        for trial, of_trial in zip(one.shape.trials, plans, strict=True):
            for plan in of_trial:
                run = making.find(plan)
                assert run is not None, f"{plan.label} was judged and is gone"
                found.setdefault(trial.length.value, {})[making.key(plan)] = run.result
    return {length: list(results.values()) for length, results in found.items()}


def _write_curves(out: Path, results: dict[str, list[RunResult]]) -> None:
    try:
        script = plots.script().decode()
    except UserError:
        _say("no curves: plotly is not installed; pip install plotly")
        return
    for length, of_length in results.items():
        html.write(
            out / f"curves-{length}.html", html.page(of_length, f"{written.COMMAND}", script)
        )


def _write_tuned(winners: dict[str, Winner]) -> None:
    for name in winners.keys() & BUILT_IN.keys():
        path = Path(strategies.__file__).parent / name / "__init__.py"
        text = sweeps.tuned_facts(path.read_text(encoding="utf-8"), winners[name].rates, _commit())
        path.write_text(text, encoding="utf-8")
        _say(f"{path}: {name}")


def _num_parameters(size: str) -> int:
    return sum(p.numel() for p in build_model(SIZES[size].model, 0).parameters())


def _machine() -> str:
    count = os.cpu_count() or 1
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{count} cores, {names[0] if names else platform.processor() or platform.machine()}"


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        _say("stopped; finished runs are kept")
        sys.exit(130)
