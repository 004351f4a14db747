"""Many runs: those that are kept already are read, the others made, side by side in processes."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from swarmtrain.compare.plan import Pace, Plan
from swarmtrain.compare.replica import exchanges, settings_of
from swarmtrain.compare.results import RunResult, Shelf
from swarmtrain.compare.seats import run_plans
from swarmtrain.compare.shards import PIECE_BYTES
from swarmtrain.compare.sources import code_digest, code_of, key_of
from swarmtrain.data.corpus import Corpus, build_corpus
from swarmtrain.foundation.errors import cleaned, misuse
from swarmtrain.models.build import build_model
from swarmtrain.models.tensors import Layout
from swarmtrain.strategies import make_strategy
from swarmtrain_optimizers.strategies.base import KeepsPace, OpKind, Strategy


def versions(corpus: Corpus) -> str:
    """Versions that a run's bits depend on besides its plan, apart from the processor."""
    return f"torch {torch.__version__} {platform.machine()} text {corpus.manifest_hash}"


def check(plans: Sequence[Plan]) -> None:
    """Refuse a strategy whose settings do not fit together or the model.

    Raises:
        UserError: SWT-E610.
    """
    for plan in plans:
        model = build_model(plan.run_config(), plan.seed)
        try:
            strategy = make_strategy(settings_of(plan), Layout.of(model, plan.block))
        except ValueError as error:
            raise misuse(
                f"{cleaned(plan.label)!r} cannot be made: {cleaned(str(error))}.",
                "Settings of one strategy are given as name:setting=value.",
            ) from error
        _check_swarm(plan, strategy)


def _check_swarm(plan: Plan, strategy: Strategy) -> None:
    """Refuse what such a swarm never does in a run.

    Raises:
        UserError: SWT-E610.
    """
    label = cleaned(plan.label)
    if not exchanges(strategy):
        return
    if plan.peers < 2 and strategy.exchange(1).kind is OpKind.PAIR:
        raise misuse(f"{label!r} cannot run with one peer.", "It exchanges in pairs: take two.")
    if plan.pace is Pace.DYNAMIC and not isinstance(strategy, KeepsPace):
        raise misuse(
            f"{label!r} keeps no pace: slow peers make all steps of a round, in a run as here.",
            "Leave dynamic out, or compare delayed_nesterov, whose slow peers make fewer.",
        )


def run_all(
    plans: Sequence[Plan],
    shelf: Shelf,
    processes: int,
    tell: Callable[[RunResult, bool], None],
    corpus: Corpus | None = None,
) -> list[RunResult]:
    """Every plan's result, in the order of the plans; each is kept at once when it is there.

    Args:
        plans: runs to make; those that differ in nothing but the label are made once.
        shelf: place where finished runs are kept.
        processes: number of runs made side by side; 1 makes them here.
        tell: hears of each result, and whether it was kept already, as it comes.
        corpus: the text, and then all runs are made here; None reads the built-in one.

    Raises:
        UserError: SWT-E610, a strategy's settings do not fit together; SWT-E406, a process was
            ended by the system; SWT-E401 or SWT-E403, a finished run cannot be kept.
        CorpusMissing: this Python comes without its sources.
    """
    check(plans)
    text = corpus or build_corpus(PIECE_BYTES)
    keys = _keys(plans, versions(text))
    results: dict[str, RunResult] = {}

    def heard(key: str, result: RunResult, *, is_kept: bool) -> None:
        results[key] = result
        for plan in plans:
            if keys[plan] == key:
                tell(replace(result, strategy=plan.label), is_kept)

    missing: dict[str, Plan] = {}
    for plan, key in keys.items():
        if key in results or key in missing:
            continue
        kept = shelf.find(key)
        if kept is None:
            missing[key] = plan
        else:
            heard(key, kept, is_kept=True)
    seats = 1 if corpus is not None else max(1, min(processes, len(missing)))
    for plan, result, _ in run_plans(missing.values(), seats, lambda: True, text):
        shelf.keep(keys[plan], plan.as_json(), result)
        heard(keys[plan], result, is_kept=False)
    return [replace(results[keys[plan]], strategy=plan.label) for plan in plans]


def _keys(plans: Sequence[Plan], computing: str) -> dict[Plan, str]:
    digest = code_digest()
    codes = {name: code_of(name, digest) for name in {plan.strategy for plan in plans}}
    return {plan: key_of(plan, computing, codes[plan.strategy]) for plan in plans}
