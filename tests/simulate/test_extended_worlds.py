"""Worlds in which the organiser adds rounds, to a running or a finished run, under all faults."""

import contextlib
from unittest import mock

import pytest

from swarmtrain.simulate.seeds import run_seed, world_of
from swarmtrain_transport.coordinator.group import GroupCoordinator
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR
from swarmtrain_transport.wire.records import Extend

PEERS, OPS = 4, 4


@pytest.mark.parametrize("kind", [MEAN, GATHER, PAIR])
def test_rounds_are_added_to_running_and_finished_runs(kind: str) -> None:
    finished = 0
    for seed in range(6):
        world = world_of(seed, PEERS, OPS, kind=kind, text_pieces=15 * (seed % 2), extended=True)
        world.start()
        world.run()
        assert not world.violations, seed
        extension = world.scene.conditions.extension
        assert extension is not None
        assert world.invariants.decided.commits == extension.rounds > OPS
        finished += extension.after == OPS
    assert 0 < finished < 6


def a_restart_forgets_it() -> contextlib.AbstractContextManager:
    """The run's settings alone say how many rounds it has."""
    return mock.patch.object(GroupCoordinator, "terms", property(lambda self: self._terms))


def it_is_logged_each_time() -> contextlib.AbstractContextManager:
    """Without a look at what the ledger says already."""

    def extend(self):
        if self._wanted_rounds and len(self.writer.ledger):
            self.writer.append(Extend(self._wanted_rounds))

    return mock.patch.object(Rendezvous, "_extend", extend)


def nobody_waits_for_what_the_disk_has_lost() -> contextlib.AbstractContextManager:
    real = Rendezvous._settle

    def settle(self, **how):
        self._extend()
        return real(self, **how)

    return mock.patch.object(Rendezvous, "_settle", settle)


MUTANTS = (a_restart_forgets_it, it_is_logged_each_time, nobody_waits_for_what_the_disk_has_lost)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_rule_is_found(mutant) -> None:
    for seed in range(60):
        with mutant():
            if not run_seed(seed, PEERS, OPS, extended=True).violations:
                continue
        assert not run_seed(seed, PEERS, OPS, extended=True).violations
        return
    pytest.fail("60 worlds without a finding")
