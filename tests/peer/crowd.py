"""A run in one process: production sessions, strategies, machines and disks over some lane.

Each peer trains on a thread of its own, as in life, but only one thread runs at a time: it goes on
until it has to wait, then the next one does, and when all wait, messages move and time passes. So
the same crowd does the same every time, and nobody waits by the clock.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from swarmtrain.config.settings import RunConfig
from swarmtrain.coordinator.service import run_terms
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.arithmetic import CodecArithmetic
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.model_weights import ModelWeights
from swarmtrain.peer.training.rounds import RoundReport
from swarmtrain.peer.training.session import Hooks, Session
from swarmtrain.strategies import strategy_of
from swarmtrain_transport import actions as do
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.card import Card
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Record
from tests.peer.lanes import Lane, MemoryLane
from tests.transport.rig import RUN_KEY, sign, sign_as, verify

_PATIENCE = 60
"""Turns without anything new before a test that would hang fails."""


class Gone(Exception):
    """This peer's process has ended."""


class Toy:
    """A model whose inner steps go the same way each time: down a slope of its own, 1/64 a step."""

    def __init__(self, config: RunConfig, number: int, dtype: torch.dtype) -> None:
        torch.manual_seed(3)
        shapes = ((8, 8), (8, 8), (9, 7))  # one value is padding
        layers = [nn.Linear(*shape, bias=False, dtype=dtype) for shape in shapes]
        self.model = nn.ModuleDict({"embed": layers[0], "h": nn.ModuleList(layers[1:])})
        self.layout = Layout.of(self.model, config.exchange.block)
        self._weights = ModelWeights(self.model, self.layout)
        self.read_weights = self._weights.read_weights
        self.write_weights = self._weights.write_weights
        self.slope = torch.zeros(self.layout.padded)
        places = torch.arange(self.layout.num_values, dtype=torch.float32)
        self.slope[: len(places)] = torch.cos(places * (number + 1))

    def read_gradient(self) -> Tensor:
        return self.slope / 4

    def inner_step(self) -> None:
        self.write_weights(self.read_weights() - self.slope / 64)


class Member:
    """One peer's process: the session in its thread, and the shell that the session sees."""

    def __init__(
        self, crowd: "Crowd", peer: PeerId, boot: bytes, directory: Path, step_s: float
    ) -> None:
        self.crowd, self.peer, self.step_s = crowd, peer, step_s
        self.reports: list[RoundReport] = []
        self.roots: dict[int, bytes] = {}
        self.began_with: tuple[int, dict[str, Tensor]] = (-1, {})
        self.steps_made = 0
        self.is_gone = self.is_over = False
        self.error: BaseException | None = None
        self.inbox = self
        self.is_connected, self.is_exchanging, self.num_others = True, False, 1
        self.items: deque[Any] = deque()
        self.storage = PeerStorage(directory)
        self.link = crowd.lane.open(peer, self)
        here = self.link.address
        card = Card(peer, boot, "name", here.curve_key, here.host, here.port)
        self.machine_itself = Participant(
            card, CodecArithmetic(), sign_as(peer), verify, list, self.storage.records,
            crowd.now_s,
        )  # fmt: skip
        for op, slices in self.storage.results().items():
            self.machine_itself.keep_result(op, slices)
        config = crowd.config
        self.toy = Toy(config, peer[0], crowd.dtype)
        seed_of = (lambda op: op * 7 + peer[0]) if config.exchange.rounding != "nearest" else None
        self.driver = Driver(
            peer, strategy_of(config, self.toy.layout), self.toy,
            layout=self.toy.layout.digest, num_values=self.toy.layout.num_values,
            snapshot_rounds=config.checkpoint.snapshot_rounds,
            read_gradient=self.toy.read_gradient, seed_of=seed_of,
        )  # fmt: skip
        hooks = Hooks(on_round=self._ended, on_state=self._began)
        shell: Any = self
        self.session = Session(
            peer, shell, self.storage, config, self.driver, self.toy.layout, hooks,
            clock=lambda: crowd.now_s + self.steps_made * self.step_s,
        )  # fmt: skip
        self._may_go = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, daemon=True)

    # ---- its thread

    def _main(self) -> None:
        self._may_go.acquire()
        try:
            self.session.start()
            while not self.session.should_stop:
                self.train()
            self.session.leave("done")
        except Gone:
            self.is_over = True
        except BaseException as error:
            self.error = error
        finally:
            self.storage.close()
            self.is_over = True
            self.crowd.turn_over.release()

    def train(self) -> None:
        if not self.driver.strategy.takes_gradients:
            self.toy.inner_step()
        self.steps_made += 1
        self.session.stepped(8, 1.0, 8)

    def pause(self) -> None:
        """Let the others go on."""
        self.crowd.turn_over.release()
        self._may_go.acquire()
        if self.is_gone:
            raise Gone

    def go(self) -> None:
        """Let it go on until it pauses or ends."""
        if not self._thread.is_alive() and not self.is_over:
            self._thread.start()
        self._may_go.release()
        self.crowd.turn_over.acquire()
        if self.error is not None:
            raise self.error

    def _ended(self, report: RoundReport) -> None:
        self.reports.append(report)
        self.roots[report.round] = self.driver.root

    def _began(self, op: int) -> None:
        self.roots[op] = self.driver.root
        self.began_with = (op, self.own())

    def own(self) -> dict[str, Tensor]:
        """What is this peer's alone, copied."""
        return {name: array.clone() for name, array in self.driver.strategy.local_arrays()}

    # ---- what the session sees of its network thread

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self.items and block:
            self.pause()
        if not self.items:
            raise queue.Empty
        return self.items.popleft()

    def machine(self, event: Callable[[Participant, float], Any]) -> None:
        self.act(event(self.machine_itself, self.crowd.now_s))

    def note(self, note: Any) -> None:
        pass

    def send(self, message: Any) -> None:
        self.crowd.up.append((self.peer, m.encode(message)))

    def leave(self, reason: str) -> None:
        self.machine(lambda participant, now_s: participant.leave(reason, now_s))

    # ---- its machine

    def on_frame(self, peer: PeerId, frame: Any) -> None:
        self.act(self.machine_itself.frame(peer, frame, self.crowd.now_s))

    def on_fault(self, peer: PeerId | None, fault: Any) -> None:
        if fault.reason != "key":  # what a leaver had sent ahead comes after its goodbye
            raise AssertionError(fault)

    def act(self, actions: Any) -> None:
        for action in actions:
            match action:
                case do.SendControl():
                    self.send(action.message)
                case do.SendFrame():
                    self.link.send(action.peer, action.frame)
                case do.AllowPeer():
                    self.link.allow(action.address)
                case do.RevokePeer():
                    self.link.revoke(action.peer)
                case do.RecordAccepted():
                    self.storage.append_records([action.record])
                case do.PeerFault() | do.Halt():
                    raise AssertionError(action)
                case do.LoadState() | do.ApplyResult() | do.OpSkipped() | do.RunFinished():
                    self.items.append(action)


class Crowd:
    """Coordinator, peers and what is under way between them.

    Args:
        config: the run file.
        place: where state directories are.
        dtype: of the weights.
        lane: what carries frames; in memory unless another is brought.
    """

    def __init__(
        self,
        config: RunConfig,
        place: Path,
        dtype: torch.dtype = torch.float32,
        lane: Lane | None = None,
    ) -> None:
        self.config, self.place, self.dtype = config, place, dtype
        self.now_s, self.term = 0.0, 0
        self.lane = lane if lane is not None else MemoryLane()
        self.records: list[Record] = []
        self.members: dict[PeerId, Member] = {}
        self.up: deque[tuple[PeerId, bytes]] = deque()
        self.turn_over = threading.Semaphore(0)
        self._down: deque[tuple[PeerId, bytes]] = deque()
        self._boots = 0
        self.start_coordinator()

    def start_coordinator(self) -> None:
        self.term += 1
        # Its peers bring a toy where the run file names the built-in model.
        terms = replace(run_terms(self.config), layout=b"")
        self.hall = Rendezvous(
            terms, RUN_KEY, tuple(self.records), sign, verify, self.term, self.now_s
        )
        self._heed(self.hall.start(self.now_s))

    def add(self, number: int, *, step_s: float = 0.01) -> Member:
        """A peer's process begins, in the directory of its number."""
        self._boots += 1
        peer, directory = bytes([number]) * 32, self.place / str(number)
        directory.mkdir(parents=True, exist_ok=True)
        member = Member(self, peer, b"boot %d" % self._boots, directory, step_s)
        self.members[peer] = member
        member.act(member.machine_itself.start(self.now_s))
        hello: Any = m.decode_from_peer(m.encode(member.machine_itself.hello()))
        self._heed(self.hall.connected(peer, hello, self.now_s))
        return member

    def kill(self, member: Member) -> None:
        """Its process is gone, with everything in memory."""
        del self.members[member.peer]
        if not member.is_gone:
            self._part(member)
        if not member.is_over:
            member.go()

    def _part(self, member: Member) -> None:
        """It has ended: nobody hears of it any more."""
        member.is_gone = True
        self.lane.kill(member.peer)
        self._heed(self.hall.disconnected(member.peer, self.now_s))

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until every peer has ended, or what is waited for has come."""
        idle = steps = 0
        while not until() and not all(one.is_over for one in self.members.values()):
            moved, before = 0, steps
            for member in list(self.members.values()):
                if not member.is_over:
                    member.go()
                moved += self._deliver()
                if member.is_over and not member.is_gone:
                    self._part(member)
            steps = sum(one.steps_made for one in self.members.values())
            idle = 0 if moved or steps != before else idle + 1
            assert idle < _PATIENCE, "nothing happens any more"
            self._pass_time(0.25)

    def _deliver(self) -> int:
        count = 0
        while self.up or self._down or self.lane.pump(1):
            count += 1
            if self.up:
                peer, data = self.up.popleft()
                message: Any = m.decode_from_peer(data)
                if peer in self.members and not self.members[peer].is_gone:
                    self._heed(self.hall.received(peer, message, self.now_s))
            if self._down:
                peer, data = self._down.popleft()
                told: Any = m.decode_from_coordinator(data)
                member = self.members.get(peer)
                if member is not None and not member.is_over:
                    member.act(member.machine_itself.control(told, self.now_s))
        return count

    def _pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for member in list(self.members.values()):
            if self.now_s >= member.machine_itself.next_wakeup_s and not member.is_over:
                member.act(member.machine_itself.tick(self.now_s))
        if self.now_s >= self.hall.next_wakeup_s:
            self._heed(self.hall.tick(self.now_s))
        self._deliver()

    def _heed(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, do.Append):
                self.records.append(action.record)
            elif isinstance(action, do.SendToPeer):
                self._down.append((action.peer, m.encode(action.message)))

    def close(self) -> None:
        for member in list(self.members.values()):
            self.kill(member)


@contextmanager
def crowd_of(
    config: RunConfig, place: Path, dtype: torch.dtype = torch.float32, lane: Lane | None = None
) -> Iterator[Crowd]:
    """A crowd whose threads and links have ended when the test has."""
    crowd = Crowd(config, place, dtype, lane)
    try:
        yield crowd
    finally:
        crowd.close()
        crowd.lane.close()
