"""Runs side by side, a process each, with one thread.

A process gets its next run when it has finished one, so a slow run holds no other back, and none is
begun after the time that may be spent. If this process ends, so do the others, at once. Their
number changes no bit.
"""

import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker

import torch

from swarmtrain.compare.pipeline_swarm import PipelineSwarm
from swarmtrain.compare.plan import Plan
from swarmtrain.compare.results import RunResult
from swarmtrain.compare.shards import PIECE_BYTES
from swarmtrain.compare.swarm import Swarm
from swarmtrain.data.corpus import Corpus, build_corpus
from swarmtrain.foundation.errors import UserError

Finished = tuple[Plan, RunResult, float]
"""A run, its result, and the seconds that it took."""


def cores() -> int:
    """Count the cores of this machine that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_here(plan: Plan, corpus: Corpus) -> Finished:
    """One run, in this process."""
    began_s = time.perf_counter()
    if plan.pipeline is None:
        result = Swarm(plan, corpus).run()
    else:
        result = PipelineSwarm(plan, plan.pipeline, corpus).run()
    return plan, result, time.perf_counter() - began_s


def run_plans(
    plans: Iterable[Plan], processes: int, may_begin: Callable[[], bool], corpus: Corpus
) -> Iterator[Finished]:
    """Finished runs, in the order in which they end.

    Args:
        plans: runs to make, in this order.
        processes: number of processes; 1 runs everything here.
        may_begin: asked before every run; once it says no, none is begun any more.
        corpus: the text of runs that are made here; other processes read the built-in one.

    Raises:
        UserError: SWT-E406, the system ended a process, as it does where memory is short.
        ValueError: the text is too short for so many peers.
    """
    allowed = (plan for plan in plans if may_begin())
    if processes == 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield from (run_here(plan, corpus) for plan in allowed)
        finally:
            torch.set_num_threads(threads)
        return
    yield from _beside(allowed, processes)


def _beside(plans: Iterator[Plan], processes: int) -> Iterator[Finished]:
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _begin_process)
    running: set[Future[Finished]] = set()
    try:
        for plan in plans:  # which is only taken when there is room for it
            with _without_interrupts():
                running.add(pool.submit(_run, plan))
            if len(running) == processes:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (one.result() for one in done)
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (one.result() for one in done)
    except BrokenProcessPool as error:
        raise UserError(
            "SWT-E406",
            "A process that made a run was ended by the system.",
            "Its run is lost, the finished ones are kept. This happens where memory is short.",
            "Start again with the same command, and with fewer --processes if memory was short.",
        ) from error
    finally:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        pool.shutdown(cancel_futures=True)


def _begin_process() -> None:
    """Set up one of several: Ctrl+C is for its parent, and it ends with that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(plan: Plan) -> Finished:
    return run_here(plan, _text())


@functools.cache
def _text() -> Corpus:
    return build_corpus(PIECE_BYTES)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Keep Ctrl+C from processes that are started in here, even before they could ignore it; this
    process hears of it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # whose own start would lift the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
