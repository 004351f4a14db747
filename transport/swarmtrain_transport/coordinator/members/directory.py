"""Directory of where members listen, and of how much of it each of them was told.

A peer hears of each address that it could dial, once on a connection, and again when it changes. So
the directory is a list for each scope, the newest change last, and of a peer only one number in
each of its scopes is remembered: whatever is many times the same for thousands is made once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from swarmtrain_transport.coordinator.members.whereabouts import Whereabouts
from swarmtrain_transport.links.link import PeerId, is_local, is_loopback
from swarmtrain_transport.wire.messages import Listens

_LOOPBACK, _PUBLIC, _PUBLIC_V6, _SITE = "loopback", "public", "public v6", "site "
"""Scopes: in each everybody may be told to dial everybody, as `Whereabouts.can_dial` has it."""


def scope_of(at: Whereabouts) -> str:
    """Return the scope that a peer's address is in, "" if nobody can dial it."""
    if is_loopback(at.host):
        return _LOOPBACK if is_loopback(at.remote) else ""
    if is_local(at.host):
        return _SITE + at.site
    return _PUBLIC_V6 if ":" in at.host else _PUBLIC


def scopes_for(at: Whereabouts) -> list[str]:
    """Return the scopes whose addresses a peer can dial."""
    scopes = [_PUBLIC, _SITE + at.site]
    if at.has_v6:
        scopes.append(_PUBLIC_V6)
    if is_loopback(at.remote):
        scopes.append(_LOOPBACK)
    return scopes


_PAGE = 512
"""Changes whose addresses are told in one message: 30 KiB of IPv6."""

Place = tuple[int, str, int]
"""Number of the last change, IP address and port."""


@dataclass(slots=True)
class _Scope:
    """Addresses of one scope, by pages of changes; a page that stays as it is, is made once."""

    newest: int = 0
    pages: dict[int, dict[PeerId, Place]] = field(default_factory=dict)
    made: dict[int, dict[int, Listens]] = field(default_factory=dict)

    def enter(self, peer: PeerId, place: Place) -> None:
        """Add one that was not here."""
        self.newest = place[0]
        self.pages.setdefault(self.newest // _PAGE, {})[peer] = place
        self.made.pop(self.newest // _PAGE, None)

    def strike(self, peer: PeerId, place: Place) -> None:
        """Remove one that is here."""
        number = place[0] // _PAGE
        del self.pages[number][peer]
        self.made.pop(number, None)
        if not self.pages[number]:
            del self.pages[number]

    def since(self, number: int) -> Iterator[Listens]:
        """Yield all that has changed after this number."""
        for page, places in self.pages.items():
            if page >= number // _PAGE:
                made = self.made.setdefault(page, {})
                since = number if page == number // _PAGE else 0
                if since not in made:
                    news = {p: (host, port) for p, (at, host, port) in places.items() if at > since}
                    made[since] = Listens(news)
                yield made[since]


class Directory:
    """Addresses of all members, by scope."""

    def __init__(self) -> None:
        self._scopes: dict[str, _Scope] = {}
        self._places: dict[PeerId, tuple[str, Place]] = {}
        self._told: dict[PeerId, dict[str, int]] = {}
        self._asking: dict[PeerId, tuple[Whereabouts, object, list[str]]] = {}
        """Scopes for each asker, its place, and the places that these follow from."""
        self._changes = 0

    def enter(self, peer: PeerId, at: Whereabouts) -> None:
        """Note where a member listens."""
        name, (_, host, port) = self._places.get(peer, ("", (0, "", 0)))
        if (scope_of(at), at.host, at.port) == (name, host, port):
            return
        self._strike(peer)
        if name := scope_of(at):
            self._changes += 1
            place = self._changes, at.host, at.port
            self._places[peer] = name, place
            self._scopes.setdefault(name, _Scope()).enter(peer, place)

    def connected(self, peer: PeerId) -> None:
        """A new connection of a member has heard nothing."""
        self._told.pop(peer, None)

    def leave(self, peer: PeerId) -> None:
        """Forget a member."""
        self._told.pop(peer, None)
        self._asking.pop(peer, None)
        self._strike(peer)

    def _strike(self, peer: PeerId) -> None:
        name, place = self._places.pop(peer, ("", (0, "", 0)))
        if name:
            self._scopes[name].strike(peer, place)
            if not self._scopes[name].pages:
                del self._scopes[name]

    def _scopes_for(self, peer: PeerId, at: Whereabouts) -> list[str]:
        known = self._asking.get(peer)
        if known is None or known[0] is not at or known[1] is not at.places:
            known = self._asking[peer] = at, at.places, scopes_for(at)
        return known[2]

    def news(self, peer: PeerId, at: Whereabouts) -> list[Listens]:
        """Return what a member, at this place, has not been told yet, without its own address."""
        told = self._told.setdefault(peer, {})
        found = list[Listens]()
        for name in self._scopes_for(peer, at):
            scope = self._scopes.get(name)
            if scope is not None and scope.newest > (since := told.get(name, 0)):
                told[name] = scope.newest
                found += scope.since(since)
        return [news for one in found if (news := _without(peer, one)).at]


def _without(peer: PeerId, told: Listens) -> Listens:
    if peer not in told.at:
        return told
    return Listens({other: at for other, at in told.at.items() if other != peer})
