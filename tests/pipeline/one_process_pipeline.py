"""A whole pipeline in one process: the production machines, frames and tensors, and no clock.

Messages come at once and in order, or at random or not at all if asked; time goes on only where
nothing else does. What is here is the shell that a peer has, without threads and sockets.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence

from swarmtrain.models.tensors import Layout
from swarmtrain.pipeline.evaluation import Anchors
from swarmtrain.pipeline.stage_peer import StagePeer
from swarmtrain.pipeline.stage_trainer import StageTrainer
from swarmtrain_transport.pipeline.coordinator.rounds import Action, Booked, Books, Rounds
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.peer.stage import StageMachine
from swarmtrain_transport.pipeline.wire import control, encoding, orders
from swarmtrain_transport.pipeline.wire.orders import Tell
from swarmtrain_transport.pipeline.wire.route import MicroBatch, Process, Span
from swarmtrain_transport.wire.frames import Frame

RUN_TAG = 7


def process_of(index: int) -> Process:
    return Process(bytes([index + 1]) * 32, b"boot 001")


class Trainer(StageTrainer):
    """Keeps what it has made.

    Attributes:
        losses: made here.
        stepped: micro-batches of each step with their stages, in the order in which they counted.
        counted: the same since the last step.
    """

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.losses: list[float] = []
        self.stepped: list[list[tuple[MicroBatch, int]]] = []
        self.counted: list[tuple[MicroBatch, int]] = []

    def end_backward(self) -> None:
        before = self.loss
        super().end_backward()
        if self.loss != before:
            self.losses.append(self._new_loss[0])

    def count(self, count: requests.Count) -> None:
        super().count(count)
        self.counted += [(count.micro_batch, one) for one in count.stages]

    def step(self, request: requests.Step) -> None:
        assert self.steps[request.stages.last].num_tokens == request.tokens
        self.stepped.append([one for one in self.counted if one[1] in request.stages])
        self.counted = [one for one in self.counted if one[1] not in request.stages]
        super().step(request)

    def discard(self) -> None:
        super().discard()
        self.counted = []


class Peer:
    """One peer: what it has in production, but threads and sockets."""

    def __init__(
        self, world: "Pipeline", me: Process, span: Span, trainer: Trainer, rules: Rules
    ) -> None:
        self.world, self.me, self.trainer = world, me, trainer
        self.op, self.anchors_of = 0, dict[int, Anchors]()
        machine = StageMachine(me, span, rules, seed=me.peer)
        self.peer = StagePeer(machine, me.boot, RUN_TAG, trainer.forms, self)

    def train(self) -> bool:
        """Make the next part of training; False if there is none."""
        part = self.peer.next_part()
        if part is not None:
            part(self)(self.world.now_s)
        return part is not None

    # ---- for parts

    def begin(self, pace: orders.Pace) -> None:
        self.pace = pace

    def anchors(self, ops: tuple[int, ...]) -> Anchors | None:
        first = self.peer.machine.span.first
        return self.anchors_of[ops[first]] if self.op == ops[first] else None

    def is_behind(self, ops: tuple[int, ...]) -> bool:
        return self.op < ops[self.peer.machine.span.first]

    def step(self, request: requests.Step) -> None:
        self.trainer.rate = self.world.rate(len(self.trainer.stepped))
        self.trainer.step(request)

    def settle(self, round: int) -> None:
        self.op = round + 1
        layouts = {stage: Layout.of(one, 4) for stage, one in self.trainer.span.modules.items()}
        self.anchors_of[self.op] = {
            stage: (layout, layout.read(self.trainer.span.modules[stage]))
            for stage, layout in layouts.items()
        }

    # ---- for the peer

    def send(self, peer: bytes, frame: Frame) -> None:
        heard = encoding.unpack(frame)
        self.world.counts[type(heard.message).__name__] += 1
        self.world.counts["bytes"] += len(heard.payload)
        self.world.deliver(self.me, peer, frame)

    def report(self, report: orders.Report) -> None:
        self.world.report(self.me, report)

    def evaluated(self, evaluated: requests.Evaluated) -> None:
        self.world.evaluated.append(evaluated)


class Pipeline:
    """Peers and the coordinator's part.

    Args:
        peers: span and trainer of each.
        rules: of the run.
        rounds: the coordinator's part.
        rate: learning rate by a peer's step.
        seed: None delivers in order; else whoever comes next is drawn.
        loss: part of the frames that get lost.

    Attributes:
        evaluates: after each round, by its first source.
        evaluated: what came of it.
        tamper: makes another message of one that is sent.
        books, settled: of the rounds that are over, and what they were made of.
        gone: peers that have left.
    """

    def __init__(
        self,
        peers: Sequence[tuple[Span, Trainer]],
        rules: Rules,
        rounds: Rounds,
        rate: Callable[[int], float],
        seed: int | None = None,
        loss: float = 0.0,
    ) -> None:
        self.now_s = 0.0
        self.rate = rate
        self.counts: Counter[str] = Counter()
        self.tamper: Callable[[Process, encoding.Heard], encoding.Heard] | None = None
        self.evaluates = False
        self.evaluated: list[requests.Evaluated] = []
        self.books: list[Books] = []
        self.settled: dict[int, dict[Process, orders.Settled]] = {}
        self.gone: list[Peer] = []
        self.rounds = rounds
        self._loss, self._loss_rng = loss, random.Random("loss")
        self._rng = None if seed is None else random.Random(seed)
        self._lanes: dict[tuple[Process, Process], deque[Callable[[], None]]] = {}
        self.peers: dict[Process, Peer] = {
            process_of(index): Peer(self, process_of(index), span, trainer, rules)
            for index, (span, trainer) in enumerate(peers)
        }
        for me, peer in self.peers.items():
            member = orders.Member(me.boot, peer.peer.machine.span)
            self._act(self.rounds.joined(me, member, self.now_s))

    def run(self, until_round: int) -> None:
        """Go on until so many rounds are booked."""
        self.run_until(lambda: len(self.books) >= until_round)

    def run_until(self, is_so: Callable[[], bool]) -> None:
        """Go on until it is so."""
        while not is_so():
            waiting = [lane for lane in self._lanes.values() if lane]
            if waiting:
                lane = waiting[0] if self._rng is None else self._rng.choice(waiting)
                lane.popleft()()
            elif not any([peer.train() for peer in self.peers.values()]):
                self.now_s += 1.0
                for peer in self.peers.values():
                    if peer.peer.machine.next_wakeup_s <= self.now_s:
                        peer.peer.tick(self.now_s)
                assert self.now_s < 2000, "nothing happens any more"

    def leave(self, index: int) -> None:
        """The process is gone."""
        me = process_of(index)
        self.gone.append(self.peers.pop(me))
        self._act(self.rounds.departed(me, self.now_s))

    def deliver(self, sender: Process, to: bytes, frame: object) -> None:
        """Send a frame."""
        if self._loss_rng.random() < self._loss:
            self.counts["lost"] += 1
            return
        if self.tamper is not None:
            heard = self.tamper(sender, encoding.unpack(frame))
            frame = encoding.pack(RUN_TAG, heard.boot, heard.message, heard.payload)
        receiver = next((one for one in self.peers if one.peer == to), None)
        if receiver is not None:
            self._say(
                sender, receiver, lambda peer: peer.peer.received(sender.peer, frame, self.now_s)
            )

    def report(self, me: Process, report: orders.Report) -> None:
        """A peer tells the coordinator."""
        match control.report_of(control.pack_report(report)):
            case orders.Drained():
                self._act(self.rounds.drained(me, report, self.now_s))
            case orders.Weighed():
                self._act(self.rounds.weighed(me, report, self.now_s))
            case orders.Settled():
                self.settled.setdefault(report.round, {})[me] = report
                self._act(self.rounds.settled(me, report, self.now_s))

    def _say(self, sender: Process, receiver: Process, say: Callable[[Peer], None]) -> None:
        def hear() -> None:
            if receiver in self.peers:
                say(self.peers[receiver])

        self._lanes.setdefault((sender, receiver), deque()).append(hear)

    def _act(self, actions: Sequence[Action]) -> None:
        coordinator = Process(b"c" * 32, b"coordina")
        for action in actions:
            match action:
                case Tell():
                    told = control.order_of(control.pack_order(action.order))
                    self._say(
                        coordinator, action.process,
                        lambda peer, told=told: peer.peer.told(told, self.now_s),
                    )  # fmt: skip
                case Booked():
                    self.books.append(action.books)
                    if self.rounds.wanted is not None:
                        self.rounds.wanted -= 1
                    self._act(self.rounds.outcome(action.books.round, self.now_s))
                    if self.evaluates:
                        ops = (action.books.round + 1,) * self.rounds.num_stages
                        self._act(self.rounds.evaluate(ops, None))
