"""A simulated peer of a run in stages: production network side, session, disk and model.

Only what touches the world is replaced: sockets, the clock, keys, and the time that a part of
training takes.
"""

import asyncio
import queue
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Protocol, cast

from msgspec.structs import replace

from swarmtrain.config.options import Endpoint, JoinOptions
from swarmtrain.config.settings import RunConfig
from swarmtrain.foundation.errors import UserError
from swarmtrain.foundation.events import Event
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain.peer.membership import Membership
from swarmtrain.peer.network.control import ControlClient
from swarmtrain.peer.network.shell import ForTrainer, PeerShell
from swarmtrain.peer.network.thread import PeerThread
from swarmtrain.peer.staged import StagedPeer
from swarmtrain.peer.telling import Telling
from swarmtrain.pipeline.staged_model import OwnWork
from swarmtrain.simulate.ground.control import RECONNECT_S, ControlLanes
from swarmtrain.simulate.ground.network import SimLink, SimNetwork
from swarmtrain.simulate.ground.process import Process
from swarmtrain.simulate.ground.quick_keys import quick_sign, quick_verify
from swarmtrain.simulate.ground.scene import Scene
from swarmtrain.simulate.stages.trainer_thread import Inbox, TrainerThread
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import Address, PeerId
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire.frames import Frame
from swarmtrain_transport.wire.messages import CoordinatorMessage, Hello, PeerMessage

_INVITE = Invite("127.0.0.1", 1, "simulation", bytes(32), bytes(16))
_GOODBYE_S = 0.05
_DISK_BYTES = 1 << 30


class Host(Protocol):
    """Surroundings of a process."""

    scene: Scene
    network: SimNetwork
    control: ControlLanes

    def told(self, process: "StagedProcess", event: Event) -> None:
        """A peer tells news."""

    def ended(self, process: "StagedProcess", error: BaseException | None) -> None:
        """A peer's program has ended, or its process was killed."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys of a peer, in the place of an `Identity`."""

    peer_id: PeerId
    curve_key: bytes


class _Control:
    """The control lane as the shell knows it."""

    bytes_in = bytes_out = 0

    def __init__(self, process: "StagedProcess", lanes: ControlLanes) -> None:
        self._process, self._lanes = process, lanes

    @property
    def is_up(self) -> bool:
        """True if the connection stands."""
        return self._lanes.is_open(self._process, self._process.connection)

    def send(self, message: PeerMessage) -> bool:
        """Send over the connection, if there is one."""
        self._lanes.to_coordinator(self._process, message)
        return self.is_up


class _Timers:
    """The clock and the timers of a process, in the place of an event loop."""

    def __init__(self, process: "StagedProcess") -> None:
        self._process = process

    def time(self) -> float:
        """Seconds of the process's own clock."""
        return self._process.now_s

    def call_at(self, when_s: float, act: Callable[[], None]) -> "_Timer":
        """Act at that time, unless it is cancelled."""
        timer, process = _Timer(act), self._process
        moment = max(process.clock.now_s, process.world_s(when_s))
        if moment < float("inf"):
            process.clock.at(moment, partial(process.hear, timer.fire))
        return timer


class _Timer:
    """A timer of `_Timers`."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def cancel(self) -> None:
        """Let it not go off."""
        self._act = None

    def fire(self) -> None:
        """Its time has come."""
        if self._act is not None:
            self._act()


class _Shell(PeerShell):
    """The production shell between simulated lanes."""

    def begin(self, process: "StagedProcess", card: Card, link: SimLink) -> Participant:
        """Go on from what the disk holds."""
        self._control = cast(ControlClient, _Control(process, process.host.control))
        self._begin(card, link, partial(quick_sign, card.peer_id), quick_verify)
        assert self._participant is not None
        return self._participant

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Nothing waits for sockets here."""
        work.close()


class _Thread(PeerThread):
    """The network side as the training thread has it."""

    def __init__(self, process: "StagedProcess", inbox: Inbox, shell: PeerShell) -> None:
        self.inbox = cast("queue.SimpleQueue[ForTrainer]", inbox)
        self.wishes = shell.wishes
        self._process, self.shell = process, shell

    def clock(self) -> float:
        """See PeerThread."""
        return self._process.now_s

    def call(self, action: Callable[[PeerShell], None]) -> None:
        """See PeerThread."""
        self._process.later(0.0, partial(action, self.shell))

    def close(self) -> None:
        """See PeerThread."""


@dataclass(frozen=True, slots=True)
class _Membership(Membership):
    """A peer whose secrets are drawn."""

    boot: bytes = b""

    def secret(self) -> bytes:
        """See Membership."""
        return self.boot.ljust(32)


class StagedProcess(Process):
    """One life of a peer.

    Args:
        host: world that it lives in.
        number: number of the peer, for people.
        peer_id: key of the peer.
        boot: boot of this life.
        config: the run file.
        own: model and data of the peer.
        directory: state directory of the peer.
        part_s: seconds of a part of training.
    """

    def __init__(
        self, host: Host, number: int, peer_id: PeerId, boot: bytes, config: RunConfig,
        own: OwnWork, directory: Path, part_s: float,
    ) -> None:  # fmt: skip
        super().__init__(host.scene.clock, *host.scene.skew())
        self.host, self.number, self.peer_id, self.boot = host, number, peer_id, boot
        self.is_alive, self.is_leaving, self.connection = True, False, 0
        rng = random.Random(boot)
        self.storage = PeerStorage(directory)
        keys = cast(Identity, _Keys(peer_id, peer_id))
        self._inbox = Inbox(self.later, lambda: part_s * rng.uniform(0.5, 1.5))
        brings = replace(own.brings, disk_bytes=_DISK_BYTES)
        self.shell = _Shell(
            JoinOptions(_INVITE, f"peer{number}", Endpoint("", 0), ()), self.storage, keys,
            to_trainer=self._inbox.put, rng=rng, brings=brings,
            loop=cast(asyncio.AbstractEventLoop, _Timers(self)),
        )  # fmt: skip
        home = IPv6Address(b"\xfd" + bytes(5) + number.to_bytes(2, "big") + boot)
        address = Address(peer_id, peer_id, str(home), 1)
        self._link = host.network.open(address, self)
        card = Card(peer_id, boot, f"peer{number}", peer_id, address.host, 1, brings=brings)
        self.machine = self.shell.begin(self, card, self._link)
        thread = _Thread(self, self._inbox, self.shell)
        self.membership = _Membership(keys, "", config, self.storage, thread, boot=boot)
        self._own = own
        self.peer: StagedPeer | None = None
        self.trainer = self._inbox.thread = TrainerThread(self._main)

    def start(self) -> None:
        """Connect, and begin the training thread."""
        self.host.control.connect(self)
        self.trainer.begin()
        self._look()

    def _main(self) -> None:
        telling = Telling(lambda line: None, lambda event: self.host.told(self, event))
        self.peer = peer = StagedPeer(self.membership, 1, telling, own=self._own)
        peer.start()
        while not peer.should_stop:
            peer.step()
        peer.leave("done", save=True, waits=lambda: None)

    def request_stop(self) -> None:
        """Its user wants it to leave."""
        if self.peer is not None:
            self.peer.request_stop()

    def _look(self) -> None:
        """Notice that the program has ended."""
        if self.trainer.is_over:
            self.is_leaving = True
            self.later(_GOODBYE_S, partial(self._end, self.trainer.error))
        elif self.is_alive:
            self.clock.after(_GOODBYE_S, self._look)

    def kill(self) -> None:
        """The process is gone, with everything in memory."""
        if self.is_alive:
            self.trainer.kill()
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self.die()
        self.host.network.kill(self.peer_id)
        self.host.control.hung_up(self)
        self.storage.close()
        self.host.ended(self, error)

    def later(self, delay_s: float, event: Callable[[], object]) -> None:
        """Let this process do something later, if it still lives then."""
        self.clock.after(delay_s, partial(self.hear, event))

    # ---- the lanes

    def greeting(self) -> Hello:
        """Return its first message on a new connection."""
        return self.machine.hello()

    def on_control(self, message: CoordinatorMessage) -> None:
        """A message of the coordinator."""
        self.hear(self.shell.on_message, message)

    def on_control_down(self) -> None:
        """The coordinator's connection is gone; try again soon."""
        self.hear(self._control_down)

    def _control_down(self) -> None:
        self.shell.on_down()
        self.later(RECONNECT_S, partial(self.host.control.connect, self))

    def on_frame(self, peer: PeerId, frame: Frame) -> None:
        """LinkHandler."""
        self.hear(self.shell.on_frame, peer, frame)

    def on_fault(self, peer: PeerId | None, fault: RemoteFault) -> None:
        """LinkHandler."""


def is_given_up(error: BaseException | None) -> bool:
    """Return True if `swarmtrain join` would begin anew by itself."""
    return isinstance(error, UserError) and error.code == "SWT-E710"
