"""Two groups of different layouts in one run, peers in one or both, ops of both at once."""

import random

import msgspec
import pytest

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.audit import convicted, proof_from_bytes
from swarmtrain_transport.ledger.standing import Score
from swarmtrain_transport.wire.records import Commit, Group, Move, Rewind, Skip, bodies_of
from tests.transport.group_swarm import GroupSwarm
from tests.transport.ledger.test_audit import WrongArithmetic, evictions, until
from tests.transport.plain_arithmetic import PlainArithmetic
from tests.transport.rig import A, B, C, D, E, verify
from tests.transport.swarm import Swarm

STEPS = 60_000


def begun(seed: int, **settings: object) -> GroupSwarm:
    """A in group 0, B in both, C in group 1; ops begin with two."""
    swarm = GroupSwarm(seed, **{"start_peers": 2, "min_contributors": 1, "rounds": 4, **settings})
    swarm.add_to(A, 0)
    swarm.add_to(B, 0, 1)
    swarm.add_to(C, 1)
    return swarm


def ends(swarm: GroupSwarm, group: int) -> list[tuple[int, bool]]:
    outcomes = [body for body in bodies_of(swarm.records) if isinstance(body, Commit | Skip)]
    return [(one.op, isinstance(one, Commit)) for one in outcomes if one.group == group]


@pytest.mark.parametrize("seed", range(8))
def test_two_groups_train_side_by_side_with_one_peer_in_both(seed: int) -> None:
    swarm = begun(seed)
    assert swarm.run(STEPS)
    assert ends(swarm, 0) == ends(swarm, 1) == [(op, True) for op in range(1, 5)]
    assert (1, 1) in swarm.most_under_way, "ops of both were under way at once"
    assert not any(member.faults or member.halted for member in swarm.members.values())
    assert swarm.members[B].machine.view == swarm.hall.view
    assert [type(body) for body in bodies_of(swarm.records)].count(Group) == 1


@pytest.mark.parametrize("seed", range(8))
def test_groups_live_through_deaths_newcomers_and_a_coordinators_restart(seed: int) -> None:
    swarm = begun(seed, rounds=5)
    swarm.add_to(D, 0, 1)
    for _ in range(400 + 40 * seed):
        swarm.step()
    if seed % 2:
        swarm.kill(B)
        for _ in range(300):
            swarm.step()
        swarm.add_to(B, 1)
    else:
        swarm.restart_coordinator()
    assert swarm.run(STEPS)
    assert {op for op, done in ends(swarm, 0) if done} and {op for op, done in ends(swarm, 1)}
    assert all(view.committed == 5 for view in swarm.hall.view.groups.values())


@pytest.mark.parametrize("seed", range(4))
def test_who_is_moved_takes_the_other_groups_state_and_leaves_nothing_behind(seed: int) -> None:
    swarm = begun(seed, rounds=6)
    swarm.add_to(D, 0)
    while swarm.hall.view.groups[1].committed < 2:
        swarm.step()
    swarm.move(D, 1)
    assert swarm.run(STEPS)
    assert Move(D, (1,)) in bodies_of(swarm.records)
    member = swarm.members[D]
    assert list(member.machine.groups) == [1] and not member.halted
    assert member.machine.groups[1].place.applied_op == swarm.hall.view.groups[1].last_op


@pytest.mark.parametrize("seed", range(8))
def test_fragments_of_one_group_overlap_and_are_applied_in_order(seed: int) -> None:
    swarm = begun(seed, fragments=((8, 16), (16, 16, 8)), at_once=2, rounds=6)
    assert swarm.run(STEPS)
    assert [op for op, _ in ends(swarm, 0)] == sorted(op for op, _ in ends(swarm, 0))
    assert any(2 in counts for counts in swarm.most_under_way), "two ops of one group at once"
    assert (2, 2) in swarm.most_under_way or (1, 2) in swarm.most_under_way
    assert not any(member.faults or member.halted for member in swarm.members.values())


def test_status_tells_of_other_groups_and_a_run_of_one_says_nothing_of_them() -> None:
    swarm = begun(3)
    assert swarm.run(STEPS)
    status = swarm.hall.status(swarm.now_s)
    assert not isinstance(status.groups, msgspec.UnsetType)
    (other,) = status.groups
    assert (other.group, other.committed, other.rounds, other.num_values) == (1, 4, 4, 40)
    assert [one.peer for one in other.peers] == [B.hex(), C.hex()] and other.ops_under_way == ()
    assert other.wanted_root == swarm.members[C].stages[1].described()[0].root.hex()
    assert {(one.round, one.state_root) for one in other.peers} == {(4, other.wanted_root)}
    assert (other.phase, other.waiting_for) == ("finished", "")
    assert status.result.startswith("group 0: 4 rounds") and "group 1: 4 rounds" in status.result
    alone = Swarm(3).hall.status(0.0)
    assert b"groups" not in msgspec.json.encode(alone)


def test_status_says_why_a_group_stands_still_and_whose_state_of_it_is_how_old() -> None:
    swarm = begun(3, rounds=50, min_contributors=2)
    while swarm.hall.view.groups[1].committed < 2:
        swarm.step()
    swarm.kill(C)
    while C in swarm.hall.view.roster:
        swarm.step()
    while swarm.hall.groups[1].operations:
        swarm.step()
    status = swarm.hall.status(swarm.now_s)
    assert not isinstance(status.groups, msgspec.UnsetType)
    (other,) = status.groups
    assert (other.waiting_for, other.phase) == ("1 more peer", "training")
    assert status.waiting_for == "" and status.phase != "finished"
    assert [(one.peer, one.round) for one in other.peers] == [(B.hex(), other.round)]
    assert other.peers[0].state_root == swarm.members[B].stages[1].described()[0].root.hex()


def trained(seed: int, **settings: object) -> GroupSwarm:
    """Both groups have committed two ops of six."""
    swarm = begun(seed, rounds=6, **settings)
    while min(view.committed for view in swarm.hall.view.groups.values()) < 2:
        swarm.step()
    return swarm


def test_who_is_in_a_later_group_alone_is_not_taken_to_be_behind() -> None:
    swarm = trained(3)
    states = {one.peer: one.state for one in swarm.hall.status(swarm.now_s).peers}
    assert states[C.hex()] == states[B.hex()] != "syncing"


def test_who_is_in_a_later_group_alone_is_told_with_its_round_faults_and_exclusions() -> None:
    swarm = trained(3)
    group = swarm.hall.groups[1]
    group.chronicle.excluded(2, C, "late")
    group.chronicle.event(2, C, "late", "settled")
    swarm.hall.groups[0].chronicle.excluded(1, B, "lost")
    group.view.standing.contributors[C] = Score(until=99)
    status = swarm.hall.status(swarm.now_s)
    told = {one.peer: one for one in status.peers}[C.hex()]
    assert told.round == group.group_peers.here[C].applied_op > 0 and told.state_root
    assert told.rests == "in group 1: gives nothing up to round 99: at fault too often"
    assert [(one.round, one.group) for one in status.exclusions] == [(1, msgspec.UNSET), (2, 1)]
    assert (2, 1) in [(one.round, one.group) for one in status.events]


@pytest.mark.parametrize("seed", range(10))
def test_overlapping_ops_live_through_deaths_moves_restarts_and_lost_frames(seed: int) -> None:
    rng = random.Random(seed)
    swarm = begun(seed, fragments=((8, 16), (16, 16, 8)), at_once=2 + seed % 2, rounds=6)
    swarm.add_to(D, 0, 1)
    for _ in range(3):
        for _ in range(rng.randrange(50, 600)):
            swarm.step()
        match rng.choice(("death", "restart", "move", "loss")):
            case "death":
                peer = rng.choice(list(swarm.members))
                swarm.kill(peer)
                for _ in range(rng.randrange(10, 300)):
                    swarm.step()
                swarm.add_to(peer, 0, 1)
            case "restart":
                swarm.restart_coordinator()
            case "move":
                swarm.move(D, *rng.choice(((0,), (1,), (0, 1))))
            case _:
                source, target = rng.sample([A, B, C, D], 2)
                swarm.lose_frames(source, target)
    assert swarm.run(80_000)
    assert all(view.committed == 6 for view in swarm.hall.view.groups.values())
    assert not any(member.faults for member in swarm.members.values())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("peer", [A, B, C], ids=["in 0", "in both", "in 1"])
def test_who_comes_back_is_in_its_groups_and_has_the_states_that_it_saved(
    peer: bytes, seed: int
) -> None:
    swarm = trained(seed, min_contributors=2)
    old = swarm.members[peer]
    groups = set(old.machine.groups)
    swarm.kill(peer)
    for _ in range(10 * seed):
        swarm.step()
    swarm.come_back(old)
    again = swarm.members[peer]
    assert again.machine.groups.keys() == groups
    assert swarm.run(STEPS)
    assert again.machine.groups.keys() == groups and not again.halted
    assert all(view.committed == 6 for view in swarm.hall.view.groups.values())
    assert not any(member.faults for member in swarm.members.values())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("peer", [B, C], ids=["in both", "in 1"])
@pytest.mark.parametrize("remembers", [True, False], ids=["with its disk", "with its key alone"])
def test_who_was_gone_is_in_the_groups_that_it_was_placed_in(
    peer: bytes, seed: int, remembers: bool
) -> None:
    swarm = trained(seed, min_contributors=2)
    old = swarm.members[peer]
    groups = set(old.machine.groups)
    swarm.kill(peer)
    assert until(swarm, lambda: peer not in swarm.hall.view.roster)
    moves = [body for body in bodies_of(swarm.records) if isinstance(body, Move)]
    if remembers:
        swarm.come_back(old)
        assert swarm.members[peer].machine.groups.keys() == groups, "before it is let in"
    else:
        swarm.add_to(peer, 0)
    again = swarm.members[peer]
    assert swarm.run(STEPS)
    assert again.machine.groups.keys() == groups and not again.halted
    assert all(view.committed == 6 for view in swarm.hall.view.groups.values())
    assert [body for body in bodies_of(swarm.records) if isinstance(body, Move)] == moves


def test_a_hello_says_which_state_of_each_group_is_held() -> None:
    swarm = begun(5, rounds=3)
    assert swarm.run(STEPS)
    held = {
        peer: [(one.group, one.op) for one in member.machine.hello().states]
        for peer, member in swarm.members.items()
    }
    assert held == {A: [(0, 3)], B: [(0, 3), (1, 3)], C: [(1, 3)]}
    root = swarm.members[C].machine.hello().states[0].state_root
    assert root == swarm.members[C].machine.state_root == swarm.hall.view.groups[1].root_after(3)
    swarm.restart_coordinator()
    known = swarm.hall.groups[1].group_peers.here
    assert [known[peer].applied_op for peer in (B, C)] == [3, 3]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("lost", [0, 1])
def test_after_a_power_cut_a_group_goes_back_alone_to_the_newest_state_that_was_saved(
    seed: int, lost: int
) -> None:
    swarm = begun(seed, rounds=8)
    while min(view.last_op for view in swarm.hall.view.groups.values()) < 4:
        swarm.step()
    fallen = list(swarm.members.values())
    for one in fallen:
        swarm.kill(one.peer)
    stages = [stage for one in fallen for stage in one.stages.values()]
    newest = {lost: 2, 1 - lost: max(max(one.saved) for one in stages if one.group != lost)}
    due = {(g, op) for g, op in newest.items() if op < swarm.hall.view.groups[g].last_op}
    assert (lost, 2) in due
    swarm.restart_coordinator()
    for one in fallen:
        swarm.come_back(one, **{f"g{lost}": 2})
    assert swarm.run(STEPS)
    rewinds = [body for body in bodies_of(swarm.records) if isinstance(body, Rewind)]
    assert {(one.group, one.op) for one in rewinds} == due and len(rewinds) == len(due)
    assert all(view.committed == 8 for view in swarm.hall.view.groups.values())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_run_does_not_go_back_behind_a_state_that_is_still_being_loaded(
    seed: int, is_damaged: bool
) -> None:
    swarm = begun(seed, rounds=8)
    while min(view.last_op for view in swarm.hall.view.groups.values()) < 4:
        swarm.step()
    while min(max(stage.saved) for stage in swarm.members[B].stages.values()) < 4:
        swarm.step()
    fallen = dict(swarm.members)
    for peer in fallen:
        swarm.kill(peer)
    swarm.restart_coordinator()
    newest = {group: max(stage.saved) for group, stage in fallen[B].stages.items()}
    last = {group: view.last_op for group, view in swarm.hall.view.groups.items()}
    slow = swarm.come_back_slowly(fallen[B])
    for peer in (A, C):
        swarm.come_back(fallen[peer], g0=2, g1=2)
    for _ in range(2000):
        swarm.step()
    assert not any(isinstance(body, Rewind) for body in bodies_of(swarm.records))
    known = [swarm.hall.groups[group].group_peers.here[B].applied_op for group in (0, 1)]
    assert known == [newest[0], newest[1]]
    swarm.load_saved(slow, fallen[B], **({"g0": 2} if is_damaged else {}))
    assert swarm.run(STEPS)
    due = {(group, op) for group, op in newest.items() if op < last[group]}
    if is_damaged:
        due = {(0, 2), *((group, op) for group, op in due if group)}
    rewinds = [body for body in bodies_of(swarm.records) if isinstance(body, Rewind)]
    assert {(one.group, one.op) for one in rewinds} == due
    assert all(view.committed == 8 for view in swarm.hall.view.groups.values())


@pytest.mark.parametrize("seed", range(4))
def test_an_op_of_one_group_is_skipped_and_the_other_group_goes_on(seed: int) -> None:
    swarm = begun(seed, rounds=5, min_contributors=2)
    swarm.add_to(D, 0)
    while not swarm.hall.groups[1].operations:
        swarm.step()
    old = swarm.members[C]
    swarm.kill(C)
    while not any(isinstance(body, Skip) for body in bodies_of(swarm.records)):
        swarm.step()
    swarm.come_back(old)
    assert swarm.run(STEPS)
    skips = [body for body in bodies_of(swarm.records) if isinstance(body, Skip)]
    assert {one.group for one in skips} == {1}
    assert all(view.committed == 5 for view in swarm.hall.view.groups.values())


def swarm_with_a_liar_in_group_1(seed: int) -> GroupSwarm:
    """A and three others in group 0, B, C and D in group 1, and E too, whose sums are wrong."""
    swarm = GroupSwarm(seed, start_peers=2, min_contributors=1, rounds=200)
    for peer in (A, *(bytes([number]) * 32 for number in (10, 11, 12))):
        swarm.add_to(peer, 0)
    for peer in (B, C, D):
        swarm.add_to(peer, 1)
    swarm.add_to(E, 1, arithmetic=WrongArithmetic())
    return swarm


@pytest.mark.parametrize("seed", range(4))
def test_a_wrong_sum_is_judged_by_the_group_that_it_is_of(seed: int) -> None:
    swarm = swarm_with_a_liar_in_group_1(seed)
    assert until(swarm, lambda: bool(evictions(swarm)), 20_000)
    (gone,) = evictions(swarm)
    assert gone.peer == E and gone.group == 1 and gone.conviction is not None
    kept = next(one for peer in (B, C, D) for one in swarm.members[peer].proofs)
    proof, op = proof_from_bytes(kept.data), gone.conviction.op
    assert kept.group == proof.group == 1 and proof.op == kept.op
    views = swarm.hall.view.groups
    if kept.op == op:
        assert convicted(proof, views[1].commits[op], PlainArithmetic(), verify) == E
    other = next(iter(views[0].commits.values()))
    elsewhere = msgspec.structs.replace(proof, op=other.plan.op)
    with pytest.raises(RemoteFault, match="not about what the ledger has drawn"):
        convicted(elsewhere, other, PlainArithmetic(), verify)
