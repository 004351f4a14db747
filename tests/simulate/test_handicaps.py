"""Slow, far away, forging or diverged: such a peer is left out with a reason, the others agree."""

import pytest

from swarmtrain.simulate.faults.plan import Fault
from swarmtrain.simulate.ground.handicaps import Handicap
from swarmtrain.simulate.world import World
from swarmtrain_transport.wire.records import Gone, Reassign, bodies_of

ROUNDS = 6


def run(handicaps, *, rounds=ROUNDS, **settings) -> World:
    world = World(3, rounds=rounds, handicaps=handicaps, **settings)
    world.start()
    world.run()
    assert not world.violations, world.violations
    assert len({peer.machine.state_root for peer in world.swarm.survivors}) == 1
    assert len(world.swarm.survivors) == 3
    assert not any(isinstance(body, Gone) for body in bodies_of(world.swarm.coordinator.disk))
    return world


def weights_of(world: World, number: int) -> list[int]:
    """The peer's weight in every PLAN that names it; 0 is a receiver."""
    return [
        member.weight
        for plan in world.invariants.decided.plans.values()
        for member in plan.members
        if world.swarm.peers[member.peer].number == number
    ]


@pytest.mark.parametrize("error_feedback", [True, False])
def test_a_peer_that_trains_ten_times_as_long_makes_fewer_steps_and_loses_no_work(
    error_feedback,
):
    # I9 holds in every world without violations: what it did is in results, kept, or ahead.
    world = run({2: Handicap(slowness=10.0)}, error_feedback=error_feedback)
    weights = weights_of(world, 2)
    assert len(weights) == ROUNDS
    # Its steps count three times those of peer 0: four of them 255, and one against four 191.
    assert weights == [255] + [191] * (ROUNDS - 1)
    assert max(world.invariants.decided.op_seconds.values()) < 0.1


@pytest.mark.parametrize("error_feedback", [True, False])
def test_a_peer_whose_frames_come_too_late_is_excluded_and_its_work_is_rebased(error_feedback):
    world = run({2: Handicap(lag_s=15.0)}, error_feedback=error_feedback)
    reasons = {reason for (_, number), reason in world.invariants.excluded.items() if number == 2}
    assert reasons == {"late"}
    assert world.invariants.decided.skips == 0


@pytest.mark.parametrize("error_feedback", [True, False])
def test_a_peer_that_forges_scales_is_refused_and_asked_less_and_less_often(error_feedback):
    world = run({1: Handicap(forges_scales=True)}, error_feedback=error_feedback)
    assert world.invariants.excluded == {(op, 1): "refused:scale" for op in (1, 2, 3, 5)}
    assert weights_of(world, 1)[3] == weights_of(world, 1)[5] == 0, "three times, then for a while"
    assert max(world.invariants.decided.op_seconds.values()) < 0.1


def test_an_owner_whose_results_nobody_can_decode_loses_its_slice_and_stops_no_round():
    world = run({1: Handicap(forges_results=True)}, rounds=3)
    assert world.invariants.decided.skips == 0
    given = [body for body in bodies_of(world.swarm.coordinator.disk) if isinstance(body, Reassign)]
    assert [body.reason for body in given] == ["owner alone has it"] * 2, "then it owns nothing"
    assert all(world.swarm.peers[body.owner].number != 1 for body in given)


def test_a_peer_that_boasts_of_its_samples_is_worth_four_others():
    world = run({1: Handicap(boasts=True)}, rounds=3)
    # Peer 2 has three times the samples of peer 0, a boast four times those of the median.
    assert weights_of(world, 1) == [255] * 3
    assert [weights_of(world, number)[0] for number in (0, 2)] == [21, 63]


def test_a_peer_whose_weights_are_no_numbers_withdraws_and_follows_the_others():
    world = run({1: Handicap(nonfinite_op=2)})
    excluded = world.invariants.excluded
    assert excluded[(2, 1)] == "withdrew:nonfinite"
    assert {number for _, number in excluded} == {1}
    assert max(world.invariants.decided.op_seconds.values()) < 0.1


def test_a_forger_that_loses_its_connection_is_still_refused():
    world = run(
        {1: Handicap(forges_scales=True)},
        rounds=2,
        faults=[Fault(75, blinkers=(1,)), Fault(85, (-1,))],
    )
    assert {reason for reason in world.invariants.excluded.values()} == {"refused:scale"}
