"""Processor time of a relay: what it takes to pass bytes on between pairs of connections.

    python benchmarks/relay.py [--peers 8] [--rate 100] [--seconds 10] [--json]

A process that only relays, as `swarmtrain relay` does, between pairs of sockets on loopback: first
`rate` Mbit/s in all, then `rate` for each of the peers. Told: Mbit/s that came through, and the
relay's processor time by second, as cores. Exit status 1 beyond the bars.
"""

import asyncio
import json
import multiprocessing
import multiprocessing.connection
import secrets
import socket
import sys
import threading
import time
from typing import Any

import psutil
from figures import parser_of

from swarmtrain_transport.links.doorway import Doorway
from swarmtrain_transport.links.relay import Relay
from swarmtrain_transport.links.ways import TOKEN_BYTES, Preamble, Side

BAR_ONE, BAR_ALL = 0.3, 1.0
PIECE_BYTES = 256 << 10
SEGMENT_BYTES = 1448
"""As on a line of 1500 bytes a packet; loopback takes 45 times as many at once."""

WARMUP_S = 1.0


def serve(tokens: list[bytes], pipe: multiprocessing.connection.Connection) -> None:
    """Relay for these tokens until the pipe ends."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        relay = Relay(loop, lambda token, num_bytes, is_over: None)
        for token in tokens:
            relay.expect(token)
        doorway = Doorway(loop, lambda far: far.close(), relay.greeted, lambda: None)
        public = socket.create_server(("127.0.0.1", 0), backlog=128)
        public.setblocking(False)
        loop.add_reader(public, lambda: doorway.enter(public.accept()[0]))
        pipe.send(public.getsockname()[1])
        over = asyncio.Event()
        loop.add_reader(pipe, over.set)
        await over.wait()

    asyncio.run(main())


def dial(port: int, side: Side, token: bytes) -> socket.socket:
    """A connection that has said whose it is."""
    far = socket.socket()
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    far.connect(("127.0.0.1", port))
    far.sendall(Preamble(side, token).encode())
    return far


def send(far: socket.socket, bytes_per_s: float, ends_s: float) -> None:
    """Send at a rate until the time."""
    piece, sent, begin_s = secrets.token_bytes(PIECE_BYTES), 0, time.monotonic()
    try:
        while (now_s := time.monotonic()) < ends_s:
            due_s = begin_s + sent / bytes_per_s
            if due_s > now_s:
                time.sleep(due_s - now_s)
            far.sendall(piece)
            sent += PIECE_BYTES
    except OSError:
        return


def hear(far: socket.socket, counts: list[int], index: int) -> None:
    """Count what comes."""
    space = memoryview(bytearray(PIECE_BYTES))
    try:
        while count := far.recv_into(space):
            counts[index] += count
    except OSError:
        return


def measure(pairs: int, mbit_each: float, seconds: float) -> dict[str, float]:
    """Cores that a relay takes for so many pairs at so many Mbit/s each."""
    tokens = [secrets.token_bytes(TOKEN_BYTES) for _ in range(pairs)]
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    relay = context.Process(target=serve, args=(tokens, there))
    relay.start()
    try:
        port = here.recv()
        ends_s = time.monotonic() + WARMUP_S + seconds + 1.0
        counts, sockets = [0] * pairs, []
        for index, token in enumerate(tokens):
            sender, receiver = (dial(port, side, token) for side in Side)
            sockets += [sender, receiver]
            rate = mbit_each * 125_000
            threading.Thread(target=send, args=(sender, rate, ends_s), daemon=True).start()
            threading.Thread(target=hear, args=(receiver, counts, index), daemon=True).start()
        process = psutil.Process(relay.pid)
        time.sleep(WARMUP_S)
        before, came, begin_s = process.cpu_times(), sum(counts), time.monotonic()
        time.sleep(seconds)
        after, passed_s = process.cpu_times(), time.monotonic() - begin_s
        cpu_s = after.user + after.system - before.user - before.system
        moved = sum(counts) - came
        for one in sockets:
            one.close()
        return {"mbit_per_s": moved / passed_s / 125_000, "cores": cpu_s / passed_s}
    finally:
        relay.terminate()
        relay.join()


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--peers", type=int, default=8, help="pairs of connections")
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    one = measure(options.peers, options.rate / options.peers, options.seconds)
    each = measure(options.peers, options.rate, options.seconds)
    holds = one["cores"] < BAR_ONE and each["cores"] < BAR_ALL
    found: dict[str, Any] = {"in_all": one, "each": each, "holds": holds}
    if options.json:
        print(json.dumps(found))
    else:
        for name, bar, part in (("in all", BAR_ONE, one), ("each", BAR_ALL, each)):
            came = f"{part['mbit_per_s']:.0f} Mbit/s came through"
            print(
                f"{options.rate:.0f} Mbit/s {name}: {came}, {part['cores']:.3f} cores (bar {bar})"
            )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
