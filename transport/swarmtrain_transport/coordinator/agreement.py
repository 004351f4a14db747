"""Which states are the run's: what peers report, what is attested, and the way back.

A state root that more than half report becomes ATTEST; a peer with another one is not planned
with (protocol.md T15). A result that nobody holds any more is cancelled by REWIND (T12).
"""

from swarmtrain_transport.coordinator.group_peers import Follower, Followers, agreed_root
from swarmtrain_transport.coordinator.ledger_writer import Scribe
from swarmtrain_transport.coordinator.membership import Chronicle
from swarmtrain_transport.coordinator.recovery import rewind_due
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Applied
from swarmtrain_transport.wire.records import Attest


class Agreement:
    """States of one group's peers, as far as the coordinator knows them.

    Args:
        scribe: appends records.
        view: the ledger's fold of the group.
        followers: its peers.
        chronicle: what people are told.
    """

    def __init__(
        self, scribe: Scribe, view: GroupView, followers: Followers, chronicle: Chronicle
    ) -> None:
        self._scribe = scribe
        self._view = view
        self._followers = followers
        self._chronicle = chronicle

    def reported(self, peer: PeerId, message: Applied, now_s: float, *, may_attest: bool) -> None:
        """A peer says which state is in place with it.

        Args:
            peer: a follower.
            message: what it says.
            now_s: the time.
            may_attest: whether anything may be decided now.
        """
        follower = self._followers.here[peer]
        follower.applied_op = message.op
        follower.state_root = message.state_root
        self._check_chain(peer, follower, message)
        if may_attest:
            self.attest(message.op, now_s)
        self._check_state(peer, follower)

    def attest(self, op: int, now_s: float) -> None:
        """ATTEST once more than half of those alive, or expected back, report the same root."""
        if self._view.goes_by_pairs:
            self._attest_own(self._view.commit_at(op), now_s)
            return
        if op not in self._view.commits or op in self._view.attests:
            return
        here, alive = self._followers.here, self._followers.alive(now_s)
        # When no member is left, whoever has replayed the op speaks for it.
        voters = alive & set(self._view.commits[op].boots) or alive & set(here)
        root = agreed_root(here, voters, op)
        if root is not None:
            self._scribe.append(Attest(op, root, group=self._view.group))
            for peer, follower in here.items():
                if follower.applied_op == op:
                    self._check_state(peer, follower)

    def _attest_own(self, op: int, now_s: float) -> None:
        """ATTEST of a pair op, once more than half of the planned processes that are alive, or are
        expected back, have reported their states; and again where none of those who were named
        then is here any more, or joiners would have nobody to take a state from."""
        if op not in self._view.commits:
            return
        here = self._followers.here
        held = {
            peer: one.state_root
            for peer, one in here.items()
            if one.applied_op >= op and self._view.commit_at(one.applied_op) == op
        }
        known = self._view.roots.get(op, {})
        if not held or any(root in known.values() for root in held.values()):
            return
        alive, planned = self._followers.alive(now_s), self._view.commits[op].boots
        voters = {
            peer
            for peer, boot in planned.items()
            if peer in alive and (peer not in here or here[peer].line.hello.boot == boot)
        }
        if 2 * len(voters & held.keys()) <= len(voters) and voters:
            return
        plan = self._view.commits[op].plan
        paired = self._view.links.get(op, {})
        order = [plan.checkpoint_by, *paired, *planned, *sorted(held)]
        first = next(held[peer] for peer in order if peer in held)
        roots = tuple((peer, held[peer]) for peer in sorted(held))
        self._scribe.append(Attest(op, first, roots=roots, group=self._view.group))

    def _check_chain(self, peer: PeerId, follower: Follower, message: Applied) -> None:
        """Compare a peer's chain of exchanges with the ledger's; people are told if they differ."""
        if not message.chain:
            return
        follower.chain = message.chain
        link = self._view.links.get(message.op, {}).get(peer)
        if link is not None and link[1] != message.chain:
            self._chronicle.event(message.op, peer, "differs", "chain")

    def rewind(self) -> None:
        """T12: what was committed is with nobody."""
        if self._view.ops:
            return
        here = self._followers.here
        due = rewind_due(self._view, here, all_heard=self._followers.all_heard)
        if due is None:
            return
        self._scribe.append(due)
        for one in here.values():
            one.stranded_op = -1
            if one.applied_op > due.op:
                # Its state is of a past that was cancelled; it takes another and says so.
                one.applied_op, one.ready = -1, None

    def _check_state(self, peer: PeerId, follower: Follower) -> None:
        """T15: a state that is not the attested one is not planned with and not waited for; the
        peer reads ATTEST too and heals itself."""
        if not self._view.may_hold(follower.applied_op, follower.state_root):
            follower.ready, follower.active = None, False
            self._chronicle.event(follower.applied_op, peer, "differs", "state root")
