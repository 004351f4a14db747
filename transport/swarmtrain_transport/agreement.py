"""Which states are the run's: what peers report, what is attested, and the way back.

A state root that more than half report becomes ATTEST; a peer with another one is not planned
with (protocol.md T15). A result that nobody holds any more is cancelled by REWIND (T12).
"""

from swarmtrain_transport.attendance import Attendance
from swarmtrain_transport.ledger import Attest
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.membership import Chronicle, PeerLine, agreed_root
from swarmtrain_transport.messages import Applied
from swarmtrain_transport.recovery import rewind_due
from swarmtrain_transport.scribe import Scribe


class Agreement:
    """What the coordinator knows of its peers' states.

    Args:
        scribe: the ledger and its fold.
        attendance: who is here.
        chronicle: what people are told.
    """

    def __init__(self, scribe: Scribe, attendance: Attendance, chronicle: Chronicle) -> None:
        self._scribe = scribe
        self._view = scribe.view
        self._attendance = attendance
        self._chronicle = chronicle

    def reported(
        self, peer: PeerId, line: PeerLine, message: Applied, now_s: float, *, may_attest: bool
    ) -> None:
        """A peer says which state is in place with it.

        Args:
            may_attest: whether anything may be decided now.
        """
        line.applied_op = message.op
        line.state_root = message.state_root
        if may_attest:
            self.attest(message.op, now_s)
        self._check_state(peer, line)

    def attest(self, op: int, now_s: float) -> None:
        """ATTEST once more than half of those alive, or expected back, report the same root."""
        if op not in self._view.commits or op in self._view.attests:
            return
        lines = self._attendance.lines
        alive = self._attendance.alive(now_s)
        # When no member is left, whoever has replayed the op speaks for it.
        voters = alive & set(self._view.commits[op].boots) or alive & set(lines)
        root = agreed_root(lines, voters, op)
        if root is not None:
            self._scribe.append(Attest(op, root))
            for peer, line in lines.items():
                if line.applied_op == op:
                    self._check_state(peer, line)

    def rewind(self) -> None:
        """T12: what was committed is with nobody."""
        if self._view.in_progress is not None:
            return
        lines = self._attendance.lines
        due = rewind_due(self._view, lines, all_heard=not self._attendance.unseen)
        if due is None:
            return
        self._scribe.append(due)
        for line in lines.values():
            line.stranded_op = -1
            if line.applied_op > due.op:
                # Its state is of a past that was cancelled; it takes another and says so.
                line.applied_op, line.ready = -1, None

    def _check_state(self, peer: PeerId, line: PeerLine) -> None:
        """T15: a state that is not the attested one is not planned with and not waited for; the
        peer reads ATTEST too and heals itself."""
        if self._view.root_after(line.applied_op) not in (None, line.state_root):
            line.ready, line.active = None, False
            self._chronicle.event(line.applied_op, peer, "differs", "state root")
