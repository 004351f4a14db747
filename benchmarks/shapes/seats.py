"""Runs side by side: one process per seat, one thread each, one run at a time.

A seat asks for its next run when it has finished one, so that no run is begun after the time that
may be spent. If this process ends, so do its seats: at once where it can say so, else when they
have finished their run.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from signal import SIG_IGN, SIGINT, signal

from swarmtrain.compare.plan import Plan
from swarmtrain.compare.results import RunResult
from swarmtrain.compare.shards import PIECE_BYTES
from swarmtrain.data.corpus import Corpus, build_corpus

Finished = tuple[Plan, RunResult, float]
"""What was run, what came out, and the seconds that it took."""


def run_here(plan: Plan, corpus: Corpus) -> Finished:
    """One run, in this process."""
    from swarmtrain.compare.sweep import run_one

    began_s = time.perf_counter()
    result = run_one(plan, corpus)
    return plan, result, time.perf_counter() - began_s


def run_plans(
    plans: Iterable[Plan], processes: int, may_begin: Callable[[], bool], corpus: Corpus
) -> Iterator[Finished]:
    """Finished runs, in the order in which they end.

    Args:
        plans: what to run, in this order.
        processes: seats; 1 runs everything here.
        may_begin: asked before every run; once it says no, none is begun any more.
        corpus: the text of runs that are made here; seats read the built-in one themselves.

    Raises:
        RuntimeError: a seat died, which the system does to processes that need too much memory.
    """
    allowed = (plan for plan in plans if may_begin())
    if processes == 1:
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield from (run_here(plan, corpus) for plan in allowed)
        finally:
            torch.set_num_threads(threads)
        return
    yield from _seated(allowed, processes)


def _seated(plans: Iterator[Plan], processes: int) -> Iterator[Finished]:
    busy: dict[Connection, SpawnProcess] = {}
    free: list[tuple[Connection, SpawnProcess]] = []
    try:
        # A plan is only taken when there is a seat for it.
        while (plan := next(plans, None)) is not None:
            ours, process = free.pop() if free else _open_seat()
            busy[ours] = process
            ours.send(plan)
            if len(busy) == processes:
                ours, finished = _next(busy)
                free.append((ours, busy.pop(ours)))
                yield finished
        while busy:
            ours, finished = _next(busy)
            free.append((ours, busy.pop(ours)))
            yield finished
    finally:
        for ours, process in [*free, *busy.items()]:
            process.terminate()
            process.join()
            ours.close()


def _open_seat() -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_sit, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _next(seats: dict[Connection, SpawnProcess]) -> tuple[Connection, Finished]:
    ours = wait(list(seats))[0]
    assert isinstance(ours, Connection)
    try:
        return ours, ours.recv()
    except EOFError:
        process = seats[ours]
        process.join()
        raise RuntimeError(
            f"a process that ran a trial ended with status {process.exitcode}. Its run is lost, "
            "the finished ones are kept: start again, with --processes 1 if memory was short."
        ) from None


def _sit(link: Connection) -> None:
    """Runs what comes until nothing more does; Ctrl+C is for the parent."""
    import torch

    signal(SIGINT, SIG_IGN)
    torch.set_num_threads(1)
    corpus = build_corpus(PIECE_BYTES)
    while True:
        try:
            plan = link.recv()
        except EOFError:
            return
        link.send(run_here(plan, corpus))
