"""One forwarded port: which way the router is asked, when again, and what came of it. Pure.

PCP is tried first, then NAT-PMP, then UPnP. RFC 6887 and RFC 6886 ask on for minutes; here each way
has seconds, or nobody would be reached meanwhile. A port that is granted is asked for again at half
of its lifetime: that renews it, and shows a router that has restarted, got another address, or is
another one. Not here: sockets, UPnP itself, whether anybody gets in (`told`).
"""

import enum
import random
from dataclasses import dataclass
from typing import Protocol

from swarmtrain.port_mapping.answers import Granted, Refused, flaw, has_restarted


class MappingProtocol(enum.StrEnum):
    """MappingProtocol in which routers are asked, in the order in which they are tried."""

    PCP = "PCP"
    NAT_PMP = "NAT-PMP"
    UPNP = "UPnP"


class Exchange(Protocol):
    """An exchange of datagrams with a router about one port: `pcp.Pcp`, `nat_pmp.NatPmp`."""

    def requests(self, granted: Granted | None) -> tuple[bytes, ...]:
        """Datagrams that ask for the port, if need be for the one that was granted before."""

    def removals(self) -> tuple[bytes, ...]:
        """Datagrams that end the mapping."""

    def read(self, data: bytes) -> Granted | Refused | None:
        """Return the answer that a datagram completes, None if it does not."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a datagram to the router."""

    data: bytes


@dataclass(frozen=True, slots=True)
class MapByUpnp:
    """Ask by UPnP, and tell the machine by `answered`."""

    granted: Granted | None


@dataclass(frozen=True, slots=True)
class UnmapByUpnp:
    """Give the port back by UPnP."""

    granted: Granted


Action = Send | MapByUpnp | UnmapByUpnp
Actions = tuple[Action, ...]

PAUSES_S = {
    MappingProtocol.PCP: (3.0, 6.0),
    MappingProtocol.NAT_PMP: (0.25, 0.5, 1.0, 2.0, 4.0),
    MappingProtocol.UPNP: (22.0,),
}
"""Waits for an answer, one for each time that a protocol is asked: those with which the RFCs begin.
All three together are over in 43 s."""

JITTER = 0.1
"""Part by which a wait is drawn longer or shorter (RFC 6887 section 8.1.1)."""

RENEW_S = 45.0
"""Longest time until the router is asked again, whatever lifetime it claims: it may restart."""

SHORTEST_S = 10.0
"""Shortest one: half of a lifetime that no sound router grants."""

AGAIN_S = 300.0
"""Pause after all ways have failed: the router may be starting, or get other settings."""

EMPTY_AGAIN_S = 3600.0
"""Pause if one of them was an empty promise, of which others make useless tries."""

SILENT = "no answer"
EMPTY = "the router says that it forwards the port, and nobody gets in through it"


class Mapping:
    """The mapping of one TCP port in one family of addresses.

    Args:
        exchanges: protocols to try, in this order. UPNP has no exchange: it is the shell's.
        rng: source of jitter.

    Attributes:
        granted: port that is forwarded, None if none is.
        why: reasons for which there is none, in words; "" while they are not known.
        restarts: number of times that the router began its table anew.
        next_wakeup_s: time of the next `tick`.
    """

    def __init__(
        self, exchanges: dict[MappingProtocol, Exchange | None], rng: random.Random
    ) -> None:
        self.granted: Granted | None = None
        self.why = ""
        self.restarts = 0
        self.next_wakeup_s = 0.0
        self._exchanges = exchanges
        self._rng = rng
        self._by: MappingProtocol | None = None
        self._asked: MappingProtocol | None = None
        self._pauses: list[float] = []
        self._repeated: Actions = ()
        self._granted_s = 0.0
        self._was_open = False
        self._failures: dict[MappingProtocol, str] = {}

    @property
    def is_asking(self) -> bool:
        """True while it is not decided whether there is a port."""
        return self.granted is None and self._asked is not None

    def start(self, now_s: float) -> Actions:
        """Try the ways, from the first one."""
        self._failures = {}
        return self._try_next(now_s)

    def heard(self, data: bytes, now_s: float) -> Actions:
        """Take in a datagram from the router's address and port."""
        exchange = None if self._asked is None else self._exchanges[self._asked]
        answer = None if exchange is None else exchange.read(data)
        return () if answer is None else self._answered(answer, now_s)

    def answered(self, answer: Granted | Refused, now_s: float) -> Actions:
        """Take in what came of `MapByUpnp`."""
        return self._answered(answer, now_s) if self._asked is MappingProtocol.UPNP else ()

    def unreachable(self, now_s: float) -> Actions:
        """Take in that nobody listens at the router's port."""
        return self._failed("the router does not speak it", now_s) if self._sends else ()

    def told(self, is_open: bool | None, now_s: float) -> Actions:
        """Take in whether somebody got in through the granted port; None says nothing.

        A port that was open and is not any more was forgotten: it is asked for again. One that
        never was is an empty promise, and the next way is tried.
        """
        granted, by = self.granted, self._by
        if is_open is None or granted is None or self._asked not in (None, by):
            return ()
        was_open, self._was_open = self._was_open, is_open
        if is_open:
            return ()
        if was_open:
            return self._ask(self._by, now_s)
        removals = self._removals()
        self.granted, self._asked = None, by
        return (*removals, *self._failed(EMPTY, now_s))

    def tick(self, now_s: float) -> Actions:
        """Ask again, or go on to the next way, once that is due."""
        if now_s < self.next_wakeup_s:
            return ()
        if self._asked is None:
            return self._ask(self._by, now_s) if self.granted is not None else self.start(now_s)
        if not self._pauses:
            return self._failed(SILENT, now_s)
        self._wait(now_s)
        return self._repeated

    def leave(self) -> Actions:
        """Give the port back."""
        removals = self._removals()
        self.granted, self._asked, self.next_wakeup_s = None, None, float("inf")
        return removals

    @property
    def _sends(self) -> bool:
        return self._asked is not None and self._exchanges[self._asked] is not None

    def _try_next(self, now_s: float) -> Actions:
        left = [one for one in self._exchanges if one not in self._failures]
        if left:
            return self._ask(left[0], now_s)
        self._asked, self.granted, self._by = None, None, None
        self.why = self._reasons()
        is_empty = EMPTY in self._failures.values()
        self.next_wakeup_s = now_s + (EMPTY_AGAIN_S if is_empty else AGAIN_S)
        return ()

    def _reasons(self) -> str:
        told: dict[str, list[str]] = {}
        for protocol, why in self._failures.items():
            told.setdefault(why, []).append(protocol)
        return "; ".join(f"{', '.join(those)}: {why}" for why, those in told.items())

    def _ask(self, protocol: MappingProtocol | None, now_s: float) -> Actions:
        assert protocol is not None
        self._asked, self._pauses = protocol, list(PAUSES_S[protocol])
        before = self.granted if protocol is self._by else None
        exchange = self._exchanges[protocol]
        if exchange is None:
            actions: Actions = (MapByUpnp(before),)
        else:
            actions = tuple(Send(data) for data in exchange.requests(before))
        self._repeated = actions
        self._wait(now_s)
        return actions

    def _wait(self, now_s: float) -> None:
        self.next_wakeup_s = now_s + self._pauses.pop(0) * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def _answered(self, answer: Granted | Refused, now_s: float) -> Actions:
        if isinstance(answer, Refused):
            return self._failed(answer.why, now_s)
        protocol = self._asked
        if bad := flaw(answer.host, answer.port):
            self.granted, self._by = answer, protocol
            removals = self._removals()
            self.granted = None
            return (*removals, *self._failed(bad, now_s))
        before = self.granted
        if before is not None and has_restarted(before, self._granted_s, answer, now_s):
            self.restarts += 1
        is_same = before is not None and (before.host, before.port) == (answer.host, answer.port)
        self._was_open &= is_same and protocol is self._by
        self.granted, self._granted_s, self._by = answer, now_s, protocol
        self._asked, self.why = None, ""
        half_s = (answer.lifetime_s or 2 * RENEW_S) / 2
        self.next_wakeup_s = now_s + min(RENEW_S, max(SHORTEST_S, half_s))
        return ()

    def _failed(self, why: str, now_s: float) -> Actions:
        """Go on to the next way; to the first, if a port that was granted cannot be renewed."""
        asked = self._asked
        assert asked is not None
        if self.granted is not None and asked is self._by:
            # The port may be forwarded still, while another way is looked for.
            self._by = None
            return self.start(now_s)
        self._failures[asked] = why
        return self._try_next(now_s)

    def _removals(self) -> Actions:
        if self.granted is None or self._by is None:
            return ()
        exchange = self._exchanges[self._by]
        if exchange is None:
            return (UnmapByUpnp(self.granted),)
        return tuple(Send(data) for data in exchange.removals())
