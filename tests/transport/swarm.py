"""A whole small swarm of the pure machines: every message is encoded, every order is possible.

State is 24 whole numbers. A round adds to each of them the sum and the weight of what was
committed, so two peers have the same root only if they applied the same bytes in the same order.
"""

import random
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

from swarmtrain_transport import actions as do
from swarmtrain_transport.blocks.manifest import ArraySpec, StateManifest, describe_state
from swarmtrain_transport.blocks.retention import bytes_of
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.frames import Frame, pack, unpack
from swarmtrain_transport.wire.records import Record
from tests.transport.plain_arithmetic import (
    PlainArithmetic,
    PlainContribution,
    decode_part,
    decode_result,
)
from tests.transport.rig import LAYOUT, RUN_KEY, sign, sign_as, terms_of, verify

VALUES = 24
_SPECS = (ArraySpec("anchor", VALUES),)


def state_of(numbers: list[int]) -> tuple[StateManifest, tuple[bytes, ...]]:
    data = struct.pack(f"<{VALUES}I", *(number & 0xFFFFFFFF for number in numbers))
    manifest, chunks = describe_state(LAYOUT, _SPECS, data)
    return manifest, tuple(bytes(chunk) for chunk in chunks)


def after(numbers: list[int], result: OpResult) -> list[int]:
    """The outer step: not linear, so that the order of rounds shows."""
    if result.weights is not None:
        return _after_gather(numbers, result, result.weights)
    new = []
    for piece in result.slices:
        for chunk in piece.chunks:
            sums, weight = decode_result(chunk)
            new += [value + 31 * weight for value in sums]
    return [(3 * old + value) & 0xFFFFFFFF for old, value in zip(numbers, new, strict=True)]


def _after_gather(numbers: list[int], result: OpResult, weights: tuple[int, ...]) -> list[int]:
    """The same of what everybody has given, in the order in which it stands in the result."""
    new = list(numbers)
    for piece, weight in zip(result.slices, weights, strict=True):
        given = [value for chunk in piece.chunks for value in decode_part(chunk)]
        new = [
            (3 * old + weight * value) & 0xFFFFFFFF for old, value in zip(new, given, strict=True)
        ]
    return new


class Member:
    """One peer's process with a trainer that answers at once."""

    def __init__(
        self, peer: PeerId, boot: bytes, now_s: float, arithmetic: PlainArithmetic | None = None,
        records: Iterable[Record] = (),
    ) -> None:  # fmt: skip
        self.peer = peer
        self.numbers = [peer[0]] * VALUES
        self.roots: dict[tuple[int, int], bytes] = {}
        self.replayed: list[int] = []
        self.halted: list[do.Halt] = []
        self.faults: list[do.PeerFault] = []
        self.finished = False
        self.proofs: list[do.KeepProof] = []
        self.revoked: list[PeerId] = []
        card = Card(peer, boot, "name", peer, "127.0.0.1", 4000 + peer[0])
        self.machine = Participant(
            card, arithmetic or PlainArithmetic(), sign_as(peer), verify, list, records,
            now_s,
        )  # fmt: skip

    def after(self, result: OpResult) -> list[int]:
        return after(self.numbers, result)

    def is_new(self, key: tuple[int, int], root: bytes) -> bool:
        """Return True if this peer holds for the first time what follows from an op, or the same
        again."""
        return self.roots.setdefault(key, root) == root

    def difference(self, op: int) -> PlainContribution:
        """Return what this peer gives to a round: known to the test as well."""
        return PlainContribution([self.peer[0] * 100 + op * 10 + i for i in range(VALUES)])


class Swarm:
    """Coordinator, members and what is under way between them.

    Args:
        seed: of the order in which messages arrive.
    """

    member_type = Member

    def __init__(self, seed: int, **terms: Any) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.terms = terms_of(**terms)
        self.term = 1
        self.records: list[Record] = []
        self.members: dict[PeerId, Member] = {}
        self.dead: list[Member] = []
        self.up: dict[PeerId, deque[bytes]] = {}
        self.down: dict[PeerId, deque[bytes]] = {}
        self.data: dict[tuple[PeerId, PeerId], deque[Any]] = {}
        self._boots = 0
        self.hall = self._new_hall()
        self._heed(self.hall.start(0.0))

    def _new_hall(self) -> Rendezvous:
        return Rendezvous(
            self.terms, RUN_KEY, tuple(self.records), sign, verify, self.term, self.now_s
        )

    # ---- what may happen

    def add(self, peer: PeerId, arithmetic: PlainArithmetic | None = None) -> Member:
        self._boots += 1
        boot = f"boot {self._boots}".encode()
        member = self.member_type(peer, boot, self.now_s, arithmetic)
        self.members[peer] = member
        self._carry(member, member.machine.start(self.now_s))
        self.connect(peer)
        manifest, chunks = state_of(member.numbers)
        self._carry(member, member.machine.attach(0, manifest, chunks, 1, self.now_s))
        return member

    def connect(self, peer: PeerId) -> None:
        """HELLO on a new connection; what was under way on the old one is lost."""
        member = self.members[peer]
        self.up[peer], self.down[peer] = deque(), deque()
        self._carry(member, member.machine.control_down(self.now_s))
        hello = m.decode_from_peer(m.encode(member.machine.hello()))
        assert isinstance(hello, m.Hello)
        self._heed(self.hall.connected(peer, hello, self.now_s))

    def kill(self, peer: PeerId) -> None:
        self.dead.append(self.members.pop(peer))
        self.up.pop(peer)
        self.down.pop(peer)
        self.data = {ends: queue for ends, queue in self.data.items() if peer not in ends}
        self._heed(self.hall.disconnected(peer, self.now_s))

    def restart_coordinator(self) -> None:
        self.term += 1
        self.hall = self._new_hall()
        self._heed(self.hall.start(self.now_s))
        for peer in list(self.members):
            self.connect(peer)

    def lose_frames(self, source: PeerId, target: PeerId) -> None:
        self.data.pop((source, target), None)

    def step(self) -> None:
        """Deliver something at random, or let a little time pass."""
        queues = [*self.up.items()], [*self.down.items()], [*self.data.items()]
        busy: list[tuple[str, Any]] = [
            (kind, key)
            for kind, group in zip(("up", "down", "data"), queues, strict=True)
            for key, queue in group
            if queue
        ]
        if not busy or self.rng.random() < 0.02:
            return self.pass_time(self.rng.choice([0.01, 0.3, 1.1]))
        kind, key = self.rng.choice(busy)
        if kind == "up":
            message = m.decode_from_peer(self.up[key].popleft())
            self._heed(self.hall.received(key, message, self.now_s))
        elif kind == "down":
            told = m.decode_from_coordinator(self.down[key].popleft())
            self._told(self.members[key], told)
        else:
            source, target = key
            header, body = self.data[key].popleft()
            if target in self.members:
                self._framed(self.members[target], source, unpack(header, body))
        return None

    def _told(self, member: Member, message: m.CoordinatorMessage) -> None:
        self._carry(member, member.machine.control(message, self.now_s))

    def _framed(self, member: Member, source: PeerId, frame: Frame) -> None:
        self._carry(member, member.machine.frame(source, frame, self.now_s))

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for member in list(self.members.values()):
            if self.now_s >= member.machine.next_wakeup_s:
                self._carry(member, member.machine.tick(self.now_s))
        if self.now_s >= self.hall.next_wakeup_s - seconds:
            self._heed(self.hall.tick(self.now_s))

    def run(self, steps: int) -> bool:
        """Until every member has finished; whether that came within so many steps."""
        for _ in range(steps):
            if all(member.finished or member.halted for member in self.members.values()):
                return True
            self.step()
        return False

    # ---- shells

    def _heed(self, actions: Iterable[Any]) -> None:
        for action in actions:
            if isinstance(action, do.Append):
                self.records.append(action.record)
            elif isinstance(action, do.Adopt):
                self.records += action.records
                self.term = action.term
            elif isinstance(action, do.SendToPeer) and action.peer in self.down:
                self.down[action.peer].append(m.encode(action.message))

    def _carry(self, member: Member, actions: Iterable[do.PeerAction]) -> None:
        for action in actions:
            match action:
                case do.SendControl():
                    self.up[member.peer].append(m.encode(action.message))
                case do.SendFrame():
                    header, body = pack(action.frame)
                    queue = self.data.setdefault((member.peer, action.peer), deque())
                    queue.append((header, bytes(body)))
                case do.LoadState():
                    raw = b"".join(bytes_of(chunk) for chunk in action.chunks)
                    member.numbers = list(struct.unpack(f"<{VALUES}I", raw))
                    self._applied(member, action.op)
                case do.ApplyResult():
                    member.numbers = member.after(action.result)
                    if action.result.replayed:
                        member.replayed.append(action.result.op)
                    self._applied(member, action.result.op)
                case do.OpSkipped():
                    self._ready(member, action.op)
                case do.RunFinished():
                    member.finished = True
                case do.Halt():
                    member.halted.append(action)
                case do.RevokePeer():
                    member.revoked.append(action.peer)
                case do.KeepProof():
                    member.proofs.append(action)
                case do.PeerFault():
                    member.faults.append(action)

    def _applied(self, member: Member, op: int) -> None:
        manifest, chunks = state_of(member.numbers)
        # What a REWIND cancels happens again, and otherwise.
        key = (member.machine.view.first.rewinds, op)
        assert member.is_new(key, manifest.root)
        self._carry(member, member.machine.applied(op, manifest, chunks, self.now_s))
        if member.machine.applied_op == op:  # else the next result is in place already
            self._ready(member, op)

    def _ready(self, member: Member, op: int) -> None:
        contribution = member.difference(op + 1)
        self._carry(member, member.machine.ready(op + 1, contribution, 8, self.now_s))
