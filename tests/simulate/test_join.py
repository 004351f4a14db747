"""A newcomer comes in while the others train: equal roots, and nobody waits for it."""

from itertools import pairwise

import pytest

from swarmtrain.simulate.faults.plan import Fault
from swarmtrain.simulate.world import World
from swarmtrain_transport import limits
from swarmtrain_transport.wire.records import Gone, bodies_of

ROUNDS = 5
NEWCOMER = 3


def run(faults=(), *, rounds=ROUNDS, **settings) -> World:
    world = World(3, rounds=rounds, faults=faults, **settings)
    world.start()
    world.run()
    assert not world.violations, world.violations
    roots = {peer.machine.state_root for peer in world.swarm.survivors}
    assert len(roots) == 1
    return world


def newcomer_of(world: World):
    return next(peer for peer in world.swarm.peers.values() if peer.number == NEWCOMER)


def longest_gap_s(world: World) -> float:
    return max(
        later - earlier for earlier, later in pairwise(world.invariants.decided.plan_s.values())
    )


@pytest.fixture(scope="module")
def quiet() -> World:
    return run()


def test_a_newcomer_at_any_time_ends_with_the_others_and_nobody_waits_for_it(quiet):
    longest_op_s = max(quiet.invariants.decided.op_seconds.values())
    replays = []
    contributed = []
    for boundary in range(0, quiet.scene.boundary - 60, 37):
        world = run([Fault(boundary, newcomers=1)])
        newcomer = newcomer_of(world)
        assert newcomer.is_finished
        assert max(world.invariants.decided.op_seconds.values()) < longest_op_s + 0.02
        # Inner steps take 1.0 to 1.2 s; waiting for a download or a replay would show.
        assert longest_gap_s(world) < 1.3
        replays.append(len(newcomer.replayed_ops))
        frozen = world.invariants.decided.frozen.values()
        contributed.append(sum(newcomer.peer_id in freeze.contributors for freeze in frozen))
    assert max(replays) >= 2
    assert sum(count > 0 for count in replays) > len(replays) // 2
    assert contributed[0] >= ROUNDS - 1, "who comes early takes part in nearly every op"


def download_boundaries(arrival: int, **settings) -> list[int]:
    """Messages at which the newcomer has the manifest and not yet all chunks."""
    world = World(3, faults=[Fault(arrival, newcomers=1)], **settings)
    world.start()
    found = []
    while world.scene.clock.step(1000.0) and not world.is_finished:
        is_there = len(world.swarm.peers) > 3
        here, total = newcomer_of(world).machine.first.states.progress if is_there else (0, 0)
        if here < total and world.scene.boundary not in found:
            assert total == 2
            found.append(world.scene.boundary)
    return found


def test_a_newcomer_gets_a_state_of_several_chunks_although_donors_die_while_they_send(
    quiet, monkeypatch
):
    # 132096 values: anchor and momentum are a little over 1 MiB, two chunks and a manifest.
    monkeypatch.setattr(limits, "STATE_CHUNK_BYTES", 1 << 20)
    large = {"slice_chunks": 1, "chunk_values": 44_032, "rounds": 3}
    arrival = quiet.scene.boundary // 2
    boundaries = download_boundaries(arrival, **large)
    assert boundaries
    for boundary in (boundaries[0], boundaries[-1]):
        for donors in ((0,), (1,), (0, 2)):
            world = run([Fault(arrival, newcomers=1), Fault(boundary, donors)], **large)
            assert newcomer_of(world).is_finished
            assert newcomer_of(world).replayed_ops
            assert len(world.swarm.survivors) == 4 - len(donors)


def test_a_newcomer_that_is_started_again_goes_on_with_the_download_that_it_had_begun(
    quiet, monkeypatch
):
    monkeypatch.setattr(limits, "STATE_CHUNK_BYTES", 1 << 20)
    large = {"slice_chunks": 1, "chunk_values": 44_032, "rounds": 6}
    arrival = quiet.scene.boundary // 2
    begun = download_boundaries(arrival, **large)[-1]
    world = World(3, faults=[Fault(arrival, newcomers=1)], **large)
    world.start()
    while world.scene.boundary < begun:
        world.scene.clock.step(1000.0)
    first = newcomer_of(world)
    kept = first.machine.first.states.progress[0]
    assert kept > 0 and len(first.disk.chunks) == kept
    first.kill()
    world.swarm.come_back(first, first.disk)
    again = newcomer_of(world)
    seen = [again.machine.first.states.progress]
    while not again.is_finished and world.scene.clock.step(1000.0):
        seen.append(again.machine.first.states.progress)
    assert min(here for here, total in seen if total) >= kept
    assert not world.violations
    assert again.is_finished and not again.disk.chunks


def test_a_newcomer_that_dies_while_it_downloads_is_not_missed(quiet):
    longest_op_s = max(quiet.invariants.decided.op_seconds.values())
    arrival = quiet.scene.boundary // 2
    for after in range(1, 30, 7):
        world = run([Fault(arrival, newcomers=1), Fault(arrival + after, (NEWCOMER,))])
        assert max(world.invariants.decided.op_seconds.values()) < longest_op_s + 0.02
        assert longest_gap_s(world) < 1.3


def test_two_newcomers_at_once_while_the_coordinator_restarts(quiet):
    arrival = quiet.scene.boundary // 2
    for after in range(1, 40, 9):
        world = run([Fault(arrival, newcomers=2), Fault(arrival + after, (-1,))])
        assert len(world.swarm.survivors) == 5
        assert all(peer.is_finished for peer in world.swarm.survivors)


def test_who_comes_after_the_end_is_sent_away_and_told_so(quiet):
    world = World(3, rounds=2)
    world.start()
    world.run()
    late = world.swarm.add_peer()
    world.run(world.scene.clock.now_s + 5.0)
    assert not late.is_alive
    assert not world.violations
    bodies = bodies_of(world.swarm.coordinator.disk)
    assert not any(isinstance(body, Gone) and body.evicted for body in bodies)
