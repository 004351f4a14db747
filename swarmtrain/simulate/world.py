"""A whole swarm in one process under a virtual clock, with faults at chosen moments.

Every message that is delivered, on either lane, is a *boundary*: its number is counted before the
receiver hears it, and a plan of faults says what happens at which boundary. Control connections
are ordered and lose what is under way when an end dies; data frames pass through the production
framing. First version: latency without rates, peers that return with an empty trainer.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from swarmtrain.simulate.clock import SimClock
from swarmtrain.simulate.faults import COORDINATOR, Fault, Handicap
from swarmtrain.simulate.invariants import Invariants, Violation
from swarmtrain.simulate.sim_coordinator import SimCoordinator
from swarmtrain.simulate.sim_peer import SimPeer
from swarmtrain_transport.ledger import Record
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.memory_link import MemoryNetwork
from swarmtrain_transport.messages import PeerMessage, decode_from_peer, encode
from swarmtrain_transport.planning import RunTerms

_CONTROL_S = 0.002
_DATA_S = 0.003
_RESTART_S = 0.3
_RECONNECT_S = 0.5
_REPLACE_S = 1.0
_NO_HANDICAP = Handicap()


def quick_sign(digest: bytes) -> bytes:
    """A stand-in for Ed25519, which would be a tenth of the run time and proves nothing here."""
    return hashlib.sha256(b"sim" + digest).digest()


def quick_verify(key: bytes, signature: bytes, data: bytes) -> bool:
    """Counterpart of quick_sign."""
    return signature == quick_sign(data)


class World:
    """Clock, network, coordinator and peers.

    Args:
        num_peers: peers at the start.
        rounds: the run ends after so many commits.
        seed: of everything that is drawn.
        faults: what happens when.
        handicaps: what is wrong with a peer from its start, by number.
        min_contributors: as in the run file.
        replace_dead: a newcomer joins a second after each death.
        slice_chunks: chunks per slice, each of `chunk_values` values.
        error_feedback: as in the run file.
    """

    def __init__(
        self,
        num_peers: int,
        *,
        rounds: int = 2,
        seed: int = 0,
        faults: Iterable[Fault] = (),
        handicaps: Mapping[int, Handicap] | None = None,
        min_contributors: int = 1,
        replace_dead: bool = False,
        slice_chunks: int = 2,
        chunk_values: int = 64,
        error_feedback: bool = True,
    ) -> None:
        self.clock = SimClock()
        self.verify = quick_verify
        self.train_s = 1.0
        self.snapshot_rounds = 2
        self.error_feedback = error_feedback
        self.boundary = 0
        self.violations: list[Violation] = []
        self.invariants = Invariants(self)
        self._num_peers = num_peers
        self._replace_dead = replace_dead
        self._rng = random.Random(seed)
        self._faults = sorted(faults, key=lambda fault: fault.boundary)
        self._handicaps = dict(handicaps or {})
        self._lane_s: dict[tuple[object, ...], float] = {}
        self._num_values = num_peers * slice_chunks * chunk_values
        self.network = MemoryNetwork(self._schedule)
        terms = _terms(num_peers, rounds, min_contributors, chunk_values)
        self.coordinator = SimCoordinator(self, terms, quick_sign, quick_verify)
        self.peers: dict[PeerId, SimPeer] = {}
        self._connected: dict[PeerId, int] = {}
        self._connections = 0

    # ---- running

    def start(self) -> None:
        """The coordinator and the first peers come up."""
        self.coordinator.start()
        for _ in range(self._num_peers):
            self.add_peer()

    def add_peer(self) -> SimPeer:
        """A new peer's process begins; peers are numbered as they come."""
        number = len(self.peers)
        return self._begin(hashlib.sha256(b"peer %d" % number).digest(), number, ())

    def _return(self, old: SimPeer) -> None:
        """A dead peer's process is started again in its state directory."""
        self._begin(old.peer_id, old.number, old.records)

    def _begin(self, peer_id: PeerId, number: int, records: Iterable[Record]) -> SimPeer:
        boot = self._rng.randbytes(8)
        rng = random.Random(self._rng.getrandbits(63))
        handicap = self._handicaps.get(number, _NO_HANDICAP)
        peer = SimPeer(self, peer_id, number, boot, self._num_values, rng, handicap, records)
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
            self.invariants.on_time()
            if self.survivors and all(peer.is_finished for peer in self.survivors):
                break
        if not self.violations:
            self.invariants.at_end()

    def violation(self, invariant: str, story: str) -> None:
        """An invariant does not hold."""
        self.violations.append(Violation(invariant, self.clock.now_s, self.boundary, story))

    # ---- faults

    def _deliver(self, hear: Callable[[], None]) -> None:
        """One boundary: faults planned for it strike before the message is heard."""
        number = self.boundary
        self.boundary += 1
        while self._faults and self._faults[0].boundary <= number:
            self._strike(self._faults.pop(0))
        hear()

    def _strike(self, fault: Fault) -> None:
        if COORDINATOR in fault.victims:
            self.coordinator.crash()
            self.invariants.coordinator_fell()
            for peer in self.survivors:
                self._hang_up(peer)
            self.clock.after(_RESTART_S, self.coordinator.start)
        for peer in self.survivors:
            if peer.number in fault.victims:
                peer.kill()
                if self._replace_dead:
                    self.clock.after(_REPLACE_S, self.add_peer)
            elif peer.number in fault.returners:
                peer.kill()
                self.clock.after(_RESTART_S, partial(self._return, peer))
            elif peer.number in fault.leavers:
                peer.leave()
            elif peer.number in fault.blinkers:
                self.hung_up(peer)
                peer.on_control_down()
        numbered = {peer.number: peer for peer in self.peers.values()}
        for source, target in fault.cuts:
            self.network.cut(numbered[source].peer_id, numbered[target].peer_id)
            numbered[source].is_cut = numbered[target].is_cut = True
        for _ in range(fault.newcomers):
            self.add_peer()

    # ---- lanes

    def _in_order(self, lane: tuple[object, ...], delay_s: float) -> float:
        """A moment of arrival that keeps the lane's order."""
        moment = self.clock.now_s + delay_s * (0.5 + self._rng.random())
        moment = max(moment, self._lane_s.get(lane, 0.0) + 1e-9)
        self._lane_s[lane] = moment
        return moment

    def _schedule(self, source: PeerId, target: PeerId, deliver: Callable[[], None]) -> None:
        lag_s = self.peers[source].handicap.lag_s
        moment = self._in_order(("data", source, target), _DATA_S + lag_s)
        self.clock.at(moment, lambda: self._deliver(deliver))

    def connect(self, peer: SimPeer) -> None:
        """A peer opens its control connection; without a coordinator it tries again."""
        if peer.is_leaving:
            return
        if self.coordinator.machine is None:
            peer.later(_RECONNECT_S, lambda: self.connect(peer))
            return
        self._connections += 1
        peer.connection = self._connected[peer.peer_id] = self._connections
        hello = peer.machine.hello()
        self._up(peer, lambda: self.coordinator.hear_hello(peer.peer_id, hello))

    def reconnect(self, peer: SimPeer) -> None:
        """A peer's control connection is gone; it tries again soon."""
        peer.later(_RECONNECT_S, lambda: self.connect(peer))

    def to_coordinator(self, peer: SimPeer, message: PeerMessage) -> None:
        """Send over a peer's control connection, if it is open."""
        if self._is_open(peer, peer.connection):
            data = encode(message)
            self._up(peer, lambda: self.coordinator.hear(peer.peer_id, decode_from_peer(data)))

    def to_peer(self, peer_id: PeerId, data: bytes) -> None:
        """Send over a peer's control connection, if it is open."""
        peer = self.peers[peer_id]
        connection = peer.connection
        if not self._is_open(peer, connection):
            return

        def hear() -> None:
            if self._is_open(peer, connection):
                peer.on_control(data)

        moment = self._in_order(("down", peer.number, connection), _CONTROL_S)
        self.clock.at(moment, lambda: self._deliver(hear))

    def _up(self, peer: SimPeer, hear: Callable[[], None]) -> None:
        """Towards the coordinator; what a peer sent before it died may still be lost."""
        connection = peer.connection

        def arrive() -> None:
            if self._is_open(peer, connection):
                hear()

        moment = self._in_order(("up", peer.number, connection), _CONTROL_S)
        self.clock.at(moment, lambda: self._deliver(arrive))

    def is_connected(self, peer: SimPeer) -> bool:
        """Whether the peer's control connection stands."""
        return self._is_open(peer, peer.connection)

    def _is_open(self, peer: SimPeer, connection: int) -> bool:
        return peer.is_alive and self._connected.get(peer.peer_id) == connection

    def _hang_up(self, peer: SimPeer) -> None:
        self._connected.pop(peer.peer_id, None)
        peer.on_control_down()

    def close(self, peer_id: PeerId) -> None:
        """The coordinator closes a connection after what it has sent."""
        peer = self.peers[peer_id]
        connection = peer.connection

        def hang_up() -> None:
            if self._is_open(peer, connection):
                self._hang_up(peer)

        self.clock.after(2 * _CONTROL_S, hang_up)

    def hung_up(self, peer: SimPeer) -> None:
        """A peer's end of its connection is gone; the coordinator notices."""
        self._connected.pop(peer.peer_id, None)
        connection = peer.connection

        def notice() -> None:
            if self.peers[peer.peer_id].connection == connection:
                self.coordinator.hear_close(peer.peer_id)

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
