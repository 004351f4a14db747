"""Runs side by side: one process per seat, one thread each, one run at a time.

A seat gets its next run when it has finished one, so a slow run holds no other back, and none is
begun after the time that may be spent. If this process ends, so do its seats: at once where it can
say so, else when they have finished their run. How many there are changes no bit.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from swarmtrain.compare.plan import Plan
from swarmtrain.compare.results import RunResult
from swarmtrain.compare.shards import PIECE_BYTES
from swarmtrain.compare.swarm import Swarm
from swarmtrain.data.corpus import Corpus, build_corpus
from swarmtrain.errors import UserError

Finished = tuple[Plan, RunResult, float]
"""What was run, what came out, and the seconds that it took."""


def cores() -> int:
    """Of this machine, those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_here(plan: Plan, corpus: Corpus) -> Finished:
    """One run, in this process."""
    began_s = time.perf_counter()
    result = Swarm(plan, corpus).run()
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
        UserError: SWT-E406, the system ended a seat, as it does where memory is short.
        RuntimeError: a seat ended by itself, after it has shown why.
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
    with _without_interrupts():
        process.start()
    theirs.close()
    return ours, process


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Who is started in here is never told of Ctrl+C, not even before it could ignore it; this
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


def _next(seats: dict[Connection, SpawnProcess]) -> tuple[Connection, Finished]:
    ours = wait(list(seats))[0]
    assert isinstance(ours, Connection)
    try:
        return ours, ours.recv()
    except EOFError:
        process = seats[ours]
        process.join()
        raise _ended(process.exitcode or 0) from None


def _ended(status: int) -> Exception:
    if status >= 0:
        return RuntimeError(f"a process that made a run ended with status {status}")
    return UserError(
        "SWT-E406",
        f"A process that made a run was ended by signal {-status}.",
        "Its run is lost, the finished ones are kept. The system does so where memory is short.",
        "Start again with the same command, and with fewer --processes if memory was short.",
    )


def _sit(link: Connection) -> None:
    """Runs what comes until nothing more does; Ctrl+C is for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    corpus = build_corpus(PIECE_BYTES)
    while True:
        try:
            plan = link.recv()
        except EOFError:
            return
        link.send(run_here(plan, corpus))
