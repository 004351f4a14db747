"""Broken rules, one at a time: a simulator that does not find them is not testing.

Each mutant of `broken_rules.py`, `blind_audits.py`, `lone_partners.py`, `credulous.py`,
`membership_mutants.py`, `hoarded_states.py`, `stale_mutants.py`, `way_mutants.py`,
`cell_mutants.py` and `unchecked.py` replaces one rule of the production machines by what a looser
reading of the protocol would do. Random worlds, or those that it names, are clean without the
mutant; with it they must show a violation, and of the kind that the rule is there to prevent:

    python tests/simulate/mutants.py M1 --seeds 2000 --json

ends with {mutant, found, seed, invariant, story, seeds_run, seconds}; exit status 0: found, 1: all
those worlds were clean. With ``--enumerate`` the hunt goes through every fault at every message of
one op instead.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass

import torch
from blind_audits import AUDIT_MUTANTS
from broken_rules import MUTANTS as RULE_MUTANTS
from broken_rules import Mutant
from cell_mutants import CELL_MUTANTS
from credulous import WORD_MUTANTS
from enumeration import Case, cases, run_case
from expert_mutants import EXPERT_MUTANTS
from hoarded_states import HOARDED_MUTANTS
from lone_partners import PAIR_MUTANTS
from membership_mutants import MEMBERSHIP_MUTANTS
from stale_mutants import STALE_MUTANTS
from unchecked import UNCHECKED_MUTANTS
from way_mutants import WAY_MUTANTS

from swarmtrain.simulate.ground.scene import Violation
from swarmtrain.simulate.seeds import run_seed

MUTANTS = RULE_MUTANTS | WORD_MUTANTS | AUDIT_MUTANTS | PAIR_MUTANTS
MUTANTS |= (
    EXPERT_MUTANTS
    | UNCHECKED_MUTANTS
    | MEMBERSHIP_MUTANTS
    | HOARDED_MUTANTS
    | WAY_MUTANTS
    | STALE_MUTANTS
    | CELL_MUTANTS
)

_STEP = 37
"""Cases are taken with this stride, then with the next offset: all kinds come early."""


@dataclass(frozen=True)
class Catch:
    """Report of how a hunt through the enumeration ended; `case` is None when the mutant lives."""

    name: str
    case: Case | None
    invariant: str
    story: str
    runs: int


def symptom(mutant: Mutant, violations: tuple[Violation, ...]) -> Violation | None:
    """The violation that counts as caught, if there is one."""
    for violation in violations:
        for invariant, words in mutant.caught_by:
            if violation.invariant == invariant and words in violation.story:
                return violation
    return None


def hunt(name: str, num_peers: int = 3) -> Catch:
    """Run the enumeration with the mutant until it is caught."""
    mutant = MUTANTS[name]
    everything = list(cases(num_peers, kind=mutant.kind))
    order = [case for offset in range(_STEP) for case in everything[offset::_STEP]]
    order.sort(key=lambda case: not mutant.where(case))
    for runs, case in enumerate(order, start=1):
        with mutant.patch():
            finding = run_case(case)
        found = symptom(mutant, finding.violations)
        if found is not None:
            return Catch(name, case, found.invariant, found.story, runs)
    return Catch(name, None, "", "", len(order))


PEERS = 4
OPS = 6


@dataclass(frozen=True)
class SeedCatch:
    """Report of how a hunt through random worlds ended; `seed` is -1 when the mutant lives."""

    name: str
    seed: int
    invariant: str
    story: str
    seeds_run: int


def hunt_seeds(name: str, seeds: range) -> SeedCatch:
    """Run worlds with the mutant until one shows what its rule prevents."""
    mutant = MUTANTS[name]
    for runs, seed in enumerate(seeds, start=1):
        with mutant.patch():
            found = symptom(mutant, _violations(mutant, seed))
        # A world that fails without the mutant as well has found something else.
        if found is not None and not _violations(mutant, seed):
            return SeedCatch(name, seed, found.invariant, found.story, runs)
    return SeedCatch(name, -1, "", "", len(seeds))


def _violations(mutant: Mutant, seed: int) -> tuple[Violation, ...]:
    """Run the seed's world to its end."""
    if mutant.world is None:
        return run_seed(
            seed, peers=mutant.peers, ops=OPS, kinds=mutant.kinds, kind=mutant.kind,
            groups=mutant.groups,
        ).violations  # fmt: skip
    world = mutant.world(seed)
    world.start()
    world.run()
    return tuple(world.violations)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=MUTANTS)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--enumerate", action="store_true", help="no random worlds")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(argv)
    torch.set_num_threads(1)
    began_s = time.perf_counter()
    told: dict[str, object] = {"mutant": chosen.name}
    if chosen.enumerate:
        catch = hunt(chosen.name)
        found = catch.case is not None
        told |= {
            "found": found,
            "case": catch.case.story() if catch.case is not None else "",
            "invariant": catch.invariant,
            "story": catch.story,
            "cases_run": catch.runs,
        }
    else:
        first = chosen.first_seed
        drawn = hunt_seeds(chosen.name, range(first, first + chosen.seeds))
        found = drawn.seed >= 0
        told |= {
            "found": found,
            "seed": drawn.seed if found else None,
            "invariant": drawn.invariant,
            "story": drawn.story,
            "seeds_run": drawn.seeds_run,
        }
    told["seconds"] = round(time.perf_counter() - began_s, 1)
    if chosen.json:
        print(json.dumps(told))
    else:
        print("\n".join(f"{key}: {value}" for key, value in told.items()))
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
