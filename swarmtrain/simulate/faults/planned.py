"""Faults that were planned: each strikes at its message."""

from collections import deque
from collections.abc import Iterable
from functools import partial

from swarmtrain.simulate.faults.plan import COORDINATOR, Fault
from swarmtrain.simulate.processes.peer import SimPeer
from swarmtrain.simulate.processes.peer_disk import PeerDisk
from swarmtrain.simulate.processes.swarm import REPLACE_S, Swarm
from swarmtrain_transport.wire.records import AnyBody

_RESTART_S = 0.3
_NEVER = 1 << 62


class PlannedFaults:
    """A `Weather` that is known beforehand.

    Args:
        swarm: swarm that they strike.
        faults: faults by boundary.
        replace_dead: a newcomer joins a second after each death.
    """

    def __init__(self, swarm: Swarm, faults: Iterable[Fault], *, replace_dead: bool) -> None:
        self.awaited: object = None
        self._swarm = swarm
        self._replace_dead = replace_dead
        self._faults = deque(sorted(faults, key=lambda fault: fault.boundary))
        self._plan_next()

    def _plan_next(self) -> None:
        self.next_boundary = self._faults[0].boundary if self._faults else _NEVER

    def heard(self) -> None:
        """Nothing is awaited."""

    def logged(self, body: AnyBody) -> None:
        """No decision changes the plan."""

    def strike(self) -> None:
        """That boundary has come."""
        number = self._swarm.scene.boundary - 1
        while self._faults and self._faults[0].boundary <= number:
            self._happen(self._faults.popleft())
        self._plan_next()

    def _happen(self, fault: Fault) -> None:
        swarm = self._swarm
        swarm.scene.say("FAULT", fault.story())
        if COORDINATOR in fault.victims:
            swarm.crash_coordinator(_RESTART_S)
        for peer in swarm.survivors:
            self._befall(peer, fault)
        numbered = {peer.number: peer for peer in swarm.peers.values()}
        for source, target in fault.cuts:
            swarm.network.cut(numbered[source].peer_id, numbered[target].peer_id)
            numbered[source].is_cut = numbered[target].is_cut = True
        for _ in range(fault.newcomers):
            swarm.add_peer()

    def _befall(self, peer: SimPeer, fault: Fault) -> None:
        clock = self._swarm.scene.clock
        if peer.number in fault.victims:
            peer.kill()
            if self._replace_dead:
                clock.after(REPLACE_S, self._swarm.add_peer)
        elif peer.number in fault.returners:
            peer.kill()
            disk = PeerDisk(peer.disk.records, peer.disk.begins)
            clock.after(_RESTART_S, partial(self._swarm.come_back, peer, disk))
        elif peer.number in fault.leavers:
            peer.leave()
        elif peer.number in fault.blinkers:
            self._swarm.blink(peer)
