"""Agreement on the run's states: what peers report, what is attested, and the way back.

A state root that more than half report becomes ATTEST; a peer with another one is not planned
with (protocol.md T15). Under *dispute*, where the peers that hold the newest state hold different
ones and no majority says which is right, nothing is planned. *Rewind*: a committed result can be
had from nobody and nobody holds the state that it led to, so the run goes back to the newest state
that somebody has (T12).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from swarmtrain_transport.coordinator.chronicle import Chronicle
from swarmtrain_transport.coordinator.ledger_writer import LedgerWriter
from swarmtrain_transport.coordinator.members.group_peers import GroupPeer, GroupPeers
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Applied
from swarmtrain_transport.wire.records import Attest, Rewind

Peers = Mapping[PeerId, GroupPeer]


def trusted_root(view: GroupView, peers: Peers, op: int) -> bytes | None:
    """The state after `op` that the next op starts from: attested, or held by most who hold one.

    Args:
        view: the ledger's fold.
        peers: peers that are here.
        op: newest op with an outcome.

    Returns:
        None while nobody holds a state, or under dispute.
    """
    attested = view.root_after(op)
    if attested is not None:
        return attested
    held = Counter(one.state_root for one in peers.values() if one.applied_op == op)
    return _most(held, held.total())


def disputed(view: GroupView, peers: Peers) -> dict[bytes, list[PeerId]]:
    """Return the holders of each state after the newest op, if no majority agrees; else empty."""
    op = view.last_op
    if view.goes_by_pairs and view.commit_at(op) > 0:
        return {}  # states are each peer's own
    roots: dict[bytes, list[PeerId]] = {}
    for peer, one in peers.items():
        if one.applied_op == op:
            roots.setdefault(one.state_root, []).append(peer)
    return roots if len(roots) > 1 and trusted_root(view, peers, op) is None else {}


def rewind_due(view: GroupView, peers: Peers, *, all_heard: bool) -> Rewind | None:
    """T12: the REWIND that falls due now, if any.

    Everybody who is here and has a state must have said that the next result cannot be had;
    whoever has blinked or is still to come back may hold it, so they are waited for until they
    are evicted.

    Args:
        view: the ledger's fold.
        peers: everybody heard of in this term who has not left.
        all_heard: True if nobody of the roster is still to come back after a restart.
    """
    if view.ops or not all_heard or not peers:
        return None
    if all(one.stranded_op < 0 for one in peers.values()) or not _all_connected(peers):
        return None
    here = [one for one in peers.values() if one.applied_op >= 0]
    if not here:
        # Nothing was trained yet, so nothing is lost if the run begins with another first state.
        is_empty = view.committed == 0 and all(one.stranded_op >= 0 for one in peers.values())
        is_empty = is_empty and view.last_op >= 0  # else it goes for another one already
        why = "nobody who is here holds the first state"
        return Rewind(-1, why, view.group) if is_empty else None
    if any(one.stranded_op <= one.applied_op for one in here):
        return None
    newest = max((one.applied_op for one in here if _is_ours(view, one)), default=-1)
    lost = view.next_commit(newest)
    if newest < 0 or lost is None:
        return None
    what = "a state after" if view.goes_by_pairs else "the result of"
    return Rewind(newest, f"nobody who is here holds {what} op {lost}", view.group)


def _all_connected(peers: Peers) -> bool:
    return all(one.line.connected for one in peers.values())


def _is_ours(view: GroupView, one: GroupPeer) -> bool:
    return view.may_hold(one.applied_op, one.state_root)


def _agreed_root(held: Mapping[PeerId, bytes], voters: AbstractSet[PeerId]) -> bytes | None:
    """The state root that more than half of the voters hold, None without one."""
    return _most(Counter(held[peer] for peer in voters if peer in held), len(voters))


def _most(held: Counter[bytes], voters: int) -> bytes | None:
    """The root that more than half have."""
    return next((root for root, count in held.most_common(1) if 2 * count > voters), None)


class Agreement:
    """States of one group's peers, as far as the coordinator knows them.

    Args:
        writer: appends records.
        view: the ledger's fold of the group.
        group_peers: peers of the group.
        chronicle: memory of what people are told.
        went_back: hears the op that a REWIND goes back to.
    """

    def __init__(
        self, writer: LedgerWriter, view: GroupView, group_peers: GroupPeers, chronicle: Chronicle,
        went_back: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._writer = writer
        self._view = view
        self._group_peers = group_peers
        self._chronicle = chronicle
        self._went_back = went_back

    def reported(self, peer: PeerId, message: Applied, now_s: float, *, may_attest: bool) -> None:
        """A peer says which state is in place with it.

        Args:
            peer: peer of the group.
            message: report of its state.
            now_s: the time.
            may_attest: True if anything may be decided now.
        """
        group_peer = self._group_peers.here[peer]
        group_peer.applied_op = message.op
        group_peer.state_root, group_peer.in_place = message.state_root, True
        newest = self._view.next_op - 1 if self._view.by_clocks else self._view.last_op
        if message.op > max(0, newest):  # of a past that was cancelled, or a lie
            group_peer.applied_op, group_peer.ready = -1, None
        group_peer.follow(peer, self._view)
        self._check_chain(peer, group_peer, message)
        if may_attest:
            self.attest(message.op, now_s)
        self._check_state(peer, group_peer)

    def attest(self, op: int, now_s: float) -> None:
        """ATTEST once more than half of those alive, or expected back, report the same root: of the
        op's members, or of everybody once all members left have reported, and none has most. Who
        reports a skipped op has the state of the committed one before it."""
        op = self._view.commit_at(op)
        if self._view.goes_by_pairs:
            self._attest_own(op, now_s)
            return
        if op not in self._view.commits or op in self._view.attests:
            return
        boots, peers = self._view.commits[op].boots, self._group_peers
        held, members = self._held_at(op, boots), peers.alive_of(boots, now_s)
        members -= self._voiceless(op, members - held.keys())
        root = _agreed_root(held, members)
        if root is None and members <= held.keys():
            # A peer that has replayed the op speaks for it, as it does where the next one is
            # planned.
            held, alive = self._held_at(op, peers.here), peers.alive_of(peers.here, now_s)
            root = _agreed_root(held, alive - self._voiceless(op, alive - held.keys()))
        if root is not None:
            self._writer.append(Attest(op, root, group=self._view.group))
            for peer in self._held_at(op, peers.here):
                self._check_state(peer, peers.here[peer])

    def _voiceless(self, op: int, silent: AbstractSet[PeerId]) -> set[PeerId]:
        """Return those silent peers that have no part in a committed op, or not in this life, and
        cannot get its state: they have said STRANDED for it or for an op before. They have no more
        to say than while they were dead, once everybody is here who may help them."""
        here, boots = self._group_peers.here, self._view.commits[op].boots
        lost = {
            peer
            for peer in silent & here.keys()
            if 0 <= (one := here[peer]).stranded_op <= op
            and one.applied_op < op
            and one.line.hello.boot != boots.get(peer)
        }
        return lost if lost and self._group_peers.all_heard and _all_connected(here) else set()

    def _held_at(self, op: int, among: Iterable[PeerId]) -> dict[PeerId, bytes]:
        """State roots that some have reported after a committed op, or after skipped ones behind
        it; by clocks those who were in it, and in none since."""
        here = self._group_peers.here
        if self._view.by_clocks:
            return {
                peer: here[peer].state_root
                for peer in self._view.commits[op].weights
                if self._view.named[peer] == op
                and peer in here
                and here[peer].in_place
                and here[peer].applied_op >= op
            }
        found = {peer: here[peer] for peer in among if peer in here}
        return {
            peer: one.state_root
            for peer, one in found.items()
            if one.in_place and one.applied_op >= op and self._view.commit_at(one.applied_op) == op
        }

    def _attest_own(self, op: int, now_s: float) -> None:
        """ATTEST of a pair op, once more than half of the planned processes that are alive, or are
        expected back, have reported their states; and again where none of those who were named
        then is here any more, or joiners would have nobody to take a state from."""
        if op not in self._view.commits:
            return
        here = self._group_peers.here
        held = self._held_at(op, here)
        known = self._view.roots.get(op, {})
        if not held or any(root in known.values() for root in held.values()):
            return
        alive, planned = self._group_peers.alive(now_s), self._view.commits[op].boots
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
        self._writer.append(Attest(op, first, roots=roots, group=self._view.group))

    def _check_chain(self, peer: PeerId, group_peer: GroupPeer, message: Applied) -> None:
        """Compare a peer's chain of exchanges with the ledger's; people are told if they differ."""
        if not message.chain:
            return
        group_peer.chain = message.chain
        link = self._view.links.get(message.op, {}).get(peer)
        if link is not None and link[1] != message.chain:
            self._chronicle.event(message.op, peer, "differs", "chain")

    def rewind(self, kept: int = -1) -> None:
        """T12: what was committed is with nobody.

        Args:
            kept: newest op after which a keeper says that it has the state.
        """
        if self._view.ops:
            return
        here = self._group_peers.here
        due = rewind_due(self._view, here, all_heard=self._group_peers.all_heard)
        if due is not None and kept <= due.op:
            self.go_back(due)

    def go_back(self, due: Rewind) -> None:
        """Log a REWIND."""
        self._writer.append(due)
        self._went_back(due.op)
        for one in self._group_peers.here.values():
            one.stranded_op = -1
            if one.applied_op > due.op:
                # Its state is of a past that was cancelled; it takes another and says so.
                one.applied_op, one.ready = -1, None

    def _check_state(self, peer: PeerId, group_peer: GroupPeer) -> None:
        """T15: a state that is not the attested one is not planned with and not waited for; the
        peer reads ATTEST too and heals itself."""
        if not self._view.may_hold(group_peer.applied_op, group_peer.state_root):
            group_peer.ready, group_peer.active = None, False
            self._chronicle.event(group_peer.applied_op, peer, "differs", "state root")
