"""The contract of the data lane. memory_link and zmq_link keep it; one suite tests both."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.frames import Frame

PeerId = bytes
"""A peer's Ed25519 public key, 32 bytes."""


@dataclass(frozen=True, slots=True)
class Address:
    """A peer's address and key on the data lane.

    Attributes:
        peer_id: Ed25519 public key, 32 bytes.
        curve_key: X25519 public key for CURVE, 32 bytes, signed by `peer_id` at the door.
        host: IP address, see `is_dialable`; "" where it is not known, or cannot be dialled.
        port: TCP port, 0 without a host.
    """

    peer_id: PeerId
    curve_key: bytes
    host: str = ""
    port: int = 0


@lru_cache(maxsize=limits.ADDRESSES_KEPT)
def is_dialable(host: str) -> bool:
    """Return True if this is the IP address of one machine, which others may be told to dial.

    A name is not: libzmq resolves on the one thread that moves all bytes, so a name server that
    does not answer would stop every peer that was told the name. Nor is an address with a scope
    (`fe80::1%eth0`), which means something on one machine only.
    """
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and (parsed.scope_id or parsed.ipv4_mapped):
        return False
    return not (parsed.is_unspecified or parsed.is_multicast or host == "255.255.255.255")


_LOCAL = [
    ipaddress.ip_network(net)
    for net in (
        "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10",
        "127.0.0.0/8", "fc00::/7", "fe80::/10", "::1/128",
    )
]  # fmt: skip
"""Addresses that many networks have; 100.64.0.0/10 is between providers and their customers."""


@lru_cache(maxsize=limits.ADDRESSES_KEPT)
def is_local(host: str) -> bool:
    """Return True if a dialable address means something on its own network only."""
    parsed = ipaddress.ip_address(host)
    return any(parsed in net for net in _LOCAL if net.version == parsed.version)


@lru_cache(maxsize=limits.ADDRESSES_KEPT)
def is_loopback(host: str) -> bool:
    """Return True if this is the address by which a machine knows itself."""
    return is_dialable(host) and ipaddress.ip_address(host).is_loopback


@dataclass(slots=True)
class LinkStats:
    """Counters of one link since it was opened. Bytes include the 48-byte headers."""

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    refused: dict[str, int] = field(default_factory=dict)


class LinkHandler(Protocol):
    """Receiver of all that the link hears."""

    def on_frame(self, peer: PeerId, frame: Frame) -> None:
        """A whole, well-formed frame of an allowed peer."""

    def on_fault(self, peer: PeerId | None, fault: RemoteFault) -> None:
        """Hear that something was refused; `peer` is None when the sender is not known."""


class Link(Protocol):
    """One peer's end of the data lane."""

    @property
    def stats(self) -> LinkStats:
        """Counters since the link was opened."""

    def allow(self, address: Address) -> None:
        """Admit a peer, which may then be sent to; a changed address replaces the old one."""

    def warm(self, peers: Iterable[PeerId]) -> None:
        """Have ways to these peers, as frames are soon to come; unknown ones are ignored."""

    def revoke(self, peer: PeerId) -> None:
        """Stop hearing and reaching a peer. Unknown peers are ignored."""

    def send(self, peer: PeerId, frame: Frame) -> bool:
        """Queue one frame; False when there is no route to the peer or its queue is full."""
