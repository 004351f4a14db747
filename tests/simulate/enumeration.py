"""Every death, and other troubles, at every message of one op: complete where seeds only sample.

A quiet run tells at which boundaries the op begins and ends. Then the run is repeated once for
each boundary and each set of victims, from the same seed, so that up to the fault it is the quiet
run bit for bit. The full enumeration is one command:

    python tests/simulate/enumeration.py --peers 4 --json

It ends with one line (with ``--json`` one object): cases, violations, commits, skips, seconds; the
exit status is 1 if anything was violated. ``--stride 8`` takes every eighth boundary,
``--processes 4`` sets how many run side by side.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise, permutations

import torch

from swarmtrain.console.lines import show
from swarmtrain.simulate.faults.plan import COORDINATOR, Fault
from swarmtrain.simulate.ground.scene import Violation
from swarmtrain.simulate.seeds import in_processes
from swarmtrain.simulate.world import World
from swarmtrain_transport.kinds import KINDS, MEAN, PAIR


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the enumeration.

    Attributes:
        num_peers: number of peers at the start.
        faults: faults by boundary.
        min_contributors: setting of the run file; if everybody is needed, the dead are replaced.
        rounds: commits until the run ends.
        kind: kind of the ops.
    """

    num_peers: int
    faults: tuple[Fault, ...]
    min_contributors: int = 1
    rounds: int = 2
    kind: str = MEAN

    def story(self) -> str:
        """The case in words, enough to repeat it."""
        return (
            f"{self.num_peers} peers, at least {self.min_contributors} contributors; "
            f"{'; '.join(fault.story() for fault in self.faults)}"
        )

    def world(self) -> World:
        """A world in which it happens, not yet started."""
        return World(
            self.num_peers,
            rounds=self.rounds,
            faults=self.faults,
            min_contributors=self.min_contributors,
            replace_dead=self.min_contributors == self.num_peers,
            kind=self.kind,
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """Report of how one case ended.

    Attributes:
        case: the case.
        violations: violations that were found; empty is good.
        commits, skips: outcomes of all ops.
        roots_agree: True if all of them hold the same state root; of pair ops, any.
        op_seconds: duration of the longest op, from PLAN to its outcome, in virtual time.
        round_seconds: the longest time from one PLAN to the next.
        excluded: op and peer number to the reason.
    """

    case: Case
    violations: tuple[Violation, ...]
    commits: int
    skips: int
    roots_agree: bool
    op_seconds: float
    round_seconds: float
    excluded: dict[tuple[int, int], str]

    @property
    def is_clean(self) -> bool:
        """Nothing violated, every op ended, one state root."""
        return not self.violations and self.roots_agree


def run_case(case: Case) -> Finding:
    """Run one case to its end."""
    world = case.world()
    world.start()
    world.run()
    return finding_of(case, world)


def finding_of(case: Case, world: World) -> Finding:
    """Findings of a world that has run to its end."""
    roots = {peer.machine.state_root for peer in world.swarm.survivors}
    decided = world.invariants.decided
    return Finding(
        case,
        tuple(world.violations),
        decided.commits,
        decided.skips,
        (len(roots) == 1 or case.kind == PAIR) and b"" not in roots,
        max(decided.op_seconds.values(), default=0.0),
        max((b - a for a, b in pairwise(decided.plan_s.values())), default=0.0),
        dict(world.invariants.excluded),
    )


def op_boundaries(num_peers: int, op: int = 1, kind: str = MEAN) -> range:
    """Boundaries from the PLAN of `op` to the PLAN of the next op, in a quiet run."""
    world = World(num_peers, rounds=op + 1, kind=kind)
    plans: dict[int, int] = {}
    world.start()
    while op + 1 not in plans and world.scene.clock.step(1000.0):
        for planned in world.invariants.decided.plans:
            plans.setdefault(planned, world.scene.boundary)
    return range(plans[op], plans[op + 1])


def deaths(num_peers: int, *, op: int = 1, stride: int = 1, kind: str = MEAN) -> Iterator[Case]:
    """At every boundary of `op`: each peer dies, the coordinator dies, each peer with it."""
    everybody = range(num_peers)
    for boundary in op_boundaries(num_peers, op, kind)[::stride]:
        for victims in chain(
            ((victim,) for victim in (*everybody, COORDINATOR)),
            ((victim, COORDINATOR) for victim in everybody),
        ):
            yield Case(num_peers, (Fault(boundary, victims),), rounds=op + 1, kind=kind)


def troubles(num_peers: int, *, op: int = 2, stride: int = 1, kind: str = MEAN) -> Iterator[Case]:
    """At every boundary of `op`, of one peer in turn: a death while everybody is needed, which
    forces a SKIP until a newcomer has taken the place; a process that is started again; a goodbye;
    a control connection that breaks; a link that goes silent in one direction. And a newcomer.

    From op 2 on there is error feedback that could be lost.
    """
    links = tuple(permutations(range(num_peers), 2))
    for number, boundary in enumerate(op_boundaries(num_peers, op, kind)[::stride]):
        turn = number % num_peers
        link = links[number % len(links)]
        death = (Fault(boundary, (turn,)),)
        yield Case(num_peers, death, num_peers, rounds=op + 1, kind=kind)
        yield Case(num_peers, (Fault(boundary, returners=(turn,)),), rounds=op + 2, kind=kind)
        yield Case(num_peers, (Fault(boundary, leavers=(turn,)),), rounds=op + 1, kind=kind)
        yield Case(num_peers, (Fault(boundary, blinkers=(turn,)),), rounds=op + 1, kind=kind)
        if num_peers > 2:  # two peers without a link have no third to exchange through
            yield Case(num_peers, (Fault(boundary, cuts=(link,)),), rounds=op + 1, kind=kind)
        yield Case(num_peers, (Fault(boundary, newcomers=1),), rounds=op + 2, kind=kind)


def cases(num_peers: int, *, stride: int = 1, kind: str = MEAN) -> Iterator[Case]:
    """Yield all cases.

    Args:
        num_peers: peers at the start.
        stride: take every so many boundaries.
        kind: kind of the ops.
    """
    yield from deaths(num_peers, stride=stride, kind=kind)
    yield from troubles(num_peers, stride=stride, kind=kind)


def run_all(all_cases: Iterable[Case], processes: int) -> Iterator[Finding]:
    """Run cases side by side; findings come in the order of the cases."""
    if processes == 1:
        yield from map(run_case, all_cases)
        return
    yield from in_processes(run_case, all_cases, processes, chunksize=8)


def main(argv: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kind", choices=sorted(KINDS), default=MEAN)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    chosen = parser.parse_args(argv)
    torch.set_num_threads(1)
    began_s = time.perf_counter()
    count = commits = skips = bad = 0
    every = cases(chosen.peers, stride=chosen.stride, kind=chosen.kind)
    for finding in run_all(every, chosen.processes):
        count += 1
        commits += finding.commits
        skips += finding.skips
        if not finding.is_clean:
            bad += 1
            told = [f"{v.invariant}: {v.story}" for v in finding.violations] or ["roots differ"]
            show(f"{finding.case.story()}: {'; '.join(told)}")
    summary = {
        "peers": chosen.peers,
        "cases": count,
        "violations": bad,
        "commits": commits,
        "skips": skips,
        "seconds": round(time.perf_counter() - began_s, 1),
    }
    plain = ", ".join(f"{value} {name}" for name, value in summary.items())
    show(json.dumps(summary) if chosen.json else plain)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
