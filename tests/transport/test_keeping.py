"""A group whose members all die goes on from the state that others have kept."""

import pytest

from swarmtrain_transport.wire.records import Commit, Plan, Rewind, bodies_of
from tests.transport.keeper_swarm import KeeperSwarm
from tests.transport.rig import A, B, C, D, E


def begun(seed: int, **settings: object) -> KeeperSwarm:
    """A, B and C in group 0, D alone in group 1."""
    swarm = KeeperSwarm(seed, **{"min_contributors": 1, "rounds": 30, **settings})
    for peer in (A, B, C):
        swarm.add_to(peer, 0)
    swarm.add_to(D, 1)
    return swarm


@pytest.mark.parametrize("seed", range(6))
def test_whoever_is_given_a_group_that_lost_all_members_goes_on_from_what_keepers_hold(
    seed: int,
) -> None:
    swarm = begun(seed)
    view = swarm.hall.view.groups[1]
    assert swarm.until(lambda: view.committed >= 2 + seed)
    assert len(swarm.keepers(1)) == 2 and D not in swarm.keepers(1)
    assert not swarm.keepers(0), "it has three members"
    last = view.committed
    swarm.kill(D)
    assert swarm.until(lambda: D not in swarm.hall.view.roster)
    assert not view.members and view.committed - last <= 1
    last = view.last_op
    assert "keepers" in swarm.hall.status(swarm.now_s).groups[0].waiting_for
    swarm.add_to(E, 1)
    assert swarm.until(lambda: view.committed >= last + 2)
    assert not any(isinstance(one, Rewind) for one in swarm.outcomes(1))
    assert swarm.members[E].stages[1].saved[last], "the state was taken from the keepers"
    assert not any(member.faults or member.halted for member in swarm.members.values())


@pytest.mark.parametrize("seed", range(4))
def test_a_commit_waits_until_keepers_hold_the_result(seed: int) -> None:
    swarm = begun(seed)
    view = swarm.hall.view.groups[1]
    seen = 0
    while view.committed < 6:
        swarm.step()
        if view.committed > seen:
            seen = view.committed
            op = view.last_op
            waited_for = view.commits[op].plan.keepers
            assert set(waited_for) == swarm.keepers(1) or op == 1, "it has just been named"
            assert all(swarm.members[p].machine.keepers[1].op >= op - 1 for p in waited_for)
    plans = [one for one in bodies_of(swarm.records) if isinstance(one, Plan) and one.group == 1]
    assert all(spec.owner not in plan.keepers for plan in plans for spec in plan.slices)
    assert all(isinstance(one, Commit) for one in swarm.outcomes(1))
