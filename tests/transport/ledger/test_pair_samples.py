"""A schedule by tokens where ops go by pairs: everybody knows what all have trained on."""

import pytest

from swarmtrain_transport.ledger.pairing import contributors_of
from swarmtrain_transport.wire.records import Commit, Plan
from tests.transport.pair_swarm import PairMember, PairSwarm
from tests.transport.rig import A, B, C, D


class Counting(PairMember):
    """Remembers what each result says of samples, before it and in it."""

    def __init__(self, *args, **settings) -> None:
        super().__init__(*args, **settings)
        self.told: dict[int, tuple[int, int]] = {}

    def after(self, result):
        self.told[result.op] = result.samples_before, result.samples
        return super().after(result)


class CountingSwarm(PairSwarm):
    member_type = Counting


def naive_counts(swarm: PairSwarm) -> dict[int, tuple[int, int]]:
    """The same, read off the records one by one: who steps alone has trained as well."""
    plans = {plan.op: plan for plan in swarm.bodies(Plan)}
    total, counts = 0, {}
    for commit in swarm.bodies(Commit):
        plan = plans[commit.op]
        assert len(plan.samples) == len(contributors_of(plan))
        added = sum(plan.samples)
        counts[commit.op] = total, added
        total += added
    return counts


@pytest.mark.parametrize("seed", range(3))
def test_a_pair_in_it_and_the_odd_one_and_a_newcomer_know_all_samples_before_an_op(seed: int):
    swarm = CountingSwarm(seed, start_peers=3, rounds=5, counts_samples=True)
    for peer in (A, B, C):
        swarm.add(peer)
    assert swarm.until(lambda: len(swarm.outcomes) >= 2, 30_000)
    swarm.add(D)
    assert swarm.run(60_000)
    wanted = naive_counts(swarm)
    assert len(wanted) == 5 and all(added > 0 for _, added in wanted.values())
    for member in swarm.members.values():
        assert member.told == {op: wanted[op] for op in member.told}
        assert max(member.told) == 5
