"""Moves of peers from fast stages to slow ones: who, and when."""

import itertools
import random
from dataclasses import replace

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.coordinator.assignment import (
    Server,
    StageNeed,
    choose,
    next_move,
    stage_rates,
)
from swarmtrain_transport.pipeline.coordinator.books import Books, books_of
from swarmtrain_transport.pipeline.coordinator.moves import Moves, Moving
from swarmtrain_transport.pipeline.coordinator.rounds import Rounds
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.orders import Made, Member, marks
from swarmtrain_transport.pipeline.wire.route import Process, Span

EVEN = (StageNeed(100.0, 1000, 0, 500, 0),) * 3
FIRST, SECOND, THIRD = (range(stage, stage + 1) for stage in range(3))


def spread(*counts: int, **known: float) -> list[Server]:
    """So many peers on each stage."""
    return [
        Server(range(stage, stage + 1), **known)
        for stage, count in enumerate(counts)
        for _ in range(count)
    ]


def moved(needs: tuple[StageNeed, ...], servers: list[Server]) -> list[list[Server]]:
    """The swarm before and after each move, until none is due."""
    states = [servers]
    while (found := next_move(needs, states[-1], range(len(servers)))) is not None:
        after = list(states[-1])
        after[found.place] = replace(after[found.place], span=range(found.stage, found.stage + 1))
        states.append(after)
        assert len(states) < 1000
    return states


def counts(servers: list[Server]) -> list[int]:
    return [sum(stage in (one.span or ()) for one in servers) for stage in range(3)]


# ---- the choice


def test_peers_go_one_by_one_from_the_fastest_stage_to_the_slowest() -> None:
    first = next_move(EVEN, spread(5, 1, 1, flops_per_s=800.0), range(7))
    assert first is not None
    assert first.why == "stage 1 can make 2 micro-batches a second, stage 0 10"
    assert [counts(state) for state in moved(EVEN, spread(5, 1, 1))] == [
        [5, 1, 1], [4, 2, 1], [3, 2, 2]
    ]  # fmt: skip


@pytest.mark.parametrize("numbers", [(1, 1, 1), (2, 2, 2), (3, 2, 2), (2, 3, 2)])
def test_a_swarm_at_its_best_stays(numbers: tuple[int, ...]) -> None:
    assert next_move(EVEN, spread(*numbers), range(sum(numbers))) is None


def test_speeds_that_differ_by_chance_move_nobody() -> None:
    rng = random.Random(3)
    for _ in range(200):
        servers = [replace(one, flops_per_s=rng.uniform(0.95, 1.05)) for one in spread(6, 6, 5)]
        assert next_move(EVEN, servers, range(17)) is None


def test_whoever_raises_the_slowest_most_goes_and_of_equals_the_slower_one() -> None:
    fast, slow = Server(FIRST, 4.0), Server(FIRST, 1.0)
    found = next_move(EVEN[:2], [fast, slow, Server(SECOND, 1.0), slow], range(4))
    assert found is not None and (found.place, found.stage) == (1, 1)
    both = [Server(FIRST, 4.0), Server(FIRST, 5.0), slow, Server(SECOND, 2.0)]
    found = next_move(EVEN[:2], both, range(4))
    assert found is not None and found.place == 0


def test_nobody_goes_who_may_not_or_has_no_room_or_is_the_last() -> None:
    servers = spread(3, 1, 1)
    assert next_move(EVEN, servers, [0, 3, 4]) is not None
    assert next_move(EVEN, servers, [3, 4]) is None
    small = [replace(one, memory_bytes=1499) for one in servers]
    assert next_move(EVEN, small, range(5)) is None
    assert next_move(EVEN, spread(1, 1, 1, flops_per_s=1.0)[:2], range(2)) is None
    lone = [Server(FIRST, 100.0), Server(SECOND, 1.0), Server(THIRD, 1.0)]
    assert next_move(EVEN, lone, range(3)) is None


def test_no_sequence_of_moves_comes_back_and_the_end_is_near_the_best() -> None:
    rng = random.Random(1)
    for _ in range(150):
        stages, people = rng.randint(2, 3), rng.randint(3, 7)
        needs = EVEN[:stages]
        speeds = [rng.choice((1.0, 1.0, 2.0)) for _ in range(people)]
        spans = [range(stage, stage + 1) for stage in range(stages)]
        begin = [Server(rng.choice(spans), speed) for speed in speeds]
        if not all(stage_rates(needs, begin)):
            continue
        states = moved(needs, begin)
        seen = [sorted(f"{rate:.6g}" for rate in stage_rates(needs, one)) for one in states]
        assert all(before != after for before, after in itertools.pairwise(seen))
        slowest = [min(stage_rates(needs, one)) for one in states]
        assert slowest == sorted(slowest)


@pytest.mark.parametrize("begin", [(12, 1, 1), (1, 20, 3), (30, 1, 2), (2, 2, 40)])
def test_equal_peers_end_within_a_tenth_of_the_best(begin: tuple[int, ...]) -> None:
    best: list[Server] = []
    for _ in range(sum(begin)):
        best.append(Server(choose(EVEN, best, Server()).span))
    end = moved(EVEN, spread(*begin))[-1]
    assert min(stage_rates(EVEN, end)) >= 0.9 * min(stage_rates(EVEN, best))


def test_a_speed_that_was_seen_counts_for_more_than_a_word() -> None:
    told = [Server(FIRST, 1e12), Server(FIRST, 1e12), Server(SECOND, 1e12), Server(SECOND, 1e12)]
    seen = [replace(one, seen_flops_per_s=1e3) for one in told[:3]]
    rates = stage_rates(EVEN[:2], [*seen, told[3]])
    assert rates == [2 * 1e3 / 400, 2 * 1e3 / 300]  # the last one is as fast as it says beside them


# ---- the time for it


BOOT = b"12345678"
NAMES = [bytes([65 + index]) * 32 for index in range(7)]
STAGE_OF = dict(zip(NAMES, (0, 0, 0, 0, 0, 1, 2), strict=True))
PASS_S = 0.25


class Swarm:
    """Rounds whose members count as fast as the slowest stage lets them."""

    def __init__(self) -> None:
        self.moves = Moves(EVEN)
        self.stages = dict(STAGE_OF)
        self.boots = dict.fromkeys(NAMES, BOOT)
        self.rounds = Rounds(3, share=4)
        self.busy: dict[bytes, float] = {}
        self.away: set[bytes] = set()
        self.number = 0
        self.now_s = 0.0
        for name in NAMES:
            self.join(name)

    def join(self, name: bytes) -> None:
        stage = self.stages[name]
        self.rounds.joined(Process(name, self.boots[name]), Member(BOOT, Span(stage, stage)), 0.0)

    def books(self) -> Books:
        """All sources' micro-batches, counted by the members of a stage in turn."""
        here = {name: stage for name, stage in self.stages.items() if name not in self.away}
        seats = [[name for name in here if here[name] == stage] for stage in range(3)]
        total, source = 60, Process(seats[0][0], BOOT)
        took_s = max(total * PASS_S * (3 + (stage < 2)) / len(one)
                     for stage, one in enumerate(seats))  # fmt: skip
        settled = {}
        for stage, one in enumerate(seats):
            for place, name in enumerate(one):
                numbers = set(range(total)[place :: len(one)])
                made = Made(marks(set(range(total)) if name == source.peer else set()), {})
                busy_s = len(numbers) * PASS_S * (3 + (stage < 2))
                settled[Process(name, BOOT)] = orders.Settled(
                    self.number, (orders.Counted(source, stage, marks(numbers)),), made,
                    busy_s=self.busy.get(name, busy_s),
                )  # fmt: skip
        spans = {Process(name, BOOT): Span(stage, stage) for name, stage in here.items()}
        self.number += 1
        self.now_s += took_s
        return books_of(self.number, 3, {source: total}, settled, spans, took_s=took_s)

    def go_on(self, rounds: int = 1, movable: list[bytes] = NAMES) -> Moving | None:
        """Rounds, and the move that is under way then."""
        for _ in range(rounds):
            servers = {name: Server(range(stage, stage + 1)) for name, stage in self.stages.items()}
            self.moves.booked(self.books(), self.rounds, servers, movable, self.now_s)
        return self.moves.under_way

    def arrive(self) -> None:
        """MOVE, and the peer comes anew."""
        moving = self.moves.under_way
        assert moving is not None
        self.stages[moving.peer] = moving.stage
        self.rounds.departed(Process(moving.peer, BOOT), self.now_s)
        self.join(moving.peer)

    def spread(self) -> list[int]:
        return [[*self.stages.values()].count(stage) for stage in range(3)]


def test_a_stage_must_be_slow_for_some_rounds_and_each_move_waits_for_the_last() -> None:
    swarm = Swarm()
    assert swarm.go_on(limits.MOVE_ROUNDS - 1) is None
    moving = swarm.go_on()
    assert moving is not None and moving.stage in (1, 2)
    assert swarm.rounds.leaving == Process(moving.peer, BOOT)
    assert swarm.go_on(5) is moving  # not gone yet
    swarm.arrive()
    swarm.away.add(moving.peer)
    assert swarm.go_on(5) is moving  # it fetches the state
    swarm.away.clear()
    assert swarm.go_on() is None  # it has counted
    assert swarm.go_on(limits.MOVE_ROUNDS) not in (None, moving)
    swarm.arrive()
    assert swarm.spread() == [3, 2, 2]
    assert swarm.go_on(20) is None


def test_a_peer_that_never_counts_in_its_new_stage_holds_up_the_others_for_a_time_only() -> None:
    swarm = Swarm()
    moving = swarm.go_on(limits.MOVE_ROUNDS)
    assert moving is not None
    swarm.arrive()
    swarm.away.add(moving.peer)
    assert swarm.go_on() is moving
    swarm.now_s += limits.MOVE_S
    later = swarm.go_on(2 * limits.MOVE_ROUNDS)
    assert later is not None and later.peer != moving.peer


def test_a_peer_that_is_gone_holds_up_nobody() -> None:
    swarm = Swarm()
    moving = swarm.go_on(limits.MOVE_ROUNDS)
    assert moving is not None
    del swarm.stages[moving.peer]
    swarm.rounds.departed(Process(moving.peer, BOOT), swarm.now_s)
    assert swarm.go_on() is None
    assert swarm.go_on(limits.MOVE_ROUNDS) is not None


def test_a_move_that_the_rounds_could_not_make_is_forgotten() -> None:
    swarm = Swarm()
    assert swarm.go_on(limits.MOVE_ROUNDS) is not None
    swarm.rounds.leaving = None
    assert swarm.go_on() is None


def test_a_peer_on_its_way_that_nobody_hears_holds_up_the_others_until_it_is_gone() -> None:
    swarm = Swarm()
    moving = swarm.go_on(limits.MOVE_ROUNDS)
    assert moving is not None
    swarm.arrive()
    swarm.away.add(moving.peer)
    swarm.rounds.away(Process(moving.peer, BOOT), swarm.now_s)
    assert moving.peer not in swarm.rounds.members
    assert swarm.go_on(2 * limits.MOVE_ROUNDS) is moving
    del swarm.stages[moving.peer]
    swarm.rounds.departed(Process(moving.peer, BOOT), swarm.now_s)
    assert swarm.go_on() is None


def test_a_peer_that_an_empty_stage_has_got_meanwhile_makes_no_second_move() -> None:
    swarm = Swarm()
    moving = swarm.go_on(limits.MOVE_ROUNDS)
    assert moving is not None and swarm.rounds.leaving is not None
    swarm.stages[moving.peer] = 3 - moving.stage
    swarm.rounds.departed(Process(moving.peer, BOOT), swarm.now_s)
    assert swarm.rounds.leaving is None and swarm.moves.released(swarm.rounds) is None
    assert swarm.go_on() is None


def test_only_who_may_moves() -> None:
    swarm = Swarm()
    moving = swarm.go_on(limits.MOVE_ROUNDS, movable=NAMES[3:])
    assert moving is not None and moving.peer in NAMES[3:5]
    assert Swarm().go_on(20, movable=NAMES[5:]) is None


@pytest.mark.parametrize("busy_s", [0.0, 1e-9, 1e9])
@pytest.mark.parametrize("liar", NAMES)
def test_one_member_s_word_on_its_passes_does_not_slow_the_run_down(
    busy_s: float, liar: bytes
) -> None:
    swarm = Swarm()
    swarm.stages = dict(zip(NAMES, (0, 0, 0, 1, 1, 2, 2), strict=True))
    swarm.busy = {liar: busy_s}
    for _ in range(40):
        if swarm.go_on() is not None:
            swarm.arrive()
    assert min(swarm.spread()) == 2
