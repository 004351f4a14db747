"""Worlds with a rule in the place of the mean: clean, and not because nobody looks."""

import pytest

from swarmtrain.simulate.seeds import run_seed
from swarmtrain_optimizers.robust import RULES
from swarmtrain_transport.collective.rule_inputs import RuleInputs
from swarmtrain_transport.coordinator.ops.reports import Reports
from swarmtrain_transport.ledger import inner_products


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rule", sorted(RULES))
def test_random_worlds_with_a_robust_rule_keep_every_promise(rule: str):
    results = [run_seed(seed, 4, 3, rule=rule) for seed in range(8)]
    assert not [(r.seed, v.invariant, v.story) for r in results for v in r.violations]
    assert sum(result.commits for result in results) == 8 * 3
    assert len({kind for result in results for kind in result.faults}) > 5


@pytest.mark.timeout(300)
def test_worlds_keep_every_promise_where_each_op_moves_a_part_of_the_vector():
    results = [run_seed(seed, 4, 5, fragments=2, rule="centered-clip") for seed in range(4)]
    assert not [(r.seed, v.invariant, v.story) for r in results for v in r.violations]


def violated(rule: str) -> set[str]:
    results = [run_seed(seed, 4, 3, rule=rule) for seed in range(6)]
    return {violation.invariant for result in results for violation in result.violations}


def test_numbers_of_slices_alone_are_noticed(monkeypatch):
    """Owners that clip by the norms of what they hold make another vector."""
    whole = RuleInputs.of

    def of_the_first(self, contributors):
        return tuple(number * 3.0**place for place, number in enumerate(whole(self, contributors)))

    monkeypatch.setattr(RuleInputs, "of", of_the_first)
    assert "I3" in violated("norm-clip")


def test_totals_without_the_last_slice_are_noticed(monkeypatch):
    def cut(self, contributors):
        tables = [self._table(one) for one in enumerate(self.view.attempts)][:1]
        named = inner_products.vectors(contributors, self.view.plan.centre)
        return inner_products.totals(self.view.plan.scalars, named, tables)

    monkeypatch.setattr(Reports, "totals", cut)
    assert "I3" in violated("norm-clip")
