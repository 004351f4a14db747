"""A whole pipeline in one process: the production machines, frames and tensors, and no clock.

Messages come at once and in order, or at random or not at all if asked; time goes on only where
nothing else does. What is here is the shell that a peer has, without threads and sockets.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence

from swarmtrain.pipeline.passes import Passes
from swarmtrain_optimizers.codecs.base import CodecError
from swarmtrain_transport.pipeline import control, encoding, orders, requests
from swarmtrain_transport.pipeline.messages import CARRIES
from swarmtrain_transport.pipeline.orders import Tell
from swarmtrain_transport.pipeline.requests import Request
from swarmtrain_transport.pipeline.rounds import Action, Booked, Books, Rounds
from swarmtrain_transport.pipeline.route import MicroBatch, Process, Span
from swarmtrain_transport.pipeline.rules import Rules
from swarmtrain_transport.pipeline.stage import StageMachine


def process_of(index: int) -> Process:
    return Process(bytes([index + 1]) * 32, b"boot 001")


class Peer:
    """One peer: machine and tensors.

    Attributes:
        losses: made here.
        stepped: micro-batches of each step with their stages, in the order in which they counted.
        counted: the same since the last step.
        num_broken: steps that were not made, for their gradient was too large.
    """

    def __init__(
        self, world: "Pipeline", me: Process, span: Span, passes: Passes, rules: Rules
    ) -> None:
        self.world, self.me, self.span, self.passes = world, me, span, passes
        self.machine = StageMachine(me, span, rules)
        self.losses: list[float] = []
        self.stepped: list[list[tuple[MicroBatch, int]]] = []
        self.num_broken = 0
        self.counted: list[tuple[MicroBatch, int]] = []
        self._training: deque[Request] = deque()
        self._came: tuple[object, object] = (None, b"")

    def received(self, sender: Process, frame: object) -> None:
        heard = encoding.unpack(frame)
        assert heard.boot == sender.boot
        self._came = heard.message, bytes(heard.payload)
        is_sound = self.passes.is_sound(*self._came)
        self.obey(
            self.machine.received(
                sender.peer, heard.boot, heard.message, self.world.now_s, is_sound=is_sound
            )
        )

    def obey(self, asked: Sequence[Request]) -> None:
        for request in asked:
            match request:
                case requests.Send():
                    message, payload = request.message, self.passes.beside(request)
                    self.world.counts[type(message).__name__] += 1
                    self.world.counts["bytes"] += len(payload)
                    frame = encoding.pack(7, self.me.boot, message, payload)
                    self.world.deliver(self.me, request.peer, frame)
                case requests.Keep():
                    assert isinstance(self._came[0], CARRIES)
                    self.passes.keep(request.job, *self._came)
                case requests.Free():
                    self.passes.free(request.job)
                case requests.SendReport():
                    self.world.report(self.me, request.report)
                case requests.Count():
                    stages = range(request.first, request.last + 1)
                    self.counted += [(request.micro_batch, stage) for stage in stages]
                case requests.Ended():
                    pass
                case _:
                    self._training.append(request)

    def train(self) -> bool:
        """Make the next thing that is asked of the training thread; False if there is none."""
        if not self._training:
            return False
        request, now_s = self._training.popleft(), self.world.now_s
        match request:
            case requests.RunForward():
                try:
                    form = self.passes.forward(request)
                except CodecError:
                    self.obey(self.machine.failed(request.job, now_s))
                else:
                    text = self.passes.text(request.job)
                    self.obey(self.machine.forward_made(request.job, form, now_s, text))
            case requests.RunBackward():
                try:
                    form, loss = self.passes.backward(request)
                except CodecError:
                    self.obey(self.machine.failed(request.job, now_s))
                else:
                    if loss is not None:
                        self.losses.append(loss)
                    if form is not None:
                        self.obey(self.machine.gradient_made(request.job, form, now_s))
                    self.passes.add()
                    text = self.passes.text(request.job)
                    self.obey(self.machine.backward_made(request.job, now_s, text))
            case requests.Weigh():
                self.obey(self.machine.weighed(request.fence, self.passes.weigh(), now_s))
            case requests.Step():
                assert self.passes.num_tokens == request.tokens
                rate = self.world.rate(len(self.stepped))
                is_made = self.passes.step(request, rate=rate, clips=self.world.limits)
                self.num_broken += not is_made
                self.stepped.append(self.counted)
                self.counted = []
            case requests.Discard():
                self.passes.discard()
                self.counted = []
            case requests.Settle():
                self.obey(self.machine.settled(request.round, now_s))
        return True


class Pipeline:
    """Peers and the coordinator's part.

    Args:
        peers: span and tensors of each.
        rules: of the run.
        rounds: the coordinator's part.
        rate: learning rate by a peer's step.
        clip: limit of the gradient's norm; 0 is none.
        seed: None delivers in order; else whoever comes next is drawn.
        loss: part of the frames that get lost.

    Attributes:
        tamper: makes another message of one that is sent.
        books, settled: of the rounds that are over, and what they were made of.
        gone: peers that have left.
    """

    def __init__(
        self,
        peers: Sequence[tuple[Span, Passes]],
        rules: Rules,
        rounds: Rounds,
        rate: Callable[[int], float],
        clip: float = 0.0,
        seed: int | None = None,
        loss: float = 0.0,
    ) -> None:
        self.now_s = 0.0
        self.rate = rate
        self.limits = dict.fromkeys(range(rules.num_stages), clip)
        self.counts: Counter[str] = Counter()
        self.tamper: Callable[[Process, encoding.Heard], encoding.Heard] | None = None
        self.books: list[Books] = []
        self.settled: dict[int, dict[Process, orders.Settled]] = {}
        self.gone: list[Peer] = []
        self._rounds = rounds
        self._loss, self._loss_rng = loss, random.Random("loss")
        self._rng = None if seed is None else random.Random(seed)
        self._lanes: dict[tuple[Process, Process], deque[Callable[[], None]]] = {}
        self.peers: dict[Process, Peer] = {
            process_of(index): Peer(self, process_of(index), span, passes, rules)
            for index, (span, passes) in enumerate(peers)
        }
        for me, peer in self.peers.items():
            self._act(self._rounds.joined(me, orders.Member(me.boot, peer.span), self.now_s))

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
                    if peer.machine.next_wakeup_s <= self.now_s:
                        peer.obey(peer.machine.tick(self.now_s))
                assert self.now_s < 2000, "nothing happens any more"

    def leave(self, index: int) -> None:
        """The process is gone."""
        me = process_of(index)
        self.gone.append(self.peers.pop(me))
        self._act(self._rounds.departed(me, self.now_s))

    def deliver(self, sender: Process, to: bytes, frame: object) -> None:
        """Send a frame."""
        if self._loss_rng.random() < self._loss:
            self.counts["lost"] += 1
            return
        if self.tamper is not None:
            heard = self.tamper(sender, encoding.unpack(frame))
            frame = encoding.pack(7, heard.boot, heard.message, heard.payload)
        receiver = next((one for one in self.peers if one.peer == to), None)
        if receiver is not None:
            self._say(sender, receiver, lambda peer: peer.received(sender, frame))

    def report(self, me: Process, report: orders.Report) -> None:
        """A peer tells the coordinator."""
        match control.report_of(control.pack_report(report)):
            case orders.Drained():
                self._act(self._rounds.drained(me, report, self.now_s))
            case orders.Weighed():
                self._act(self._rounds.weighed(me, report, self.now_s))
            case orders.Settled():
                self.settled.setdefault(report.round, {})[me] = report
                self._act(self._rounds.settled(me, report, self.now_s))

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
                        lambda peer, told=told: peer.obey(peer.machine.told(told, self.now_s)),
                    )  # fmt: skip
                case Booked():
                    self.books.append(action.books)
                    self._act(self._rounds.outcome(action.books.round, self.now_s))
