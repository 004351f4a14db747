"""A router that speaks PCP and NAT-PMP, well or badly; its bytes are made here, by the RFCs."""

import asyncio
import ipaddress
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

PUBLIC = "203.0.113.7"


@dataclass
class FakeRouter:
    """Answers datagrams.

    `speaks` what it understands; `begun_s` when its table began; `result` other than 0 refuses;
    `spoils` alters each answer.
    """

    speaks: tuple[str, ...] = ("pcp", "nat-pmp")
    host: str = PUBLIC
    port: int = 0
    lifetime_s: int = 120
    begun_s: float = 0.0
    result: int = 0
    spoils: Callable[[bytes], bytes] = lambda answer: answer
    asked: list[str] = field(default_factory=list)
    mapped: dict[int, int] = field(default_factory=dict)

    def answers(self, data: bytes, now_s: float) -> list[bytes]:
        """The datagrams that follow from one."""
        age_s = int(now_s - self.begun_s)
        if data[0] == 2:
            self.asked.append("pcp")
            found = self._pcp(data, age_s)
        else:
            self.asked.append("nat-pmp")
            found = self._nat_pmp(data, age_s)
        return [self.spoils(one) for one in found]

    def _pcp(self, data: bytes, age_s: int) -> list[bytes]:
        if "pcp" not in self.speaks:
            if "nat-pmp" not in self.speaks:
                return []
            return [struct.pack("!BBHI", 0, 0x81, 1, age_s)]
        lifetime_s = int.from_bytes(data[4:8], "big")
        nonce, own, port = data[24:36], *struct.unpack("!HH", data[40:44])
        granted = min(lifetime_s, 1) * self.lifetime_s
        self._note(own, self.port or port, granted)
        address = ipaddress.ip_address(self.host)
        packed = (
            address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed
        )
        head = struct.pack("!BBBBII12x", 2, 0x81, 0, self.result, granted, age_s)
        return [head + nonce + struct.pack("!B3xHH", 6, own, self.port or port) + packed]

    def _nat_pmp(self, data: bytes, age_s: int) -> list[bytes]:
        if "nat-pmp" not in self.speaks:
            return []
        op = data[1]
        head = struct.pack("!BBHI", 0, 0x80 | op, self.result, age_s)
        if op == 0:
            return [head + ipaddress.IPv4Address(self.host).packed]
        own, port, lifetime_s = struct.unpack("!HHI", data[4:12])
        granted = min(lifetime_s, 1) * self.lifetime_s
        self._note(own, self.port or port, granted)
        return [head + struct.pack("!HHI", own, self.port or port, granted)]

    def _note(self, own: int, port: int, lifetime_s: int) -> None:
        if self.result:
            return
        if lifetime_s:
            self.mapped[own] = port
        else:
            self.mapped.pop(own, None)


class Listening(asyncio.DatagramProtocol):
    """The router on a port of loopback."""

    def __init__(self, router: FakeRouter) -> None:
        self._router = router

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        for answer in self._router.answers(data, asyncio.get_running_loop().time()):
            self._transport.sendto(answer, sender)
