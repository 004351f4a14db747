"""Every death at every message of one op: complete where random seeds only sample.

A quiet run tells at which boundaries the op begins and ends. Then the run is repeated once for
each boundary and each set of victims, from the same seed, so that up to the fault it is the quiet
run bit for bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from swarmtrain.simulate.invariants import Violation
from swarmtrain.simulate.world import COORDINATOR, Fault, World
from swarmtrain_transport.ledger import Plan, body_of


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the enumeration."""

    num_peers: int
    boundary: int
    victims: tuple[int, ...]
    min_contributors: int

    def story(self) -> str:
        """The case in words, enough to repeat it."""
        names = ["coordinator" if v == COORDINATOR else f"peer {v}" for v in self.victims]
        return (
            f"{self.num_peers} peers, at least {self.min_contributors} contributors, "
            f"{' and '.join(names)} at message {self.boundary}"
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """How one case ended."""

    case: Case
    violations: tuple[Violation, ...]
    commits: int
    skips: int
    roots_agree: bool


def run_case(case: Case, *, rounds: int = 2) -> Finding:
    """Run one case to its end.

    The last op's roots of all survivors must be equal, and every op must have ended.
    """
    world = World(
        case.num_peers,
        rounds=rounds,
        faults=[Fault(case.boundary, case.victims)],
        min_contributors=case.min_contributors,
        replace_dead=case.min_contributors == case.num_peers,
    )
    world.start(case.num_peers)
    world.run()
    last = {peer.machine.state_root for peer in world.survivors}
    agree = len(last) == 1 and b"" not in last
    invariants = world.invariants
    return Finding(case, tuple(world.violations), invariants.commits, invariants.skips, agree)


def op_boundaries(num_peers: int, op: int = 1) -> range:
    """Boundaries from the PLAN of `op` to the PLAN of the next op, in a quiet run."""
    world = World(num_peers, rounds=op + 1)
    plans: dict[int, int] = {}
    world.start(num_peers)
    while op + 1 not in plans and world.clock.step(1000.0):
        for record in world.coordinator.disk:
            body = body_of(record)
            if isinstance(body, Plan):
                plans.setdefault(body.op, world.boundary)
    return range(plans[op], plans[op + 1])


def cases(num_peers: int, *, stride: int = 1) -> Iterator[Case]:
    """Single deaths of peers and of the coordinator, each also together; and deaths that force a
    SKIP because everybody's contribution is required; then a newcomer joins in the dead one's
    place.

    Args:
        num_peers: peers at the start.
        stride: take every so many boundaries.
    """
    boundaries = op_boundaries(num_peers)[::stride]
    everybody = range(num_peers)
    alone = [(victim,) for victim in (*everybody, COORDINATOR)]
    together = [(victim, COORDINATOR) for victim in everybody]
    for boundary in boundaries:
        for victims in chain(alone, together):
            yield Case(num_peers, boundary, victims, 1)
        yield Case(num_peers, boundary, (0,), num_peers)
