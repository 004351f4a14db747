"""Meetings: ways for each ordered pair of peers of which one cannot plainly dial.

A pair is left alone until there is evidence that its sender cannot dial its receiver. Then the
routes are tried one after another, best first; the sender's word ends a try, as it is the one whose
connection has proved the receiver's key or has not. What stands is kept, and better routes are
tried again after pauses that double. Nobody's word counts for more than its own ways: a sender that
lies loses what it sends itself, a receiver can have another way looked for and take none down
(protocol.md T21). Pure: time, tokens and what is sent are arguments.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.directory import Directory
from swarmtrain_transport.coordinator.members.relays import Relays
from swarmtrain_transport.coordinator.members.whereabouts import (
    Route,
    Whereabouts,
    direct_routes,
)
from swarmtrain_transport.links.link import PeerId, is_local
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.ways import Side, Way
from swarmtrain_transport.wire.messages import (
    LOST,
    Carried,
    Carry,
    Carrying,
    CoordinatorMessage,
    Hello,
    Meet,
    Met,
    Part,
    Places,
)

_TRY_S = limits.MEET_S + limits.MEET_SLACK_S
_PLAIN = Route(Way.DIALLED)


@dataclass(frozen=True, slots=True)
class Means:
    """Means of the coordinator to bring two peers together.

    Attributes:
        draw_token: draws 32 bytes that nobody guesses.
        mirror: True if it can tell peers how they look from outside.
        relay_bytes_per_s: rate at which it passes bytes on itself, 0 if it does not.
    """

    draw_token: Callable[[], bytes]
    mirror: bool = False
    relay_bytes_per_s: int = 0


@dataclass(slots=True)
class _Member:
    """One peer: where it is, and what it may still make others do. A mere relay meets nobody."""

    boot: bytes
    name: str
    at: Whereabouts
    dials: TokenBucket
    is_member: bool
    is_here: bool = True
    unreached: frozenset[PeerId] = frozenset()
    busy: int = 0


@dataclass(slots=True, eq=False)
class _Meeting:
    """A try, and then the way that it made."""

    token: bytes
    sender: PeerId
    receiver: PeerId
    route: Route
    ends_s: float
    seen: dict[Side, tuple[str, int]] = field(default_factory=dict)
    is_told: bool = False

    def side_of(self, peer: PeerId) -> Side | None:
        """The side that a peer is, None for anybody else."""
        return {self.sender: Side.SENDER, self.receiver: Side.RECEIVER}.get(peer)


@dataclass(slots=True, eq=False)
class _Pair:
    """An ordered pair that does not plainly dial, or is thought not to.

    Attributes:
        is_named: True if the sender has said that it cannot reach the receiver.
        standing: way that stands.
        trying: try that is under way.
        tried: routes that have failed in this round of tries.
        is_lost: True once all routes have failed and none stands.
        is_doubted: True if a way as good as the standing one is looked for.
        has_changed: True if a better way may have become possible while one was tried.
        first_rank: rank of the way that was lost; better ones wait.
        due_s: time of the next try.
        pause_s: pause after the next round of tries.
    """

    sender: PeerId
    receiver: PeerId
    due_s: float
    is_named: bool = False
    standing: _Meeting | None = None
    stood_s: float = -math.inf
    trying: _Meeting | None = None
    tried_s: float = -math.inf
    tried: set[Route] = field(default_factory=set)
    is_lost: bool = False
    is_doubted: bool = False
    has_changed: bool = False
    first_rank: int = 0
    pause_s: float = limits.MEET_AGAIN_S

    @property
    def is_carried(self) -> bool:
        """True if the way that stands goes over a relay."""
        return self.standing is not None and self.standing.route.way is Way.RELAYED

    @property
    def relay(self) -> PeerId | None:
        """Relay of the way that stands, None for the coordinator or without one."""
        return self.standing.route.relay if self.standing is not None else None

    def refresh(self, now_s: float) -> None:
        """Begin anew: something has changed, and what failed before may work."""
        self.tried.clear()
        self.first_rank, self.has_changed = 0, self.trying is not None
        self.due_s, self.pause_s = now_s, limits.MEET_AGAIN_S


class Meetings:
    """Bring peers together.

    Args:
        means: the coordinator's own; None if nobody is to meet.
        send: sends a peer a message.
        note: hears, for people, what a peer did.

    Attributes:
        relays: peers that pass bytes on.
        own_carried: bytes that the coordinator itself has passed on.
        has_news: True if ways have changed since this was last set to False.
    """

    def __init__(
        self,
        means: Means | None,
        send: Callable[[PeerId, CoordinatorMessage], None],
        note: Callable[[PeerId, str, str], None],
    ) -> None:
        self._means, self._send, self._note = means, send, note
        self._out: list[tuple[PeerId, CoordinatorMessage]] = []
        self.relays = Relays()
        self.own_carried = 0
        self.has_news = False
        self._members: dict[PeerId, _Member] = {}
        self._pairs: dict[PeerId, dict[PeerId, _Pair]] = {}
        self._senders: dict[PeerId, dict[PeerId, None]] = {}
        """Senders of the pairs of each receiver."""
        self._namers: dict[PeerId, dict[PeerId, None]] = {}
        """Peers that say of each that they cannot reach it."""
        self._naming = set[PeerId]()
        self._directory = Directory()
        self._dials: dict[PeerId, TokenBucket] = {}
        self._void: deque[bytes] = deque(maxlen=limits.MEET_VOID_KEPT)
        self._by_token: dict[bytes, _Meeting] = {}
        self._due_s = math.inf

    # ---- who is here, and where

    def came(
        self, peer: PeerId, remote: str, hello: Hello, now_s: float, *, is_member: bool = True
    ) -> None:
        """A peer's control connection stands. What is known of another process of it is void. One
        that is no member only relays."""
        known = self._members.get(peer)
        if known is not None and known.boot != hello.boot:
            self._forget(peer, now_s)
            known = None
        at = Whereabouts(remote, hello.host, hello.port)
        if known is None:
            dials = self._dials_of(peer, now_s)
            self._members[peer] = _Member(hello.boot, hello.name, at, dials, is_member)
            self._directory.connected(peer)
            self._look_at(peer, now_s)
            return
        has_moved = known.at.remote != remote
        # Who moves is mostly behind a router again, or again behind none; a dial will tell.
        at.is_dialled, at.places = known.at.is_dialled, known.at.places
        known.at, known.is_here = at, True
        self._directory.connected(peer)
        for pair in self._pairs_of(peer):
            if self._end_try(pair, now_s) is not None:
                pair.due_s = now_s  # its MEET may have gone to a connection that was dead
            pair.is_doubted = pair.is_doubted or has_moved
            if has_moved or pair.standing is None:
                # After another address hardly anything that stood does still, and the same kind of
                # way is soonest found.
                stood = pair.standing
                first_rank = pair.first_rank if stood is None else stood.route.way.rank
                pair.refresh(now_s)
                pair.first_rank = first_rank
        self._look_at(peer, now_s)

    def away(self, peer: PeerId, now_s: float) -> None:
        """A peer's control connection has closed. Ways stand on their own; tries do not."""
        if (member := self._members.get(peer)) is None:
            return
        member.is_here = False
        for pair in self._pairs_of(peer):
            if pair.trying is not None:
                self._end_try(pair, now_s)
                pair.due_s = now_s
        self._wake(now_s)

    def left(self, peer: PeerId, now_s: float) -> None:
        """A peer is in the roster no longer: nothing of it is kept."""
        self._forget(peer, now_s)
        self.relays.left(peer)
        self._wake(now_s)

    def pardon(self, absent_s: float) -> None:
        """The coordinator was stopped for so long: what it hears now was said meanwhile."""
        for pair in self._every_pair():
            pair.stood_s += absent_s
            if pair.trying is not None:
                pair.trying.ends_s += absent_s

    def places(self, peer: PeerId, message: Places, now_s: float) -> None:
        """A peer tells its addresses."""
        if (member := self._members.get(peer)) is None or member.at.places == message.places:
            return
        member.at.places = message.places
        for pair in self._pairs_of(peer):
            pair.refresh(now_s)
        self._look_at(peer, now_s)

    def dialled(self, peer: PeerId, now_s: float, *, is_open: bool) -> None:
        """The coordinator has tried to open a connection to a peer."""
        if (member := self._members.get(peer)) is None or member.at.is_dialled is is_open:
            return
        member.at.is_dialled = is_open
        if is_open:
            for pair in self._pairs_of(peer):
                pair.refresh(now_s)
        self._look_at(peer, now_s)

    def unreached(self, peer: PeerId, others: Collection[PeerId], now_s: float) -> None:
        """A sender says whom it could not reach for UNREACHED_S."""
        if (member := self._members.get(peer)) is None:
            return
        if not (others or member.unreached or peer in self._pairs):
            return
        self._name(peer, member, frozenset(others))
        now_named = member.unreached
        for other in sorted(now_named):
            self._look(peer, other, now_s)
            pair = self._pair(peer, other)
            if pair is not None and pair.standing is not None and pair.trying is None:
                self._check_standing(pair, now_s)
        # A try takes a receiver out of what its sender names, for a while.
        quiet_s = now_s - 2 * limits.UNREACHED_S
        for pair in self._pairs_by(peer):
            is_quiet = pair.trying is None and pair.tried_s < quiet_s
            if pair.is_named and pair.receiver not in now_named and is_quiet:
                pair.is_named = pair.is_lost = False
                self._look(peer, pair.receiver, now_s)

    def _name(self, peer: PeerId, member: _Member, others: frozenset[PeerId]) -> None:
        """Note whom a peer cannot reach now, in place of what it said before."""
        for other in member.unreached - others:
            if (namers := self._namers.get(other)) is not None:
                namers.pop(peer, None)
        for other in others & self._members.keys():
            self._namers.setdefault(other, {})[peer] = None
        member.unreached = others
        self._naming.discard(peer)
        if others:
            self._naming.add(peer)

    def unheard(self, pairs: Collection[tuple[PeerId, PeerId]], now_s: float) -> None:
        """Parts of these senders have not come to these receivers in time for a round. A relay that
        stalls says nothing, and TCP takes its word: so another one is tried, beside it, as it is
        the receivers' word alone. Each counts once against a relay."""
        for sender, receiver in sorted(pairs):
            pair = self._pair(sender, receiver)
            if pair is None or pair.standing is None or pair.trying is not None:
                continue
            if (route := pair.standing.route).way is Way.RELAYED:
                pair.is_doubted, pair.due_s = True, now_s
                pair.tried.add(route)
                self._complain(route.relay, receiver, "parts did not come through", now_s)
                self._wake(now_s)

    def carrying(self, peer: PeerId, message: Carrying, now_s: float) -> None:
        """A peer relays for others, or how it does has changed."""
        if peer not in self._members:
            return
        is_new = peer not in self.relays
        self.relays.carrying(peer, message)
        if is_new:
            for pair in self._every_pair():
                if pair.standing is None:
                    pair.due_s = min(pair.due_s, now_s)
                for meeting in (pair.standing, pair.trying):
                    if meeting is not None and meeting.route.relay == peer:
                        self.relays.takes(peer, meeting.token)  # since before it ceased for a while
            self._wake(now_s)

    # ---- what comes of a meeting

    def met(self, peer: PeerId, message: Met, now_s: float) -> None:
        """A side says what has come of its part."""
        if not message.token:
            self._lose_plain(peer, message.peer, now_s)
            return
        meeting = self._by_token.get(message.token)
        if meeting is None:
            if message.is_up and message.token in self._void:
                # It crosses the word that gives the try up, or that one has not arrived.
                self._say(peer, Part(message.token))
            elif message.is_up and message.way and message.peer != peer:
                self._adopt(peer, message, now_s)
            return
        side, pair = meeting.side_of(peer), self._pairs[meeting.sender][meeting.receiver]
        is_tried = meeting is pair.trying
        if side is Side.SENDER and message.is_up:
            if is_tried and message.way == Way.DIALLED != meeting.route.way:
                self._plain(pair, now_s)
            elif is_tried:
                self._stand(pair, now_s)
        elif message.is_up or side is None:
            return
        elif is_tried:
            self._fail(pair, now_s)
        elif side is Side.SENDER or message.reason == LOST:
            # A receiver that closes its end takes the way down, which the sender may notice late.
            self._lose(pair, message.reason, now_s)
        elif pair.trying is None and not pair.is_doubted:
            # A receiver's mere word does not.
            pair.is_doubted = True
            pair.due_s = max(now_s, pair.tried_s + pair.pause_s)
            pair.pause_s = min(2 * pair.pause_s, limits.MEET_AGAIN_MAX_S)
        self._wake(now_s)

    def takes(self, token: bytes, side: Side) -> Way | None:
        """Return what a connection to the coordinator's own port that brings this token is for:
        PUNCHED, it wants to see how it looks; RELAYED, it wants to be passed on; None, it is
        nobody's. Each side of a token is taken once."""
        meeting = self._by_token.get(token)
        if meeting is None or side in meeting.seen or not meeting.is_told:
            return None
        pair, route = self._pairs[meeting.sender][meeting.receiver], meeting.route
        if pair.trying is not meeting or route.relay is not None:
            return None
        if route.way not in (Way.PUNCHED, Way.RELAYED):
            return None
        if route.way is Way.RELAYED:
            meeting.seen[side] = ("", 0)
        return route.way

    def mirrored(self, token: bytes, side: Side, host: str, port: int, now_s: float) -> None:
        """A side of a meeting has shown itself at the coordinator's port."""
        if self.takes(token, side) is not Way.PUNCHED:
            return
        meeting = self._by_token[token]
        meeting.seen[side] = (host, port)
        if len(meeting.seen) < len(Side):
            return
        ends = meeting.seen[Side.RECEIVER], meeting.seen[Side.SENDER]
        pair = self._pairs[meeting.sender][meeting.receiver]
        if len({":" in at[0] for at in ends}) > 1 or len({is_local(at[0]) for at in ends}) > 1:
            self._fail(pair, now_s)  # nobody dials from one family, or network, into another
        else:
            meeting.ends_s = now_s + _TRY_S
            self._tell(meeting, *ends)
        self._wake(now_s)

    def carried(self, peer: PeerId, message: Carried, now_s: float) -> None:
        """A relay says what it has moved, or at first that it is ready."""
        meeting = self._by_token.get(message.token)
        if meeting is None or meeting.route.relay != peer:
            return
        if not meeting.is_told:
            relay = self._members[peer].at
            ends = [self._members[end].at for end in (meeting.sender, meeting.receiver)]
            at = [end.relay_at(relay, meeting.route.port) for end in ends]
            if at[0] is None or at[1] is None:
                return  # it has moved meanwhile
            self._tell(meeting, at[0], at[1])
        self.relays.credit(peer, message.num_bytes, (meeting.sender, meeting.receiver), now_s)

    # ---- what others ask

    def complainers(self) -> set[PeerId]:
        """Return the peers that may miss somebody."""
        return self._naming | self._pairs.keys()

    def misses(self, sender: PeerId) -> set[PeerId]:
        """Return those whom a peer says it cannot reach, and to whom no way was found."""
        member = self._members.get(sender)
        pairs = self._pairs.get(sender, {})
        lost = {peer for peer, pair in pairs.items() if pair.is_lost and pair.is_named}
        return lost | ((member.unreached if member is not None else set()) - pairs.keys())

    def is_standing(self, token: bytes) -> bool:
        """Return True if a way stands that was made with this token."""
        meeting = self._by_token.get(token)
        return meeting is not None and self._pairs[meeting.sender][meeting.receiver].standing is (
            meeting
        )

    def knows(self, peer: PeerId) -> bool:
        """Return True if a peer takes part in meetings."""
        member = self._members.get(peer)
        if self._means is None or member is None:
            return False
        return member.is_member and member.at.places is not None

    def near(self, peer: PeerId, remote: str) -> list[tuple[str, str, int]]:
        """Name and address of each other member that this peer, at this address, could dial."""
        asker, members = Whereabouts(remote, remote, 0), self._members.items()
        here = [one for key, one in members if one.is_here and one.is_member and key != peer]
        return [
            (one.name, one.at.host, one.at.port)
            for one in here
            if asker.can_dial(one.at, one.at.host)
        ]

    def ways(self) -> dict[tuple[PeerId, PeerId], Way | None]:
        """The way by which each peer that is here sends to each other one, None for no way."""
        members = self._members.items()
        here = dict.fromkeys(peer for peer, one in members if one.is_here and one.is_member)
        if self._meets_all:
            return {(a, b): self._way(a, b) for a in here for b in here if a != b}
        return {(a, b): self._way(a, b) for a in here for b in self._pairs.get(a, ()) if b in here}

    def detours(self, now_s: float) -> dict[tuple[PeerId, PeerId], float]:
        """Return the pairs of sender and receiver without a direct way, and the bytes a second that
        each may hope for; 0 for no way."""
        own = [pair for pair in self._every_pair() if pair.is_carried and pair.relay is None]
        own_rate = self._means.relay_bytes_per_s / len(own) if self._means and own else 0.0
        found = dict[tuple[PeerId, PeerId], float]()
        for pair in self._every_pair():
            ends = (pair.sender, pair.receiver)
            if pair.is_carried:
                rate = own_rate if pair.relay is None else self.relays.rate_of(pair.relay, now_s)
                found[ends] = max(1.0, rate)
            elif pair.standing is None:
                found[ends] = 0.0
        return found

    def names_of_relays(self) -> dict[PeerId, str]:
        """Names of those who pass bytes on now."""
        members = self._members
        return {peer: members[peer].name for peer in self.relays if peer in members}

    @property
    def _meets_all(self) -> bool:
        """True if everybody is to meet everybody; where more take part only those who say that they
        need it, or there would be a million pairs."""
        return len(self._members) <= limits.MEET_ALL_MAX

    def _way(self, sender: PeerId, receiver: PeerId) -> Way | None:
        pair = self._pair(sender, receiver)
        if pair is not None:
            return pair.standing.route.way if pair.standing is not None else None
        return None if receiver in self._members[sender].unreached else Way.DIALLED

    @property
    def next_wakeup_s(self) -> float:
        """Time at which `tick` wants to be called."""
        return self._due_s

    def tick(self, now_s: float) -> None:
        """End tries that took too long, begin those that are due, and send what there is to say:
        after the records that it follows from."""
        if now_s >= self._due_s:
            self._go_on(now_s)
        for peer, message in self._out:
            self._send(peer, message)
        self._out.clear()

    def _go_on(self, now_s: float) -> None:
        self._due_s = math.inf
        for pair in list(self._every_pair()):
            if pair.trying is not None and pair.trying.ends_s <= now_s:
                self._fail(pair, now_s)
            if pair.trying is None and pair.due_s <= now_s:
                self._begin(pair, now_s)
            self._wake(pair.due_s if pair.trying is None else pair.trying.ends_s)

    # ---- evidence

    def _look_at(self, peer: PeerId, now_s: float) -> None:
        others: Collection[PeerId] = self._members if self._meets_all else self._concerned(peer)
        for other in [other for other in others if other != peer]:
            self._look(peer, other, now_s)
            self._look(other, peer, now_s)
        member = self._members[peer]
        if member.is_member:
            self._directory.enter(peer, member.at)
        for other in [*self._members] if self._meets_all else [peer]:
            self.tell_places(other)
        self._wake(now_s)

    def _concerned(self, peer: PeerId) -> dict[PeerId, None]:
        """Peers with whom one meets, or that cannot reach it or be reached by it."""
        ends = [*self._pairs.get(peer, ()), *self._senders.get(peer, ())]
        ends += [*self._namers.get(peer, ()), *sorted(self._members[peer].unreached)]
        return dict.fromkeys(end for end in ends if end in self._members)

    def tell_places(self, peer: PeerId) -> None:
        """Tell a peer where it can dial the others, as far as it has not heard that: before the
        JOINs, as it dials whom they let in. Of a swarm that is large it hears so when its records
        come, and not at each change."""
        member = self._members.get(peer)
        if member is not None and member.is_member and member.is_here:
            for news in self._directory.news(peer, member.at):
                self._send(peer, news)

    def addressed(self) -> list[PeerId]:
        """Return whom there is something to say to, which `tick` sends."""
        return [peer for peer, _ in self._out]

    def _look(self, sender: PeerId, receiver: PeerId, now_s: float) -> None:
        """Begin to bring two together, or cease to, as the evidence is now."""
        if not (self.knows(sender) and self.knows(receiver)):
            return
        source, target = self._members[sender], self._members[receiver]
        pair = self._pair(sender, receiver)
        is_named = receiver in source.unreached
        if pair is not None and pair.standing is None and pair.trying is None:
            pair.is_named = pair.is_named or is_named
            if not pair.is_named and not source.at.fails_to_dial(target.at):
                self._drop(pair)
        elif pair is None and (
            is_named or (self._meets_all and source.at.fails_to_dial(target.at))
        ):
            self._add(sender, receiver, now_s).is_named = is_named

    def _check_standing(self, pair: _Pair, now_s: float) -> None:
        """A sender names a receiver to which a way stands: that has ended without a word."""
        if now_s >= pair.stood_s + limits.UNREACHED_S:
            self._lose(pair, "no connection for long", now_s)
            pair.is_named = True
            self._wake(now_s)

    def _adopt(self, sender: PeerId, message: Met, now_s: float) -> None:
        """A way stands since before this coordinator did."""
        ends = (sender, message.peer)
        if not self.knows(sender) or len(self._pairs.get(sender, ())) > limits.CELL_PEERS_MAX:
            return
        pair = self._pair(*ends) or self._add(*ends, now_s)
        self._end_try(pair, now_s)
        self._release(pair.standing)
        route = Route(Way(message.way))
        pair.standing = _Meeting(message.token, *ends, route, math.inf, is_told=True)
        self._by_token[message.token] = pair.standing
        self._stood(pair, now_s)

    # ---- tries

    def _begin(self, pair: _Pair, now_s: float) -> None:
        """Begin the next try of a pair, if it may."""
        pair.due_s = math.inf
        ends = [self._members.get(end) for end in (pair.sender, pair.receiver)]
        if self._means is None or not all(end is not None and end.is_here for end in ends):
            return  # they are due when both are here
        if pair.standing is not None and pair.standing.route.way.rank == 0 and not pair.is_doubted:
            return
        route = next(self._untried(pair, now_s), None)
        if route is None:
            self._rest(pair, now_s)
            return
        payers = [self._members[peer] for peer in self._payers(pair, route)]
        if any(end is not None and end.busy >= limits.MEET_AT_ONCE for end in ends):
            pair.due_s = now_s + 1.0
        elif not all([payer.dials.is_open(now_s) for payer in payers]):
            pair.due_s = max(payer.dials.opens_s for payer in payers) + 1.0
        else:
            for payer in payers:
                payer.dials.spend(1)
            self._try(pair, route, now_s)

    def _untried(self, pair: _Pair, now_s: float) -> Iterator[Route]:
        """Routes that may be tried next, best first; after a loss, those that are no better than
        what was lost."""
        routes = [route for route in self._routes(pair, now_s) if route not in pair.tried]
        routes.sort(key=lambda route: route.way.rank < pair.first_rank)
        if pair.standing is None:
            return iter(routes)
        rank = pair.standing.route.way.rank + pair.is_doubted
        return iter([route for route in routes if route.way.rank < rank])

    def _routes(self, pair: _Pair, now_s: float) -> Iterator[Route]:
        means, ends = self._means, (pair.sender, pair.receiver)
        if means is None:
            return
        at = [self._members[end].at for end in ends]
        yield from direct_routes(at[0], at[1], mirror=means.mirror)
        for relay, port in self.relays.ranked(now_s):
            member = self._members[relay]
            can_meet = all(end.relay_at(member.at, port) for end in at)
            if relay not in ends and member.is_here and can_meet:
                yield Route(Way.RELAYED, port=port, relay=relay)
        if means.relay_bytes_per_s > 0:
            yield Route(Way.RELAYED)

    def _payers(self, pair: _Pair, route: Route) -> set[PeerId]:
        """Peers on whose word others dial: who cannot dial itself, and whose address is told."""
        dialled = {
            Way.DIALLED: {pair.receiver}, Way.TURNED: set[PeerId](), Way.PUNCHED: {pair.receiver},
            Way.RELAYED: set[PeerId](),
        }[route.way]  # fmt: skip
        return {pair.sender} | dialled | ({route.relay} if route.relay else set())

    def _try(self, pair: _Pair, route: Route, now_s: float) -> None:
        assert self._means is not None
        ends = (pair.sender, pair.receiver)
        is_quick = pair.standing is None and route.way in (Way.DIALLED, Way.TURNED)
        ends_s = now_s + (limits.MEET_FIRST_S if is_quick else _TRY_S)
        meeting = _Meeting(self._means.draw_token(), *ends, route, ends_s)
        self._by_token[meeting.token], pair.trying = meeting, meeting
        for end in ends:
            self._members[end].busy += 1
        if route.relay is not None:
            self.relays.takes(route.relay, meeting.token)
            self._say(route.relay, Carry(meeting.token))
        elif route.way is Way.DIALLED:
            self._tell(meeting, (route.host, route.port), None)
        elif route.way is Way.TURNED:
            self._tell(meeting, ("", 0), (route.host, route.port))
        else:
            self._tell(meeting, ("", 0), ("", 0))

    def _tell(
        self, meeting: _Meeting, to_sender: tuple[str, int], to_receiver: tuple[str, int] | None
    ) -> None:
        """Send MEET: to each side the address that it is to dial. A receiver without one has no
        part."""
        meeting.is_told = True
        token, way = meeting.token, meeting.route.way.value
        self._say(meeting.sender, Meet(token, meeting.receiver, True, way, *to_sender))
        if to_receiver is not None:
            self._say(meeting.receiver, Meet(token, meeting.sender, False, way, *to_receiver))

    def _end_try(self, pair: _Pair, now_s: float) -> _Meeting | None:
        """Whatever came of it, the try is over."""
        meeting, pair.trying = pair.trying, None
        if meeting is not None:
            pair.tried_s = now_s
            for end in (pair.sender, pair.receiver):
                if end in self._members:
                    self._members[end].busy -= 1
            self._release(meeting)
        return meeting

    def _release(self, meeting: _Meeting | None) -> None:
        """Tell everybody whom it concerns that a meeting is void."""
        if meeting is None or self._by_token.pop(meeting.token, None) is None:
            return
        self._void.append(meeting.token)
        told = {meeting.sender, meeting.receiver} if meeting.is_told else set[PeerId]()
        if meeting.route.relay is not None:
            self.relays.ends(meeting.route.relay, meeting.token)
            told.add(meeting.route.relay)
        for peer in sorted(told):
            if peer in self._members and self._members[peer].is_here:
                self._say(peer, Part(meeting.token))

    def _fail(self, pair: _Pair, now_s: float) -> None:
        """The try has failed: the next one."""
        if (meeting := self._end_try(pair, now_s)) is not None:
            pair.tried.add(meeting.route)
            pair.due_s = now_s

    def _rest(self, pair: _Pair, now_s: float) -> None:
        """All routes have failed, or no better one has been found."""
        pair.tried.clear()
        pair.first_rank, pair.is_doubted = 0, False
        if pair.standing is None and not pair.is_lost:
            pair.is_lost = self.has_news = True
        longest_s = math.inf if pair.standing is not None else limits.MEET_LOST_S
        pair.due_s = now_s + min(pair.pause_s, longest_s)
        pair.pause_s = min(2 * pair.pause_s, limits.MEET_AGAIN_MAX_S)

    # ---- ways that stand

    def _stand(self, pair: _Pair, now_s: float) -> None:
        """The try has made a way; what stood before may go."""
        meeting, pair.trying = pair.trying, None
        assert meeting is not None
        for end in (pair.sender, pair.receiver):
            self._members[end].busy -= 1
        self._release(pair.standing)
        pair.standing = meeting
        self._stood(pair, now_s)

    def _plain(self, pair: _Pair, now_s: float) -> None:
        """The sender's plain connection stands after all."""
        self._end_try(pair, now_s)
        self._release(pair.standing)
        pair.standing = _Meeting(b"", pair.sender, pair.receiver, _PLAIN, math.inf)
        self._stood(pair, now_s)

    def _stood(self, pair: _Pair, now_s: float) -> None:
        pair.stood_s = pair.tried_s = now_s
        pair.is_named = pair.is_lost = pair.is_doubted = False
        pair.first_rank = 0
        pair.due_s = now_s if pair.has_changed else now_s + pair.pause_s
        pair.has_changed = False
        self.has_news = True

    def _lose(self, pair: _Pair, reason: str, now_s: float) -> None:
        """A way is no more, as its sender says: another one at once."""
        meeting, pair.standing = pair.standing, None
        assert meeting is not None
        self._release(meeting)
        self.has_news = True
        route, has_stood = meeting.route, now_s >= pair.stood_s + limits.MEET_STOOD_S
        if has_stood:
            pair.pause_s = limits.MEET_AGAIN_S
            pair.tried.clear()
        if not has_stood or route.relay is not None:
            pair.tried.add(route)
        pair.first_rank = route.way.rank
        if pair.trying is None:
            pair.due_s = now_s
        self._complain(route.relay, pair.sender, reason, now_s)

    def _lose_plain(self, sender: PeerId, receiver: PeerId, now_s: float) -> None:
        """A sender says that its plain connection has ended and does not come back at once: another
        way is looked for, while it is dialled on."""
        if receiver == sender or not (self.knows(sender) and self.knows(receiver)):
            return
        pair = self._pair(sender, receiver) or self._add(sender, receiver, now_s)
        if pair.standing is not None and pair.standing.route is _PLAIN:
            pair.standing, self.has_news = None, True
        if pair.standing is None and pair.trying is None:
            pair.is_named, pair.due_s = True, now_s
            pair.first_rank = Way.TURNED.rank
        self._wake(now_s)

    def _complain(self, relay: PeerId | None, peer: PeerId, reason: str, now_s: float) -> None:
        """A peer is ill served by a relay."""
        if relay is not None and (count := self.relays.failed(relay, peer, now_s)) > 1:
            self._note(relay, "relay left", f"by {count} peers: {reason}")

    # ---- the end of a peer

    def _dials_of(self, peer: PeerId, now_s: float) -> TokenBucket:
        """Bucket of what a peer may make others dial: it gets no more by coming anew."""
        if peer not in self._dials:
            if len(self._dials) >= limits.MEET_DIALLERS_KEPT:
                del self._dials[next(iter(self._dials))]
            self._dials[peer] = TokenBucket(limits.MEET_DIALS_PER_S, now_s, limits.MEET_DIALS)
        return self._dials[peer]

    def _forget(self, peer: PeerId, now_s: float) -> None:
        """Forget all that is known of a process."""
        for pair in self._pairs_of(peer):
            self._drop(pair)
        for pair in self._every_pair() if peer in self.relays else ():
            if pair.standing is not None and pair.standing.route.relay == peer:
                self._lose(pair, "the relay has gone", now_s)
            if pair.trying is not None and pair.trying.route.relay == peer:
                self._fail(pair, now_s)
        self.relays.ceased(peer)
        if (member := self._members.pop(peer, None)) is not None:
            self._name(peer, member, frozenset())
        for known in (self._pairs, self._senders, self._namers):
            known.pop(peer, None)
        self._directory.leave(peer)

    def _drop(self, pair: _Pair) -> None:
        self._end_try(pair, pair.tried_s)
        self._release(pair.standing)
        del self._pairs[pair.sender][pair.receiver]
        senders = self._senders[pair.receiver]
        del senders[pair.sender]
        if not senders:
            del self._senders[pair.receiver]
        self.has_news = True

    def _add(self, sender: PeerId, receiver: PeerId, now_s: float) -> _Pair:
        pair = _Pair(sender, receiver, now_s)
        self._pairs.setdefault(sender, {})[receiver] = pair
        self._senders.setdefault(receiver, {})[sender] = None
        self.has_news = True
        self._wake(now_s)
        return pair

    def _pair(self, sender: PeerId, receiver: PeerId) -> _Pair | None:
        return self._pairs.get(sender, {}).get(receiver)

    def _pairs_of(self, peer: PeerId) -> list[_Pair]:
        senders = self._senders.get(peer, ())
        return [*self._pairs_by(peer), *(self._pairs[sender][peer] for sender in senders)]

    def _pairs_by(self, sender: PeerId) -> list[_Pair]:
        return list(self._pairs.get(sender, {}).values())

    def _every_pair(self) -> Iterator[_Pair]:
        return (pair for pairs in self._pairs.values() for pair in pairs.values())

    def _say(self, peer: PeerId, message: CoordinatorMessage) -> None:
        self._out.append((peer, message))

    def _wake(self, time_s: float) -> None:
        self._due_s = min(self._due_s, time_s)
