"""Many worlds, each from one seed: what `swarmtrain simulate` runs."""

import hashlib
import multiprocessing
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar

import torch

from swarmtrain.simulate.faults.plan import Strike
from swarmtrain.simulate.faults.troubles import BESIDE, CELLS, WAYS
from swarmtrain.simulate.faults.weather import DrawnWeather, RepeatedWeather
from swarmtrain.simulate.ground import narrow
from swarmtrain.simulate.ground.conditions import Conditions, Extension
from swarmtrain.simulate.ground.handicaps import Handicap
from swarmtrain.simulate.ground.scene import Trace, Violation
from swarmtrain.simulate.world import World
from swarmtrain_transport import limits
from swarmtrain_transport.errors import TransportError
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

SLICE_VALUES = 512
CHUNK_VALUES = 256
BLOCK = 64
_MIXED = "simulated world %d"
_KEPT_EVERY = 5
"""Worlds with two groups of which one has the second group's state kept by others."""

_WITH_KEEPERS = 0.15
"""Part of the worlds of which nothing else is said: they have a second group with keepers."""

_FEW_PEERS = 24
"""Peers, at most, of which each has a slice of several chunks."""

_DEADLINE_S, _CROWD_DEADLINE_S = 20.0, 120.0
"""D_op at most, of which parts have half. Through a line of 160 kbit/s frames of 512 slices leave
for 10 s, and a piece of the state that was begun before for 26."""

_NARROW_EVERY = 8
"""Worlds of which one is narrow."""

_RAISED = (
    TransportError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError,
    RuntimeError, AssertionError,
)  # fmt: skip
_ABANDONED = "lost history"
"""Counted among the faults: a backup was restored, and whoever knew better was gone for good. Of
what follows nothing can be said, so such a world ends there."""


@dataclass(frozen=True, slots=True)
class Training:
    """Training of a world's peers, as in `Conditions`; `fragments` 0 is what is asked for."""

    strategy_name: str = ""
    fragments: int = 0
    ops_at_once: int = 1
    leaves_in_turn: bool = False


PLAIN = Training()
"""DiLoCo, NoLoCo where ops go by pairs, streaming without delay where there are fragments."""

_OF_MEANS = ("", "", "delayed", "eager", "streaming", "streaming", "ddp", "delayed_nesterov")


def drawn_training(seed: int, kind: str, fragments: int, strategy: str = "") -> Training:
    """Draw how the peers of a seed's world train, if no strategy is named: from a generator of its
    own, so that all else is drawn as it was."""
    rng = random.Random(f"training in world {seed}")
    leaves_in_turn = rng.random() < 0.5
    if strategy:
        return Training(strategy, leaves_in_turn=leaves_in_turn)
    if kind == GATHER:
        return Training(rng.choice(("", "sparseloco")), leaves_in_turn=leaves_in_turn)
    if kind == PAIR:
        return Training(leaves_in_turn=leaves_in_turn)
    name = rng.choice(_OF_MEANS if fragments == 1 else ("", "streaming"))
    if name != "streaming":
        return Training(name, leaves_in_turn=leaves_in_turn)
    parts = fragments if fragments > 1 else rng.randint(1, 3)
    return Training(name, parts, rng.randint(1, parts), leaves_in_turn)


def drawn(seed: int, kind: str = MEAN, fragments: int = 1, strategy: str = "") -> dict[str, Any]:
    """Draw what `world_of` does not: how peers train, what happens beside all else, and if there is
    a second group whose state others keep. Each is drawn from a generator of its own."""
    rng = random.Random(f"beside in world {seed}")
    kinds = rng.sample(BESIDE, rng.choice((0, 0, 1, 2)))
    has_keepers = rng.random() < _WITH_KEEPERS
    return {
        "training": drawn_training(seed, kind, fragments, strategy),
        "beside": tuple(kinds),
        "groups": 1 + has_keepers,
        "is_kept": has_keepers,
    }


def drawn_extension(seed: int, rounds: int) -> Extension:
    """Draw when the organiser adds how many rounds: in half of the worlds the run is finished."""
    rng = random.Random(f"extension of world {seed}")
    after = rng.choice((rounds, rng.randint(1, rounds)))
    return Extension(
        rounds + rng.randint(1, 4), after, rng.choice((0.0, 0.5, 20.0)), anew=rng.random() < 0.5
    )


@dataclass(frozen=True, slots=True)
class SeedResult:
    """Report of how one world ended.

    Attributes:
        seed: seed that it was drawn from.
        ops, commits, skips: outcomes.
        faults: number of strikes of each kind.
        violations: violations that were found; empty is good.
        virtual_s: duration of the world in its own time.
        strikes: strikes of the weather, for `repeat`.
    """

    seed: int
    ops: int
    commits: int
    skips: int
    faults: dict[str, int]
    violations: tuple[Violation, ...]
    virtual_s: float
    strikes: tuple[Strike, ...]


@dataclass(slots=True)
class Summary:
    """Many worlds together; the fields are those of ``--json``."""

    seeds: int = 0
    ops: int = 0
    commits: int = 0
    skips: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    violations: list[dict[str, object]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, result: SeedResult) -> None:
        """Count one more."""
        self.seeds += 1
        self.ops += result.ops
        self.commits += result.commits
        self.skips += result.skips
        for kind, count in result.faults.items():
            self.faults[kind] = self.faults.get(kind, 0) + count
        self.violations += [
            {"seed": result.seed, "invariant": found.invariant, "story": found.story}
            for found in result.violations
        ]


def world_of(
    seed: int,
    peers: int,
    ops: int,
    trace: Trace | None = None,
    kinds: tuple[str, ...] = (),
    fragments: int = 1,
    kind: str = MEAN,
    rule: str = "",
    groups: int = 1,
    training: Training = PLAIN,
    text_pieces: int = 0,
    extended: bool = False,
    beside: tuple[str, ...] = (),
    is_kept: bool = False,
    routers: bool = False,
    handicaps: Mapping[int, Handicap] | None = None,
    are_experts: bool = False,
    guarded: bool = False,
    cells: int = 1,
) -> World:
    """The world of a seed, with its weather, not yet started.

    Args:
        seed: everything is drawn from it.
        peers: number of peers at the start.
        ops: commits until the run ends.
        trace: takes a line per event.
        kinds: kinds of faults that may happen; all of them if it is empty.
        fragments: parts of the vector that ops move in turn.
        kind: kind of the ops.
        rule: robust rule in the place of the mean.
        groups: 2 for a second group beside the first.
        training: training of its peers.
        text_pieces: pieces of the text that they lease; 0 for none.
        extended: the organiser adds rounds, to the running or the finished run.
        beside: kinds of `BESIDE` that happen, too.
        is_kept: others keep the state of a second group, as they do in some worlds anyway.
        routers: peers are behind routers, and meet by ways that break.
        handicaps: defects of peers from their start, by number.
        are_experts: groups are experts, each with peers of its own.
        guarded: the loss leaps now and then, and the run has a guard.
        cells: cells of an op in which all these peers take part.
    """
    fragments = training.fragments or fragments
    digest = hashlib.sha256((_MIXED % seed).encode()).digest()
    rng = random.Random(int.from_bytes(digest[:8], "little"))
    codec = "int8"
    is_sparse = training.strategy_name == "sparseloco"
    if kind == GATHER and (is_sparse or digest[8] % 2):
        codec = f"topk-{BLOCK // 4}"
    is_kept = groups > 1 and not are_experts and (is_kept or digest[30] % _KEPT_EVERY == 0)
    is_narrow = digest[11] % _NARROW_EVERY == _NARROW_EVERY // 2 - 1
    chunk_values = narrow.CHUNK_VALUES if is_narrow else CHUNK_VALUES
    slice_values, slices = SLICE_VALUES, 0
    if peers > _FEW_PEERS:
        chunk_values, slice_values, slices = _short_slices(peers, digest[12], chunk_values)
    world = World(
        peers,
        rounds=ops,
        seed=rng.getrandbits(63),
        trace=trace,
        chunk_values=chunk_values,
        slice_chunks=slice_values // chunk_values,
        slices=slices,
        block=BLOCK,
        min_contributors=min(peers, rng.choice((1, 1, 2, max(1, peers - 1), peers))),
        # Without it topk would drop most of the work, which the books rightly miss.
        error_feedback=(rng.random() < 0.8 or codec != "int8") and kind != PAIR,
        deadline_s=_DEADLINE_S if peers <= limits.CELL_PEERS_MAX else _CROWD_DEADLINE_S,
        latency_s=rng.choice((0.0005, 0.003, 0.03, 0.15)),
        rates=rng.choice(((0.0, 0.0), (1e5, 1e7), (2e4, 2e5))),
        sync_s=rng.choice((0.0, 0.0005, 0.01)),
        skew_s=1e6,
        drift=rng.choice((0.0, 1e-4, 1e-2)),
        fragments=fragments,
        kind=kind,
        codec=codec,
        rule=rule,
        groups=groups,
        are_experts=are_experts,
        stage_holders=limits.HOLDERS if is_kept else 0,
        is_narrow=is_narrow,
        strategy_name=training.strategy_name,
        ops_at_once=training.ops_at_once,
        leaves_in_turn=training.leaves_in_turn,
        text_pieces=text_pieces,
        extension=drawn_extension(seed, ops) if extended else None,
        routers=routers,
        handicaps=handicaps or {},
        guarded=guarded,
        cells=cells,
    )
    beside = (*beside, *WAYS) if routers else beside
    beside = (*beside, *CELLS) if cells > 1 else beside
    world.scene.weather = DrawnWeather(world.swarm, world.invariants, rng, kinds, beside)
    return world


def _short_slices(peers: int, drawn: int, most_values: int) -> tuple[int, int, int]:
    """Draw values of a chunk and of a slice, and the number of slices, where there are many peers:
    frames grow by peers times chunks. Most of these worlds have fewer slices than peers, of a chunk
    each; some have a slice for each peer, and some of these are of two chunks. A chunk has so many
    values at most."""
    are_very_many, chunk_values = peers > limits.CELL_PEERS_MAX, min(most_values, 2 * BLOCK)
    match drawn % 8:
        case 0:
            return chunk_values, (1 if are_very_many else 2) * chunk_values, 0
        case 1 | 2 if not are_very_many:
            return chunk_values, chunk_values, 0
    return BLOCK, BLOCK, peers // (4 if are_very_many else 2)


def run_seed(
    seed: int, peers: int, ops: int, trace: Trace | None = None, **drawn_with: Any
) -> SeedResult:
    """Run one world to its end; the arguments are those of `world_of`."""
    world = world_of(seed, peers, ops, trace, **drawn_with)
    weather = world.scene.weather
    assert isinstance(weather, DrawnWeather)
    return _outcome(seed, world, weather)


def repeat(
    conditions: Conditions,
    strikes: Iterable[Strike],
    *,
    reckless: bool,
    trace: Trace | None = None,
) -> SeedResult:
    """Run a world from what is known of it: its failure stays a test, however worlds are drawn.

    Args:
        conditions: conditions of the world.
        strikes: faults that strike it.
        reckless: True if the newest state may be lost.
        trace: takes a line per event.
    """
    world = World(trace=trace, **{f.name: getattr(conditions, f.name) for f in fields(conditions)})
    weather = RepeatedWeather(world.swarm, world.invariants, strikes, reckless=reckless)
    world.scene.weather = weather
    return _outcome(-1, world, weather)


def _outcome(seed: int, world: World, weather: RepeatedWeather) -> SeedResult:
    """Run a world to its end."""
    try:
        world.start()
        world.run()
    except _RAISED as e:
        # Nothing that a machine hears may make it raise: that is a finding like any other.
        world.scene.violation("raised", "".join(traceback.format_exception(e)[-3:]).strip())
    decided = world.invariants.decided
    counts = dict(weather.counts)
    if world.scene.is_abandoned:
        counts[_ABANDONED] = 1
    return SeedResult(
        seed, decided.commits + decided.skips, decided.commits, decided.skips,
        counts, tuple(world.violations), world.scene.clock.now_s, tuple(weather.strikes),
    )  # fmt: skip


def run_seeds(
    seeds: Iterable[int], peers: int, ops: int, processes: int = 1, **drawn_with: Any
) -> Iterator[SeedResult]:
    """Run many worlds, drawn as by `world_of`, and what is not said of them is drawn, too; results
    come in the order of the seeds."""
    one = partial(_run_drawn, peers=peers, ops=ops, **drawn_with)
    if processes == 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield from map(one, seeds)
        finally:
            torch.set_num_threads(threads)
        return
    yield from in_processes(one, seeds, processes, chunksize=4)


def until(
    results: Iterable[_Result], budget_s: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[_Result]:
    """Pass results on until so many seconds are over: one at least, and none begun later."""
    end_s = clock() + budget_s
    for result in results:
        yield result
        if clock() >= end_s:
            return


def in_processes(
    run: Callable[[_Task], _Result], tasks: Iterable[_Task], processes: int, chunksize: int
) -> Iterator[_Result]:
    """Run each task in one of so many processes; results come in the order of the tasks."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn, _begin_process) as pool:
        try:
            yield from pool.map(run, tasks, chunksize=chunksize)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run_drawn(
    seed: int, peers: int, ops: int, strategy: str = "", **drawn_with: Any
) -> SeedResult:
    """Run one world of which all is drawn that is not said."""
    others = drawn(seed, drawn_with.get("kind", MEAN), drawn_with.get("fragments", 1), strategy)
    return run_seed(seed, peers, ops, **(others | drawn_with))


def _begin_process() -> None:
    """One of several: Ctrl+C is for their parent, who ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def simulate(results: Iterable[SeedResult], tell: Callable[[SeedResult], None]) -> Summary:
    """Run worlds and add them up.

    Args:
        results: results of the worlds, as they end.
        tell: hears of each.
    """
    summary = Summary()
    began_s = time.perf_counter()
    for result in results:
        summary.add(result)
        tell(result)
    summary.seconds = round(time.perf_counter() - began_s, 1)
    return summary
