"""A whole swarm in one process under a virtual clock, with faults at chosen or drawn moments.

A plan of faults says what happens at which message; a weather draws it.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

from swarmtrain.simulate.checks.invariants import Invariants
from swarmtrain.simulate.faults.plan import Fault
from swarmtrain.simulate.faults.planned import PlannedFaults
from swarmtrain.simulate.ground.conditions import Conditions
from swarmtrain.simulate.ground.narrow import narrowed
from swarmtrain.simulate.ground.scene import Scene, Trace, Violation
from swarmtrain.simulate.ground.thrift import thrifty
from swarmtrain.simulate.processes.swarm import Swarm


class World:
    """A swarm and its checks.

    Args:
        num_peers: peers at the start.
        faults: faults by boundary.
        replace_dead: a newcomer joins a second after each death of the plan.
        trace: takes a line per event.
        settings: the other fields of `Conditions`.
    """

    def __init__(
        self,
        num_peers: int,
        *,
        faults: Iterable[Fault] = (),
        replace_dead: bool = False,
        trace: Trace | None = None,
        **settings: Any,
    ) -> None:
        self.scene = Scene(Conditions(num_peers, **settings), trace)
        self.swarm = Swarm(self.scene)
        self.invariants = Invariants(self.swarm)
        self.swarm.watch = self.invariants
        if faults:
            self.scene.weather = PlannedFaults(self.swarm, faults, replace_dead=replace_dead)

    @property
    def violations(self) -> list[Violation]:
        """Everything that did not hold."""
        return self.scene.violations

    def start(self) -> None:
        """The coordinator and the first peers come up."""
        with self._narrowed():
            self.swarm.start()
            if self.swarm.network.routers is not None:
                self.invariants.look_at_ways()

    def run(self, until_s: float | None = None) -> None:
        """Go on until the run has finished everywhere, a violation, or the end of time."""
        if until_s is not None:
            self.scene.end_s = until_s
        with self._narrowed(), thrifty():
            self._run()

    def _narrowed(self) -> contextlib.AbstractContextManager[None]:
        conditions = self.scene.conditions
        return narrowed(is_narrow=conditions.is_narrow, stays=conditions.routers)

    def _run(self) -> None:
        scene, invariants, decided = self.scene, self.invariants, self.invariants.decided
        clock, violations, last_round = scene.clock, scene.violations, scene.conditions.last_round
        while not violations and not scene.is_abandoned and clock.step(scene.end_s):
            if clock.now_s > invariants.first_limit_s:
                invariants.too_late()
            is_last = decided.commits >= last_round and decided.rounds >= last_round
            is_over = is_last and decided.is_over and self.swarm.survivors and self.is_finished
            if is_over and invariants.are_met:
                break
        if not (violations or scene.is_abandoned):
            invariants.at_end()

    @property
    def is_finished(self) -> bool:
        """Return True if every live peer has seen the end of the run."""
        return all(peer.is_finished for peer in self.swarm.survivors)
