"""Place of a peer in the run: find a state, apply outcomes in order, finish.

Outcomes are applied strictly in op order and one at a time, because the trainer does the work
and answers later; a skip changes nothing and needs no answer.
"""

from dataclasses import dataclass, replace

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Contribution
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.peer.catchup import CatchUp, partner_of
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.state_finder import StateFinder
from swarmtrain_transport.wire.messages import Applied, Ready, Stranded


@dataclass(frozen=True, slots=True)
class Pending:
    """Our own contribution, from READY until its op has an outcome."""

    op: int
    contribution: Contribution
    samples: int
    steps_per_s: float | None = None
    since: int = -1
    loss: float | None = None


class Progression:
    """The peer's place in the run.

    Attributes:
        applied_op: newest op whose outcome is in place, -1 without a state.
        state_root: root of that state.
        chain: end of our chain if `applied_op` was a pair op that we were in, else b"".
        stranded_op: newest op that it has called STRANDED, -1 for none.
        replayed_ops: results fetched afterwards, not taken part in.
        pending: our contributions to ops that have no outcome yet, by op.
        saved: state on our disk that may be the run's, until one is in place.
        finished_op: the run's last op, once the coordinator has said so; final_loss is its loss.
        is_halted: True if it is not safe or not allowed to go on.
    """

    def __init__(self, card: Card, view: GroupView, catchup: CatchUp, states: StateFinder) -> None:
        self.applied_op = -1
        self.state_root = self.chain = b""
        self.stranded_op = -1
        self.replayed_ops = 0
        self.pending: dict[int, Pending] = {}
        self.saved: Applied | None = None
        self.finished_op: int | None = None
        self.final_loss: float | None = None
        self.is_halted = False
        self._card = card
        self._view = view
        self._catchup = catchup
        self._states = states
        self._busy = False
        self._applying = -1
        """Op whose result the trainer works on; -1 for none."""
        self._chain = b""
        """The value that `chain` will have once the trainer has answered."""
        self._is_void = False
        self._num_healed = 0
        self._differed_op = -1
        self._is_computed = False

    def ready(
        self, op: int, contribution: Contribution, samples: int, steps_per_s: float | None = None,
        since: int = -1, loss: float | None = None,
    ) -> bool:  # fmt: skip
        """Take our contribution to `op`; False if it is too late, or too early: at most as many ops
        are ahead of our state as may be under way at once."""
        newest = max(self.applied_op, self._applying)
        is_loading = self._busy and self._applying < 0
        if self._view.by_clocks and op <= newest:
            op = newest + 1  # we have passed ops that were none of ours
        if newest < 0 or is_loading or not newest < op <= newest + self._view.most_ops:
            return False
        self.pending[op] = Pending(op, contribution, samples, steps_per_s, since, loss)
        return True

    def pass_by(self) -> None:
        """Pass the ops by clocks that have no part for us; what we are to give goes to the next."""
        view, me = self._view, self._card.peer_id
        if not view.by_clocks or self._busy or self.applied_op < 0:
            return
        op = view.passed(me, self.applied_op)
        while op < view.next_op - 1 and not view.gives_to(me, op + 1):
            if op + 1 in self.pending and op + 1 in view.skips:
                break  # it was ours, and the trainer is to hear of it
            op += 1
        for given in [self.pending.pop(old) for old in sorted(self.pending) if old <= op]:
            self.pending[op + 1] = replace(given, op=op + 1)
        if op > self.applied_op:
            self.applied_op, self.chain = op, b""

    def contribution_to(self, op: int) -> Contribution | None:
        """Return our contribution to an op, None if we give nothing."""
        pending = self.pending.get(op)
        return pending.contribution if pending is not None else None

    def applied(self, op: int, root: bytes) -> None:
        """The trainer has put the state after `op` in place."""
        self._is_computed = self._applying >= 0
        self._busy, self._applying, self.saved = False, -1, None
        self.applied_op, self.state_root = op, root
        self.chain, self._chain = self._chain, b""
        if self._is_void:
            self._forget()
        else:
            self.attested()

    def attested(self) -> None:
        """The ledger has spoken on some state. If ours is another than the run's (T15), it is given
        up for the run's own; a machine whose state differs again and again computes otherwise than
        the others and must stop. That it can load a state, or compute those before, says nothing.
        Where ops go by pairs ours is our own."""
        root = self._view.root_after(self.applied_op)
        if self._busy or self.applied_op < 0 or root is None:
            return
        if self._view.may_hold(self.applied_op, self.state_root):
            if self._is_computed and self.applied_op >= self._differed_op:
                self._num_healed = 0
            return
        self._num_healed += 1
        if self.applied_op == self._differed_op:  # made again it is no other: it must be given
            self._states.must_be_newer_than(self.applied_op - 1)
        self._differed_op = self.applied_op
        self._forget()

    def rewound(self) -> None:
        """REWIND: what was committed since is cancelled, and with it the states that it led to."""
        self._catchup.give_up()
        self._states.rewound()
        self.stranded_op = -1
        self._differed_op = min(self._differed_op, self._view.last_op + 1)
        if self.saved is not None and self.saved.op > self._view.last_op:
            self.saved = None
        if self._busy:
            self._is_void = True
        elif self.applied_op > self._view.last_op:
            self._forget()

    def _forget(self) -> None:
        """Our state is not the run's."""
        self._is_void = False
        self.applied_op, self.state_root, self.chain = -1, b"", b""
        self.pending.clear()

    def advance(self, *, connected: bool) -> list[do.PeerAction]:
        """Return the actions that are due now."""
        if self._busy or self.is_halted:
            return []
        if self._num_healed > limits.HEALS_MAX:
            self.is_halted = True
            return [do.Halt("SWT-E561", "Our state differs from the run's, again and again.")]
        if self.applied_op < 0:
            return self._find_state(connected)
        actions: list[do.PeerAction] = []
        while True:
            self.pass_by()
            op = self.applied_op + 1
            if op > self._view.last_op and op not in self._view.early:
                break
            if op not in self._view.skips:
                return actions + self._collect(op, connected)
            self._close(op)
            self.applied_op, self.chain = op, b""
            actions.append(do.OpSkipped(op, self._view.skips[op].reason, self._view.group))
            actions += self.reports(connected=connected)
        if self.finished_op is not None and self.applied_op >= self.finished_op:
            self.finished_op = None
            loss, view = self.final_loss, self._view
            actions.append(do.RunFinished(self.applied_op, loss, view.group, view.committed))
        return actions

    @property
    def held(self) -> Applied | None:
        """The state that HELLO tells of: the one in place, or else the one on our disk, which may
        take long to load and be the newest that anybody has (T12)."""
        return self.state if self.applied_op >= 0 else self.saved

    @property
    def state(self) -> Applied:
        """The state that is in place, as the coordinator is told."""
        return Applied(self.applied_op, self.state_root, self.chain, self._view.group)

    def reports(self, *, connected: bool) -> list[do.PeerAction]:
        """APPLIED, READY and STRANDED as the coordinator should know them."""
        if not connected:
            return []
        messages: list[do.PeerAction] = []
        if self.stranded_op > self.applied_op:
            messages.append(do.SendControl(Stranded(self.stranded_op, self._view.group)))
        if self.applied_op < 0:
            return messages
        own = self._due_next
        if own is None:
            messages.append(do.SendControl(self.state))
        else:  # READY says it, too
            state = self.applied_op, self.state_root
            told = own.steps_per_s, self._catchup.has_centre(own.op)
            pinned = -1 if own.loss is None else self._catchup.pinned
            ready = Ready(
                own.op, own.samples, *state, *told, self._view.group, own.since, own.loss, pinned
            )
            messages.append(do.SendControl(ready))
        return messages

    @property
    def has_next(self) -> bool:
        """True if of several contributions, of which READY tells one, another's op may be planned
        next now."""
        return len(self.pending) > 1 and self._view.next_op in self.pending

    @property
    def _due_next(self) -> Pending | None:
        """Return READY's content: of several contributions the one whose op is planned next."""
        ops = sorted(self.pending)
        op = next((op for op in ops if op >= self._view.next_op), ops[-1] if ops else None)
        return None if op is None else self.pending[op]

    def _collect(self, op: int, connected: bool) -> list[do.PeerAction]:
        if not self._catchup.is_known(op):
            return self._seek_newer(op, connected)
        boots = self._view.commits[op].boots
        member = boots.get(self._card.peer_id) == self._card.boot
        if self._view.goes_by_pairs and not self._may_pass(op, is_member=member):
            return self._seek_newer(op, connected)
        result = self._catchup.collect(op, replayed=not member)
        if result is None:
            if self._catchup.is_lost():
                return self._seek_newer(op, connected)
            return self._overtake(connected) if self._is_far_behind else self._stranded()
        self._states.close()
        self._close(op)
        self._busy, self._applying, self._chain = True, op, result.chain
        self.replayed_ops += not member
        return [do.ApplyResult(result)]

    def _may_pass(self, op: int, *, is_member: bool) -> bool:
        """Return True if our state leads to one after a pair op. It does if that op was none of
        ours, as nothing is replayed; or if it was, and this very process has its contribution. It
        does not if an earlier life of ours has exchanged in it: then somebody's later state helps.
        """
        if partner_of(self._view.commits[op], self._card.peer_id) is None:
            return not self._is_far_behind
        return is_member and op in self.pending

    @property
    def _is_far_behind(self) -> bool:
        """Return True if everybody else has forgotten the results that follow our state."""
        is_far = self._view.commits_since(self.applied_op) > limits.RESULT_KEEP_OPS
        return is_far and not self._view.by_clocks  # of which few are ours

    def _overtake(self, connected: bool) -> list[do.PeerAction]:
        """Look for a later state and for the results at once; whichever is first here counts."""
        if not self._states.must_be_newer_than(self.applied_op):
            return self._stranded()
        return self._find_state(connected)

    def _seek_newer(self, op: int, connected: bool) -> list[do.PeerAction]:
        """The results that follow our state are with nobody: a later state helps, if there is one.

        Until it is here our own stands: it may be the newest that anybody has (T12).
        """
        actions = self._tell_stranded(op, connected)
        oldest = op - 1 if self._view.goes_by_pairs else self.applied_op
        if not self._states.must_be_newer_than(oldest):
            return actions + self._stranded()
        return actions + self._find_state(connected)

    def _tell_stranded(self, op: int, connected: bool) -> list[do.PeerAction]:
        if self.stranded_op == op:
            return []
        self.stranded_op = op
        return [do.SendControl(Stranded(op, self._view.group))] if connected else []

    def _close(self, op: int) -> None:
        for given in [number for number in self.pending if number <= op]:
            del self.pending[given]

    def _find_state(self, connected: bool) -> list[do.PeerAction]:
        if self._view.genesis is None and not connected:
            return []
        actions = self._states.step()
        self._busy = any(isinstance(action, do.LoadState) for action in actions)
        self.is_halted = any(isinstance(action, do.Halt) for action in actions)
        if self._busy:
            self.pending.clear()
            self._catchup.give_up()
        if self._busy or self.is_halted:
            return actions
        self.saved = None  # it is not the run's, or could not be loaded
        if self.applied_op < 0 and self._states.is_lost:
            actions += self._tell_stranded(0, connected)
        return actions + self._stranded()

    def _stranded(self) -> list[do.PeerAction]:
        """Go on without the missing pieces: wait, unless nobody can ever bring them."""
        if self.finished_op is None or set(self._view.holders) - {self._card.peer_id}:
            return []
        self.is_halted = True
        return [do.Halt("SWT-E705", "The run is over, and nobody is left who holds its end.")]
