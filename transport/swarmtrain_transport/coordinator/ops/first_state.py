"""First state of a group: who gives it, and whether the others get it (protocol.md T18).

The first peer that offers one gives it. A giver that nobody can reach, or that serves nobody, would
keep a run from its beginning for ever: so op 1 waits until half of the others have the state, and
while most of them get no nearer to it those who say that they have it are passed over and another
gives. No evidence is needed for that, because nothing was trained yet: what it costs is time.
"""

from dataclasses import dataclass

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.group_peers import GroupPeer, GroupPeers
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Attest, Rewind

WHY = "most peers did not get the first state"

_ASKING = "syncing"
"""Phase of a peer that asks for a state."""

_GROWTH = 1.5
"""Factor by which those who have the state must have become more for it to count as spreading."""

_Peers = dict[PeerId, GroupPeer]


@dataclass(slots=True)
class _Wait:
    """One peer's wait for the first state.

    Attributes:
        since_s: Time from which on it waits.
        moved_s: Time at which more of the state had come.
        told_bytes: Bytes of it that have come, as the peer says.
    """

    since_s: float
    moved_s: float
    told_bytes: int


class FirstState:
    """The first state of one group, in this term.

    Args:
        view: the ledger's fold of the group.
        group_peers: peers of the group.
    """

    def __init__(self, view: GroupView, group_peers: GroupPeers) -> None:
        self._view = view
        self._group_peers = group_peers
        self._offers: dict[PeerId, Attest] = {}
        self._waits: dict[PeerId, _Wait] = {}
        self._offered_s: float | None = None
        self._genesis: Attest | None = None
        self._num_spread, self._spread_s = 0, 0.0

    def offered(self, peer: PeerId, genesis: Attest) -> None:
        """A peer offers its state; the newest word counts, until there is a first state."""
        if self._view.genesis is None:
            self._offers[peer] = genesis

    @property
    def is_pending(self) -> bool:
        """True while time alone may decide something."""
        return self.is_open or (bool(self._offers) and self._view.genesis is None)

    def next_genesis(self, now_s: float) -> Attest | None:
        """Return the offer that is taken now: of a peer that was passed over least; at once if it
        never was, else when another has had its time to offer."""
        if self._view.genesis is not None:
            self._offers.clear()
            self._offered_s = None
        if not self._offers:
            return None
        alive = self._group_peers.alive(now_s)
        offers = {peer: one for peer, one in self._offers.items() if peer in alive}
        if not offers:
            return None
        if self._offered_s is None:
            self._offered_s = now_s
        passed = self._view.passed_over
        peer = min(offers, key=lambda one: passed.get(one, 0))
        if passed.get(peer, 0) and now_s < self._offered_s + limits.OFFER_WAIT_S:
            return None
        return offers[peer]

    # ---- who has it

    def holders(self) -> list[PeerId]:
        """Peers that are here and say that they have the first state."""
        return [*self._sorted()[0]]

    def lacking(self) -> list[PeerId]:
        """Peers that are here and have none, but for those who can get none (T20)."""
        return [*self._sorted()[1]]

    def _sorted(self) -> tuple[_Peers, _Peers]:
        """Holders, and those who lack it: in one go, as it is asked after every message."""
        holders, lacking = _Peers(), _Peers()
        genesis = self._view.genesis
        root = None if genesis is None else genesis.state_root
        for peer, one in self._group_peers.here.items():
            line = one.line
            if not line.connected or line.is_leaving:
                continue
            if one.applied_op == 0 and one.state_root == root:
                holders[peer] = one
            elif line.life.unreached_s is None:
                lacking[peer] = one
        return holders, lacking

    # ---- who does not get it

    @property
    def is_open(self) -> bool:
        """True while the group has a first state, and no op after it."""
        view = self._view
        return view.genesis is not None and view.last_op == 0 and not view.ops

    def holds_back(self, now_s: float) -> bool:
        """Return True if op 1 waits for more peers to have the first state. Not for who has been
        here for long and does not even ask for it, and not once everybody has had its turn to
        give."""
        if not self.is_open or self._have_all_given:
            return False
        holders, lacking = self._look(now_s)
        waiting = sum(
            now_s < self._waits[peer].since_s + limits.FIRST_STATE_S or _is_asking(one)
            for peer, one in lacking.items()
        )
        return _are_most(waiting, holders, lacking)

    def passes_over(self, now_s: float) -> Rewind | None:
        """Return the REWIND that passes over those who have the first state, if it is due."""
        if not self.is_open:
            self._waits.clear()
            return None
        holders, lacking = self._look(now_s)
        lives = [one.line.life for one in holders.values()]
        if all(life.unreached_s is not None for life in lives):
            stalled = list(lacking)
        else:
            stalled = [peer for peer in lacking if now_s >= self._due_s(self._waits[peer])]
        if not _are_most(len(stalled), holders, lacking):
            return None
        if not _are_most(len(self._group_peers.alive_of(stalled, now_s)), holders, lacking):
            return None
        return Rewind(-1, WHY, self._view.group, tuple(sorted(holders)))

    def wakeups(self) -> list[float]:
        """List when something may fall due."""
        here = self._group_peers.here
        times = [self._due_s(wait) for peer, wait in self._waits.items() if peer in here]
        times += [one.since_s + limits.FIRST_STATE_S for one in self._waits.values()]
        if self._offered_s is not None:
            times.append(self._offered_s + limits.OFFER_WAIT_S)
        return times

    def pardon(self, absent_s: float) -> None:
        """The coordinator was stopped for so long: nobody has waited meanwhile."""
        self._spread_s += absent_s
        for one in self._waits.values():
            one.since_s += absent_s
            one.moved_s += absent_s

    @property
    def _have_all_given(self) -> bool:
        """True if everybody here was passed over before."""
        here, passed_over = self._group_peers.connected().items(), self._view.passed_over
        return all(one.line.is_leaving or peer in passed_over for peer, one in here)

    def _due_s(self, wait: _Wait) -> float:
        """Return when a peer counts as one that does not get the state: not while it spreads among
        the others. That takes a few doublings, so what a giver and its accomplices can pretend soon
        ends."""
        moved_s, whole_s = self._patience_s
        return min(
            max(wait.moved_s, self._spread_s) + moved_s,
            max(wait.since_s + whole_s, self._spread_s + moved_s),
        )

    @property
    def _patience_s(self) -> tuple[float, float]:
        """Seconds after which a peer counts as one that does not get the state: those in which
        nothing more of it has come, and those that are more than a slow link needs for all of it.
        Each turn lasts twice as long as the one before, so that it comes through in the end however
        slow the links are."""
        turns = sum(self._view.passed_over.values())
        patience, genesis = 1 << min(turns, limits.FIRST_STATE_DOUBLINGS), self._view.genesis
        num_bytes = limits.STATE_VALUE_BYTES * (genesis.num_values if genesis is not None else 0)
        whole_s = limits.FIRST_STATE_S + num_bytes / limits.FIRST_STATE_BYTES_PER_S
        return patience * limits.FIRST_STATE_S, patience * whole_s

    def _look(self, now_s: float) -> tuple[_Peers, _Peers]:
        """Note who waits, and whether more has come; return the holders, and those who lack it."""
        if self._genesis is not self._view.genesis:
            self._genesis = self._view.genesis
            self._waits.clear()
            self._num_spread, self._spread_s = 0, now_s
        holders, lacking = self._sorted()
        if len(holders) >= max(1, _GROWTH * self._num_spread):
            self._num_spread, self._spread_s = len(holders), now_s
        waits = self._waits
        for gone in waits.keys() - lacking.keys():
            del waits[gone]
        for peer, one in lacking.items():
            progress = one.line.progress
            told = progress.state_bytes if progress is not None else 0
            wait = waits.get(peer)
            if wait is None:
                wait = waits[peer] = _Wait(now_s, now_s, told)
            if told > wait.told_bytes or progress is None or progress.phase != _ASKING:
                wait.told_bytes, wait.moved_s = told, now_s
        return holders, lacking


def _are_most(count: int, holders: _Peers, lacking: _Peers) -> bool:
    """Return True if so many are more than half of all others than one giver, and somebody gives.
    Where nobody does T12 finds another."""
    return bool(holders) and 2 * count > len(holders) + len(lacking) - 1


def _is_asking(one: GroupPeer) -> bool:
    progress = one.line.progress
    return progress is not None and progress.phase == _ASKING
