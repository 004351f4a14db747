"""The routers that lead out of this network, as the system's own table of routes has them."""

import asyncio
import ipaddress
import re
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from swarmtrain.port_mapping import pcp

SSDP = ("239.255.255.250", 1900)
"""Address and port at which UPnP devices are searched for."""

_PROBES = {4: "192.0.2.1", 6: "2001:db8::1"}
"""Addresses of nobody (RFC 5737, RFC 3849): asking for the route to one sends nothing."""

_UP, _GATEWAY = 1, 2
_COMMAND_S = 5.0
_ROUTES = Path("/proc/net/route")
_ROUTES_6 = Path("/proc/net/ipv6_route")


@dataclass(frozen=True, slots=True)
class Gateway:
    """A router, and this machine's address towards it.

    Attributes:
        host: IP address of the router, without a scope.
        own_host: IP address of this machine by which it reaches other networks.
        scope: interface's index, for a router with a link-local address.
        port: UDP port of PCP and NAT-PMP.
        ssdp: address and port at which it hears searches of UPnP.
    """

    host: str
    own_host: str
    scope: int = 0
    port: int = pcp.PORT
    ssdp: tuple[str, int] = SSDP

    @property
    def version(self) -> int:
        """4 or 6."""
        return ipaddress.ip_address(self.host).version


async def gateways() -> tuple[Gateway, ...]:
    """Find the router of each family of addresses; none where the system does not tell."""
    found = []
    for version in (4, 6):
        own = own_host(version)
        router = await asyncio.to_thread(_router, version) if own else None
        if own and router is not None:
            found.append(Gateway(router[0], own, router[1]))
    return tuple(found)


def own_host(version: int) -> str:
    """Return the address by which this machine reaches other networks, "" if it reaches none."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_PROBES[version], 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _router(version: int) -> tuple[str, int] | None:
    try:
        if sys.platform == "linux":
            return linux_router(_ROUTES.read_text()) if version == 4 else _linux_router_6()
        if sys.platform == "win32":
            return None  # nothing there tells it without a program of its own language
        words = ["route", "-n", "get", *(["-inet6"] if version == 6 else []), "default"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=True)
        router = bsd_router(done.stdout)
        return router and (router[0], socket.if_nametoindex(router[1]) if router[1] else 0)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _linux_router_6() -> tuple[str, int] | None:
    router = linux_router_6(_ROUTES_6.read_text())
    return router and (router[0], socket.if_nametoindex(router[1]))


def linux_router(table: str) -> tuple[str, int] | None:
    """Return the default router of ``/proc/net/route``, the cheapest of several."""
    best: tuple[int, str] | None = None
    for line in table.splitlines()[1:]:
        _, destination, gateway, flags, _, _, metric, mask, *_ = line.split()
        if int(flags, 16) & (_UP | _GATEWAY) == _UP | _GATEWAY and not int(destination + mask, 16):
            router = socket.inet_ntoa(struct.pack("=L", int(gateway, 16)))
            best = min(best or (int(metric), router), (int(metric), router))
    return best and (best[1], 0)


def linux_router_6(table: str) -> tuple[str, str] | None:
    """Return the default router of ``/proc/net/ipv6_route`` and its interface."""
    best: tuple[int, str, str] | None = None
    for line in table.splitlines():
        to, bits, _, _, router, metric, _, _, flags, device = line.split()
        if int(flags, 16) & (_UP | _GATEWAY) == _UP | _GATEWAY and not int(to + bits, 16):
            found = int(metric, 16), str(ipaddress.IPv6Address(int(router, 16))), device
            best = min(best or found, found)
    return best and best[1:]


def bsd_router(told: str) -> tuple[str, str] | None:
    """Return router and interface of what ``route -n get default`` prints on macOS and BSD."""
    match = re.search(r"^\s*gateway: ([0-9A-Fa-f.:]+)(?:%(\w+))?$", told, re.MULTILINE)
    return match and (str(ipaddress.ip_address(match[1])), match[2] or "")
