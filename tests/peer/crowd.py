"""A crowd whose members are production sessions with disks, over some lane.

Each peer trains on a thread of its own, as in life, but only one thread runs at a time: it goes on
until it has to wait, then the next one does, and when all wait, messages move and time passes. So
the same crowd does the same every time, and nobody waits by the clock.
"""

import queue
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from swarmtrain.compare import crowd
from swarmtrain.compare.crowd import Keys, Lane
from swarmtrain.config.settings import RunConfig
from swarmtrain.coordinator.service import run_terms
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.arithmetic import CodecArithmetic
from swarmtrain.peer.disk.recall import recall
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.peer.training.driver import Driver
from swarmtrain.peer.training.model_weights import ModelWeights
from swarmtrain.peer.training.rounds import RoundReport
from swarmtrain.peer.training.session import Hooks, Session
from swarmtrain.peer.wishes import Wishes
from swarmtrain.strategies import strategy_of
from swarmtrain_optimizers.strategies.base import Direction
from swarmtrain_transport import actions as do
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire.text_place import TextPlace
from tests.transport.rig import RUN_KEY, sign, sign_as, verify

_PATIENCE = 60
"""Turns without anything new before a test that would hang fails."""


Shapes = tuple[tuple[int, int], ...]
SHAPES: Shapes = ((8, 8), (8, 8), (9, 7))  # one value is padding


class Gone(Exception):
    """This peer's process has ended."""


class Toy:
    """A model whose inner steps go the same way each time: down a slope of its own, 1/64 a step."""

    def __init__(
        self, config: RunConfig, number: int, dtype: torch.dtype, shapes: Shapes = SHAPES
    ) -> None:
        torch.manual_seed(3)
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

    def losses(self, direction: Direction) -> tuple[float, float]:
        """Losses beside the weights, for whoever only looks at them."""
        move = float((self.slope * direction.signs(0, len(self.slope))).sum()) * direction.step
        return move, -move

    def inner_step(self) -> None:
        self.write_weights(self.read_weights() - self.slope / 64)


class Training:
    """A session in its thread, and the network side that it sees."""

    def __init__(
        self, process: "Process", group: int, config: RunConfig, step_s: float,
        shapes: Shapes = SHAPES,
    ) -> None:  # fmt: skip
        crowd, peer = process.crowd, process.peer
        self.process, self.step_s = process, step_s
        self.reports: list[RoundReport] = []
        self.roots: dict[int, bytes] = {}
        self.began_with: tuple[int, dict[str, Tensor]] = (-1, {})
        self.steps_made = 0
        self.loss = 1.0
        self.is_gone = self.is_over = False
        self.error: BaseException | None = None
        self.inbox = self.shell = self
        self.is_connected, self.is_exchanging, self.num_others = True, False, 1
        self.wishes = Wishes(lambda: crowd.now_s)
        self.items: deque[Any] = deque()
        self.toy = Toy(config, peer[0], crowd.dtype, shapes)
        seed_of = (lambda op: op * 7 + peer[0]) if config.exchange.rounding != "nearest" else None
        self.driver = Driver(
            peer, strategy_of(config, self.toy.layout), self.toy,
            layout=self.toy.layout.digest, num_values=self.toy.layout.num_values,
            snapshot_rounds=config.checkpoint.snapshot_rounds,
            read_gradient=self.toy.read_gradient, seed_of=seed_of,
            steps_alone=config.steps_alone,
        )  # fmt: skip
        hooks = Hooks(on_round=self._ended, on_state=self._began)
        shell: Any = self
        self.session = Session(
            peer, shell, process.storage.of(group), config, self.driver, self.toy.layout, hooks,
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
            self.is_over = True
            self.process.ended()
            self.process.crowd.turn_over.release()

    def train(self) -> None:
        if (direction := self.driver.direction()) is not None:
            self.driver.heard(*self.toy.losses(direction))
        elif not self.driver.strategy.takes_gradients:
            self.toy.inner_step()
        self.steps_made += 1
        self.session.stepped(8, self.loss, 8)

    def pause(self) -> None:
        """Let the others go on."""
        self.process.crowd.turn_over.release()
        self._may_go.acquire()
        if self.is_gone:
            raise Gone

    def go(self) -> None:
        """Let it go on until it pauses or ends."""
        if not self._thread.is_alive() and not self.is_over:
            self._thread.start()
        self._may_go.release()
        self.process.crowd.turn_over.acquire()
        if self.error is not None:
            raise self.error

    def _ended(self, report: RoundReport) -> None:
        self.reports.append(report)
        self.roots[report.round] = self.driver.root

    def _began(self, op: int) -> None:
        self.roots[op] = self.driver.root
        self.began_with = (op, self.own())

    def own(self) -> dict[str, Tensor]:
        """Copy what is this peer's alone."""
        return {name: array.clone() for name, array in self.driver.strategy.local_arrays()}

    # ---- what the session sees of its network thread

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self.items and block:
            self.pause()
        if not self.items:
            raise queue.Empty
        return self.items.popleft()

    def machine(self, event: Callable[[Participant, float], Any]) -> None:
        self.process.tell(event)

    def text_at(self, op: int, group: int) -> TextPlace | None:
        return self.process.participant.view.groups[group].text_at(op)

    def note(self, note: Any) -> None:
        pass

    def send(self, message: Any) -> None:
        self.process.crowd.told(self.process.peer, message)

    def hand_over(self, waits: Callable[[], None]) -> bool:
        return True

    def leave(self, reason: str) -> None:
        self.process.leave(reason)


class Process(crowd.Member):
    """One peer's process, but for what trains in it."""

    crowd: "Crowd"
    is_gone = False
    steps_made = 0

    def __init__(self, crowd: "Crowd", peer: PeerId, boot: bytes, directory: Path) -> None:
        self.storage = PeerStorage(directory)
        super().__init__(crowd, peer, boot, CodecArithmetic(), self.storage.records)
        recall(self.storage, self.participant)

    @abstractmethod
    def go(self) -> None:
        """Let what trains in it go on until it pauses or ends."""

    def leave(self, reason: str) -> None:
        self.tell(lambda participant, now_s: participant.leave(reason, now_s))

    def ended(self) -> None:
        """A session has ended."""
        self.storage.close()


class Member(Training, Process):
    """One peer's process with a session in group 0."""

    def __init__(
        self, crowd: "Crowd", peer: PeerId, boot: bytes, directory: Path, step_s: float
    ) -> None:
        Process.__init__(self, crowd, peer, boot, directory)
        Training.__init__(self, self, 0, crowd.config, step_s)

    def leave(self, reason: str) -> None:
        Process.leave(self, reason)

    # ---- what its machine tells

    def heard(self, news: Any) -> None:
        if isinstance(news, do.RecordAccepted):
            self.storage.append_records([news.record])
        else:
            self.items.append(news)


class Crowd(crowd.Crowd[Process]):
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
        self.turn_over = threading.Semaphore(0)
        self._boots = 0
        # Its peers bring a toy where the run file names the built-in model.
        terms = replace(run_terms(config), layout=b"")
        super().__init__(terms, Keys(RUN_KEY, sign, sign_as, verify), lane)

    def add(self, number: int, *, step_s: float = 0.01) -> Member:
        """A peer's process begins, in the directory of its number."""
        self._boots += 1
        peer, directory = bytes([number]) * 32, self.place / str(number)
        directory.mkdir(parents=True, exist_ok=True)
        member = Member(self, peer, b"boot %d" % self._boots, directory, step_s)
        self.connect(member)
        return member

    def kill(self, member: Process) -> None:
        """End its process, with everything in memory."""
        self._part(member)
        if not member.is_over:
            member.go()

    def _part(self, member: Process) -> None:
        """Let nobody hear of a process any more that has ended."""
        if not member.is_gone:
            member.is_gone = True
            self.disconnect(member)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until every peer has ended, or what is waited for has come."""
        idle = steps = 0
        while not until() and self.members:
            moved, before = 0, steps
            for member in list(self.members.values()):
                member.go()
                moved += self.deliver()
                if member.is_over:
                    self._part(member)
            steps = sum(one.steps_made for one in self.members.values())
            idle = 0 if moved or steps != before else idle + 1
            assert idle < _PATIENCE, "nothing happens any more"
            self.now_s += 0.25
            self.wake()
            self.deliver()

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
