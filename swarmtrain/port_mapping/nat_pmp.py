"""NAT-PMP (RFC 6886): requests for one TCP port as bytes, and answers from them. No sockets.

Older than PCP, IPv4 alone, and without a nonce. The external address is an answer of its own.
"""

import ipaddress
import struct

from swarmtrain.port_mapping.answers import LIFETIME_S, Granted, Refused

_ADDRESS, _MAP_TCP, _ANSWER = 0, 2, 0x80
_ASKS = struct.Struct("!BBxxHHI")
_ANSWERS = struct.Struct("!BBHI")
_ADDRESSES = struct.Struct("!4s")
_MAPS = struct.Struct("!HHI")

_RESULTS = (
    "", "the router does not speak it", "the router does not allow it",
    "the router has no connection itself", "the router has no room for another port",
    "the router maps no ports",
)  # fmt: skip


class NatPmp:
    """The exchange about one port with one router.

    Args:
        port: TCP port here.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._host = ""
        self._mapped: tuple[int, int, int] | None = None

    def requests(self, granted: Granted | None) -> tuple[bytes, ...]:
        """Datagrams that ask for the address and the port, if need be the one granted before."""
        self._host, self._mapped = "", None
        port = self._port if granted is None else granted.port
        return (bytes((0, _ADDRESS)), _ASKS.pack(0, _MAP_TCP, self._port, port, LIFETIME_S))

    def removals(self) -> tuple[bytes, ...]:
        """Datagrams that end the mapping."""
        return (_ASKS.pack(0, _MAP_TCP, self._port, 0, 0),)

    def read(self, data: bytes) -> Granted | Refused | None:
        """Return the answer once a datagram of the router completes it, None before."""
        if len(data) < _ANSWERS.size:
            return None
        version, op, result, age_s = _ANSWERS.unpack_from(data)
        if version or op not in (_ANSWER | _ADDRESS, _ANSWER | _MAP_TCP):
            return None
        if result:
            known = result < len(_RESULTS)
            return Refused(_RESULTS[result] if known else f"the router refuses (code {result})")
        if op == _ANSWER | _ADDRESS and len(data) == _ANSWERS.size + _ADDRESSES.size:
            (host,) = _ADDRESSES.unpack_from(data, _ANSWERS.size)
            self._host = str(ipaddress.IPv4Address(host))
        elif op == _ANSWER | _MAP_TCP and len(data) == _ANSWERS.size + _MAPS.size:
            own, port, lifetime_s = _MAPS.unpack_from(data, _ANSWERS.size)
            if own == self._port and lifetime_s:
                self._mapped = port, lifetime_s, age_s
        if not self._host or self._mapped is None:
            return None
        return Granted(self._host, *self._mapped)
