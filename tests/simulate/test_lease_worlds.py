"""Worlds in which peers also lease text, under all faults: clean, and not when a rule is broken."""

import contextlib
from unittest import mock

import pytest

from swarmtrain.coordinator.corpus_service import CorpusService
from swarmtrain.data.leases import Leases
from swarmtrain.data.walk import Walk
from swarmtrain.simulate.processes import coordinator
from swarmtrain.simulate.processes.reading import WINDOWS
from swarmtrain.simulate.seeds import run_seed, world_of
from swarmtrain_transport.coordinator.ledger_writer import LedgerWriter
from swarmtrain_transport.wire.messages import Leased

PEERS, OPS = 4, 6


@pytest.mark.parametrize("pieces", [2, 15])
def test_worlds_with_text_are_clean_and_read_it_more_than_once(pieces: int) -> None:
    counted = 0
    for seed in range(8):
        world = world_of(seed, PEERS, OPS, text_pieces=pieces)
        world.start()
        world.run()
        assert not world.violations, seed
        checks = world.invariants.leases
        assert sum(world.swarm.coordinator.text_uses.values()) == checks.counted
        counted += checks.counted
    assert counted > 8 * pieces


def any_turn_counts() -> contextlib.AbstractContextManager:
    """What was counted is counted again when it is said again."""
    real = Leases.count

    def count(self, peer, done):
        known = self._turns
        return real(self, peer, [Leased(one.piece, known[one.piece]) for one in done])

    return mock.patch.object(Leases, "count", count)


def the_dead_keep_their_leases() -> contextlib.AbstractContextManager:
    return mock.patch.object(CorpusService, "release", lambda self, peer: None)


def a_restart_forgets() -> contextlib.AbstractContextManager:
    real = coordinator.service_of
    return mock.patch.object(
        coordinator, "service_of", lambda pieces, seed, uses, keep: real(pieces, seed, {}, keep)
    )


def half_is_enough() -> contextlib.AbstractContextManager:
    def done(self):
        read = [piece for piece, left in self._left.items() if 2 * left <= WINDOWS]
        return tuple(Leased(piece, self._turns[piece]) for piece in read)

    return mock.patch.object(Walk, "done", property(done))


def plans_say_what_was() -> contextlib.AbstractContextManager:
    real = LedgerWriter.__setattr__

    def keep(self, name, value):
        if name != "text" or value is None or getattr(self, "text", None) is None:
            real(self, name, value)

    return mock.patch.object(LedgerWriter, "__setattr__", keep)


MUTANTS = {
    "plans say what was": (plans_say_what_was, "X4"),
    "any turn counts": (any_turn_counts, "X2"),
    "the dead keep their leases": (the_dead_keep_their_leases, "X3"),
    "a restart forgets": (a_restart_forgets, "X1"),
    "half is enough": (half_is_enough, "X2"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name: str) -> None:
    broken, invariant = MUTANTS[name]
    for seed in range(60):
        with broken():
            violations = run_seed(seed, PEERS, OPS, text_pieces=15).violations
        if any(one.invariant == invariant for one in violations):
            assert not run_seed(seed, PEERS, OPS, text_pieces=15).violations
            return
    pytest.fail(f"60 worlds without a finding: {name}")
