"""Asking the router of this network which protocol it forwards ports by. It is asked for nothing.

NAT-PMP's question for the external address alters nothing, and a router that knows PCP alone
answers it too: it has to say that it speaks another version (RFC 6887 section 9).
"""

import ipaddress
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

from swarmtrain.port_mapping.answers import ANSWER_BYTES_MAX
from swarmtrain.port_mapping.gateway import Gateway

ASKED_S = (0.25, 0.5, 1.0)
"""Waits for an answer, one for each time that it is asked, as RFC 6886 begins."""

_QUESTION = bytes(2)
_ANSWER = struct.Struct("!BBHI4s")
_PCP_VERSION = 2


@dataclass(frozen=True, slots=True)
class Router:
    """Facts of a router.

    Attributes:
        host: address inside this network.
        speaks: ``PCP``, ``NAT-PMP``, or "" for neither.
        external: address outside, "" if none is told.
    """

    host: str
    speaks: str = ""
    external: str = ""


def ask(gateway: Gateway) -> Router:
    """Ask an IPv4 router."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line, suppress(OSError):
        line.connect((gateway.host, gateway.port))
        for seconds in ASKED_S:
            line.settimeout(seconds)
            with suppress(TimeoutError):
                line.send(_QUESTION)
                return understood(gateway.host, line.recv(ANSWER_BYTES_MAX))
    return Router(gateway.host)


def understood(host: str, data: bytes) -> Router:
    """Return what an answer says, whatever it is."""
    if data[:1] == bytes([_PCP_VERSION]):
        return Router(host, "PCP")
    if len(data) != _ANSWER.size:
        return Router(host, "NAT-PMP" if data[:2] == b"\0\x80" else "")
    version, op, result, _, external = _ANSWER.unpack(data)
    if version or op != 0x80:
        return Router(host)
    return Router(host, "NAT-PMP", "" if result else str(ipaddress.IPv4Address(external)))
