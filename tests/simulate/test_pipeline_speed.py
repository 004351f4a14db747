"""Micro-batches a second of a pipeline without faults, by what its peers allow, in virtual time."""

import heapq
import random
from collections.abc import Callable
from functools import partial

from swarmtrain.simulate.pipelines.process import TOKENS, Passed, SimProcess
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.coordinator.rounds import Action, Booked, Rounds
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import AnyHopMessage
from swarmtrain_transport.pipeline.wire.orders import Member, Tell
from swarmtrain_transport.pipeline.wire.route import Process, Span

STAGES, STEPS, STEP_MICRO_BATCHES, ROUNDS = 3, 10, 6, 4
PASS_S, WAY_S, EXCHANGE_S = 0.05, 0.002, 0.5


class Paced(SimProcess):
    """Takes as long for each part of a backward pass as for a forward one."""

    def _time(self, passes: int) -> float:
        return super()._time(1)

    def _fails(self) -> bool:
        return False


class Even(random.Random):
    """Passes differ by a twentieth."""

    def uniform(self, a: float, b: float) -> float:
        return super().uniform(0.95, 1.05)


class Calm:
    """Two peers of each stage, one twice as fast as the other; every message comes."""

    is_harsh = False

    def __init__(self) -> None:
        self.rng = Even(1)
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.booked: list[tuple[float, int]] = []
        slots = 2 * STAGES
        rules = Rules(
            STAGES, slots, step_micro_batches=STEP_MICRO_BATCHES,
            under_way=min(slots, STEP_MICRO_BATCHES), tokens=TOKENS,
        )  # fmt: skip
        self.rounds = Rounds(
            STAGES, STEPS * STEP_MICRO_BATCHES, least_members=2 * STAGES, round_steps=STEPS
        )
        self._peers: dict[PeerId, Paced] = {}
        for number in range(2 * STAGES):
            stage, me = number // 2, Process(bytes([number + 1]) * 32, b"boot")
            span = Span(stage, stage)
            self._peers[me.peer] = Paced(self, me, span, rules, PASS_S * (1 + number % 2))
            self._act(self.rounds.joined(me, Member(me.boot, span), 0.0))
        for peer in self._peers.values():
            peer.tick()

    def run(self) -> None:
        while len(self.booked) < ROUNDS:
            self.now_s, _, act = heapq.heappop(self._queue)
            act()

    # ---- for peers

    def later(self, process: SimProcess, delay_s: float, act: Callable[[], None]) -> None:
        self._later(delay_s, act)

    def send(self, process: SimProcess, to: PeerId, message: AnyHopMessage) -> None:
        self.later(process, WAY_S, lambda: self._peers[to].received(process.me, message))

    def report(self, process: SimProcess, report: orders.Report) -> None:
        def hear() -> None:
            if isinstance(report, orders.Drained):
                self._act(self.rounds.drained(process.me, report, self.now_s))
            elif isinstance(report, orders.Settled):
                process.work.stepped.clear()
                self._act(self.rounds.settled(process.me, report, self.now_s))

        self.later(process, WAY_S, hear)

    def counted(self, process: SimProcess, passed: list[Passed]) -> None:
        pass

    def check(self, process: SimProcess) -> None:
        pass

    def broken(self, invariant: str, story: str) -> None:
        raise AssertionError(f"{invariant} {story}")

    def expelled(self, process: SimProcess) -> None:
        raise AssertionError(process.me)

    # ---- coordinator

    def _act(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case Tell():
                    self._later(WAY_S, partial(self._told, action.process, action.order))
                case Booked():
                    self.booked.append((self.now_s, action.books.whole))
                    self._later(EXCHANGE_S, partial(self._over, action.books.round))

    def _told(self, process: Process, order: orders.Order) -> None:
        self._peers[process.peer].told(order)

    def _over(self, round: int) -> None:
        self._act(self.rounds.outcome(round, self.now_s))

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._count, act))


def test_a_stage_of_unequal_peers_makes_nearly_what_they_allow():
    calm = Calm()
    calm.run()
    (began_s, _), (ended_s, whole) = calm.booked[-2:]
    allowed = 1 / (3 * PASS_S) + 1 / (6 * PASS_S)  # a forward pass, and a backward one of two
    assert whole == 2 * STEPS * STEP_MICRO_BATCHES
    assert whole / (ended_s - began_s) > 0.92 * allowed
