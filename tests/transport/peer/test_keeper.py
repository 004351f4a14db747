"""A group whose members all die goes on from the state that others have kept."""

from itertools import pairwise

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.actions import SendControl
from swarmtrain_transport.blocks.shelf import MemoryShelf
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.peer.keeper import Keeper, Pieces
from swarmtrain_transport.wire.messages import Kept
from swarmtrain_transport.wire.records import Commit, Plan, Rewind, bodies_of
from tests.transport.peer.keeper_swarm import KeeperSwarm
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
    assert swarm.keepers(0) == {D}, "it has three members, who may all die at once"
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


def test_status_tells_who_holds_the_state_while_its_members_are_away() -> None:
    swarm = begun(0)
    view, keepers = swarm.hall.view.groups[1], swarm.hall.groups[1].keepers
    assert swarm.until(lambda: view.committed >= 2 and len(keepers.holding) > 1 and not view.ops)
    swarm.kill(D)
    told = swarm.hall.status(swarm.now_s).groups[0].waiting_for
    assert told.endswith(f") the state after round {view.last_op}") and "nobody" not in told
    assert " to come back, or another peer to take over from its keepers (" in told


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


def orphaned(seed: int) -> tuple[KeeperSwarm, int]:
    """Group 1 has lost its only member; the newest op that has an outcome."""
    swarm = begun(seed)
    view = swarm.hall.view.groups[1]
    assert swarm.until(
        lambda: view.committed >= 3 and len(swarm.hall.groups[1].keepers.holding) > 1
    )
    swarm.kill(D)
    assert swarm.until(lambda: D not in swarm.hall.view.roster and not view.ops)
    return swarm, view.last_op


@pytest.mark.parametrize("seed", range(4))
def test_a_keeper_that_is_moved_into_the_group_goes_on_with_what_it_has_itself(seed: int) -> None:
    swarm, last = orphaned(seed)
    heir, *others = sorted(swarm.hall.groups[1].keepers.holding)
    for other in others:
        swarm.kill(other)
    swarm.move(heir, 0, 1)
    assert [name for name in swarm.shelves[heir].names() if name.startswith("1/")]
    assert swarm.until(lambda: swarm.hall.view.groups[1].last_op >= last + 2)
    assert not [name for name in swarm.shelves[heir].names() if name.startswith("1/")]
    assert not any(isinstance(one, Rewind) for one in swarm.outcomes(1))
    assert not any(member.faults or member.halted for member in swarm.members.values())


@pytest.mark.parametrize("seed", range(4))
def test_a_keeper_that_comes_back_has_kept_it_on_its_disk(seed: int) -> None:
    swarm, last = orphaned(seed)
    for peer in swarm.keepers(1):
        old = swarm.members[peer]
        swarm.kill(peer)
        swarm.come_back(old)
    assert swarm.until(lambda: len(swarm.hall.groups[1].keepers.holding) == 2)
    swarm.add_to(E, 1)
    assert swarm.until(lambda: swarm.hall.view.groups[1].last_op >= last + 2)
    assert not any(isinstance(one, Rewind) for one in swarm.outcomes(1))


def test_what_an_earlier_life_has_kept_is_checked_some_at_a_time() -> None:
    """Hashing all of it at once would keep the network thread from everything else."""
    shelf, hashed = MemoryShelf(), []
    blobs = {content_hash(data): data for data in (b"a" * 10, b"b" * 10, b"c" * 10)}
    Pieces(shelf, 1).update(blobs)
    Pieces(shelf, 2)[content_hash(b"other")] = b"other"
    pieces = Pieces(shelf, 1)
    shelf.kept[pieces.name(content_hash(b"c" * 10))] = b"x" * 10
    shelf.get = lambda name, *_: hashed.append(name) or shelf.kept[name]
    calls = [pieces.check_some(10) for _ in range(3)]
    assert calls == [False, False, True] and len(hashed) == 3
    assert set(pieces) == {content_hash(data) for data in (b"a" * 10, b"b" * 10)}
    assert set(pieces) <= {digest for digest in blobs if digest in pieces} and len(hashed) == 3


def test_a_keeper_that_checks_slowly_comes_back_all_the_same(monkeypatch) -> None:
    monkeypatch.setattr(limits, "KEPT_CHECK_BYTES", 1)
    test_a_keeper_that_comes_back_has_kept_it_on_its_disk(0)


@pytest.mark.parametrize("seed", range(4))
def test_keepers_are_known_after_a_restart_of_the_coordinator(seed: int) -> None:
    swarm, last = orphaned(seed)
    kept = swarm.keepers(1)
    swarm.restart_coordinator()
    assert swarm.until(lambda: swarm.hall.groups[1].keepers.holding == kept == swarm.keepers(1))
    swarm.add_to(E, 1)
    assert swarm.until(lambda: swarm.hall.view.groups[1].last_op >= last + 2)


def test_all_keepers_but_one_are_released_and_forget_when_three_members_hold_the_state() -> None:
    swarm = begun(3)
    assert swarm.until(lambda: len(swarm.hall.groups[1].keepers.holding) == 2)
    kept = swarm.keepers(1)
    for peer in (E, b"\x06" * 32):
        swarm.add_to(peer, 1)
    assert swarm.until(lambda: len(swarm.keepers(1)) == 1)
    (released,) = kept - swarm.keepers(1)
    assert swarm.until(lambda: not swarm.members[released].machine.keepers)
    assert not swarm.shelves[released].kept
    left, committed = swarm.keepers(1), swarm.hall.view.groups[1].committed
    assert swarm.until(lambda: swarm.hall.view.groups[1].committed >= committed + 3)
    assert swarm.keepers(1) == left


@pytest.mark.parametrize("seed", range(4))
def test_three_members_that_die_at_once_lose_nothing(seed: int) -> None:
    swarm = begun(seed)
    view = swarm.hall.view.groups[0]
    assert swarm.until(lambda: view.committed >= 3 and swarm.hall.groups[0].keepers.holding)
    for peer in (A, B, C):
        swarm.kill(peer)
    assert swarm.until(lambda: not view.members and not view.ops)
    last = view.last_op
    swarm.add_to(E, 0)
    assert swarm.until(lambda: view.last_op >= last + 2)
    assert not any(isinstance(one, Rewind) for one in swarm.outcomes(0))


def test_nobody_is_asked_to_keep_what_is_finished() -> None:
    swarm = begun(2, rounds=3)
    assert swarm.until(lambda: swarm.hall.is_finished)
    named = swarm.moves()
    swarm.kill(min(swarm.keepers(1)))
    assert swarm.run(30_000) and swarm.moves() == named


def test_who_has_no_room_keeps_nothing() -> None:
    swarm = begun(1, without_room=(A, B))
    assert swarm.until(lambda: swarm.hall.view.groups[1].committed >= 3)
    assert swarm.keepers(1) == {C}


def deaf(swarm: KeeperSwarm, peer: bytes) -> None:
    """This peer's data lane is dead from now on."""
    for other in set(swarm.members) - {peer}:
        swarm.lose_frames(other, peer)


@pytest.mark.parametrize("seed", range(4))
def test_a_keeper_that_takes_nothing_costs_one_op_its_time_and_is_replaced(seed: int) -> None:
    swarm = begun(seed, rounds=1000)
    swarm.add_to(E, 0)
    view, kept = swarm.hall.view.groups[1], swarm.hall.groups[1].keepers
    assert swarm.until(lambda: view.committed >= 2 and len(kept.holding) == 2)
    bad = min(swarm.keepers(1))
    ended_s, goal = {view.last_op: swarm.now_s}, view.committed + 8

    def goes_on() -> bool:
        deaf(swarm, bad)
        ended_s.setdefault(view.last_op, swarm.now_s)
        return view.committed >= goal

    assert swarm.until(goes_on)
    deadline_s = view.commits[view.last_op].plan.deadline_s
    assert sum(after - before > deadline_s / 2 for before, after in pairwise(ended_s.values())) == 1
    if bad in swarm.keepers(1):  # it lacks an earlier result, too
        swarm.now_s += limits.HOLD_S
    assert swarm.until(lambda: bad not in swarm.keepers(1))
    assert swarm.until(lambda: len(kept.holding) == 2)
    assert bad not in swarm.keepers(1), "it is not named again at once"


def test_a_keeper_goes_back_with_the_run_and_says_no_more_than_it_holds() -> None:
    swarm = begun(0)
    view = swarm.hall.view.groups[1]

    def with_results() -> list[Keeper]:
        kept = [swarm.members[peer].machine.keepers.get(1) for peer in sorted(swarm.keepers(1))]
        return [
            one for one in kept if one is not None and one._snapshot and one.op > one._snapshot[0]
        ]

    assert swarm.until(lambda: view.committed >= 3 and with_results())
    keeper = with_results()[0]
    before = keeper.op
    keeper.forget_after(before - 1)
    assert keeper.op == before - 1
    sent = [one.message for one in keeper.resend(swarm.now_s) if isinstance(one, SendControl)]
    assert [said.op for said in sent if isinstance(said, Kept)] == [before - 1]
