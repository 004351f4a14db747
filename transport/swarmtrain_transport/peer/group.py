"""One peer's part in one group: its place there, its ops under way, what it fetches and audits.

A peer may be in several groups at once; each has its own state, ops and results, and nothing of one
is mixed with another's. Several ops of a group may be under way, keyed by their plan ids.

Here is also what a member and a keeper (`keeper`) of a group have in common.
"""

import math
from collections.abc import Callable, Sequence

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Arithmetic, Buffer, Contribution
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.collective.ahead import Ahead
from swarmtrain_transport.collective.auditing import AUDIT_FRAMES, Auditing
from swarmtrain_transport.collective.exchange import Exchange
from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger.fold import GroupView, LedgerView, OfGroup
from swarmtrain_transport.ledger.pairing import expected_partner
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.catchup import CatchUp
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.progression import Progression
from swarmtrain_transport.peer.state_finder import StateFinder
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Applied, Hashes, Sheet
from swarmtrain_transport.wire.records import (
    Attest,
    Commit,
    Freeze,
    Plan,
    Reassign,
    Rewind,
    Sign,
    Skip,
    SliceFreeze,
    Verify,
)

Actions = list[do.PeerAction]


class GroupPart:
    """Part of a process in a group whose ops it follows, as a member or for others.

    Args:
        number: number of the group.
        card: our identity and address.
        ledger: the ledger's fold, which knows the group.
        arithmetic: exact chunk arithmetic on the group's codec.
        sign: signs with our own key.
        shuffle: order of equally good donors.
        stats: facts of our link, as the shell knows them.
        blobs: results and snapshots.

    Attributes:
        view: the ledger's fold of the group.
        exchanges: our part in each op under way, by plan id, oldest first.
        blobs: results and snapshots.
    """

    def __init__(
        self,
        number: int,
        card: Card,
        ledger: LedgerView,
        arithmetic: Arithmetic,
        sign: Sign,
        shuffle: Callable[[Sequence[PeerId]], list[PeerId]],
        stats: LocalStats,
        blobs: Blobs,
    ) -> None:
        self.view: GroupView = ledger.groups[number]
        self.exchanges: dict[int, Exchange] = {}
        self.blobs = blobs
        self._ledger, self._card, self._stats = ledger, card, stats
        self._arithmetic, self._sign = arithmetic, sign
        self._fetcher = Fetcher(shuffle)
        self._catchup = CatchUp(card.peer_id, self.view, blobs, self._fetcher, arithmetic)

    def _begin_exchange(
        self, contribution: Contribution | None, now_s: float, ahead: Ahead | None = None
    ) -> Actions:
        """PLAN: take part if it names this very process."""
        view = self.view.op
        assert view is not None
        if view.boots.get(self._card.peer_id) != self._card.boot:
            return []
        exchange = Exchange(
            self._card.peer_id, view, self._ledger.run_tag, self._arithmetic, contribution,
            self.blobs, self._fetcher, now_s, self._sign, self._stats, self.view.commits, ahead,
        )  # fmt: skip
        self.exchanges[view.plan_id] = exchange
        return exchange.decided(now_s)

    def _end_exchange(self, op: int) -> Exchange | None:
        """COMMIT or SKIP: our part in it, if we had one."""
        exchange = self.exchange_in(op)
        if exchange is not None:
            exchange.close()
            del self.exchanges[exchange.view.plan_id]
        return exchange

    def exchange_in(self, op: int) -> Exchange | None:
        """Our part in an op that is under way."""
        return next((one for one in self.exchanges.values() if one.view.plan.op == op), None)

    def receivers(self) -> set[PeerId]:
        """Return the peers to which frames of our next op, or the one under way, will go: an owner
        sends to everybody, the others to owners. Before the first PLAN anybody may own."""
        view, me = self.view.op, self._card.peer_id
        if view is None:
            found = set(self.view.members)
        elif view.plan.kind == PAIR:
            partner = expected_partner(self.view.tag, view.plan.op + 1, view.plan, me)
            found = set() if partner is None else {partner}
        elif view.cells.count > 1:
            found = view.cells.met_by(me, view.owners) if me in view.boots else set()
        else:
            found = set(view.boots) if me in view.owners else set(view.owners)
        return found - {me} if len(found) <= limits.CELL_PEERS_MAX else set()

    def hashes(self, message: Hashes, now_s: float) -> Actions:
        """An owner has published in one of our ops."""
        exchange = self.exchanges.get(message.plan_id)
        return exchange.hashes(message, now_s) if exchange is not None else []

    def _exchanged(self, op: int, digest: bytes, body: Buffer, now_s: float) -> Actions:
        """A BLOB that was wanted, by ops under way, or for the result of `op`, or by both."""
        wanting = [one for one in self.exchanges.values() if one.wants(digest)]
        if not wanting or self._catchup.wants(digest):
            self.blobs.keep_result(op, body, digest)
        return [action for one in wanting for action in one.blob_arrived(digest, body, now_s)]

    def flow(self, peer: PeerId, now_s: float) -> None:
        """Bulk of this peer comes in: an answer may be behind it."""
        self._fetcher.heard(peer, now_s)

    def forget(self, peer: PeerId) -> None:
        """This peer has left the run."""
        self._fetcher.forget(peer)
        self._catchup.look_again()

    def tick(self, now_s: float) -> Actions:
        """Go on with the ops under way."""
        return [action for one in self.exchanges.values() for action in one.tick(now_s)]

    def avoid(self, until_s: float) -> None:
        """Ask last, until then, to whom no connection can be made, and who is heard by a relay."""
        self._fetcher.unreached(self._stats.unreached, until_s)
        self._fetcher.relayed = frozenset(self._stats.relayed)

    def gifts(self, now_s: float, *, in_op: bool) -> Actions:
        """Return what goes out beside the ops now.

        Args:
            now_s: the time.
            in_op: True if an op of ours is under way, in whatever group.
        """
        return []

    def _requests(self, now_s: float) -> Actions:
        run_tag = self._ledger.run_tag
        return [
            do.SendFrame(peer, Frame(FrameKind.GET, run_tag, body=digest))
            for peer, digest in self._fetcher.requests(now_s)
        ]

    def _close(self) -> None:
        for exchange in self.exchanges.values():
            exchange.close()
        self.exchanges.clear()


class GroupPeer(GroupPart):
    """One peer in one group.

    Args:
        number, card, ledger, arithmetic, sign, shuffle, stats, blobs: see `GroupPart`.
        verify: signature check.

    Attributes:
        states: finds the state to begin with.
        audits: our audits, and those of others that we judge.
        place: state that we are at.
        ahead: contributions that go and come before their op.
    """

    def __init__(
        self,
        number: int,
        card: Card,
        ledger: LedgerView,
        arithmetic: Arithmetic,
        sign: Sign,
        verify: Verify,
        shuffle: Callable[[Sequence[PeerId]], list[PeerId]],
        stats: LocalStats,
        blobs: Blobs,
    ) -> None:
        super().__init__(number, card, ledger, arithmetic, sign, shuffle, stats, blobs)
        me = card.peer_id
        self.states = StateFinder(me, self.view, self._fetcher, shuffle)
        self.audits = Auditing(me, self.view, self.blobs, self._fetcher, arithmetic, verify)
        self.ahead = Ahead(me, card.boot, self.view, blobs.retention, stats)
        self.place = Progression(card, self.view, self._catchup, self.states)

    @property
    def exchange(self) -> Exchange | None:
        """Our part in the oldest op under way, if any."""
        return next(iter(self.exchanges.values()), None)

    # ---- the ledger

    @property
    def is_about_to_send(self) -> bool:
        """True if an op of ours is under way, or we are READY for one."""
        return bool(self.exchanges or self.place.pending)

    def follow(self, body: OfGroup, now_s: float) -> Actions:
        """Heed one new record of the group."""
        if isinstance(body, Plan):
            self.place.pass_by()
            given = self.place.contribution_to(body.op)
            return self._begin_exchange(given, now_s, self.ahead)
        if isinstance(body, Commit | Skip):
            if isinstance(body, Commit):
                self.audits.committed(body.op, self.exchange_in(body.op), now_s)
            self._end_exchange(body.op)
            if isinstance(body, Skip):
                self.blobs.forget(body.op)
        elif isinstance(body, Attest):
            self.place.attested()
        elif isinstance(body, Rewind):
            self.place.rewound()
            self.audits.rewound(body.op)
            forgotten = self.forget_after(body.op)
            self._go_back()
            return forgotten
        elif isinstance(body, Reassign | Freeze | SliceFreeze):
            exchange = self.exchange_in(body.op)
            return exchange.decided(now_s) if exchange is not None else []
        return []

    def _go_back(self) -> None:
        """Begin from a state of the run's that is pinned here, the newest, rather than from one
        that would have to be downloaded, or may be with nobody else."""
        for op in reversed(self.blobs.snapshot_ops):
            root = self.view.attests.get(op)
            kept = None if root is None else self.blobs.snapshot(op, root)
            if kept is not None:
                self.states.hold(op, *kept)
                return

    def forget_after(self, op: int) -> Actions:
        """Forget later ops: they were cancelled, and would take the place of those to come."""
        self.blobs.rewound(op)
        return [do.Rewound(op, self.view.group)]

    def sheet(self, message: Sheet, now_s: float) -> None:
        """Keep and serve a sheet of our cell, if the ledger names it; another one is nobody's."""
        exchange = self.exchange_in(message.op)
        view = self.view.commits.get(message.op) if exchange is None else exchange.view
        digest = content_hash(message.data)
        if view is None or digest not in view.all_sheets:
            self._stats.ignored["sheet"] += 1
        else:
            self.blobs.keep_result(message.op, message.data, digest)
            self.audits.sheet_came(message, now_s)

    def avoid(self, until_s: float) -> None:
        """Ask last, until then, to whom no connection can be made, and who is heard by a relay."""
        super().avoid(until_s)
        self.states.download.unreached(self._stats.unreached, until_s)
        self.states.download.relayed = frozenset(self._stats.relayed)

    def make_haste(self) -> None:
        """Others wait for what this peer does not have yet: bytes that come twice are cheaper."""
        self._fetcher.is_hasty = self.states.download.is_hasty = True

    # ---- what others send

    def arrived(self, peer: PeerId, digest: bytes, body: Buffer, now_s: float) -> Actions:
        """A BLOB: to whoever wants it; what nobody wants is dropped.

        Raises:
            RemoteFault: reason ``proof``: an accusation without one.
        """
        self.states.download.met(peer, now_s)
        if not self._fetcher.arrived(peer, digest, now_s) or self.states.accept(digest, body):
            return []
        found = self.audits.judged(digest, body)
        if found is not None:
            return found
        # Not of the ops under way, which may be skipped, and what is kept of them dropped.
        return self._exchanged(self.place.applied_op + 1, digest, body, now_s)

    def heard(self, peer: PeerId, frame: Frame, now_s: float) -> Actions:
        """PIECE, MISSING or a frame of AUDIT_FRAMES, which may be another group's.

        Raises:
            RemoteFault: reason ``length``, ``hash`` or ``evidence``.
        """
        if frame.kind in AUDIT_FRAMES:
            return self.audits.heard(peer, frame, now_s)
        if frame.kind is FrameKind.PIECE:
            self.states.piece(peer, frame, now_s)
            self._fetcher.met(peer, now_s)
        else:
            self._fetcher.missing(peer, bytes(frame.body), now_s)
            self.states.missing(peer, bytes(frame.body), now_s)
        return []

    # ---- time, and what falls due

    @property
    def held(self) -> Applied | None:
        """The state that HELLO tells of."""
        return self.place.held

    def roster_changed(self) -> None:
        """Donors came or went."""
        self.states.roster_changed()

    def advance(self, now_s: float, *, connected: bool) -> Actions:
        """Find a state and apply outcomes, as soon as there is a trainer."""
        return self.place.advance(connected=connected) if self.states.is_attached else []

    def requests(self, now_s: float) -> Actions:
        """Return the requests to make of others now."""
        return self._requests(now_s) + self.states.requests(self._ledger.run_tag, now_s)

    def gifts(self, now_s: float, *, in_op: bool) -> Actions:
        """Return the frames that go ahead to the next op's partner now, and the requests of
        audits."""
        run_tag = self._ledger.run_tag
        given: Actions = [*self.ahead.due(run_tag, now_s)]
        return given + self.audits.due(run_tag, in_op=in_op, now_s=now_s)

    def resend(self, now_s: float) -> Actions:
        """After HELLO: whatever the coordinator may have missed. All of it is idempotent."""
        actions = self.place.reports(connected=True) + self.audits.resend()
        for exchange in self.exchanges.values():
            actions += exchange.resend(now_s)
        return actions

    def leave(self) -> None:
        """MOVE: we are in the group no more."""
        self.ahead.stop()
        self.states.close()
        self._close()
        self.blobs.clear()

    @property
    def is_idle(self) -> bool:
        """True if nothing is wanted of anybody. Asked after every event, so it calls nothing."""
        is_asking = self._fetcher.wants or self.states.download.chunks
        return not (is_asking or self.ahead.is_giving) and self.audits.is_idle

    @property
    def next_wakeup_s(self) -> float:
        """Time at which something falls due although nothing came. Asked after every event."""
        wakeup_s = math.inf
        for exchange in self.exchanges.values():
            wakeup_s = min(wakeup_s, exchange.next_wakeup_s)
        if self.is_idle:
            return wakeup_s
        times = [*self._fetcher.wakeups(), *self.states.wakeups(), *self.audits.wakeups()]
        if self.ahead.is_giving:
            times.append(self.ahead.next_wakeup_s)
        return min([wakeup_s, *times])
