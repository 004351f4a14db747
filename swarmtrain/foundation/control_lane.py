"""Agreements of both ends of the control lane beside the messages: paths, headers, pieces' form.

A piece of text travels as one lz4 block after its plain length (4 bytes, little-endian), so that
the receiver can refuse the length before it unpacks anything.
"""

import asyncio
import contextlib
import socket
from asyncio.trsock import TransportSocket

import lz4.block
import msgspec

CONTROL_PATH = "/control"
CHECK_PATH = "/check"
PIECE_PATH = "/piece/"
PEER_HEADER = "X-Swarmtrain-Peer"
SIGNATURE_HEADER = "X-Swarmtrain-Signature"

SLOW_DOWN = "SWT-E709"
"""Error id of the one refusal after which a peer comes again by itself: it said too much, or came
too often."""

MEMBERS_WAIT = (SLOW_DOWN, "SWT-E701", "SWT-E704", "SWT-E706")
"""Refusals after which a peer that was in before comes again by itself, as it does where nobody
answers: others have its place, or its address was guessed from too often, or the ledger that names
it has to come back first."""

LENGTH_BYTES = 4

INITIAL_PIECE_BYTES = 1 << 20
"""Weights that a run begins with travel in such pieces: seconds each on the slowest link."""

INITIAL_LIST_BYTES_MAX = 8 << 20
"""Their hashes are one piece too: for 256 GiB of weights at most."""

CHECK_BYTES = 1 << 20
CHECK_PART_BYTES = 16 << 10
CHECK_S = 3.0
"""Bytes by which whoever checks its line measures it, each way, in messages of so many, and the
longest time that a way takes: 3 Mbit/s in that time, and some round trips on a fast line."""

CHECK_AGAIN_S = 20.0
"""Pause after which a household is dialled and measured again."""

HEARTBEAT_S = 10.0
"""WebSocket ping of both ends; without an answer in half of it the connection is taken for dead."""

CLOSE_TIMEOUT_S = 2.0
"""Longest time that a closing handshake may take."""

LET_GO_TURNS = 100
"""Turns of the loop that a shut connection gets to close its socket; it takes about four."""


def piece_payload(cert_sha256: bytes, piece_hash: bytes) -> bytes:
    """Return the bytes that a member signs to fetch a piece: useless for another coordinator or
    piece."""
    return b"swarmtrain piece 1" + cert_sha256 + piece_hash


def pack_piece(plain: bytes) -> bytes:
    """A piece as it travels."""
    packed: bytes = lz4.block.compress(plain, store_size=True)
    return packed


async def let_go(line: TransportSocket | None) -> None:
    """End a connection whose WebSocket is closed.

    TLS would wait for the other side's goodbye, and aiohttp for nothing: a loop that ends
    meanwhile leaves the socket open.
    """
    if line is None:
        return
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    for _ in range(LET_GO_TURNS):
        if line.fileno() < 0:
            return
        await asyncio.sleep(0)


PEERS_TRIED = 3
"""Members to which whoever asks may open a connection."""


class Checked(msgspec.Struct, frozen=True):
    """The coordinator's answer to whoever asks if it would be let in, as JSON.

    Attributes:
        code: error id of the refusal, "" where there is none.
        text: words of the refusal.
        is_member: the key was let in before, so no invite is needed.
        host: IP address that the question came from.
        port: port that it came from.
        is_reached: True if a connection to the told port of that address could be opened; None if
            none was tried.
        num_bytes: bytes that follow, and that may follow from the other side; 0 for none.
        peers: name, IP address and port of a few members, for whom it would let in.
    """

    code: str
    text: str
    is_member: bool
    host: str
    port: int
    is_reached: bool | None
    num_bytes: int
    peers: tuple[tuple[str, str, int], ...] = ()
