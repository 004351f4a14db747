"""Many simulated pipelines, each from one seed: what `swarmtrain simulate --pipelines` runs."""

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from swarmtrain.simulate.pipelines.checks import BrokenInvariant
from swarmtrain.simulate.pipelines.world import Trace, World
from swarmtrain.simulate.seeds import in_processes
from swarmtrain_transport.errors import TransportError

_RAISED = (
    TransportError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError,
    AssertionError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SeedResult:
    """Report of how one world ended.

    Attributes:
        seed: seed of the world.
        invariant, story: invariant that does not hold, and its story; empty is good.
        counts: number of messages, faults and micro-batches, by kind.
        digest: digest of all that was sent.
        virtual_s: duration in its own time.
    """

    seed: int
    invariant: str
    story: str
    counts: dict[str, int]
    digest: bytes
    virtual_s: float


@dataclass(slots=True)
class Summary:
    """Many worlds together; the fields are those of ``--json``."""

    seeds: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[dict[str, object]] = field(default_factory=list)
    seconds: float = 0.0


def run_seed(seed: int, trace: Trace | None = None) -> SeedResult:
    """Run one world to its end."""
    world = World(seed, trace)
    invariant = story = ""
    try:
        world.run()
    except BrokenInvariant as e:
        invariant, story = e.invariant, e.story
    except _RAISED as e:
        # Nothing that a machine hears may make it raise: that is a finding like any other.
        invariant, story = "raised", "".join(traceback.format_exception(e)[-3:]).strip()
    counts = Counter(world.counts)
    counts.update(world.ledger.totals)
    return SeedResult(seed, invariant, story, dict(counts), world.digest.digest(), world.now_s)


def run_seeds(
    seeds: Iterable[int], processes: int = 1, run: Callable[[int], SeedResult] = run_seed
) -> Iterable[SeedResult]:
    """Run many worlds; results come in the order of the seeds."""
    return map(run, seeds) if processes == 1 else in_processes(run, seeds, processes, 4)


def simulate(results: Iterable[SeedResult], tell: Callable[[SeedResult], None]) -> Summary:
    """Add up worlds.

    Args:
        results: results of the worlds, as they end.
        tell: hears of each.
    """
    began_s = time.perf_counter()
    summary = Summary()
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.counts)
        summary.seeds += 1
        if result.invariant:
            summary.violations.append(
                {"seed": result.seed, "invariant": result.invariant, "story": result.story}
            )
        tell(result)
    summary.counts = dict(sorted(counts.items()))
    summary.seconds = round(time.perf_counter() - began_s, 1)
    return summary
