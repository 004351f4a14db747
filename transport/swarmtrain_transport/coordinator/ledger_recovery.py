"""A coordinator whose disk was restored from a backup, or has lost its ledger, gets its own past
back from its peers.

Records are signed by the run key, so a newer one that a peer presents was decided in an earlier
life and may have been followed: it is adopted, never decided again. A restarted coordinator
therefore decides nothing until everybody of its roster has said HELLO or has been silent for as
long as makes a peer suspected (protocol.md, crash points: disk restored from a backup). One that
has its key and no ledger at all does not know for whom to wait: it waits until somebody brings a
copy, and then for others that may have a longer one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ledger_writer import LedgerWriter
from swarmtrain_transport.coordinator.members.roster import LiveRoster
from swarmtrain_transport.coordinator.members.validation import shown
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import FIRST_GROUP, Hello, History, PeerMessage, Tell
from swarmtrain_transport.wire.records import Join, Run, Verify, body_of, record_from_bytes

_LATE_S = 0.25
"""A tick that is later than this was held up."""

_LATE_ASKS_MAX = 3
"""Claims of newer records that are heard after the waiting. Each holds everybody up once more, for
ABSENT_S; a hostile peer could make them for ever."""

FORK = ("SWT-E562", "The ledger that this peer keeps is not this run's, or no beginning of it.")
"""Two histories that have both gone on are never merged."""


@dataclass(frozen=True, slots=True)
class Guest:
    """A peer that the door has let in and that waits for its WELCOME."""

    hello: Hello
    invite_id: str
    remote: str = ""


class LedgerRecovery:
    """Recovery of the history that this life must hear before it decides anything.

    Args:
        writer: the ledger as the disk has it.
        live_roster: peers that are here or still to come back.
        now_s: start of this life.
        verify: checks a signature.
        lost_key: the run key, where the ledger that it has signed is lost.
    """

    def __init__(
        self,
        writer: LedgerWriter,
        live_roster: LiveRoster,
        now_s: float,
        verify: Verify,
        lost_key: bytes | None = None,
    ) -> None:
        self._verify = verify
        self._writer = writer
        self._live_roster = live_roster
        self._lost_key = lost_key
        is_restart = len(writer.ledger) > 0 or lost_key is not None
        self._settled_s = now_s + limits.SUSPECT_S if is_restart else now_s
        if lost_key is not None:
            self._settled_s = math.inf
        self._is_settled = not is_restart
        # An empty roster says nothing: a backup may be from before anybody came.
        self._knows_nobody = is_restart and not live_roster.unseen
        self._late_asks = 0
        self._witnesses: dict[PeerId, tuple[Guest, int]] = {}
        self._guests: dict[PeerId, Guest] = {}
        self._later: dict[PeerId, int] = {}
        """First record of guests who could not tell what comes before it."""
        self._held: dict[tuple[PeerId, type[PeerMessage], int], PeerMessage] = {}

    @property
    def is_open(self) -> bool:
        """True if somebody may still bring newer records, so that nothing may be decided."""
        if self._is_settled:
            return False
        # A guest may go before it is let in; until then it counts as still to come back.
        absent = self._live_roster.unseen.keys() - self._guests.keys()
        is_awaited = absent or self._witnesses or self._knows_nobody
        return bool(is_awaited)

    @property
    def is_missing(self) -> bool:
        """True if the ledger was lost and nobody has brought a copy yet."""
        return self._lost_key is not None and not len(self._writer.ledger)

    @property
    def takes_copies(self) -> bool:
        """True if the ledger was lost, and a copy, or a longer one, may still come."""
        return self._lost_key is not None and self.is_open

    def proves_membership(self, peer: PeerId, hello: Hello) -> bool:
        """Return True if the ledger is lost and HELLO shows that this run has let that key in, by a
        JOIN that the run key has signed."""
        if self._lost_key is None or not self.is_open or not hello.joined:
            return False
        try:
            record = record_from_bytes(hello.joined)
            is_signed = self._verify(self._lost_key, record.signature, record.hash)
            body = body_of(record) if is_signed else None
        except RemoteFault:
            return False
        return isinstance(body, Join) and body.peer == peer

    def may_tell(self, peer: PeerId, guest: Guest) -> bool:
        """Return True if the peer may bring newer records. Without a ledger nobody is known, so it
        has to prove that it was in, or to have an invite: or strangers would hold the run up."""
        is_known = bool(guest.invite_id) or peer in self._writer.view.ever_members
        is_trusted = self._lost_key is None or is_known or self.proves_membership(peer, guest.hello)
        return self.may_grow and is_trusted

    def refusal(self, peer: PeerId, guest: Guest) -> tuple[str, str] | None:
        """Error id and words for who has no place in the history that we hold."""
        if self.is_missing:
            return "SWT-E706", "The coordinator has lost its ledger and waits for a copy of it."
        if not self._writer.knows_history(guest.hello):
            return FORK
        # To get a copy the door lets in whoever was in once: it has forgotten who is.
        is_known = guest.invite_id or peer in self._writer.view.ever_members
        if self._lost_key is not None and not is_known:
            return "SWT-E313", "This run has never let that key in."
        return None

    def tick(self, now_s: float) -> None:
        """Time alone ends the waiting: a message may have others behind it that are not read yet.

        So may a tick that comes late, because this process was stopped for a moment: it waits on.
        """
        if now_s > self._settled_s + _LATE_S:
            self._settled_s = now_s + limits.ABSENT_S
        elif now_s >= self._settled_s:
            self._is_settled = True

    def due_s(self, now_s: float) -> float:
        """Return when `tick` has something to say."""
        if not self.is_open:
            return math.inf
        return self._settled_s if self._settled_s > now_s else now_s + _LATE_S

    def pardon(self, absent_s: float) -> None:
        """The coordinator was stopped for so long: whoever has newer records could not say so."""
        self._settled_s += absent_s

    @property
    def may_grow(self) -> bool:
        """True if newer records can still be taken over: nothing was decided in their place."""
        return self.is_open or (not self._writer.has_decided and self._late_asks < _LATE_ASKS_MAX)

    def ask(self, peer: PeerId, guest: Guest, now_s: float) -> None:
        """The peer holds newer records: have it tell them."""
        if not self.is_open:
            self._late_asks += 1
            self._is_settled, self._settled_s = False, now_s + limits.ABSENT_S
        self._tell(peer, guest)

    def _tell(self, peer: PeerId, guest: Guest) -> None:
        first_index = len(self._writer.ledger)
        self._witnesses[peer] = guest, first_index
        self._writer.send(peer, Tell(first_index))

    def is_witness(self, peer: PeerId) -> bool:
        """Return True if the peer was asked and has not told everything."""
        return peer in self._witnesses

    def hear(self, peer: PeerId, told: History, now_s: float) -> Guest | None:
        """Adopt what the peer tells; its HELLO once there is nothing more to tell."""
        guest, asked_from = self._witnesses.pop(peer)
        was_missing, before = self.is_missing, len(self._writer.ledger)
        try:
            if was_missing and told.records:
                self._check_begins_ours(told.records)
            self._writer.adopt(told.records)
        except RemoteFault:
            # Two histories: which of the two we hold is the run. HELLO is refused as any fork is.
            return guest
        finally:
            if was_missing and not self.is_missing:
                self._settled_s = now_s + limits.LEDGER_WAIT_S
        if len(self._writer.ledger) > before:
            self._ask_again(now_s)
        has_grown = len(self._writer.ledger) > asked_from  # maybe by what another has told
        if told.first_index > asked_from and not has_grown and self.is_open:
            self.wait(peer, guest)  # it began with a SNAPSHOT: somebody else has what comes before
            self._later[peer] = told.first_index
            return None
        if not has_grown or not self._writer.is_behind(guest.hello):
            return guest
        self._settled_s = max(self._settled_s, now_s + limits.SUSPECT_S)
        self._tell(peer, guest)
        return None

    def _ask_again(self, now_s: float) -> None:
        """Ask whoever waits for records before its own, where others have told these meanwhile."""
        for peer, first in list(self._later.items()):
            if first <= len(self._writer.ledger):
                del self._later[peer]
                self._tell(peer, self._guests.pop(peer))
                self._settled_s = max(self._settled_s, now_s + limits.SUSPECT_S)

    def _check_begins_ours(self, records: Sequence[bytes]) -> None:
        """RUN names the key that signs all that follows: it must be the one that we still have."""
        body = body_of(record_from_bytes(records[0])) if records else None
        if not isinstance(body, Run) or body.run_key != self._lost_key:
            raise RemoteFault("chain", "the copy is of a ledger that this key has not begun")

    @property
    def has_guests(self) -> bool:
        """True if somebody waits for its WELCOME."""
        return bool(self._guests)

    def wait(self, peer: PeerId, guest: Guest) -> None:
        """The peer's JOIN would be a new record: it waits until nobody can bring older ones, and in
        a crowd for others that come."""
        self._guests[peer] = guest

    def hold(self, peer: PeerId, message: PeerMessage) -> None:
        """A message that would become a record waits too; the newest of its kind counts."""
        self._held[(peer, type(message), getattr(message, "group", FIRST_GROUP))] = message

    def take_held(self) -> list[tuple[PeerId, PeerMessage]]:
        """Messages that have waited, once nothing is open any more."""
        if not self._held:
            return []
        held = [(peer, message) for (peer, *_), message in self._held.items()]
        self._held.clear()
        return held

    def gone(self, peer: PeerId) -> None:
        """The peer's connection closed."""
        self._witnesses.pop(peer, None)
        self._guests.pop(peer, None)
        self._later.pop(peer, None)

    def take_guests(self) -> dict[PeerId, Guest]:
        """Return all who have waited, once nothing is open any more."""
        # They are no guests now and not in yet: without this they would be awaited once more.
        self._is_settled = True
        guests, self._guests = self._guests, {}
        self._later.clear()
        return guests


def card_of(peer: PeerId, hello: Hello, invite_id: str) -> Join:
    """The roster's entry for who says HELLO."""
    name = shown(hello.name, limits.NAME_CHARS_MAX)
    return Join(peer, hello.boot, name, hello.curve_key, invite_id)
