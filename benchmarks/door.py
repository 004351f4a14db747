"""Cost of strangers, and of a member that says too much, to a coordinator and to its run.

    python benchmarks/door.py [--flood silent] [--connections 6000] [--json]
    python benchmarks/door.py --flood knocks|unfinished|heavy|copies|preambles|guesses|viewers

A coordinator of its own runs on loopback. `silent` opens so many connections from 127.0.0.1 that
say nothing; meanwhile a stranger from 127.0.0.2 asks how it is, over TLS. The others have three
peers in a run, count its rounds undisturbed for so many seconds, and then for as many (with
`--pairs` by turns) while strangers without an invite come again and again: `knocks` sends first
messages of 4 MiB of empty lists on 8 connections, `unfinished` all but the last byte of such a
message on 60 connections from each of three addresses. `guesses` are 1 000 a second from 125
addresses, small forged knocks and TLS that is begun. `viewers` are ten open pages. In `heavy` a
fourth peer says GOT of 4 MiB about an unknown plan each second. In `copies` the coordinator loses
its ledger, and before its peers are back 70 strangers say that they have a longer one; it is told
after how many seconds all three are in a result again. In `preambles` 60 connections each to the
coordinator's port and to those of all peers say that they are of a meeting: a token that nobody
has, or half of one.
Linux only: it binds other addresses of the loopback network, and reads memory from /proc.
"""

import argparse
import contextlib
import json
import os
import queue
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from figures import cpu_s, parser_of, resident_mb, rounded

if TYPE_CHECKING:
    from swarmtrain_transport.credentials.invite import Invite

CONNECT_TIMEOUT_S = 10.0
UP_TIMEOUT_S = 60.0
SETTLE_S = 3.0
"""After the last connection, and after all were closed: memory is given back by then."""

PEERS = ("badger", "crane", "otter")
WARM_ROUNDS = 10
BEGIN_S = 180.0
LOOK_S = 0.5

FLOOD_BYTES = (4 << 20) - 1024
"""Nearly the largest message that the control lane has for members."""

CUT = ("flood", "fault")
"""Events of `status` that name who was cut off."""

FALSE_MEETINGS = 60
"""Connections to each port."""

PAUSE_S = 0.05
"""Pause of a flooding connection that was broken before it comes again."""

TRUSTING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE


def tls_to(port: int, source: str) -> ssl.SSLSocket:
    """A connection that trusts any certificate."""
    plain = socket.create_connection(
        ("127.0.0.1", port), CONNECT_TIMEOUT_S, source_address=(source, 0)
    )
    try:
        return TRUSTING.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def ask(port: int, source: str) -> float:
    """Seconds from the connection to the answer of /livez."""
    begin = time.perf_counter()
    with tls_to(port, source) as line:
        line.sendall(b"GET /livez HTTP/1.1\r\nHost: run\r\nConnection: close\r\n\r\n")
        if not line.recv(4096).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("the coordinator is not well")
    return time.perf_counter() - begin


# ---- connections that say nothing


def flood(port: int, count: int, pid: int) -> dict[str, float]:
    """Open and hold; memory at its height, and what an honest stranger waits."""
    held = []
    peak, waits = resident_mb(pid), [ask(port, "127.0.0.2")]
    begin = time.perf_counter()
    for number in range(count):
        one = socket.socket()
        one.settimeout(CONNECT_TIMEOUT_S)
        one.bind(("127.0.0.1", 0))
        one.connect(("127.0.0.1", port))
        held.append(one)
        if number % 100 == 0:
            peak = max(peak, resident_mb(pid))
        if number % 500 == 250:
            waits.append(ask(port, "127.0.0.2"))
    opened_s = time.perf_counter() - begin
    time.sleep(SETTLE_S)
    peak = max(peak, resident_mb(pid))
    waits.append(ask(port, "127.0.0.2"))
    for one in held:
        one.close()
    time.sleep(SETTLE_S)
    return {
        "opened_s": opened_s, "peak_mb": peak, "after_mb": resident_mb(pid),
        "honest_s_max": max(waits),
    }  # fmt: skip


def measure_silent(count: int) -> dict[str, Any]:
    """One coordinator's life under one flood."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 100
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    with tempfile.TemporaryDirectory(prefix="swarmtrain-door-") as folder:
        run_file = Path(folder) / "run.toml"
        run_file.write_text('[run]\nname = "door"\n')
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "swarmtrain", "up", str(run_file), "--listen",
             f"127.0.0.1:{port}", "--state-dir", f"{folder}/state"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            deadline_s = time.monotonic() + UP_TIMEOUT_S
            while True:
                try:
                    ask(port, "127.0.0.2")
                    break
                except OSError:
                    if time.monotonic() > deadline_s or process.poll() is not None:
                        raise
                    time.sleep(0.2)
            before = resident_mb(process.pid)
            return {"connections": count, "before_mb": before, **flood(port, count, process.pid)}
        finally:
            process.terminate()
            process.wait()


# ---- strangers that send much


def large_frame(num_bytes: int) -> bytes:
    """A WebSocket message of empty msgpack lists, masked with zeros as a client's has to be."""
    body = b"\xdd" + (num_bytes - 5).to_bytes(4, "big") + b"\x90" * (num_bytes - 5)
    return b"\x82\xff" + num_bytes.to_bytes(8, "big") + bytes(4) + body


def small_frame(body: bytes) -> bytes:
    """A WebSocket message of less than 64 KiB, masked with zeros."""
    return b"\x82\xfe" + len(body).to_bytes(2, "big") + bytes(4) + body


def upgraded(port: int, source: str) -> ssl.SSLSocket:
    """A WebSocket at the door, challenged."""
    line = tls_to(port, source)
    line.sendall(
        b"GET /control HTTP/1.1\r\nHost: run\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    line.recv(4096)
    return line


def stranger(port: int, source: str, frame: bytes, *, held: bool) -> None:
    """Come, send, and come again when the line is broken; or hold it without the last byte."""
    while True:
        try:
            with upgraded(port, source) as line:
                line.sendall(frame)
                line.settimeout(None if held else 1.0)
                while line.recv(4096):
                    pass
        except OSError:
            pass
        time.sleep(PAUSE_S)


ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
MANY = [f"127.1.{number}.1" for number in range(125)]
SOURCES = {"knocks": ("127.0.0.1",) * 8, "unfinished": ADDRESSES * 60}
"""Addresses of the connections that are open at once."""


def false_meeting(port: int, source: str, *, is_whole: bool) -> None:
    """Come with a preamble of a meeting that there is not, again and again."""
    from swarmtrain_transport.links.ways import TOKEN_BYTES, Preamble, Side

    while True:
        said = Preamble(Side.RECEIVER, os.urandom(TOKEN_BYTES)).encode()
        with (
            contextlib.suppress(OSError),
            socket.create_connection(
                ("127.0.0.1", port), CONNECT_TIMEOUT_S, source_address=(source, 0)
            ) as line,
        ):
            line.sendall(said if is_whole else said[:20])
            line.recv(1)
        time.sleep(PAUSE_S)


def false_meetings(ports: list[int]) -> None:
    """Flood each port until the process is ended."""
    os.nice(19)
    for port in ports:
        for number in range(FALSE_MEETINGS):
            source = ADDRESSES[number % len(ADDRESSES)]
            threading.Thread(
                target=false_meeting, args=(port, source), kwargs={"is_whole": number % 2 == 0},
                daemon=True,
            ).start()  # fmt: skip
    threading.Event().wait()


def strangers(kind: str, port: int) -> None:
    """All strangers of a flood, until the process is ended. They take only the time of processors
    that nobody else wants here: elsewhere they would have machines of their own."""
    os.nice(19)
    frame = large_frame(FLOOD_BYTES)
    frame = frame[:-1] if kind == "unfinished" else frame
    for source in SOURCES[kind]:
        threading.Thread(
            target=stranger, args=(port, source, frame), kwargs={"held": kind == "unfinished"},
            daemon=True,
        ).start()  # fmt: skip
    threading.Event().wait()


def client_hello() -> bytes:
    """The first bytes of a TLS connection; they serve for any number of them."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def guesses(invite: "Invite") -> None:
    """Come 1 000 times a second, or as often as is answered if that is less, from many addresses
    until the process is ended: with forged knocks as many as four threads can make, the rest with
    TLS that is begun, which costs the coordinator a handshake and this side next to nothing. Tell
    how many were tried, each second."""
    import itertools

    from swarmtrain_transport import limits
    from swarmtrain_transport.wire.messages import Knock, encode

    knock = Knock(limits.PROTOCOL_VERSION, bytes(32), os.urandom(16), bytes(300), bytes(64))
    frame, hello = small_frame(encode(knock)), client_hello()
    tried, came_s = itertools.count(), time.monotonic()

    def come() -> None:
        """Wait for the turn: all together come 1 000 times a second."""
        time.sleep(max(0.0, came_s + next(tried) / 1000 - time.monotonic()))

    def guess(number: int) -> None:
        for turn in itertools.count():
            come()
            source = MANY[(number + 40 * turn) % len(MANY)]
            with contextlib.suppress(OSError), upgraded(invite.port, source) as line:
                line.sendall(frame)
                line.settimeout(1.0)
                while line.recv(4096):
                    pass

    def begin(number: int) -> None:
        for turn in itertools.count():
            come()
            source = MANY[(number + 11 * turn) % len(MANY)]
            there = ("127.0.0.1", invite.port)
            with (
                contextlib.suppress(OSError),
                socket.create_connection(there, 0.5, source_address=(source, 0)) as line,
            ):
                line.sendall(hello)
                line.settimeout(0.5)
                line.recv(1)

    for number in range(4):
        threading.Thread(target=guess, args=(number,), daemon=True).start()
    for number in range(10):
        threading.Thread(target=begin, args=(number,), daemon=True).start()
    told = 0
    while True:
        time.sleep(1.0)
        now = next(tried)
        print(now - told, flush=True)
        told = now


def viewers(invite: "Invite", secret: str) -> None:
    """Keep ten pages open, each of a viewer of its own, until the process is ended."""
    head = (
        "GET /api/v1/stream HTTP/1.1\r\nHost: run\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {secret}\r\n\r\n"
    ).encode()

    def look() -> None:
        with tls_to(invite.port, "127.0.0.1") as line:
            line.sendall(head)
            while line.recv(1 << 16):
                pass

    for _ in range(10):
        threading.Thread(target=look, daemon=True).start()
    threading.Event().wait()


# ---- strangers that say that they have a copy

CLAIMS = 70
"""Strangers, more than a run has places."""


def claimants(invite: "Invite") -> None:
    """Knock without an invite, under many keys, each of which claims a long ledger."""
    import asyncio
    import dataclasses
    import random

    from swarmtrain.chaos.siege.hostile import _Deaf
    from swarmtrain.peer.network.control import ControlClient
    from swarmtrain_transport.credentials.identity import Identity
    from swarmtrain_transport.wire.messages import Hello

    blank = dataclasses.replace(invite, secret=bytes(16))

    async def claim(identity: Identity) -> None:
        hello = Hello(
            os.urandom(8), "mallory", identity.curve_key, "127.0.0.1", 9, 10**9, bytes(32), 1 << 30
        )  # fmt: skip
        while True:
            client = ControlClient(
                blank, identity, lambda: hello, _Deaf(), rng=random.Random(1), waits=True
            )
            with contextlib.suppress(Exception):
                await client.run()
            await asyncio.sleep(1.0)

    async def all_of_them() -> None:
        await asyncio.gather(*[claim(Identity.create()) for _ in range(CLAIMS)])

    os.nice(19)
    asyncio.run(all_of_them())


# ---- a member that says too much


def heavy_member(invite: "Invite") -> None:
    """Be a member whose control lane says a GOT of 4 MiB each second."""
    import asyncio
    import random

    from swarmtrain.chaos.siege.hostile import _Deaf
    from swarmtrain.peer.network.control import ControlClient
    from swarmtrain_transport.credentials.identity import Identity
    from swarmtrain_transport.wire.messages import Got, Hello, encode

    identity = Identity.create()
    complete = {number.to_bytes(32, "big"): bytes(32) for number in range(FLOOD_BYTES // 68)}
    got = Got(7, 0, 0, complete)
    hello = Hello(
        os.urandom(8), "mallory", identity.curve_key, "127.0.0.1", 9, -1, b"", 1 << 30
    )  # fmt: skip

    async def talk() -> None:
        client = ControlClient(invite, identity, lambda: hello, _Deaf(), rng=random.Random(1))
        running = asyncio.create_task(client.run())
        data = encode(got)
        while not running.done():
            if client.is_up:
                client._outgoing.put_nowait(data)
                print("begun", flush=True)
            await asyncio.sleep(1.0)
        await running

    while True:
        with contextlib.suppress(Exception):
            asyncio.run(talk())


@contextlib.contextmanager
def attack(kind: str, invite: str, ports: list[int], page: str) -> Iterator[list[int]]:
    """The strangers, or the member, as a process of their own. What it counts, a second, is in the
    list afterwards."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--flood", kind, "--attack"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{invite}\n{json.dumps(ports)}\n{json.dumps(page)}\n".encode())
    process.stdin.flush()
    process.stdout.readline()  # it has begun: to start a process takes long on a busy machine
    counted: list[int] = []
    try:
        yield counted
    finally:
        process.kill()
        counted += [int(one) for one in process.stdout.read().split() if one.isdigit()]
        process.wait()
        process.stdin.close()
        process.stdout.close()


# ---- rounds


class Counted:
    """A run of three peers, and what is known of it from outside."""

    def __init__(self, place: Any, processes: Any) -> None:
        self.place, self.processes = place, processes
        self.invite = self.secret = ""
        self.ports: list[int] = []
        """Data ports of the peers."""
        self.ends: dict[str, list[float]] = {name: [] for name in PEERS}
        """Times at which each peer's part was merged into a round."""

    @property
    def pid(self) -> int:
        """The coordinator's."""
        return int(self.processes._running["coordinator"].pid)

    def look(self, until_s: float, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Hear events until then."""
        from swarmtrain.foundation.events import In, Ready, RoundEnded
        from swarmtrain.local_run.processes import Ended

        while (left_s := until_s - time.monotonic()) > 0 and not is_enough():
            try:
                name, event = self.processes.news.get(timeout=min(left_s, 0.1))
            except queue.Empty:
                continue
            if isinstance(event, Ready) and not self.invite:
                self.invite, self.secret = event.invite, event.page.partition("#")[2]
                for peer in PEERS:
                    self.processes.hand_invite(peer, event.invite)
            elif isinstance(event, In):
                self.ports.append(event.port)
            elif isinstance(event, RoundEnded) and event.outcome == "merged":
                self.ends[name].append(time.monotonic())
            elif isinstance(event, Ended) and name in PEERS:
                raise RuntimeError(f"{name} ended with {event.words}")

    def lose_ledger(self) -> float:
        """Kill the coordinator, take its log away, and start it again where it listened. Seconds
        until every peer is in a result again."""
        from swarmtrain.coordinator.disk.store import SIDE_FILES
        from swarmtrain_transport.credentials.invite import Invite

        self.processes.kill("coordinator")
        self.processes.bury("coordinator")
        for name in SIDE_FILES:
            (self.place.coordinator / name).unlink(missing_ok=True)
        began_s = time.monotonic()
        self.look(began_s + SETTLE_S)  # the strangers are to be there first
        before = {name: len(ends) for name, ends in self.ends.items()}
        self.processes._start(
            "coordinator", "up", str(self.place.run_file), "--state-dir",
            str(self.place.coordinator), "--listen", f"127.0.0.1:{Invite.parse(self.invite).port}",
        )  # fmt: skip
        self.look(
            began_s + BEGIN_S,
            lambda: all(len(ends) > before[name] for name, ends in self.ends.items()),
        )
        return time.monotonic() - began_s

    def count(self, seconds: float) -> dict[str, float]:
        """Rounds a second that every peer was in, memory and what `status` takes."""
        from swarmtrain.foundation.errors import UserError
        from swarmtrain.status import ask_coordinator

        began_s, peak, slowest_s = time.monotonic(), 0.0, 0.0
        cpu_began_s = cpu_s(self.pid)
        while (now_s := time.monotonic()) < began_s + seconds:
            with contextlib.suppress(UserError):  # it did not answer in time
                ask_coordinator(self.place.coordinator)
            slowest_s = max(slowest_s, time.monotonic() - now_s)
            peak = max(peak, resident_mb(self.pid))
            self.look(time.monotonic() + LOOK_S)
        spent_s = time.monotonic() - began_s
        merged = min(sum(at_s >= began_s for at_s in ends) for ends in self.ends.values())
        return {
            "rounds_per_s": merged / spent_s, "peak_mb": peak, "status_s_max": slowest_s,
            "cpu": (cpu_s(self.pid) - cpu_began_s) / spent_s,
        }  # fmt: skip


def measure_run(kind: str, seconds: float, pairs: int) -> dict[str, Any]:
    """Rounds without and with a flood, in turn so many times."""
    from swarmtrain.chaos.setting import write_run_file
    from swarmtrain.local_run.place import Place
    from swarmtrain.local_run.processes import Processes
    from swarmtrain.status import ask_coordinator

    with tempfile.TemporaryDirectory(prefix="swarmtrain-door-") as folder:
        place = Place.make(Path(folder) / "run", what="door")
        write_run_file(place, 1, len(PEERS), 2, 3.0)
        processes = Processes(place)
        run = Counted(place, processes)
        try:
            processes.start_coordinator()
            for name in PEERS:
                processes.start_peer(name)
            run.look(
                time.monotonic() + BEGIN_S,
                lambda: min(map(len, run.ends.values())) >= WARM_ROUNDS,
            )
            back_s, shares = 0.0, list[float]()
            for _ in range(pairs):
                quiet = run.count(seconds)
                with attack(kind, run.invite, run.ports, run.secret) as tried:
                    if kind == "copies":
                        back_s = run.lose_ledger()
                    flooded = run.count(seconds)
                shares.append(flooded["rounds_per_s"] / quiet["rounds_per_s"])
            after = run.count(SETTLE_S)
            status = ask_coordinator(place.coordinator)
            marks = {one.event: one.reason for one in status.events if one.event in CUT}
        finally:
            processes.close()
    return {
        "flood": kind, "undisturbed": quiet, "flooded": flooded, "after_mb": after["peak_mb"],
        "marks": marks, "back_s": back_s, "tried_per_s": median(tried or [0]), "shares": shares,
        "share": median(shares),
    }  # fmt: skip


def main() -> int:
    parser = parser_of(__doc__.splitlines()[0])
    kinds = ["silent", *SOURCES, "heavy", "copies", "preambles", "guesses", "viewers"]
    parser.add_argument("--flood", default="silent", choices=kinds)
    parser.add_argument("--connections", type=int, default=6000, help="of `silent`")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the others, each half")
    parser.add_argument("--pairs", type=int, default=1, help="halves without and with, in turn")
    parser.add_argument("--attack", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        from swarmtrain_transport.credentials.invite import Invite

        invite = Invite.parse(sys.stdin.readline().strip())
        ports = json.loads(sys.stdin.readline())
        if options.flood != "heavy":
            print("begun", flush=True)
        if options.flood == "heavy":
            heavy_member(invite)
        if options.flood == "copies":
            claimants(invite)
        if options.flood == "guesses":
            guesses(invite)
        if options.flood == "viewers":
            viewers(invite, json.loads(sys.stdin.readline()))
        if options.flood == "preambles":
            false_meetings([invite.port, *ports])
        strangers(options.flood, invite.port)
    if options.flood == "silent":
        figures = measure_silent(options.connections)
        words = (
            "{connections} silent connections in {opened_s:.1f} s: {before_mb:.0f} MB before,"
            " {peak_mb:.0f} MB at most, {after_mb:.0f} MB after; an honest stranger waited"
            " {honest_s_max:.2f} s at most"
        )
    else:
        figures = measure_run(options.flood, options.seconds, options.pairs)
        words = (
            "{flood}: {flooded[rounds_per_s]:.2f} of {undisturbed[rounds_per_s]:.2f} rounds/s,"
            " {share:.3f} in the median;"
            " the coordinator takes {flooded[cpu]:.2f} of a core, {undisturbed[cpu]:.2f} before;"
            " {undisturbed[peak_mb]:.0f} MB before, {flooded[peak_mb]:.0f} MB at most,"
            " {after_mb:.0f} MB after; status took {flooded[status_s_max]:.2f} s at most;"
            " named: {marks}; {tried_per_s} tries a second in the median"
        )
        if options.flood == "copies":
            words += "; {back_s:.0f} s to the first round after the ledger was lost"
    print(json.dumps(rounded(figures)) if options.json else words.format(**figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
