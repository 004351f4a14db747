"""Members that lie of others, and such as give nothing: nobody honest is left out for them, the
rounds go on at a bounded cost, and in the end they own nothing."""

import pytest

from swarmtrain.simulate.faults.plan import Fault
from swarmtrain.simulate.faults.troubles import DRAG, HOSTILE_WORDS
from swarmtrain.simulate.ground.handicaps import Handicap
from swarmtrain.simulate.ground.misbehaviour import (
    DRAGS,
    GREEDY,
    MUTE,
    OMITS,
    REFUSES,
    WITHHOLDS,
    WORDS,
    Deed,
)
from swarmtrain.simulate.seeds import run_seed
from swarmtrain.simulate.world import World
from swarmtrain_transport import limits
from swarmtrain_transport.kinds import GATHER, MEAN, PAIR, WHOLE
from swarmtrain_transport.wire.records import Commit, Reassign, bodies_of

ROUNDS = 40
LIAR = 1


def run(deeds: dict[int, Deed], *, peers: int = 5, rounds: int = ROUNDS, **settings) -> World:
    """A world in which these members, by number, do so from their first round on."""
    world = World(peers, rounds=rounds, **settings)
    world.start()

    def begin() -> None:
        for peer in world.swarm.survivors:
            if peer.number in deeds:
                world.scene.misbehave(peer.peer_id, deeds[peer.number])

    world.scene.clock.after(0.2, begin)
    world.run()
    assert not world.violations, world.violations
    assert world.invariants.decided.commits == rounds
    return world


def wrong_rounds(world: World) -> list[int]:
    """Rounds in which an honest peer's work is missing somewhere."""
    honest = {peer for peer in world.swarm.peers if peer not in world.scene.deeds}
    bodies = bodies_of(world.swarm.coordinator.disk)
    commits = [body for body in bodies if isinstance(body, Commit)]
    if world.scene.conditions.kind in WHOLE:
        return [body.op for body in commits if not honest <= set(body.contributors)]
    return [
        body.op
        for body in commits
        if not all(honest <= set(piece.contributors) for piece in body.slices)
    ]


def owned(world: World, number: int) -> list[int]:
    """Rounds in which a peer was to own something."""
    return [
        op
        for op, plan in world.invariants.decided.plans.items()
        if any(world.swarm.peers[spec.owner].number == number for spec in plan.slices)
    ]


def waited(world: World) -> list[int]:
    """Rounds that lasted until a deadline."""
    return [
        op for op, s in world.invariants.decided.op_seconds.items() if s > limits.D_SCATTER * 20 - 1
    ]


@pytest.mark.parametrize("rule", ["", "median"])
@pytest.mark.parametrize("wanders", [False, True])
@pytest.mark.parametrize("kind", WORDS)
def test_one_liar_of_five_keeps_nobody_out_and_owns_nothing_in_the_end(kind, wanders, rule):
    world = run({LIAR: Deed(kind, wanders=wanders)}, rule=rule)
    assert world.invariants.decided.skips == 0
    assert not world.invariants.excluded and not wrong_rounds(world)
    assert len(waited(world)) <= ROUNDS // 4
    assert len(owned(world, LIAR)) <= ROUNDS // 5 and max(owned(world, LIAR)) < ROUNDS
    standing, everybody = (
        world.swarm.coordinator.machine.view.first.standing,
        set(world.swarm.peers),
    )
    unfit = standing.unfit(ROUNDS + 1, everybody).keys()
    assert world.scene.deeds.keys() <= unfit | standing.sidelined(ROUNDS + 1, everybody)


@pytest.mark.parametrize("kinds", [(OMITS, OMITS), (REFUSES, "denies"), (WITHHOLDS, OMITS)])
@pytest.mark.parametrize("wanders", [False, True])
def test_two_of_five_that_conspire_leave_nobody_out_of_a_median(kinds, wanders):
    deeds = {LIAR: Deed(kinds[0], wanders=wanders), 3: Deed(kinds[1], wanders=wanders)}
    world = run(deeds, rule="median")
    assert world.invariants.decided.skips == 0
    assert not world.invariants.excluded and not wrong_rounds(world)
    assert len(waited(world)) <= 2 * ROUNDS // 5


def test_whoever_refuses_costs_no_time_at_all():
    quiet, loud = run({}), run({LIAR: Deed(REFUSES)})
    assert max(loud.invariants.decided.op_seconds.values()) < 0.1
    assert loud.scene.clock.now_s < quiet.scene.clock.now_s + 2


OF_OPS = [(kind, MEAN) for kind in DRAGS]
OF_OPS += [(kind, whole) for whole in (GATHER, PAIR) for kind in (MUTE, GREEDY)]
"""There are no parts to be kept back where contributions stay whole: what is published is had."""


@pytest.mark.parametrize(("kind", "op_kind"), OF_OPS)
def test_a_drag_is_waited_for_three_times_and_then_less_and_less_often(kind, op_kind):
    world = run({LIAR: Deed(kind)}, kind=op_kind)
    slow = waited(world)
    assert slow[0] == 1 and len(slow) <= 8 + 4 * (op_kind == PAIR)
    assert world.invariants.decided.skips == 0
    if op_kind != PAIR:
        assert slow == [1, 2, 3, 5, 8, 13, 22, 39][: len(slow)]
        assert not wrong_rounds(world)


def test_where_all_are_needed_a_drag_is_planned_with_after_all():
    world = World(4, rounds=ROUNDS, min_contributors=4)
    world.start()

    def begin() -> None:
        world.scene.misbehave(world.swarm.survivors[LIAR].peer_id, Deed(MUTE))

    world.scene.clock.after(0.2, begin)
    world.run(until_s=300.0)
    assert world.invariants.decided.skips > 10
    decided = world.invariants.decided
    contributors = [len(decided.weights(op)) for op in decided.plans]
    assert set(contributors) == {4}


def test_a_restarted_coordinator_has_forgotten_nothing():
    deeds = {LIAR: Deed(MUTE)}
    crashes = [Fault(1200 * number, (-1,)) for number in range(1, 5)]
    world = run(deeds, faults=crashes)
    assert waited(world) == [1, 2, 3], "then nobody waits for it"
    assert len(waited(world)) <= 8
    assert not wrong_rounds(world)


def test_two_peers_of_whom_one_is_slow_go_on():
    world = World(2, rounds=25, handicaps={LIAR: Handicap(lag_s=12.0)})
    world.start()
    world.run()
    assert not world.violations
    assert (world.invariants.decided.commits, world.invariants.decided.skips) == (25, 0)
    assert len(waited(world)) <= 4


@pytest.mark.parametrize("kind", [*WORDS, *DRAGS])
@pytest.mark.parametrize("peers", [2, 3])
def test_few_peers_go_on_whatever_one_of_them_does(kind, peers):
    world = run({LIAR: Deed(kind)}, peers=peers, rounds=25)
    assert world.invariants.decided.skips <= 5
    assert len(waited(world)) <= 12


def test_one_bad_link_moves_a_slice_and_is_then_avoided():
    world = World(4, rounds=ROUNDS, faults=[Fault(0, cuts=((0, 2),))])
    world.start()
    world.run()
    assert not world.violations
    moved = {b.op for b in bodies_of(world.swarm.coordinator.disk) if isinstance(b, Reassign)}
    assert len(moved) <= 5 and not world.invariants.excluded


@pytest.mark.parametrize("kinds", [(HOSTILE_WORDS,), (DRAG,)])
def test_worlds_with_other_troubles_keep_every_promise_beside_them(kinds):
    for seed in range(4):
        result = run_seed(seed, 4, 6, kinds=(*kinds, "restart", "lost frames", "stop", "death"))
        assert not result.violations
    assert any(run_seed(seed, 4, 6, kinds=kinds).faults for seed in range(4))


def test_who_is_barred_stays_so_where_all_others_are_at_odds():
    """Once, amid many cuts, everybody but a drag was at odds with somebody: it was planned with,
    owned a slice, and nobody was left to take it; each op was skipped for seven rounds."""
    result = run_seed(202, 4, 10)
    assert not result.violations and result.skips < 8


def test_greedy_members_are_named_by_commit():
    world = run({LIAR: Deed(GREEDY)}, rounds=8)
    liar = next(iter(world.scene.deeds))
    bodies = bodies_of(world.swarm.coordinator.disk)
    named = [body.op for body in bodies if isinstance(body, Commit) and body.behind == (liar,)]
    assert named == [1, 2], "then nobody waits for it"
