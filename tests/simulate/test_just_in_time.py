"""A member that is just in time, again and again, costs the others a tenth of their time.

Virtual time, no chance of faults: rounds a second with one such member are compared with those of
the same world undisturbed, after three times what it may waste before it is not waited for.
"""

from functools import cache

import pytest

from swarmtrain.simulate.ground import misbehaviour as deeds
from swarmtrain.simulate.ground.misbehaviour import Deed
from swarmtrain.simulate.world import World
from swarmtrain_transport import limits
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR

BEGINS_S = 10.0
JUDGED_S = 30.0
HOSTILE = 1
"""Not the first peer, who gives the run's first state."""

CASES = [
    *[(MEAN, 4, deed) for deed in (*deeds.LATE, *deeds.DRAGS)],
    *[(MEAN, 2, deed) for deed in (deeds.LATE_READY, deeds.LATE_SUMS)],
    *[(GATHER, 4, deed) for deed in (deeds.LATE_SUMS, deeds.GREEDY)],
    *[(PAIR, 4, deed) for deed in (deeds.LATE_WORD, deeds.MUTE)],
]
"""Of two, one that is late to say that it holds a result is waited for: no majority can do without
its word."""


@cache
def rate(kind: str, peers: int, deed: str = "") -> float:
    """Commits a virtual second from when the bar has had three times its time."""
    world = World(peers, rounds=1 << 30, seed=3, kind=kind)
    world.start()
    peer = list(world.swarm.peers)[HOSTILE]
    if deed:
        world.scene.clock.after(BEGINS_S, lambda: world.scene.misbehave(peer, Deed(deed)))
    judged_s = BEGINS_S + 3 * limits.LATE_LEAST_S
    before: list[int] = []
    world.scene.clock.after(judged_s, lambda: before.append(world.invariants.decided.commits))
    while world.scene.clock.step(judged_s + JUDGED_S):
        assert not world.violations, world.violations
    return (world.invariants.decided.commits - before[0]) / JUDGED_S


@pytest.mark.parametrize(("kind", "peers", "deed"), CASES)
def test_who_is_just_in_time_costs_less_than_half_of_the_rounds(kind, peers, deed):
    assert rate(kind, peers, deed) >= 0.5 * rate(kind, peers)
