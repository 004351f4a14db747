"""The simulated coordinator: the production rendezvous on a pretended disk."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from swarmtrain_transport import actions as do
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger import Record, Sign, Verify
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.messages import Hello, PeerMessage, encode
from swarmtrain_transport.planning import RunTerms
from swarmtrain_transport.rendezvous import Rendezvous

if TYPE_CHECKING:
    from swarmtrain.simulate.world import World

_NEVER_S = float("inf")


class SimCoordinator:
    """Dies with everything in memory; `disk` is what survives.

    Args:
        world: clock and connections.
        terms: of the run.
        sign: stands in for the run key.
        verify: its counterpart.
    """

    def __init__(self, world: "World", terms: RunTerms, sign: Sign, verify: Verify) -> None:
        self.world = world
        self.terms = terms
        self.disk: list[Record] = []
        self.machine: Rendezvous | None = None
        self.term = 0
        self._sign = sign
        self._verify = verify
        self._wakeup_s = _NEVER_S

    def start(self) -> None:
        """A new life: replay the disk."""
        self.term += 1
        now_s = self.world.clock.now_s
        self.machine = Rendezvous(
            self.terms, bytes(32), self.disk, self._sign, self._verify, self.term, now_s
        )
        self._act(self.machine.start(now_s))

    def crash(self) -> None:
        """kill -9. What was not yet delivered of its messages is lost."""
        self.machine = None
        self._wakeup_s = _NEVER_S

    # ---- events; none of them reaches a dead coordinator

    def hear_hello(self, peer: PeerId, hello: Hello) -> None:
        """A peer is at the door."""
        if self.machine is not None:
            self._act(self.machine.connected(peer, hello, self.world.clock.now_s))

    def hear(self, peer: PeerId, message: PeerMessage) -> None:
        """A message of a connected peer."""
        if self.machine is None:
            return
        try:
            self._act(self.machine.received(peer, message, self.world.clock.now_s))
        except RemoteFault as fault:
            self.world.violation("fault", f"the coordinator refuses a message: {fault}")

    def hear_close(self, peer: PeerId) -> None:
        """A peer's connection is gone."""
        if self.machine is not None and peer in self.machine.lines:
            self._act(self.machine.disconnected(peer, self.world.clock.now_s))

    # ---- actions

    def _act(self, actions: Iterable[do.CoordinatorAction]) -> None:
        """Append first, then send, in the machine's order."""
        for action in actions:
            if isinstance(action, do.Append):
                self._append(action.record)
            elif isinstance(action, do.SendToPeer):
                self.world.to_peer(action.peer, encode(action.message))
            else:
                self.world.close(action.peer)
        self._sleep()

    def _append(self, record: Record) -> None:
        self.disk.append(record)
        self.world.invariants.logged(record)

    def _sleep(self) -> None:
        if self.machine is None:
            return
        wakeup_s = self.machine.next_wakeup_s
        if wakeup_s != self._wakeup_s:
            self._wakeup_s = wakeup_s
            self.world.clock.at(wakeup_s, lambda: self._wake(wakeup_s))

    def _wake(self, wakeup_s: float) -> None:
        if self.machine is not None and self._wakeup_s == wakeup_s:
            self._wakeup_s = _NEVER_S
            self._act(self.machine.tick(self.world.clock.now_s))
