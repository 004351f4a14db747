"""The same bytes over plain sockets: what the links allow an exchange, its ceiling.

No encryption, no codec, no coordinator, no ledger: each peer sends every other its part of that
one's slice, and as soon as a chunk of its own slice has come from everybody a chunk of as many
bytes to all. There is one connection for each direction of each pair, as in the exchange. Rounds
take turns between three ways of sending, and the row is that of the best:

- all: everything is handed to the system at once;
- paced: the same, each connection paced to its share of the rate (SO_MAX_PACING_RATE);
- rotating: chunk by chunk to one peer after the other, each beginning behind itself, with little
  more under way than the links carry in a round trip.

MODE is not used. VALUE_BYTES and NET come from bench.py; REPS and WARM count for each way. A peer
that hears a chunk of another round, or too many, ends: its row has failed.
"""

import fcntl
import os
import selectors
import socket
import struct
import time
from collections import Counter, deque

import lab_peer
from lab_peer import IP, RANK, WORLD, barrier

PORT = 9300
CHUNK_BYTES = 64 << 10
HEAD = struct.Struct("!BIQ")
"""Part or result, the chunk, and the round."""
PART, RESULT = 0, 1
WAYS = ("all", "paced", "rotating")
PAYLOAD = 0.95
"""Share of a link's rate that is TCP's payload, by a hair less than it really is."""
SIOCOUTQ = 0x5411
SO_MAX_PACING_RATE = 47
"""As in Linux' headers; Python has no names for them."""
NEAR_RTT_MS = 5.0
LOOK_S = 0.001

RATE_MBIT, RTT_MS = (float(word) for word in os.environ["NET"].split(":")[:2])
BYTES_PER_S = RATE_MBIT * 1e6 / 8
SLICE_BYTES = int(lab_peer.NUMEL * float(os.environ["VALUE_BYTES"]) / WORLD)
CHUNKS = -(-SLICE_BYTES // CHUNK_BYTES)
OTHERS = [(RANK + step) % WORLD for step in range(1, WORLD)]
WINDOW = int(BYTES_PER_S * RTT_MS / 1e3) + 2 * CHUNK_BYTES
ZEROS = bytes(CHUNK_BYTES)


def size_of(chunk: int) -> int:
    """Bytes of a slice's chunk."""
    return min(CHUNK_BYTES, SLICE_BYTES - chunk * CHUNK_BYTES)


def suited(connection: socket.socket) -> None:
    """Choose as the exchange does; what the lab forces overrules it."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if RTT_MS < NEAR_RTT_MS:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")


class Out:
    """The connection by which one peer is sent to."""

    def __init__(self, peer: int) -> None:
        host = f"{IP.rpartition('.')[0]}.{peer + 1}"
        self.socket = socket.create_connection((host, PORT))
        suited(self.socket)
        self.socket.setblocking(False)
        self.frames: deque[memoryview] = deque()

    def put(self, kind: int, chunk: int, index: int) -> None:
        """This is to go there."""
        frame = HEAD.pack(kind, chunk, index) + ZEROS[: size_of(chunk)]
        self.frames.append(memoryview(frame))

    def write(self) -> bool:
        """Hand over the oldest frame, or the rest of it; False if the system takes no more now."""
        try:
            count = self.socket.send(self.frames[0])
        except BlockingIOError:
            return False
        rest = self.frames.popleft()[count:]
        if rest:
            self.frames.appendleft(rest)
        return True

    @property
    def under_way(self) -> int:
        """Bytes that the other end has not acknowledged."""
        told = fcntl.ioctl(self.socket, SIOCOUTQ, bytes(4))
        return int(struct.unpack("i", told)[0])


class In:
    """The connection by which one peer is heard."""

    def __init__(self, connection: socket.socket) -> None:
        suited(connection)
        connection.setblocking(False)
        self.socket = connection
        self._space = memoryview(bytearray(HEAD.size + CHUNK_BYTES))
        self._count = 0

    def read(self, index: int) -> tuple[int, int] | None:
        """Kind and number of a chunk that is whole now; None if nothing is."""
        wanted = HEAD.size
        if self._count >= HEAD.size:
            kind, chunk, told = HEAD.unpack(self._space[: HEAD.size])
            assert told == index and chunk < CHUNKS, (told, index, chunk)
            wanted += size_of(chunk)
        try:
            count = self.socket.recv_into(self._space[self._count : wanted])
        except BlockingIOError:
            return None
        assert count, "a peer has ended"
        self._count += count
        if self._count < wanted:
            return None
        if wanted == HEAD.size:
            return self.read(index)
        self._count = 0
        return kind, chunk


class Round:
    """One exchange of so many bytes."""

    def __init__(self, index: int, way: str) -> None:
        self._index, self._is_rotating = index, way == "rotating"
        self._came = Counter[tuple[int, int]]()
        self._left = CHUNKS * 2 * len(OTHERS)
        self._turn = 0
        self._waits = True
        # 0 is no pace to the system, but a stop.
        share = int(BYTES_PER_S * PAYLOAD / len(OTHERS)) if way == "paced" else 0
        for out in outs:
            pace = struct.pack("Q", share or (1 << 64) - 1)
            out.socket.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, pace)

    def run(self) -> None:
        """Send all, and hear all; what we sent last may still be on its way."""
        for chunk in range(CHUNKS):
            for out in outs:
                out.put(PART, chunk, self._index)
        while self._write() or self._left:
            for key, _ in selector.select(LOOK_S if self._waits else None):
                while (found := key.data.read(self._index)) is not None:
                    self._heard(*found)

    def _heard(self, kind: int, chunk: int) -> None:
        self._left -= 1
        self._came[kind, chunk] += 1
        assert self._came[kind, chunk] <= len(OTHERS), (kind, chunk)
        if kind == PART and self._came[kind, chunk] == len(OTHERS):
            for out in outs:
                out.put(RESULT, chunk, self._index)

    def _write(self) -> bool:
        """Hand over what may go now; returns True if something is left."""
        full = 0 if self._is_rotating else len(outs)
        for out in () if self._is_rotating else outs:
            while out.frames and out.write():
                pass
        while full < len(outs) and sum(out.under_way for out in outs) < WINDOW:
            out = outs[self._turn % len(outs)]
            self._turn += 1
            full = 0 if out.frames and out.write() else full + 1
        self._waits = any(out.frames for out in outs)
        return self._waits


def run(index: int, way: str) -> dict[str, object]:
    """Time one round."""
    this = Round(index, way)
    barrier({"at": f"start{index}"})
    sent, cpu, start = lab_peer.wire_bytes()[0], lab_peer.cpu_seconds(), time.perf_counter()
    this.run()
    seconds, cpu = time.perf_counter() - start, lab_peer.cpu_seconds() - cpu
    barrier({"at": f"end{index}"})
    time.sleep(lab_peer.SETTLE_S)
    tx = lab_peer.wire_bytes()[0] - sent
    return {"t": seconds, "cpu": cpu, "tx": tx, "err": 0.0, "way": way}


server = socket.create_server((IP, PORT), backlog=WORLD)
barrier({"at": "listens"})
outs = [Out(peer) for peer in OTHERS]
selector = selectors.DefaultSelector()
for _ in OTHERS:
    heard = In(server.accept()[0])
    selector.register(heard.socket, selectors.EVENT_READ, heard)
barrier({"at": "connected"})
turns = [(turn, way) for turn in range(lab_peer.WARM + lab_peer.REPS) for way in WAYS]
told = [(turn, run(index, way)) for index, (turn, way) in enumerate(turns)]
barrier({"at": "done", "rounds": [row for turn, row in told if turn >= lab_peer.WARM]})
