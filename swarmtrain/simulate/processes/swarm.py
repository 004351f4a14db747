"""The swarm of a simulated world: its network, its coordinator and its peers, dead and alive."""

import hashlib
import random
from functools import partial
from typing import Protocol

from swarmtrain.simulate.ground.control import ControlLanes
from swarmtrain.simulate.ground.handicaps import NO_HANDICAP, Handicap
from swarmtrain.simulate.ground.network import SimNetwork
from swarmtrain.simulate.ground.quick_keys import RUN_KEY, quick_sign, quick_verify
from swarmtrain.simulate.ground.scene import Scene
from swarmtrain.simulate.processes.coordinator import CoordinatorWatch, SimCoordinator
from swarmtrain.simulate.processes.peer import PeerWatch, SimPeer
from swarmtrain.simulate.processes.peer_disk import PeerDisk
from swarmtrain.simulate.processes.pretended_training import SharedDecoding
from swarmtrain.simulate.processes.watch import SharedChecks
from swarmtrain_transport.links.link import PeerId

REPLACE_S = 1.0


class SwarmWatch(PeerWatch, CoordinatorWatch, Protocol):
    """Looks on at everything."""

    def died(self, peer: SimPeer) -> None:
        """A process is gone."""


class Swarm:
    """Coordinator and peers of one world.

    Args:
        scene: clock and chance of the world.

    Attributes:
        watch: looks on; to be set before anybody starts.
        peers: the newest process of each peer, by id.
        survivors: those of the peers that live.
        processes: every process that ever was, by peer and boot.
    """

    watch: SwarmWatch

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.decode = SharedDecoding()
        self.checks = SharedChecks()
        self.peers: dict[PeerId, SimPeer] = {}
        self.survivors: list[SimPeer] = []
        self.processes: dict[tuple[PeerId, bytes], SimPeer] = {}
        self.network = SimNetwork(scene, scene.conditions.latency_s)
        self.control = ControlLanes(scene)
        self.coordinator = SimCoordinator(
            scene, self.control, scene.conditions.terms(), partial(quick_sign, RUN_KEY),
            quick_verify, scene.conditions.stage_terms(),
        )  # fmt: skip
        self.coordinator.routers = self.network.routers
        self.control.coordinator = self.coordinator
        self._is_extending = self._is_extended = False
        self._resting: list[SimPeer] = []

    def start(self) -> None:
        """The coordinator and the first peers come up."""
        self.coordinator.watch = self.watch
        self.coordinator.start()
        for _ in range(self.scene.conditions.all_peers):
            self.add_peer()

    # ---- peers

    @property
    def doorman(self) -> SimCoordinator:
        """The coordinator's own port."""
        return self.coordinator

    def add_peer(self, handicap: Handicap | None = None) -> SimPeer:
        """A new peer's process begins; peers are numbered as they come."""
        number = len(self.peers)
        peer_id = hashlib.sha256(b"peer %d" % number).digest()
        if handicap is None:
            handicap = self.scene.conditions.handicaps.get(number, NO_HANDICAP)
        return self._begin(peer_id, number, PeerDisk(), handicap)

    def come_back(self, old: SimPeer, disk: PeerDisk) -> None:
        """A dead peer's process is started again, with its key and this state directory."""
        if not self.peers[old.peer_id].is_alive:
            self._begin(old.peer_id, old.number, disk, old.handicap)

    def _begin(self, peer_id: PeerId, number: int, disk: PeerDisk, handicap: Handicap) -> SimPeer:
        boot = self.scene.rng.randbytes(8)
        rng = random.Random(self.scene.rng.getrandbits(63))
        self.scene.numbers[peer_id] = number
        peer = SimPeer(self, peer_id, number, boot, rng, handicap, disk)
        self.processes[peer_id, boot] = peer
        line = self.network.lines[peer_id]
        line.rate, line.lag_s = self.scene.conditions.rate(self.scene.rng), handicap.lag_s
        self.peers[peer_id] = peer
        self._count()
        peer.start()
        return peer

    def died(self, peer: SimPeer) -> None:
        """A process is gone."""
        self._count()
        self.watch.died(peer)

    def _count(self) -> None:
        self.survivors = [one for one in self.peers.values() if one.is_alive]

    def two(self, rng: random.Random) -> tuple[SimPeer, SimPeer] | None:
        """Draw two live peers, if there are so many."""
        if len(self.survivors) < 2:
            return None
        one, other = rng.sample(self.survivors, 2)
        return one, other

    def replace(self) -> None:
        """Somebody comes soon for one who was thrown out."""
        if len(self.survivors) < self.scene.conditions.all_peers:
            self.scene.clock.after(REPLACE_S, self.add_peer)

    # ---- rounds that are added

    def committed(self, commits: int) -> None:
        """Note the number of ops that are committed now."""
        extension = self.scene.conditions.extension
        if extension is not None and commits == extension.after and not self._is_extending:
            self._is_extending = True
            self.scene.clock.after(extension.delay_s, self._extend)

    def _extend(self) -> None:
        extension = self.scene.conditions.extension
        assert extension is not None
        self.scene.say("ORGANISER", f"wants {extension.rounds} rounds")
        if extension.anew and self.coordinator.is_alive:
            self.coordinator.wanted_rounds = extension.rounds
            self.crash_coordinator(REPLACE_S)
        else:
            self.coordinator.extend(extension.rounds)

    def extended(self) -> None:
        """EXTEND is decided: who has left at the end comes back."""
        self._is_extended = True
        for number, peer in enumerate(self._resting):
            self.scene.clock.after(REPLACE_S * (1 + number), partial(self._return, peer))
        self._resting.clear()

    def rest(self, peer: SimPeer) -> None:
        """A peer has left as the run is over: it comes back when EXTEND is decided."""
        self._resting.append(peer)
        if self._is_extended:
            self.extended()

    def _return(self, peer: SimPeer) -> None:
        self.come_back(peer, peer.disk)

    # ---- what befalls them

    def crash_coordinator(self, back_s: float, *, keeps_torn: bool = False) -> None:
        """kill -9; it is started again after so many seconds."""
        self.coordinator.crash(keeps_torn=keeps_torn)
        if self.network.routers is not None:
            self.network.routers.end_all(b"")
        self.watch.coordinator_fell(back_s)
        self.control.cut_all(self.survivors)
        self.scene.clock.after(back_s, self.coordinator.start)

    def blink(self, peer: SimPeer) -> None:
        """A peer's control connection breaks; both ends notice."""
        self.control.hung_up(peer)
        peer.on_control_down()

    def is_connected(self, peer: SimPeer) -> bool:
        """Return True if the peer's control connection stands."""
        return self.control.is_open(peer, peer.connection)
