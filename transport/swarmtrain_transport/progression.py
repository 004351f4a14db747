"""Which state a peer is at, and what comes next: find one, apply outcomes in order, finish.

Outcomes are applied strictly in op order and one at a time, because the trainer does the work
and answers later; a skip changes nothing and needs no answer.
"""

from dataclasses import dataclass

from swarmtrain_transport import actions as do
from swarmtrain_transport.arithmetic import Contribution
from swarmtrain_transport.catchup import CatchUp
from swarmtrain_transport.fold import LedgerView
from swarmtrain_transport.local import Card
from swarmtrain_transport.messages import Applied, Ready
from swarmtrain_transport.state_finder import StateFinder


@dataclass(frozen=True, slots=True)
class Pending:
    """Our own contribution, from READY until its op has an outcome."""

    op: int
    contribution: Contribution
    samples: int


class Progression:
    """The peer's place in the run.

    Attributes:
        applied_op: newest op whose outcome is in place, -1 without a state.
        state_root: root of that state.
        replayed_ops: results fetched afterwards, not taken part in.
        pending: our contribution to the next op.
        finished_op: the run's last op, once the coordinator has said so.
        is_halted: it is not safe or not allowed to go on.
    """

    def __init__(self, card: Card, view: LedgerView, catchup: CatchUp, states: StateFinder) -> None:
        self.applied_op = -1
        self.state_root = b""
        self.replayed_ops = 0
        self.pending: Pending | None = None
        self.finished_op: int | None = None
        self.is_halted = False
        self._card = card
        self._view = view
        self._catchup = catchup
        self._states = states
        self._busy = False

    def ready(self, op: int, contribution: Contribution, samples: int) -> bool:
        """Take our contribution to `op`; False if that op is not the next one (any more)."""
        if self._busy or op != self.applied_op + 1 or self.applied_op < 0:
            return False
        self.pending = Pending(op, contribution, samples)
        return True

    def applied(self, op: int, root: bytes) -> bool:
        """The trainer has put the state after `op` in place; False if the ledger attests another
        root, and then nothing goes on."""
        self._busy = False
        self.applied_op = op
        self.state_root = root
        attested = self._view.root_after(op)
        self.is_halted = attested is not None and attested != root
        return not self.is_halted

    def advance(self, *, connected: bool) -> list[do.PeerAction]:
        """What is due now."""
        if self._busy or self.is_halted:
            return []
        if self.applied_op < 0:
            return self._find_state(connected)
        actions: list[do.PeerAction] = []
        while self.applied_op < self._view.last_op:
            op = self.applied_op + 1
            if op not in self._view.skips:
                return actions + self._collect(op, connected)
            self._close(op)
            self.applied_op = op
            actions.append(do.OpSkipped(op, self._view.skips[op].reason))
            actions += self.reports(connected=connected)
        if self.finished_op is not None and self.applied_op >= self.finished_op:
            self.finished_op = None
            actions.append(do.RunFinished(self.applied_op))
        return actions

    def reports(self, *, connected: bool) -> list[do.PeerAction]:
        """APPLIED and READY as the coordinator should know them."""
        if not connected or self.applied_op < 0:
            return []
        messages: list[do.PeerAction] = [do.SendControl(Applied(self.applied_op, self.state_root))]
        if self.pending is not None:
            messages.append(
                do.SendControl(
                    Ready(self.pending.op, self.pending.samples, self.applied_op, self.state_root)
                )
            )
        return messages

    def _collect(self, op: int, connected: bool) -> list[do.PeerAction]:
        if not self._catchup.is_known(op):
            return self._start_anew(connected)
        boots = self._view.commits[op].boots
        member = boots.get(self._card.peer_id) == self._card.boot
        result = self._catchup.collect(op, replayed=not member)
        if result is None:
            return self._start_anew(connected) if self._catchup.is_lost() else self._stranded()
        self._close(op)
        self._busy = True
        self.replayed_ops += not member
        return [do.ApplyResult(result)]

    def _start_anew(self, connected: bool) -> list[do.PeerAction]:
        """The results that follow our state are with nobody: take a later state, if there is."""
        if not self._states.must_be_newer_than(self.applied_op):
            return self._stranded()
        self._catchup.give_up()
        self.applied_op = -1
        self.state_root = b""
        self.pending = None
        return self._find_state(connected)

    def _close(self, op: int) -> None:
        if self.pending is not None and self.pending.op <= op:
            self.pending = None

    def _find_state(self, connected: bool) -> list[do.PeerAction]:
        if self._view.genesis is None and not connected:
            return []
        actions = self._states.step()
        self._busy = any(isinstance(action, do.LoadState) for action in actions)
        self.is_halted = any(isinstance(action, do.Halt) for action in actions)
        return actions if self._busy or self.is_halted else actions + self._stranded()

    def _stranded(self) -> list[do.PeerAction]:
        """What to do without what is asked for: wait, unless nobody can ever bring it."""
        if self.finished_op is None or set(self._view.roster) - {self._card.peer_id}:
            return []
        self.is_halted = True
        return [do.Halt("SWT-E705", "The run is over, and nobody is left who holds its end.")]
