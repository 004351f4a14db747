"""The enumeration finds every broken rule, in a case that is clean when the rule holds."""

import json

import pytest
from blind_audits import AUDIT_MUTANTS
from cell_mutants import CELL_MUTANTS
from credulous import WORD_MUTANTS
from enumeration import run_case
from expert_mutants import EXPERT_MUTANTS
from hoarded_states import HOARDED_MUTANTS
from membership_mutants import MEMBERSHIP_MUTANTS
from mutants import MUTANTS, OPS, PEERS, hunt, hunt_seeds, main
from stale_mutants import STALE_MUTANTS
from unchecked import UNCHECKED_MUTANTS
from way_mutants import WAY_MUTANTS

from swarmtrain.simulate.seeds import run_seed

UNSEEN = (
    "M6", "M8", "M12", "P2", "P5", "P6", "P7", "P8", *EXPERT_MUTANTS, *WORD_MUTANTS,
    *AUDIT_MUTANTS, *UNCHECKED_MUTANTS,
    *MEMBERSHIP_MUTANTS, *HOARDED_MUTANTS, *WAY_MUTANTS, *STALE_MUTANTS,
    *CELL_MUTANTS,
)  # fmt: skip
ENUMERATED = [name for name in MUTANTS if name not in UNSEEN]
"""A result is lost only when several die, and two of three can do without one that has forgotten
everything (M12); the enumeration knows one fault, random worlds many. M8 costs time alone since
a dead owner's slice moves after D_gather: no world loses a result by it (test_taker has the rule).
Nobody lies in it. Its three peers make one pair: if that is not whole, nothing is committed."""


@pytest.mark.parametrize("name", ENUMERATED)
def test_a_mutant_is_caught_by_a_case_that_is_clean_without_it(name):
    catch = hunt(name)
    assert catch.case is not None
    assert run_case(catch.case).is_clean, catch.case.story()


def test_the_mutants_that_must_be_there_are_there():
    assert {"M1", "M3", "M4", "M12", "M13a", "M13b"} <= set(MUTANTS)


def test_a_mutant_is_one_command_and_leaves_nothing_broken_behind(capsys):
    assert main(["M10", "--enumerate"]) == 0
    assert "weights of op" in capsys.readouterr().out
    assert main(["M10", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {
        "mutant", "found", "seed", "invariant", "story", "seeds_run", "seconds"
    }  # fmt: skip
    assert not run_seed(told["seed"], PEERS, OPS).violations


SEEN_SOON = (
    "M4", "M9", "M12", "M13a", "M13b", "M14", "M15", "M16", "M17", "P1", "P2", "P3", "P4", "P5",
    "P6", "P7", "P8",
    "N1", "N2", "N3", "N4", "N5", "N6", "N8", "N11", "N12", "N13", "N14", "N15", "N16", "N17",
    "N18", "N19", "N20", "N21", "N22", "N23", "N24", "N25", "N26", "N27", "N28",
    *EXPERT_MUTANTS, *MEMBERSHIP_MUTANTS, *HOARDED_MUTANTS, *WAY_MUTANTS, *STALE_MUTANTS,
)  # fmt: skip


FIRST_SEEN = {
    "M12": 11, "M13b": 9, "P4": 93, "N1": 2, "N3": 11, "N8": 263, "N13": 6, "N14": 2, "N15": 16,
    "N16": 2, "N18": 6, "N19": 12, "N21": 14, "N27": 5, "N28": 5, "A1": 9, "A4": 21, "D3": 40,
    "D5": 40, "D7": 84, "E2": 5, "R1": 50, "R3": 8, "R4": 21, "R5": 30, "R7": 40,
}  # fmt: skip
"""Seeds at which a hunt begins that saw nothing in the worlds before."""


@pytest.mark.parametrize("name", SEEN_SOON)
def test_random_worlds_find_mutants_within_a_few_seeds(name):
    # All of them: python tests/simulate/mutants.py NAME --seeds 2000
    first = FIRST_SEEN.get(name, 0)
    catch = hunt_seeds(name, range(first, first + 20))
    assert catch.seed >= 0
