"""A whole swarm in one process under a virtual clock, with faults at chosen or drawn moments.

Every message that is delivered, on either lane, is a *boundary*: its number is counted before the
receiver hears it. A plan of faults says what happens at which boundary; a weather draws it.
"""

import hashlib
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from swarmtrain.simulate.clock import SimClock
from swarmtrain.simulate.conditions import Conditions
from swarmtrain.simulate.control import RECONNECT_S, ControlLanes
from swarmtrain.simulate.faults import COORDINATOR, NO_HANDICAP, Fault, Handicap
from swarmtrain.simulate.hearsay import Hearsay
from swarmtrain.simulate.invariants import Invariants, Violation
from swarmtrain.simulate.network import SimNetwork
from swarmtrain.simulate.sim_coordinator import SimCoordinator
from swarmtrain.simulate.sim_peer import PeerDisk, SimPeer
from swarmtrain.simulate.trainer import SharedDecoding
from swarmtrain.simulate.watch import WatchedArithmetic
from swarmtrain_transport.actions import PeerFault
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import AnyBody

RESTART_S = 0.3
_REPLACE_S = 1.0
_END_S = 2000.0
_EXTRA_PEERS = 4
"""Room for the parts of newcomers in what a peer declares that it will keep."""


class Weather(Protocol):
    """Draws faults while a world runs."""

    next_boundary: int
    """At which boundary it strikes next."""

    awaited: object
    """The kind of message that it wants to hear of: a frame's or a control message's type."""

    def heard(self) -> None:
        """A message of that kind was heard."""

    def strike(self) -> None:
        """That boundary has come."""

    def logged(self, body: AnyBody) -> None:
        """The coordinator has decided something."""


RUN_KEY = bytes(32)


def quick_sign(key: bytes, data: bytes) -> bytes:
    """A stand-in for Ed25519, which would be a tenth of the run time and proves nothing here."""
    return key + (data if len(data) == len(key) else hashlib.sha256(data).digest())


def quick_verify(key: bytes, signature: bytes, data: bytes) -> bool:
    """Counterpart of quick_sign."""
    return signature == quick_sign(key, data)


class World:
    """Clock, network, coordinator and peers.

    Args:
        num_peers: peers at the start.
        faults: what happens when.
        replace_dead: a newcomer joins a second after each death of the plan.
        trace: takes a line per event: the time, who, what.
        settings: the other fields of `Conditions`.
    """

    def __init__(
        self,
        num_peers: int,
        *,
        faults: Iterable[Fault] = (),
        replace_dead: bool = False,
        trace: Callable[[float, str, str], None] | None = None,
        **settings: Any,
    ) -> None:
        conditions = self.conditions = Conditions(num_peers, **settings)
        self.clock = SimClock()
        self.rng = random.Random(conditions.seed)
        self.sign = quick_sign
        self.verify = quick_verify
        self.train_s = 1.0
        self.apply_s = 0.0005
        self.snapshot_rounds = 2
        self.error_feedback = conditions.error_feedback
        self.num_values = conditions.num_values
        self.retain_bytes = 2 * self.num_values * (num_peers + _EXTRA_PEERS)
        self.boundary = 0
        self.end_s = _END_S
        self.is_abandoned = False
        self.trace = trace
        self.violations: list[Violation] = []
        self.weather: Weather | None = None
        self.hostile: set[PeerId] = set()
        self.decode = SharedDecoding()
        self.hearsay = Hearsay(self)
        self.invariants = Invariants(self)
        self.peers: dict[PeerId, SimPeer] = {}
        self.survivors: list[SimPeer] = []
        self.network = SimNetwork(self, conditions.latency_s)
        self.coordinator = SimCoordinator(
            self, conditions.terms(self.snapshot_rounds), partial(quick_sign, RUN_KEY), quick_verify
        )
        self.coordinator.sync_s = conditions.sync_s
        self.control = ControlLanes(self)
        self._replace_dead = replace_dead
        self._faults = sorted(faults, key=lambda fault: fault.boundary)

    # ---- running

    def start(self) -> None:
        """The coordinator and the first peers come up."""
        self.coordinator.start()
        for _ in range(self.conditions.num_peers):
            self.add_peer()

    def add_peer(self, handicap: Handicap | None = None) -> SimPeer:
        """A new peer's process begins; peers are numbered as they come."""
        number = len(self.peers)
        peer_id = hashlib.sha256(b"peer %d" % number).digest()
        if handicap is None:
            handicap = self.conditions.handicaps.get(number, NO_HANDICAP)
        return self._begin(peer_id, number, PeerDisk(), handicap)

    def come_back(self, old: SimPeer, disk: PeerDisk) -> None:
        """A dead peer's process is started again, with its key and this state directory."""
        if not self.peers[old.peer_id].is_alive:
            self._begin(old.peer_id, old.number, disk, old.handicap)

    def _begin(self, peer_id: PeerId, number: int, disk: PeerDisk, handicap: Handicap) -> SimPeer:
        boot = self.rng.randbytes(8)
        rng = random.Random(self.rng.getrandbits(63))
        peer = SimPeer(self, peer_id, number, boot, rng, handicap, disk)
        self.invariants.pairs.processes[peer_id, boot] = peer
        line = self.network.lines[peer_id]
        line.rate, line.lag_s = self.conditions.rate(self.rng), handicap.lag_s
        self.peers[peer_id] = peer
        self.survivors = [one for one in self.peers.values() if one.is_alive]
        peer.start()
        return peer

    def died(self, peer: SimPeer) -> None:
        """A process is gone."""
        self.survivors = [one for one in self.peers.values() if one.is_alive]
        self.invariants.lies.died()

    def replace(self) -> None:
        """Somebody comes soon for one who was thrown out."""
        if len(self.survivors) < self.conditions.num_peers:
            self.clock.after(_REPLACE_S, self.add_peer)

    def run(self, until_s: float | None = None) -> None:
        """Until the run has finished everywhere, a violation, or the end of time."""
        if until_s is not None:
            self.end_s = until_s
        invariants, clock, step = self.invariants, self.clock, self.clock.step
        while not (self.violations or self.is_abandoned) and step(self.end_s):
            if clock.now_s > invariants.limit_s:
                invariants.too_late()
            if invariants.is_over and self.survivors and self.is_finished:
                break
        if not (self.violations or self.is_abandoned):
            invariants.at_end()

    @property
    def is_finished(self) -> bool:
        """Whether every live peer has seen the end of the run."""
        return all(peer.is_finished for peer in self.survivors)

    def abandon(self) -> None:
        """Nothing more can be said of this world."""
        self.say("END", "nobody is left who could know better")
        self.is_abandoned = True

    def violation(self, invariant: str, story: str) -> None:
        """An invariant does not hold."""
        if self.trace is not None:
            self.say("VIOLATION", f"{invariant}: {story}")
        self.violations.append(Violation(invariant, self.clock.now_s, self.boundary, story))

    def say(self, who: str, what: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace(self.clock.now_s, who, what)

    def name_of(self, peer: PeerId) -> str:
        """A peer in stories."""
        known = self.peers.get(peer)
        return f"peer {known.number}" if known is not None else f"stranger {peer.hex()[:8]}"

    # ---- what processes are made of

    def skew(self) -> tuple[float, float]:
        """Offset and speed of a new process's clock."""
        return self.conditions.skew(self.rng)

    def arithmetic(self, peer: SimPeer) -> WatchedArithmetic:
        """The production arithmetic, with somebody who looks on."""
        return WatchedArithmetic(self.report_on(peer))

    def report_on(self, peer: SimPeer) -> Callable[[str, str], None]:
        """Where what does not hold at this peer is told."""
        return lambda broken, story: self.violation(broken, f"peer {peer.number}: {story}")

    # ---- faults

    def deliver(self, hear: Callable[[], None], kind: object) -> None:
        """One boundary: what is due at it strikes before the message is heard."""
        number = self.boundary
        self.boundary += 1
        while self._faults and self._faults[0].boundary <= number:
            self._strike(self._faults.pop(0))
        weather = self.weather
        if weather is not None and number >= weather.next_boundary:
            weather.strike()
        hear()
        if weather is not None and weather.awaited is kind:
            weather.heard()

    def crash_coordinator(self, back_s: float, *, keeps_torn: bool = False) -> None:
        """kill -9; it is started again after so many seconds."""
        self.coordinator.crash(keeps_torn=keeps_torn)
        self.invariants.coordinator_fell(back_s)
        self.control.cut_all()
        self.clock.after(back_s, self.coordinator.start)

    def _strike(self, fault: Fault) -> None:
        self.say("FAULT", fault.story())
        if COORDINATOR in fault.victims:
            self.crash_coordinator(RESTART_S)
        for peer in self.survivors:
            if peer.number in fault.victims:
                peer.kill()
                if self._replace_dead:
                    self.clock.after(_REPLACE_S, self.add_peer)
            elif peer.number in fault.returners:
                peer.kill()
                disk = PeerDisk(peer.disk.records)
                self.clock.after(RESTART_S, partial(self.come_back, peer, disk))
            elif peer.number in fault.leavers:
                peer.leave()
            elif peer.number in fault.blinkers:
                self.blink(peer)
        numbered = {peer.number: peer for peer in self.peers.values()}
        for source, target in fault.cuts:
            self.network.cut(numbered[source].peer_id, numbered[target].peer_id)
            numbered[source].is_cut = numbered[target].is_cut = True
        for _ in range(fault.newcomers):
            self.add_peer()

    def blink(self, peer: SimPeer) -> None:
        """A peer's control connection breaks; both ends notice."""
        self.control.hung_up(peer)
        peer.on_control_down()

    def blamed(self, fault: PeerFault) -> None:
        """A peer finds another at fault: it must have been."""
        peer = self.peers[fault.peer]
        is_forger = peer.handicap.forges_scales or peer.handicap.forges_results
        if fault.peer not in self.hostile and not is_forger:
            self.violation("fault", f"{self.name_of(fault.peer)}: {fault.reason}: {fault.detail}")

    def refused(self, peer: PeerId, fault: RemoteFault) -> None:
        """The coordinator refuses a peer's message: it must have been hostile."""
        if peer not in self.hostile:
            self.violation("fault", f"the coordinator refuses {self.name_of(peer)}: {fault}")

    # ---- connections

    def reconnect(self, peer: SimPeer) -> None:
        """A peer's control connection is gone; it tries again soon."""
        peer.later(RECONNECT_S, partial(self.control.connect, peer))

    def is_connected(self, peer: SimPeer) -> bool:
        """Whether the peer's control connection stands."""
        return self.control.is_open(peer, peer.connection)
