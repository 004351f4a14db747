"""A rule that the coordinator breaks in the second group alone is found there."""

import contextlib

import pytest
from broken_rules import Patch, replaced
from mutants import MUTANTS, OPS, PEERS

from swarmtrain.simulate.seeds import run_seed
from swarmtrain_transport.coordinator.group import GroupCoordinator
from swarmtrain_transport.coordinator.ops import planning
from swarmtrain_transport.coordinator.ops.agreement import Agreement


@contextlib.contextmanager
def in_second_group(patch: Patch):
    """A rule is broken only while something of the second group is decided."""

    def make(real):
        def decides(self, *known, **told):
            with patch() if self.view.group else contextlib.nullcontext():
                return real(self, *known, **told)

        return decides

    with contextlib.ExitStack() as stack:
        for name in ("settle", "on_ready", "on_applied"):
            stack.enter_context(replaced(GroupCoordinator, name, make))
        yield


def nothing_is_attested():
    return replaced(Agreement, "attest", lambda attest: lambda self, op, now_s: None)


def everybody_weighs_one():
    """All have trained on as much there: by rule 2 they would weigh 255."""
    return replaced(planning, "weights_of", lambda _: lambda samples, *_: dict.fromkeys(samples, 1))


BROKEN = {name: MUTANTS[name].patch for name in ("N1", "N3", "N8", "N17")}
BROKEN |= {"weights": everybody_weighs_one, "never": nothing_is_attested}


@pytest.mark.parametrize(
    ("name", "invariant", "seed"),
    [
        ("N1", "T8", 17),
        ("N3", "attest", 0),
        ("N8", "T12", 96),
        ("N17", "root", 0),
        ("weights", "rule 2", 0),
        ("never", "attest", 2),
    ],
)
def test_a_rule_that_is_broken_in_the_second_group_is_found_there(name, invariant, seed):
    with in_second_group(BROKEN[name]):
        first = run_seed(seed, PEERS, OPS, groups=2).violations[0]
    assert first.invariant == invariant and first.story.startswith("group 1: ")
    assert not run_seed(seed, PEERS, OPS, groups=2).violations
