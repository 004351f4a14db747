"""The door: who may come in, decided before any machine hears of a peer.

A peer proves its key by signing the coordinator's nonce together with the certificate that it sees,
so a signature taken elsewhere opens nothing here. A key that was let in once needs no invite again;
a new one needs an invite with a use left. The use is not counted here but by the store, with the
JOIN record, in one transaction.

Refusals name an error id that the peer shows. Each costs the stranger a try.
"""

import hashlib
import ipaddress
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from swarmtrain.config.settings import AdmissionSection
from swarmtrain.coordinator.disk.certificate import SECRET_BYTES, RunKeys
from swarmtrain.coordinator.disk.register import InviteRow
from swarmtrain.coordinator.disk.store import Store
from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.members.departures import BANNED_WORDS
from swarmtrain_transport.credentials.identity import knock_payload, verify
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import RELAY, Brings, Hello, Knock, decode_from_peer

S = TypeVar("S", bound=Hashable)

VERSIONS = (limits.PROTOCOL_VERSION,)
"""Protocol versions that this coordinator speaks."""

FAILED_KNOCKS_MAX = 10
"""Failed tries of one address within FAILED_WINDOW_S: a person mistypes less often, and at this
rate 128 bits cannot be guessed."""

FAILED_WINDOW_S = 60.0

ADDRESSES_MAX = 4 * limits.RUN_PEERS_MAX
"""Addresses remembered at once; the longest silent one is forgotten first. Those of all members are
among them, or a crowd that all comes back would have to wait with the strangers."""

STRANGERS_MAX = 128
"""Connections before the door at once, twice the peers of a full run that all come back. TLS takes
0.1 MB of each."""

GRACE_S = 2.0
"""Time for which a stranger is not pushed out where the place is full, unless more than HOUSEHOLD
of its network stand here: a crowd that comes faster than TLS begins would push out everybody just
before it stands, and all would come again."""

HOUSEHOLD = 4

EXPECTED_MAX = 128
"""Strangers beside those who have shown that they may come in, and wait for their turn: but in a
crowd each JOIN is synced to the disk alone, in 4 to 20 ms, and who knocks waits ten seconds for an
answer."""

STRANGERS_PER_NETWORK = 64
"""Connections from one network among those: a whole run behind one router, and half of the place
for others."""

ARRIVALS_AT_ONCE = 2 * STRANGERS_PER_NETWORK
"""Connections that one network may open in the same instant, of which none becomes a member's."""

ARRIVALS_PER_S = 8.0
"""Connections from one network per second for long. A peer that cannot come in tries every few
seconds."""

NEWCOMERS_PER_S = 50.0
"""Connections per second, of all networks together that have not come lately, for long; and as many
of those that have. A TLS handshake takes two milliseconds, so both take a fifth of a core at most.
Networks that somebody was let in from are not counted."""

NEWCOMERS_AT_ONCE = 2 * STRANGERS_MAX

INVITE_ID_CHARS = 12
"""Hex digits of the secret's hash that name an invite in records and lists."""

SECONDS_PER_HOUR = 3600.0


class DoorClosed(Exception):
    """This knock is refused.

    Args:
        code: an id of the error table, sent to the peer.
        text: event and remedy in words, sent to the peer.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class Admitted:
    """A peer that proved its key and may come in.

    Attributes:
        invite_id: the invite of a new key; "" for one that was let in before.
    """

    peer: PeerId
    hello: Hello
    invite_id: str


class FailedKnocks:
    """Counts of how often each address failed of late. Bounded in addresses and in tries."""

    def __init__(self) -> None:
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, address: str, now_s: float) -> None:
        """One more failure."""
        key = network_of(address)
        tries = self._tries.setdefault(key, deque(maxlen=FAILED_KNOCKS_MAX))
        tries.append(now_s)
        self._tries.move_to_end(key)
        if len(self._tries) > ADDRESSES_MAX:
            self._tries.popitem(last=False)

    def are_too_many(self, address: str, now_s: float) -> bool:
        """Return True if the address has used up its tries for now."""
        tries = self._tries.get(network_of(address))
        if tries is None or len(tries) < FAILED_KNOCKS_MAX:
            return False
        return now_s - tries[0] < FAILED_WINDOW_S


class _Pace:
    """Arrivals of late, which fade at a rate."""

    def __init__(self, per_s: float, at_once: float) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._recent, self._since_s = 0.0, 0.0

    def takes(self, now_s: float) -> bool:
        """Count one more, or return False: too many came of late."""
        passed_s = max(0.0, now_s - self._since_s)
        self._recent, self._since_s = max(0.0, self._recent - passed_s * self._per_s), now_s
        if self._recent + 1.0 > self._at_once:
            return False
        self._recent += 1.0
        return True


class Doorstep(Generic[S]):
    """Keeps the connections that stand before the door, and limits how fast they come. A flood from
    one network takes the place of its own, not of others: whoever is of the most numerous has to
    go, the one that has had the longest time first. A flood from very many networks is let through
    at a pace; who was let in before, and who has not come lately, has a pace of its own. Where the
    place is full of those who have just come, newcomers are sent away, but for those of networks
    that somebody was let in from: they push out others. Who waits for its turn only is not pushed
    out."""

    def __init__(self) -> None:
        self._new = _Pace(NEWCOMERS_PER_S, NEWCOMERS_AT_ONCE)
        self._again = _Pace(NEWCOMERS_PER_S, NEWCOMERS_AT_ONCE)
        self._trusted: OrderedDict[str, None] = OrderedDict()
        self._standing: dict[S, tuple[str, float]] = {}
        self._expected: dict[S, str] = {}
        self._numbers: Counter[str] = Counter()
        self._arrivals: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._standing) + len(self._expected)

    def __iter__(self) -> Iterator[S]:
        yield from self._standing
        yield from self._expected

    def enter(self, stranger: S, address: str, now_s: float) -> S | None:
        """Let one more come.

        Returns:
            Stranger that has to go for it: an older one, the newcomer itself where its network
            comes too fast, or nobody. Only the newcomer is forgotten at once; `leave` follows for
            others.
        """
        if len(self._expected) >= EXPECTED_MAX:
            return stranger  # before it costs anything: it would only wait
        network = network_of(address)
        recent, since_s = self._arrivals.get(network, (0.0, now_s))
        recent = max(0.0, recent - (now_s - since_s) * ARRIVALS_PER_S) + 1.0
        pace = self._again if network in self._arrivals else self._new
        is_trusted = network in self._trusted
        if recent > ARRIVALS_AT_ONCE or not (is_trusted or pace.takes(now_s)):
            return stranger
        self._arrivals[network] = (recent, now_s)
        self._arrivals.move_to_end(network)
        if len(self._arrivals) > ADDRESSES_MAX:
            self._arrivals.popitem(last=False)
        self._standing[stranger] = network, now_s
        self._numbers[network] += 1
        loser = None
        if self._numbers[network] > STRANGERS_PER_NETWORK:
            loser = self._oldest(lambda where: where == network)
        elif len(self._standing) > STRANGERS_MAX:
            loser = self._superfluous(stranger, now_s)
        if loser is not None:
            self.leave(loser, was_let_in=False)
        return loser

    def leave(self, stranger: S, *, was_let_in: bool) -> None:
        """The stranger went; one that was let in has never counted. Twice is allowed."""
        network = self._expected.pop(stranger, "") or self._leave_step(stranger)
        if not network:
            return
        if was_let_in:
            self._trusted[network] = None
            self._trusted.move_to_end(network)
            if len(self._trusted) > ADDRESSES_MAX:
                self._trusted.popitem(last=False)
        if was_let_in and network in self._arrivals:
            recent, since_s = self._arrivals[network]
            self._arrivals[network] = (max(0.0, recent - 1.0), since_s)

    def expect(self, stranger: S) -> bool:
        """Let it wait for its turn to come in; False if it is gone, or too many do."""
        if len(self._expected) < EXPECTED_MAX and (network := self._leave_step(stranger)):
            self._expected[stranger] = network
        return stranger in self._expected

    def _leave_step(self, stranger: S) -> str:
        """Count a stranger no more; the answer is its network, "" if it was not counted."""
        network, _ = self._standing.pop(stranger, ("", 0.0))
        if network:
            self._numbers[network] -= 1
            if not self._numbers[network]:
                del self._numbers[network]  # or the names of all who ever came would stay
        return network

    def _superfluous(self, newcomer: S, now_s: float) -> S:
        """Return who has to go where the place is full."""
        most = max(self._numbers.values())
        if most > HOUSEHOLD:
            return self._oldest(lambda where: self._numbers[where] == most)
        oldest = next(iter(self._standing))
        if now_s >= self._standing[oldest][1] + GRACE_S:
            return oldest
        if self._standing[newcomer][0] not in self._trusted:
            return newcomer
        return next((e for e, (w, _) in self._standing.items() if w not in self._trusted), newcomer)

    def _oldest(self, is_of: Callable[[str], bool]) -> S:
        return next(each for each, (where, _) in self._standing.items() if is_of(where))


class Door:
    """Judges knocks.

    Args:
        store: register of invites and of who was let in before.
        cert_sha256: SHA-256 of the certificate that peers see.
        peers_max: peers that may be in at once.
        others_in: counts the peers other than the given one in places that it might take; True for
            one that comes by an invite.
        is_banned: tells if the ledger shuts this key out.
        wall_clock: seconds since 1970, for invites that expire.
        misfit: error id and words for who brings another model, data or run's name than the run's.
        proves: tells if the ledger was lost, and with it whom the store had let in, and this HELLO
            proves that the key was.
    """

    def __init__(
        self,
        store: Store,
        cert_sha256: bytes,
        *,
        peers_max: int,
        others_in: Callable[[PeerId, bool], int],
        is_banned: Callable[[PeerId], bool],
        wall_clock: Callable[[], float],
        misfit: Callable[[Brings], tuple[str, str] | None] = lambda brings: None,
        proves: Callable[[PeerId, Hello], bool] = lambda peer, hello: False,
    ) -> None:
        self._store = store
        self._cert_sha256 = cert_sha256
        self._peers_max = peers_max
        self._others_in = others_in
        self._is_banned = is_banned
        self._wall_clock = wall_clock
        self._misfit = misfit
        self._proves = proves
        self._failed = FailedKnocks()
        self._promised: dict[PeerId, str] = {}
        """New keys that were let in, with their invites: until JOIN the store counts no use."""

    def judge(self, knock: Knock, nonce: bytes, address: str, now_s: float) -> Admitted:
        """Let the peer in or say why not. Arguments and errors are those of `ask`."""
        admitted = self.ask(knock, nonce, address, now_s)
        if admitted.invite_id:
            self._promised[admitted.peer] = admitted.invite_id
        return admitted

    def ask(self, knock: Knock, nonce: bytes, address: str, now_s: float) -> Admitted:
        """Say if the peer would be let in, which promises it nothing.

        Args:
            nonce: the one of this connection's Challenge.
            address: the stranger's IP address.
            now_s: monotonic seconds.

        Raises:
            DoorClosed: with the error id and words for the peer.
        """
        is_banned = self._is_banned(knock.peer_id)
        is_known = not is_banned and self._store.is_admitted(knock.peer_id)
        locked = None
        if not is_known and self._failed.are_too_many(address, now_s):
            locked = DoorClosed(
                "SWT-E704", f"More than {FAILED_KNOCKS_MAX} tries failed. Wait a minute."
            )
        try:
            hello = self._prove(knock, nonce)
            if is_banned:
                raise DoorClosed("SWT-E702", ban_words(self._store.ban_reason(knock.peer_id)))
            # A member behind the same router as a guesser is not locked out by him.
            was_in = is_known or self._proves(knock.peer_id, hello)
            if locked is not None and not was_in:
                raise locked
            invite_id = "" if was_in else self._invite_for(knock.token, knock.peer_id)
        except DoorClosed:
            if locked is not None:
                raise locked from None
            self._failed.note(address, now_s)
            raise
        if (why_not := self._misfit(hello.brings)) is not None:
            raise DoorClosed(*why_not)
        if hello.brings.model == RELAY:
            return Admitted(knock.peer_id, hello, invite_id)  # it has no place, and uses none up
        if self._others_in(knock.peer_id, bool(invite_id)) >= self._peers_max:
            raise DoorClosed(
                "SWT-E701", f"The run has its {self._peers_max} peers. Try again later."
            )
        return Admitted(knock.peer_id, hello, invite_id)

    def forget(self, peer: PeerId) -> None:
        """Forget a connection that has ended: without a JOIN by now, it takes no use of its
        invite."""
        self._promised.pop(peer, None)

    def _prove(self, knock: Knock, nonce: bytes) -> Hello:
        if knock.version not in VERSIONS:
            which = "older" if knock.version < VERSIONS[0] else "newer"
            advice = "Update the peer." if which == "older" else "Ask the organiser to update."
            raise DoorClosed(
                "SWT-E703",
                f"The peer speaks protocol {knock.version}, {which} than the coordinator's"
                f" {VERSIONS[-1]}. {advice}",
            )
        payload = knock_payload(nonce, self._cert_sha256, knock.hello)
        if not verify(knock.peer_id, knock.signature, payload):
            raise DoorClosed("SWT-E303", "The signature is not by the key that the peer names.")
        try:
            hello = decode_from_peer(knock.hello)
        except RemoteFault as exc:
            raise DoorClosed("SWT-E501", f"The peer's HELLO was refused: {exc}") from exc
        if not isinstance(hello, Hello):
            raise DoorClosed("SWT-E501", "The peer's first message is not HELLO.")
        return hello

    def _invite_for(self, secret: bytes, peer: PeerId) -> str:
        row = None
        if self._store.is_closed:
            raise DoorClosed("SWT-E707", "The organiser has closed this run to newcomers.")
        if len(secret) == SECRET_BYTES:
            row = self._store.invite_of_secret(hashlib.sha256(secret).digest())
        if row is None:
            raise DoorClosed("SWT-E313", "This coordinator never gave out that invite.")
        if row.role:
            raise DoorClosed("SWT-E313", "That invite shows the run and lets no peer in.")
        if row.revoked:
            raise DoorClosed("SWT-E315", "The organiser has withdrawn this invite.")
        if row.has_expired(self._wall_clock()):
            raise DoorClosed("SWT-E314", "This invite has expired. Ask for a new one.")
        if row.uses_max:
            for other in [one for one in self._promised if self._store.is_admitted(one)]:
                del self._promised[other]  # its JOIN has counted the use
            others = [other for other, by in self._promised.items() if by == row.invite_id]
            if row.is_used_up(sum(other != peer for other in others)):
                raise DoorClosed(
                    "SWT-E311",
                    f"All {row.uses_max} uses of this invite are taken. Ask for a new one.",
                )
        return row.invite_id


def ban_words(reason: str) -> str:
    """Text shown to a banned peer."""
    return f"The organiser has banned this peer: {reason}" if reason else BANNED_WORDS


def add_invite(
    store: Store,
    secret: bytes,
    *,
    uses_max: int,
    expires_at: float,
    wall_s: float,
    name: str = "",
    role: str = "",
) -> InviteRow:
    """Make the secret open the door. Only its hash is kept.

    Args:
        uses_max: new keys that it lets in, 0 for no limit.
        expires_at: seconds since 1970, 0 for never.
        name: the organiser's word for it, "" for none.
        role: see InviteRow.
    """
    digest = hashlib.sha256(secret).digest()
    invite_id = digest.hex()[:INVITE_ID_CHARS]
    row = InviteRow(invite_id, digest, 0, uses_max, wall_s, expires_at, False, name, role)
    store.add_invite(row)
    return row


def standing_invite(
    store: Store, keys: RunKeys, settings: AdmissionSection, wall_s: float
) -> bytes:
    """Secret of the run's own invite: the same after a restart, until it opens nothing any more.

    When it is used up, expired or revoked, a start of the coordinator makes the next one: only
    whoever reads its terminal learns of it.
    """
    number = 0
    while True:
        secret = keys.invite_secret(number)
        row = store.invite_of_secret(hashlib.sha256(secret).digest())
        if row is None:
            hours = settings.invite_expires_hours
            expires_at = wall_s + hours * SECONDS_PER_HOUR if hours > 0 else 0.0
            add_invite(
                store, secret, uses_max=settings.invite_uses, expires_at=expires_at, wall_s=wall_s
            )
            return secret
        if not (row.revoked or row.is_used_up() or row.has_expired(wall_s)):
            return secret
        number += 1


def network_of(address: str) -> str:
    """One household: an IPv4 address, or the /64 that an IPv6 customer can change within."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
