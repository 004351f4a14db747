"""Departures and bans of peers: by their own word, silence, a proof or the organiser's word.

A ban is a record, not a note of this process: coordinator and peers fold it, so the key is refused
after a restart, on a disk that was restored from a backup, and on the data lane of every peer. Why
the organiser wants it so is for the peer alone and never enters the ledger, which goes to everybody
and stays for ever.
"""

from collections.abc import Callable
from dataclasses import dataclass

from swarmtrain_transport.coordinator.chronicle import Chronicle
from swarmtrain_transport.coordinator.ledger_writer import LedgerWriter
from swarmtrain_transport.coordinator.members.roster import LiveRoster
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import BANNED, Conviction, Gone, Unban

REMOVED = "removed"
"""Reason of a GONE after which the key may come again."""

BANNED_WORDS = "The organiser has banned this peer."
"""Told to a banned key where no reason is known."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The organiser sends a peer away; it may come again.

    Attributes:
        text: told to the peer.
    """

    peer: PeerId
    text: str


@dataclass(frozen=True, slots=True)
class Ban:
    """The organiser shuts a key out, whether or not it is in.

    Attributes:
        text: told to the peer if it is in.
    """

    peer: PeerId
    text: str


@dataclass(frozen=True, slots=True)
class Pardon:
    """The organiser lets a banned key come again."""

    peer: PeerId


Order = Removal | Ban | Pardon


class Departures:
    """Writes GONE and UNBAN, and knows who may not come back.

    Args:
        writer: the pen.
        live_roster: peers that are here.
        chronicle: memory of what people are shown.
        lost: tells the groups of a peer that is gone.
    """

    def __init__(
        self, writer: LedgerWriter, live_roster: LiveRoster, chronicle: Chronicle,
        lost: Callable[[PeerId], None],
    ) -> None:  # fmt: skip
        self._writer = writer
        self._view = writer.view
        self._live_roster = live_roster
        self._chronicle = chronicle
        self._lost = lost

    def refusal(self, peer: PeerId) -> tuple[str, str] | None:
        """Error id and words for a key that stays out, None for any other."""
        if peer in self._view.convicted:
            return "SWT-E563", "This peer has published a wrong sum."
        if peer in self._view.banned:
            return "SWT-E702", BANNED_WORDS
        return None

    def is_void(self, order: Order) -> bool:
        """Return True if the order would change nothing."""
        match order:
            case Removal():
                return order.peer not in self._view.roster
            case Ban():
                return order.peer in self._view.banned
            case Pardon():
                return order.peer not in self._view.banned

    def obey(self, order: Order) -> None:
        """Do what the organiser says, once."""
        if self.is_void(order):
            return
        if isinstance(order, Pardon):
            self._writer.append(Unban(order.peer))
            self._tell(order.peer, "unbanned")
            return
        reason = BANNED if isinstance(order, Ban) else REMOVED
        self._writer.append(Gone(order.peer, evicted=True, reason=reason))
        self._writer.refuse(order.peer, "SWT-E702", order.text)
        self._live_roster.depart(order.peer)
        self._lost(order.peer)
        self._tell(order.peer, reason)

    def go(
        self, peer: PeerId, *, evicted: bool, reason: str, why: Conviction | None = None,
        group: int = FIRST_GROUP,
    ) -> None:  # fmt: skip
        """The peer left, was silent for too long, or is convicted of a wrong sum in a group."""
        self._live_roster.depart(peer)
        self._lost(peer)
        if peer in self._view.roster or why is not None:
            self._writer.append(Gone(peer, evicted, reason, why, group))
            self._writer.close(peer)
            event = "convicted" if why is not None else "lost" if evicted else "left"
            self._tell(peer, event, reason)

    def bury(self, now_s: float) -> None:
        """Evict who has been silent for too long."""
        for peer in [p for p in self._live_roster.silent(now_s) if p in self._view.roster]:
            self._live_roster.bury(peer)
            self.go(peer, evicted=True, reason="silent")

    def _tell(self, peer: PeerId, event: str, reason: str = "") -> None:
        self._chronicle.event(self._view.first.last_op + 1, peer, event, reason)
