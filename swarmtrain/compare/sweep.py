"""Many runs: those that are kept already are read, the others made, side by side in processes.

Every process has one torch thread, so how many there are changes no bit. Results come in the order
of the plans.
"""

import multiprocessing
import platform
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from swarmtrain.compare.plan import Plan
from swarmtrain.compare.replica import settings_of
from swarmtrain.compare.results import RunResult, Shelf
from swarmtrain.compare.shards import PIECE_BYTES
from swarmtrain.compare.swarm import Swarm
from swarmtrain.data.corpus import Corpus, build_corpus
from swarmtrain.errors import cleaned, misuse
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.strategies import make_strategy
from swarmtrain.tensors import Layout


def versions(corpus: Corpus) -> str:
    """What a run's bits depend on besides its plan, apart from the processor."""
    return f"torch {torch.__version__} {platform.machine()} text {corpus.manifest_hash}"


def run_one(plan: Plan, corpus: Corpus | None = None) -> RunResult:
    """One run, from its beginning.

    Args:
        plan: what to run.
        corpus: its text; None reads the built-in one.

    Raises:
        CorpusMissing: this Python comes without its sources.
    """
    return Swarm(plan, corpus or build_corpus(PIECE_BYTES)).run()


def check(plans: Sequence[Plan]) -> None:
    """Refuse a strategy whose settings do not fit together or the model.

    Raises:
        UserError: SWT-E610.
    """
    for plan in plans:
        model = build_model(plan.run_config().model, plan.seed)
        try:
            make_strategy(settings_of(plan), Layout.of(model, plan.block))
        except ValueError as error:
            raise misuse(
                f"{cleaned(plan.label)!r} cannot be made: {cleaned(str(error))}.",
                "Settings of one strategy are given as name:setting=value.",
            ) from error


def run_all(
    plans: Sequence[Plan],
    shelf: Shelf,
    processes: int,
    tell: Callable[[RunResult, bool], None],
    corpus: Corpus | None = None,
) -> list[RunResult]:
    """Every plan's result.

    Args:
        plans: what to run.
        shelf: where finished runs are kept.
        processes: how many runs are made side by side; 1 makes them here.
        tell: hears of each result, and whether it was kept already, as it comes.
        corpus: the text; None reads the built-in one.

    Raises:
        UserError: SWT-E610, a strategy's settings do not fit together.
        CorpusMissing: this Python comes without its sources.
        OSError: a finished run cannot be kept.
    """
    check(plans)
    text = corpus or build_corpus(PIECE_BYTES)
    keys = [plan.key(versions(text)) for plan in plans]
    kept = [shelf.find(key) for key in keys]
    made = _made(
        [plan for plan, old in zip(plans, kept, strict=True) if old is None], processes, text
    )
    results = []
    for plan, key, old in zip(plans, keys, kept, strict=True):
        result = old
        if result is None:
            result = next(made)
            shelf.keep(key, plan.as_json(), result)
        tell(result, old is not None)
        results.append(result)
    return results


def _made(plans: Sequence[Plan], processes: int, corpus: Corpus) -> Iterator[RunResult]:
    if processes == 1 or len(plans) < 2:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield from (run_one(plan, corpus) for plan in plans)
        finally:
            torch.set_num_threads(threads)
        return
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(min(processes, len(plans)), initializer=_begin_process) as pool:
        yield from pool.imap(partial(run_one), plans)


def _begin_process() -> None:
    """One of several: Ctrl+C is for their parent, who ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
