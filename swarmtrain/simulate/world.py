"""A whole swarm in one process under a virtual clock, with deaths at chosen moments.

Every message that is delivered, on either lane, is a *boundary*: its number is counted before the
receiver hears it, and a plan of faults says who dies at which boundary. Control connections are
ordered and lose what is under way when an end dies; data frames pass through the production
framing. First version: latency without rates, deaths without return, coordinator restarts.
"""

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from swarmtrain.simulate.clock import SimClock
from swarmtrain.simulate.invariants import Invariants, Violation
from swarmtrain.simulate.sim_peer import SimPeer
from swarmtrain_transport import actions as do
from swarmtrain_transport.ledger import Record
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.memory_link import MemoryNetwork
from swarmtrain_transport.messages import PeerMessage, decode_from_peer, encode
from swarmtrain_transport.planning import RunTerms
from swarmtrain_transport.rendezvous import Rendezvous

_CONTROL_S = 0.002
_DATA_S = 0.003
_RESTART_S = 0.3
COORDINATOR = -1
"""Stands for the coordinator in a fault plan."""


@dataclass(frozen=True, slots=True)
class Fault:
    """At boundary `boundary`, before that message is heard, these die together.

    Attributes:
        boundary: number of the message.
        victims: peer numbers; COORDINATOR is restarted after a moment, peers stay dead.
    """

    boundary: int
    victims: tuple[int, ...]


def quick_sign(digest: bytes) -> bytes:
    """A stand-in for Ed25519, which would be a tenth of the run time and proves nothing here."""
    return hashlib.sha256(b"sim" + digest).digest()


def quick_verify(key: bytes, signature: bytes, data: bytes) -> bool:
    """Counterpart of quick_sign."""
    return signature == quick_sign(data)


class SimCoordinator:
    """The production rendezvous on a pretended disk."""

    def __init__(self, world: "World", terms: RunTerms) -> None:
        self.world = world
        self.terms = terms
        self.disk: list[Record] = []
        self.machine: Rendezvous | None = None
        self.term = 0
        self._wakeup_s = float("inf")

    def start(self) -> None:
        """A new life: replay the disk."""
        self.term += 1
        now_s = self.world.clock.now_s
        self.machine = Rendezvous(
            self.terms, bytes(32), self.disk, quick_sign, quick_verify, self.term, now_s
        )
        self.act(self.machine.start(now_s))

    def crash(self) -> None:
        """kill -9. What was not yet delivered of its messages is lost."""
        self.machine = None
        self._wakeup_s = float("inf")

    def act(self, actions: Iterable[do.CoordinatorAction]) -> None:
        """Append first, then send, in the machine's order."""
        for action in actions:
            if isinstance(action, do.Append):
                self.disk.append(action.record)
                self.world.invariants.logged(action.record)
            elif isinstance(action, do.SendToPeer):
                self.world.to_peer(action.peer, encode(action.message))
            else:
                self.world.close(action.peer)
        self._sleep()

    def _sleep(self) -> None:
        if self.machine is None:
            return
        wakeup_s = self.machine.next_wakeup_s
        if wakeup_s != self._wakeup_s:
            self._wakeup_s = wakeup_s
            self.world.clock.at(wakeup_s, lambda: self._wake(wakeup_s))

    def _wake(self, wakeup_s: float) -> None:
        if self.machine is not None and self._wakeup_s == wakeup_s:
            self._wakeup_s = float("inf")
            self.act(self.machine.tick(self.world.clock.now_s))


class World:
    """Clock, network, coordinator and peers.

    Args:
        num_peers: peers at the start.
        rounds: the run ends after so many commits.
        seed: of everything that is drawn.
        faults: who dies when.
        min_contributors: as in the run file.
        replace_dead: a newcomer joins a second after each death.
        slice_chunks: chunks per slice, each of `chunk_values` values.
    """

    def __init__(
        self,
        num_peers: int,
        *,
        rounds: int = 2,
        seed: int = 0,
        faults: Iterable[Fault] = (),
        min_contributors: int = 1,
        replace_dead: bool = False,
        slice_chunks: int = 2,
        chunk_values: int = 64,
    ) -> None:
        self.clock = SimClock()
        self.verify = quick_verify
        self.train_s = 1.0
        self.snapshot_rounds = 2
        self.boundary = 0
        self.violations: list[Violation] = []
        self.invariants = Invariants(self)
        self._replace_dead = replace_dead
        self._rng = random.Random(seed)
        self._faults = sorted(faults, key=lambda fault: fault.boundary)
        self._lane_s: dict[tuple[object, object], float] = {}
        self._num_values = num_peers * slice_chunks * chunk_values
        self.network = MemoryNetwork(self._schedule)
        self.coordinator = SimCoordinator(
            self, _terms(num_peers, rounds, min_contributors, chunk_values)
        )
        self.peers: dict[PeerId, SimPeer] = {}
        self._connected: dict[PeerId, int] = {}
        self.on_boundary: Callable[[int], None] | None = None

    # ---- running

    def start(self, num_peers: int) -> None:
        """The coordinator and so many peers come up."""
        self.coordinator.start()
        for number in range(num_peers):
            self.add_peer(number)

    def add_peer(self, number: int) -> SimPeer:
        """A peer's process begins."""
        peer_id = hashlib.sha256(b"peer %d" % number).digest()
        boot = self._rng.randbytes(8)
        rng = random.Random(self._rng.getrandbits(63))
        peer = SimPeer(self, peer_id, number, boot, self._num_values, rng)
        self.peers[peer_id] = peer
        peer.start()
        return peer

    @property
    def survivors(self) -> list[SimPeer]:
        """Peers that live."""
        return [peer for peer in self.peers.values() if peer.is_alive]

    def run(self, until_s: float = 2000.0) -> None:
        """Until the run has finished everywhere, a violation, or the end of time."""
        while not self.violations and self.clock.step(until_s):
            if self.survivors and all(peer.is_finished for peer in self.survivors):
                break
        if not self.violations:
            self.invariants.at_end()

    def violation(self, invariant: str, story: str) -> None:
        """An invariant does not hold."""
        self.violations.append(Violation(invariant, self.clock.now_s, self.boundary, story))

    # ---- lanes

    def _deliver(self, hear: Callable[[], None]) -> None:
        """One boundary: faults planned for it strike before the message is heard."""
        number = self.boundary
        self.boundary += 1
        while self._faults and self._faults[0].boundary <= number:
            self._strike(self._faults.pop(0))
        hear()

    def _strike(self, fault: Fault) -> None:
        peers = {peer.number: peer for peer in self.peers.values()}
        for victim in fault.victims:
            if victim == COORDINATOR:
                self.coordinator.crash()
                for peer in self.survivors:
                    self._hang_up(peer)
                self.clock.after(_RESTART_S, self.coordinator.start)
            elif victim in peers and peers[victim].is_alive:
                peers[victim].kill()
                if self._replace_dead:
                    newcomer = len(self.peers)
                    self.clock.after(1.0, lambda number=newcomer: self.add_peer(number))  # type: ignore[misc]  # bound now

    def _in_order(self, lane: tuple[object, object], delay_s: float) -> float:
        """A moment of arrival that keeps the lane's order."""
        moment = self.clock.now_s + delay_s * (0.5 + self._rng.random())
        moment = max(moment, self._lane_s.get(lane, 0.0) + 1e-9)
        self._lane_s[lane] = moment
        return moment

    def _schedule(self, source: PeerId, target: PeerId, deliver: Callable[[], None]) -> None:
        moment = self._in_order((source, target), _DATA_S)
        self.clock.at(moment, lambda: self._deliver(deliver))

    def connect(self, peer: SimPeer) -> None:
        """A peer opens its control connection; without a coordinator it tries again."""
        if self.coordinator.machine is None:
            peer._event(lambda: self.connect(peer), 0.5)
            return
        peer.connection += 1
        self._connected[peer.peer_id] = peer.connection
        hello = peer.machine.hello()

        def arrive() -> None:
            machine = self.coordinator.machine
            if machine is not None and self._is_open(peer, connection):
                self.coordinator.act(machine.connected(peer.peer_id, hello, self.clock.now_s))

        connection = peer.connection
        moment = self._in_order((peer.number, connection), _CONTROL_S)
        self.clock.at(moment, lambda: self._deliver(arrive))

    def to_coordinator(self, peer: SimPeer, message: PeerMessage) -> None:
        """Send over a peer's control connection, if it is open."""
        connection = peer.connection
        if not self._is_open(peer, connection):
            return
        data = encode(message)

        def hear() -> None:
            machine = self.coordinator.machine
            if machine is not None and self._is_open(peer, connection):
                self.coordinator.act(
                    machine.received(peer.peer_id, decode_from_peer(data), self.clock.now_s)
                )

        moment = self._in_order((peer.number, connection), _CONTROL_S)
        self.clock.at(moment, lambda: self._deliver(hear))

    def to_peer(self, peer_id: PeerId, data: bytes) -> None:
        """Send over a peer's control connection, if it is open."""
        peer = self.peers[peer_id]
        connection = peer.connection
        if not self._is_open(peer, connection):
            return

        def hear() -> None:
            if self._is_open(peer, connection):
                peer.on_control(data)

        moment = self._in_order((connection, peer.number, "down"), _CONTROL_S)  # type: ignore[arg-type]  # any key
        self.clock.at(moment, lambda: self._deliver(hear))

    def _is_open(self, peer: SimPeer, connection: int) -> bool:
        return peer.is_alive and self._connected.get(peer.peer_id) == connection

    def _hang_up(self, peer: SimPeer) -> None:
        self._connected.pop(peer.peer_id, None)
        peer.on_control_down()

    def close(self, peer_id: PeerId) -> None:
        """The coordinator closes a connection after what it has sent."""
        peer = self.peers[peer_id]
        self.clock.after(2 * _CONTROL_S, lambda: self._hang_up(peer))

    def hung_up(self, peer: SimPeer) -> None:
        """A killed peer's connection closes at the coordinator."""
        self._connected.pop(peer.peer_id, None)

        def notice() -> None:
            machine = self.coordinator.machine
            if machine is not None and peer.peer_id in machine.lines:
                self.coordinator.act(machine.disconnected(peer.peer_id, self.clock.now_s))

        self.clock.after(_CONTROL_S, notice)


def _terms(num_peers: int, rounds: int, min_contributors: int, chunk_values: int) -> RunTerms:
    return RunTerms(
        run_id="simulation",
        config=b"",
        config_hash=bytes(32),
        rounds=rounds,
        codec="int8",
        exact=True,
        block=32,
        chunk_values=chunk_values,
        e_max=0,
        min_contributors=min_contributors,
        start_peers=num_peers,
        wait_ready_s=5.0,
        deadline_floor_s=20.0,
        deadline_cap_s=20.0,
        checkpoint_rounds=1000,
        snapshot_rounds=2,
    )
