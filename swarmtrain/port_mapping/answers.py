"""Answers of a router to the wish for a forwarded port, and what they are worth.

A router is a stranger: its firmware may be old, broken or somebody else's. An answer says what it
claims; whether anybody gets in through that port only a connection from outside shows.
"""

import ipaddress
from dataclasses import dataclass

LIFETIME_S = 120
"""Lifetime that is asked for, the shortest that RFC 6887 (section 15) has routers grant. Whatever
becomes of this process, its port is closed two minutes later."""

ANSWER_BYTES_MAX = 1100
"""Longest PCP message (RFC 6887 section 7)."""

_BEHIND_ANOTHER = tuple(
    ipaddress.ip_network(text)
    for text in (
        "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16",  # private (RFC 1918)
        "100.64.0.0/10", "192.0.0.0/24",  # the provider's own NAT (RFC 6598, RFC 6333)
        "fc00::/7",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Granted:
    """A port that a router says it forwards.

    Attributes:
        host: external IP address.
        port: external TCP port.
        lifetime_s: seconds for which it does so; 0 for no end.
        age_s: seconds since the router's table of ports began, None if it does not say.
    """

    host: str
    port: int
    lifetime_s: int
    age_s: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal.

    Attributes:
        why: the rest of a sentence that begins with the protocol's name and a colon.
    """

    why: str


def is_private(host: str) -> bool:
    """Return True for an IP address that only machines of the same network reach."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_link_local or any(
        address in network for network in _BEHIND_ANOTHER if network.version == address.version
    )


def flaw(host: str, port: int) -> str:
    """Return the reason for which others cannot dial an external address, "" if they can."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "the router names no address"
    if is_private(host):
        return (
            f"the router's own address is {address}: it stands behind another router, the "
            "provider's perhaps, which forwards nothing"
        )
    odd = address.is_unspecified or address.is_loopback or address.is_multicast
    if odd or (address.version == 4 and address.is_reserved) or not port:
        return f"the router names {address} port {port}, which nobody can dial"
    return ""


def has_restarted(before: Granted, before_s: float, after: Granted, now_s: float) -> bool:
    """Return True if a router's table has begun anew between two answers (RFC 6887 section 8.5)."""
    if before.age_s is None or after.age_s is None:
        return False
    passed_s, aged_s = now_s - before_s, after.age_s - before.age_s
    return (
        aged_s < -1
        or aged_s + 2 < passed_s - passed_s / _SLACK
        or passed_s + 2 < aged_s - aged_s / _SLACK
    )


_SLACK = 8
"""Clocks may differ by an eighth, as NAT-PMP has it (RFC 6886 section 3.6); PCP has a 16th."""
