"""Ways from one peer to another: streams of bytes from the sender to the receiver, whoever dialled.

Pure: what a way is, which of several is the best, and the few bytes by which a connection that is
not plainly dialled begins (protocol.md part 5).
"""

import enum
from dataclasses import dataclass

from swarmtrain_transport.errors import RemoteFault

TOKEN_BYTES = 32

_MAGIC = b"\x00swarm"
"""First byte of neither ZMTP (0xFF) nor TLS (0x16)."""

_VERSION = 1


class Way(enum.StrEnum):
    """Kind of a way. The first in this list is the best."""

    DIALLED = "dialled"
    """The sender dials the receiver."""
    TURNED = "turned"
    """The receiver dials the sender."""
    PUNCHED = "punched"
    """Both dial each other at once, from ports that each router has just seen in use."""
    RELAYED = "relayed"
    """Both dial somebody who passes the bytes on."""

    @property
    def rank(self) -> int:
        """Place among the ways, 0 for the best."""
        return list(Way).index(self)


class Side(enum.IntEnum):
    """Side of a way that dials."""

    SENDER = 1
    RECEIVER = 2


PREAMBLE_BYTES = len(_MAGIC) + 2 + TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Preamble:
    """First bytes of a connection that is not plainly dialled.

    Attributes:
        side: side of the way that the dialler is.
        token: token of the meeting, 32 bytes.
    """

    side: Side
    token: bytes

    def encode(self) -> bytes:
        """PREAMBLE_BYTES bytes."""
        return _MAGIC + bytes((_VERSION, self.side)) + self.token

    @classmethod
    def decode(cls, data: bytes) -> "Preamble":
        """The preamble that these bytes are.

        Raises:
            RemoteFault: reason ``preamble``.
        """
        version, side = (
            data[len(_MAGIC) : len(_MAGIC) + 2] if len(data) == PREAMBLE_BYTES else b"\0\0"
        )
        if not data.startswith(_MAGIC) or version != _VERSION or side not in tuple(Side):
            raise RemoteFault("preamble", "a connection that begins with nothing known")
        return cls(Side(side), data[-TOKEN_BYTES:])


def may_be_preamble(first: bytes) -> bool:
    """Return True if a connection with this first byte begins with a preamble."""
    return first == _MAGIC[:1]
