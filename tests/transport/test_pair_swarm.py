"""Pair ops among whole machines: every message is encoded, every order is possible."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swarmtrain_transport.ledger.pairing import contributors_of
from swarmtrain_transport.wire.records import Commit, Plan
from tests.transport.pair_swarm import PairSwarm
from tests.transport.rig import A, B, C, D
from tests.transport.swarm import VALUES


@pytest.mark.parametrize("seed", range(6))
def test_partners_exchange_their_halves_and_their_chains_are_equal(seed):
    swarm = PairSwarm(seed, start_peers=4, rounds=4)
    for peer in (A, B, C, D):
        swarm.add(peer)
    assert swarm.run(30_000)
    assert [set(one.contributors) for one in swarm.outcomes] == [{A, B, C, D}] * 4
    swarm.check_exchanges()
    for op, pairs in swarm.pairs().items():
        for first, second in pairs:
            for me, other in ((first, second), (second, first)):
                given = swarm.members[me].steps[op]
                assert given[:VALUES] == tuple(other[0] * 100 + op * 10 + i for i in range(VALUES))
    views = [member.machine.view for member in swarm.members.values()]
    assert all(view.first.chains == swarm.hall.view.first.chains for view in views)
    (plan, *_) = swarm.bodies(Plan)
    assert [(spec.start, spec.stop) for spec in plan.slices] == [(0, 2 * VALUES)] * 4
    assert not any(member.faults for member in swarm.members.values())


@pytest.mark.parametrize("seed", range(3))
def test_the_odd_one_steps_alone_and_everybody_reports_a_state_of_its_own(seed):
    swarm = PairSwarm(seed, start_peers=3, rounds=4, min_contributors=3)
    for peer in (A, B, C):
        swarm.add(peer)
    assert swarm.run(30_000)
    assert all(isinstance(one, Commit) and len(one.contributors) == 2 for one in swarm.outcomes)
    swarm.check_exchanges()
    for plan in swarm.bodies(Plan):
        last = contributors_of(plan)[-1]
        assert swarm.members[last].steps[plan.op] == ()
    later = [one for one in swarm.attested if one.op]
    assert later and all(len(set(dict(one.roots).values())) > 1 for one in later)
    assert len({tuple(member.numbers) for member in swarm.members.values()}) == 3


@given(st.integers(0, 10_000), st.integers(0, 900), st.sampled_from(["death", "restart", "join"]))
@example(1124, 0, "death")  # a result followed at once on the state of a joiner
@settings(max_examples=12, deadline=None)
def test_whatever_happens_the_run_ends_and_partners_agree(seed, steps, what):
    swarm = PairSwarm(seed, start_peers=2, rounds=4)
    for peer in (A, B, C):
        swarm.add(peer)
    for _ in range(steps):
        swarm.step()
    synced = any(m.machine.applied_op >= 0 for p, m in swarm.members.items() if p != C)
    if what == "death" and synced:
        swarm.kill(C)
    elif what == "restart":
        swarm.restart_coordinator()
    else:
        swarm.add(D)
    for one in range(3):
        swarm.lose_frames(*((A, B), (B, C), (C, A))[one])
    assert swarm.run(80_000)
    swarm.check_exchanges()
    assert not any(member.faults for member in swarm.members.values())
    assert sum(isinstance(one, Commit) for one in swarm.outcomes) == 4


@pytest.mark.parametrize("seed", range(4))
def test_who_comes_back_after_an_exchange_takes_another_ones_later_state(seed):
    swarm = PairSwarm(seed, start_peers=2, rounds=6)
    for peer in (A, B):
        swarm.add(peer)
    assert swarm.until(lambda: len(swarm.outcomes) >= 3, 30_000)
    swarm.kill(B)
    swarm.add(B)  # without anything
    assert swarm.run(80_000)
    swarm.check_exchanges()
    assert sum(isinstance(one, Commit) for one in swarm.outcomes) == 6
