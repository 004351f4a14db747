"""A run in stages with the production machines on both sides, messages in any order."""

import pytest

from swarmtrain_transport.coordinator.stages.stage_rounds import PipelineTerms
from swarmtrain_transport.pipeline.coordinator.assignment import StageNeed
from swarmtrain_transport.wire.records import Commit, Gone, Move, Plan, bodies_of
from tests.transport.rig import A, B, C, D
from tests.transport.stage_swarm import StageSwarm

PLACES = {A: (0,), B: (0,), C: (1,), D: (1,)}
ROUNDS = 4


def swarm_of(seed: int, steps: int = 0, rounds: int = ROUNDS) -> StageSwarm:
    swarm = StageSwarm(seed, PipelineTerms(4, steps, clips=steps > 0, start_peers=4), rounds=rounds)
    for peer, groups in PLACES.items():
        swarm.add_to(peer, *groups)
    return swarm


def commits(swarm: StageSwarm, group: int) -> list[Commit]:
    return [b for b in bodies_of(swarm.records) if isinstance(b, Commit) and b.group == group]


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("seed", range(6))
def test_both_stages_have_all_their_rounds(seed: int, steps: int) -> None:
    swarm = swarm_of(seed, steps)
    assert swarm.run(60_000), [m.settled for m in swarm.members.values()]
    for group in (0, 1):
        assert [commit.op for commit in commits(swarm, group)] == [*range(1, ROUNDS + 1)]
    assert not any(member.faults or member.halted for member in swarm.members.values())
    assert ROUNDS in swarm.hall.first.chronicle.losses  # the last one at least is not overtaken
    given = [plan for plan in bodies_of(swarm.records) if isinstance(plan, Plan)]
    assert all(any(one.weight for one in plan.members) for plan in given)


def run_with(swarm: StageSwarm, faults: dict[int, str]) -> None:
    """Run until all rounds are committed, with faults before so many steps."""
    peers = list(PLACES)
    for number in range(400_000):
        if swarm.hall.is_finished:  # who comes now is told so
            return
        fault = faults.get(number, "")
        peer = peers[number % len(peers)]
        if fault == "cut":
            swarm.connect(peer)
        elif fault == "die":
            swarm.begin_anew(peer)
        elif fault == "restart":
            swarm.restart_coordinator()
        swarm.step()
    told = {peer[:1]: (m.settled, m.machine.applied_op) for peer, m in swarm.members.items()}
    raise AssertionError(f"the run does not end: {told} at {swarm.now_s}")


@pytest.mark.parametrize("fault", ["cut", "die", "restart"])
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_run_goes_on_after_what_may_happen_in_it(seed: int, steps: int, fault: str) -> None:
    swarm = swarm_of(seed, steps)
    run_with(swarm, dict.fromkeys(range(150 + 13 * seed, 3000, 401), fault))
    for group in (0, 1):
        assert len(commits(swarm, group)) >= ROUNDS
    assert not any(member.faults or member.halted for member in swarm.members.values())


@pytest.mark.parametrize("steps", [0, 2])
def test_a_process_that_comes_back_after_it_was_given_up_begins_anew(steps: int) -> None:
    swarm = swarm_of(1, steps, rounds=10_000)
    for _ in range(700):
        swarm.step()
    away = swarm.members[C]
    swarm.kill(C)
    gone_s = swarm.now_s
    while C in swarm.hall.view.roster:
        swarm.step()
    assert swarm.now_s < gone_s + 100
    swarm.members[C] = away
    swarm.connect(C)
    for _ in range(4000):
        swarm.step()
    again = swarm.members[C]
    assert again is not away and len(again.settled) > 3
    assert [*again.settled] == [*range(again.settled[0], again.settled[-1] + 1)]


@pytest.mark.parametrize("seed", range(4))
def test_a_stage_that_has_lost_all_its_peers_gets_one_of_another_stage(seed: int) -> None:
    needs = (StageNeed(4.0, 0, 0, 0, 0), StageNeed(5.0, 0, 0, 0, 0))
    swarm = StageSwarm(seed, PipelineTerms(4, start_peers=4), needs, rounds=ROUNDS)
    for peer, stage in ((A, 0), (B, 1), (C, 0), (D, 1)):  # as joiners get them
        swarm.add_to(peer, stage)
    for _ in range(300 + 40 * seed):
        swarm.step()
    assert not any(isinstance(body, Gone) for body in bodies_of(swarm.records))
    before = len(swarm.records)
    swarm.kill(B)
    swarm.kill(D)
    for _ in range(20_000):
        swarm.step()
    later = [*bodies_of(swarm.records)][before:]
    gone = [body.peer for body in later if isinstance(body, Gone) and body.evicted]
    moves = [body for body in later if isinstance(body, Move)]
    assert {B, D} <= {*gone}
    # The other one of stage 0 is alone there now, and stays.
    assert [(body.peer in (A, C), body.groups) for body in moves] == [(True, (1,))]


@pytest.mark.parametrize("steps", [0, 2])
def test_a_peer_of_a_fast_stage_moves_to_a_slow_one_and_gives_there(steps: int) -> None:
    needs = (StageNeed(4.0, 0, 0, 0, 0), StageNeed(5.0, 0, 0, 0, 0))
    swarm = StageSwarm(1, PipelineTerms(4, steps, start_peers=6), needs, rounds=10_000)
    first, second, third, *others = (bytes([number]) * 32 for number in range(1, 7))
    people = (first, others[0], second, others[1], third, others[2])
    for number, peer in enumerate(people):  # as joiners get them
        swarm.add_to(peer, number % 2)
    while not commits(swarm, 1):
        swarm.step()
    for peer in others[1:]:
        swarm.kill(peer)
    before = len(commits(swarm, 0))
    moves: list[Move] = []
    while not moves or not any(moves[0].peer in one.contributors for one in commits(swarm, 1)):
        assert len(swarm.records) < 2000
        for _ in range(100):
            swarm.step()
        moves = [b for b in bodies_of(swarm.records) if isinstance(b, Move) and "make" in b.why]
    (move,) = moves
    assert move.peer in (first, second, third) and move.groups == (1,)
    # What it counted in its old stage is in there: it left when its last round had its outcome.
    given = [{*made.contributors} for made in commits(swarm, 0)[before:]]
    last = max(op for op, peers in enumerate(given) if move.peer in peers)
    assert all({first, second, third} == peers for peers in given[: last + 1])
    assert not any(member.faults or member.halted for member in swarm.members.values())
