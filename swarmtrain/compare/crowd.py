"""A run in one process: the production coordinator and participants over memory links.

Nothing here waits and nothing has a thread: messages move when they are asked to, and time is a
number that passes when nothing else can happen. So the same crowd does the same every time.
Training, storage and the use of outcomes are its members' own.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from swarmtrain.peer.training.machine import Outcome
from swarmtrain_transport import actions as do
from swarmtrain_transport.arithmetic import Arithmetic
from swarmtrain_transport.coordinator.ops.planning import RunTerms
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import Address, Link, LinkHandler, PeerId
from swarmtrain_transport.links.memory_link import MemoryNetwork
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.participant import Actions, Participant
from swarmtrain_transport.wire import messages as say
from swarmtrain_transport.wire.frames import Frame
from swarmtrain_transport.wire.records import Record, Sign, Verify

_TICKS_MAX = 10_000
"""Wakeups before a crowd that would hang fails."""


MemberT = TypeVar("MemberT", bound="Member")


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of a crowd.

    Attributes:
        run_key: public key of the run.
        sign: signs with it.
        sign_as: signs with a peer's own key.
        verify: checks a signature.
    """

    run_key: bytes
    sign: Sign
    sign_as: Callable[[PeerId], Sign]
    verify: Verify


class LaneEnd(Link, Protocol):
    """A link that says where it listens."""

    @property
    def address(self) -> Address:
        """Address at which others reach it."""


class Lane(Protocol):
    """All links of one crowd."""

    def open(self, peer: PeerId, handler: LinkHandler) -> LaneEnd:
        """A peer's link."""

    def pump(self, max_frames: int) -> int:
        """Hand over some of the frames under way; how many there were."""

    def kill(self, peer: PeerId) -> None:
        """The peer's process is gone, with all frames from and to it."""

    def close(self) -> None:
        """The crowd has ended."""


class MemoryLane:
    """Links in memory."""

    def __init__(self) -> None:
        self._network = MemoryNetwork()
        self.pump, self.kill = self._network.pump, self._network.kill

    def open(self, peer: PeerId, handler: LinkHandler) -> LaneEnd:
        """A peer's link."""
        return self._network.open(Address(peer, peer, "192.0.2.1", 0), handler)

    def close(self) -> None:
        """Do nothing: only memory is open."""


class Member(ABC):
    """One peer's network side; who inherits brings what trains.

    Args:
        crowd: crowd that it belongs to.
        peer: own id.
        boot: boot of this process.
        arithmetic: arithmetic of the exchange.
        records: copy of the ledger from an earlier life.

    Attributes:
        is_over: True once the process has ended; frames that it had sent still arrive.
    """

    is_over = False

    def __init__(
        self,
        crowd: "Crowd[Any]",
        peer: PeerId,
        boot: bytes,
        arithmetic: Arithmetic,
        records: Iterable[Record] = (),
    ) -> None:
        self.crowd, self.peer = crowd, peer
        self.link = crowd.lane.open(peer, self)
        here = self.link.address
        card = Card(peer, boot, "name", here.curve_key, here.host, here.port)
        keys = crowd.keys
        self.participant = Participant(
            card, arithmetic, keys.sign_as(peer), keys.verify, list, records, crowd.now_s
        )

    @abstractmethod
    def heard(self, news: Outcome | do.RecordAccepted) -> None:
        """Take what became of the run, for whoever trains, or a record, for whoever keeps it."""

    def sends(self, peer: PeerId, frame: Frame) -> None:
        """A frame goes to a peer."""
        self.link.send(peer, frame)

    def tell(self, event: Callable[[Participant, float], Actions]) -> None:
        """Give the participant an event of the trainer's."""
        self.act(event(self.participant, self.crowd.now_s))

    def on_frame(self, peer: PeerId, frame: Frame) -> None:
        """LinkHandler."""
        self.act(self.participant.frame(peer, frame, self.crowd.now_s))

    def on_fault(self, peer: PeerId | None, fault: RemoteFault) -> None:
        """LinkHandler: what a leaver had sent ahead may come after its goodbye; nobody lies."""
        if fault.reason != "key":
            raise fault

    def act(self, actions: Actions) -> None:
        """Do what the participant asks, in order."""
        for action in actions:
            match action:
                case do.SendControl():
                    self.crowd.told(self.peer, action.message)
                case do.SendFrame():
                    self.sends(action.peer, action.frame)
                case do.AllowPeer():
                    self.link.allow(action.address)
                case do.RevokePeer():
                    self.link.revoke(action.peer)
                case do.PeerFault() | do.Halt():
                    raise AssertionError(action)
                case (
                    do.LoadState()
                    | do.ApplyResult()
                    | do.OpSkipped()
                    | do.RunFinished()
                    | do.RecordAccepted()
                ):
                    self.heard(action)


class Crowd(Generic[MemberT]):
    """The coordinator, its peers, and what is under way between them.

    Args:
        terms: the run file's terms of the exchange.
        keys: keys of all members.
        lane: carrier of frames.

    Attributes:
        hall: the coordinator.
        records: the coordinator's ledger.
        members: connected members by id.
        now_s: the time.
    """

    def __init__(self, terms: RunTerms, keys: Keys, lane: Lane | None = None) -> None:
        self.keys = keys
        self.now_s = 0.0
        self.lane = lane if lane is not None else MemoryLane()
        self.records: list[Record] = []
        self.members: dict[PeerId, MemberT] = {}
        self._terms, self._term = terms, 0
        self._up: deque[tuple[PeerId, bytes]] = deque()
        self._down: deque[tuple[PeerId, bytes]] = deque()
        self.start_coordinator()

    def start_coordinator(self) -> None:
        """A coordinator's life begins, with the records of those before it."""
        self._term += 1
        keys = self.keys
        self.hall = Rendezvous(
            self._terms, keys.run_key, tuple(self.records), keys.sign, keys.verify, self._term,
            self.now_s,
        )  # fmt: skip
        self._heed(self.hall.start(self.now_s))

    def connect(self, member: MemberT) -> None:
        """A peer comes to the door."""
        self.members[member.peer] = member
        member.tell(lambda participant, now_s: participant.start(now_s))
        hello: Any = say.decode_from_peer(say.encode(member.participant.hello()))
        self._heed(self.hall.connected(member.peer, hello, self.now_s))

    def disconnect(self, member: MemberT) -> None:
        """A peer's process has ended: nobody hears of it any more."""
        self.lane.kill(member.peer)
        if self.members.get(member.peer) is member:
            del self.members[member.peer]
            self._heed(self.hall.disconnected(member.peer, self.now_s))

    def told(self, peer: PeerId, message: say.PeerMessage) -> None:
        """A peer tells the coordinator something."""
        self._up.append((peer, say.encode(message)))

    # ---- what moves

    def deliver(self) -> int:
        """Hand over all that is under way, and what follows from it; how much there was."""
        count = 0
        while self._up or self._down or self.lane.pump(1):
            count += 1
            if self._up:
                peer, data = self._up.popleft()
                message: Any = say.decode_from_peer(data)
                if peer in self.members:
                    self._heed(self.hall.received(peer, message, self.now_s))
            if self._down:
                peer, data = self._down.popleft()
                word: Any = say.decode_from_coordinator(data)
                member = self.members.get(peer)
                if member is not None and not member.is_over:
                    member.act(member.participant.control(word, self.now_s))
        return count

    def wake(self) -> int:
        """Tell whoever wanted to hear of this moment; how many there were."""
        count = 0
        for member in list(self.members.values()):
            if self.now_s >= member.participant.next_wakeup_s and not member.is_over:
                member.act(member.participant.tick(self.now_s))
                count += 1
        if self.now_s >= self.hall.next_wakeup_s:
            self._heed(self.hall.tick(self.now_s))
            count += 1
        return count

    def settle(self) -> None:
        """Let everything happen that needs no time.

        Raises:
            RuntimeError: it does not end.
        """
        for _ in range(_TICKS_MAX):
            if not self.deliver() + self.wake():
                return
        raise RuntimeError("what happens in this crowd at one moment does not end")

    def run(self, until: Callable[[], bool]) -> None:
        """Go on until it is so; time passes from one wakeup to the next.

        Raises:
            RuntimeError: it will never be so.
        """
        for _ in range(_TICKS_MAX):
            self.settle()
            if until():
                return
            wakeups = [one.participant.next_wakeup_s for one in self.members.values()]
            self.now_s = min(self.hall.next_wakeup_s, *wakeups)
        raise RuntimeError("nothing happens any more in this crowd")

    def logged(self, record: Record) -> None:
        """The coordinator has decided something."""

    def _heed(self, actions: Iterable[do.CoordinatorAction]) -> None:
        for action in actions:
            if isinstance(action, do.Append):
                self.records.append(action.record)
                self.logged(action.record)
            elif isinstance(action, do.SendToPeer):
                self._down.append((action.peer, say.encode(action.message)))
