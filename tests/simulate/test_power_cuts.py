"""All processes die at once, just as one of them has applied a result: whoever has its disk still
brings the run back, also where it needs others for a round."""

import pytest

from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.peer_disk import PeerDisk
from swarmtrain.simulate.world import World
from swarmtrain_transport.kinds import GATHER, MEAN

OP = 4
"""Its state is among those that a simulated peer saves."""


def after_a_cut(least: int, seed: int, **settings) -> World:
    """The others of three peers come back with their keys and without any state; rounds need so
    many contributors."""
    world = World(3, rounds=8, min_contributors=least, latency_s=0.03, seed=seed, **settings)
    swarm, clock, rooted = world.swarm, world.scene.clock, world.invariants.rooted
    kept: list[SimPeer] = []

    def cut() -> None:
        peers = list(swarm.survivors)
        for peer in peers:
            peer.kill()
        swarm.crash_coordinator(1.0)
        for peer in peers:
            disk = peer.disk if peer is kept[0] else PeerDisk()
            clock.after(2.0, lambda peer=peer, disk=disk: swarm.come_back(peer, disk))

    def seen(peer: SimPeer, op: int, root: bytes) -> None:
        rooted(peer, op, root)
        if op == OP and not kept:
            kept.append(peer)
            clock.after(0.001, cut)

    world.invariants.rooted = seen
    world.start()
    world.run(until_s=300.0)
    return world


@pytest.mark.parametrize("least", [1, 2, 3])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {"kind": MEAN},
        {"kind": GATHER},
        {"strategy_name": "streaming", "fragments": 3, "ops_at_once": 3},
    ],
    ids=["mean", "gather", "overlapping"],
)
def test_a_state_that_one_disk_alone_holds_is_the_runs(least: int, seed: int, settings) -> None:
    world = after_a_cut(least, seed, **settings)
    assert not world.violations, world.violations
    assert world.invariants.decided.commits == 8
