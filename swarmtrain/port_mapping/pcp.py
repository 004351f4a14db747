"""PCP's MAP (RFC 6887): requests for one TCP port as bytes, and answers from them. No sockets.

IPv4 and IPv6 alike: of an IPv6 router the answer is a hole in its firewall.
"""

import ipaddress
import struct

from swarmtrain.port_mapping.answers import ANSWER_BYTES_MAX, LIFETIME_S, Granted, Refused

PORT = 5351
"""UDP port of PCP and NAT-PMP at the router."""

NONCE_BYTES = 12

_VERSION, _MAP, _ANSWER, _TCP = 2, 1, 0x80, 6
_ASKS = struct.Struct("!BBxxI16s")
_ANSWERS = struct.Struct("!BBxBII12x")
_MAPS = struct.Struct("!12sBxxxHH16s")
_BYTES = _ANSWERS.size + _MAPS.size
_NOWHERE = {4: bytes(10) + b"\xff\xff" + bytes(4), 6: bytes(16)}
"""The address of each family that stands for any."""

_RESULTS = (
    "", "the router speaks another version", "the router does not allow it",
    "the router did not understand the request", "the router maps no ports",
    "the router lacks an option", "the router did not understand an option",
    "the router has no connection itself", "the router has no room for another port",
    "the router does not forward TCP", "the router grants this machine no more ports",
    "the router cannot give that port",
    "the request came from another address: there is a second router or a VPN on the way",
    "the router refuses",
)  # fmt: skip


class Pcp:
    """The exchange about one port with one router.

    Args:
        own_host: IP address from which the requests are sent.
        port: TCP port here.
        nonce: NONCE_BYTES random bytes; who knows them may change the mapping.
    """

    def __init__(self, own_host: str, port: int, nonce: bytes) -> None:
        self._own, self._port, self._nonce = ipaddress.ip_address(own_host), port, nonce

    def requests(self, granted: Granted | None) -> tuple[bytes, ...]:
        """Datagrams that ask for the port, if need be for the one that was granted before."""
        if granted is None:
            return (self._request(LIFETIME_S, self._port, _NOWHERE[self._own.version]),)
        host = _packed(ipaddress.ip_address(granted.host))
        return (self._request(LIFETIME_S, granted.port, host),)

    def removals(self) -> tuple[bytes, ...]:
        """Datagrams that end the mapping."""
        return (self._request(0, 0, _NOWHERE[self._own.version]),)

    def read(self, data: bytes) -> Granted | Refused | None:
        """Return the answer that a datagram of the router is, None for anything else."""
        if data[:2] == b"\0" + bytes((_ANSWER | _MAP,)) and len(data) <= ANSWER_BYTES_MAX:
            return Refused("the router does not speak it")  # a NAT-PMP router (appendix A)
        if not _ANSWERS.size <= len(data) <= ANSWER_BYTES_MAX or len(data) % 4:
            return None
        version, op, result, lifetime_s, age_s = _ANSWERS.unpack_from(data)
        if op != _ANSWER | _MAP:
            return None
        if version != _VERSION:
            return Refused(_RESULTS[1])
        if len(data) < _BYTES:
            return Refused(_word(result)) if result else None
        nonce, protocol, own, port, host = _MAPS.unpack_from(data, _ANSWERS.size)
        if (nonce, protocol, own) != (self._nonce, _TCP, self._port):
            return None
        if result:
            return Refused(_word(result))
        if not lifetime_s:
            return None  # the answer to a removal
        address = ipaddress.IPv6Address(host)
        return Granted(str(address.ipv4_mapped or address), port, lifetime_s, age_s)

    def _request(self, lifetime_s: int, port: int, host: bytes) -> bytes:
        head = _ASKS.pack(_VERSION, _MAP, lifetime_s, _packed(self._own))
        return head + _MAPS.pack(self._nonce, _TCP, self._port, port, host)


def _packed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bytes:
    return address.packed if address.version == 6 else _NOWHERE[4][:12] + address.packed


def _word(result: int) -> str:
    return _RESULTS[result] if result < len(_RESULTS) else f"the router refuses (code {result})"
