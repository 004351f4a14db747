"""Load of thousands of peers on one coordinator: how long a message takes, what a peer costs.

    python benchmarks/coordinator_load.py --peers 1000 [--joiners 50] [--forged] [--json]

A coordinator of its own (`service.serve`, TLS, its log on the disk) runs on one core of this
machine. Peers are light: a few processes hold all connections, each on a socket of its own from one
of many addresses of the loopback network, with keys of its own. They knock, say HELLO, acknowledge
records, say PROGRESS as often as a peer does, and take part in a round every 30 s: each says READY
and APPLIED, and the 64 that a PLAN names say all that members of an op say (ROOTS, 64 GOT,
SLICE_DONE, 64 HAVE), over as long as an exchange takes. They are 64 as the run's codec has no exact
sums: in cells they would be more. There are no weights and no data lane; what
would be hashes of parts is drawn from the names of peers and ops.

Every tenth PROGRESS has a WebSocket ping right behind it, and its pong is sent once both were read
and heard: that is the time of a control message. Memory is what the coordinator's process has more
with its peers than without, by their number.

`--joiners` so many new keys come each second while it is measured, from addresses of their own, and
stay. `--forged` has 1 000 strangers come each second beside that (`door.py --flood guesses`).
`peers_max` is as high as it takes, whatever a run file may say.

Linux only: it binds other addresses of the loopback network, and reads memory from /proc.
"""

import argparse
import asyncio
import contextlib
import heapq
import json
import math
import os
import random
import resource
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgpack
from door import attack
from figures import cpu_s, parser_of, resident_mb, rounded

from swarmtrain.config import settings
from swarmtrain.coordinator.service import serve
from swarmtrain.peer.network.patience import pause_s
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import Identity, knock_payload
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import num_chunks, set_id, slice_root
from swarmtrain_transport.ledger.signed_roots import (
    contribution_payload,
    inputs_of,
    result_payload,
    root_over,
)
from swarmtrain_transport.wire.messages import (
    OWN,
    Applied,
    Brings,
    Got,
    Have,
    Hello,
    History,
    Knock,
    Message,
    Offer,
    Places,
    Progress,
    Ready,
    Roots,
    SliceDone,
    encode,
)
from swarmtrain_transport.wire.records import (
    AnyBody,
    Attest,
    BodyReader,
    Commit,
    Freeze,
    Plan,
    Reassign,
    Skip,
    SliceFreeze,
    record_from_bytes,
)

RUN, NUM_VALUES, CHUNK_VALUES = "load", 64 * 16384, 16384
LAYOUT = content_hash(b"layout")

INNER_S, SPREAD_S = 14.0, 4.0
"""A peer's inner steps, and by how much they differ."""

EXCHANGE_S = 8.0
"""Time in which the members of an op say what they have to say of it, before FREEZE and after."""

STATE_S = 2.0
"""Peers have a state in place within so long."""

PEERS_PER_ADDRESS = 4
PROBE_EVERY = 10
RAMP_PER_S = 150.0
"""Peers that come a second before anything is measured; the door lets 50 new addresses in."""

SETTLE_S = 40.0
"""Between the last arrival and the begin of the measurement: a round is over by then."""

# ---- one connection


class Closed(ConnectionError):
    """The coordinator closed the connection, or it broke."""


class Line:
    """A WebSocket over TLS that never waits, as a client."""

    def __init__(self, place: tuple[str, int], source: str, context: ssl.SSLContext) -> None:
        plain = socket.socket()
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        plain.bind((source, 0))
        plain.connect_ex(place)
        self._plain, self._context = plain, context
        self._tls: ssl.SSLSocket | None = None
        self._has_tls = self._is_open = False
        self._out, self._in = bytearray(), bytearray()
        self.num_bytes = 0

    def fileno(self) -> int:
        """Descriptor."""
        return (self._tls or self._plain).fileno()

    def close(self) -> None:
        """End it without a word."""
        (self._tls or self._plain).close()

    @property
    def waits_to_write(self) -> bool:
        """True while there is something to send."""
        return bool(self._out) or not self._has_tls

    def ready(self) -> list[tuple[int, bytes]]:
        """Go on, as far as it goes without waiting; opcode and payload of each frame that came."""
        try:
            return self._go_on()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return []
        except OSError as exc:
            raise Closed(str(exc)) from exc

    def _go_on(self) -> list[tuple[int, bytes]]:
        if self._tls is None:
            if error := self._plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise Closed(os.strerror(error))
            self._plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._tls = self._context.wrap_socket(self._plain, do_handshake_on_connect=False)
        if not self._has_tls:
            self._tls.do_handshake()
            self._has_tls = True
            self._out += (
                b"GET /control HTTP/1.1\r\nHost: run\r\nUpgrade: websocket\r\nConnection: Upgrade"
                b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
                b"\r\n\r\n"
            )
        self._flush()
        with contextlib.suppress(ssl.SSLWantReadError):
            while data := self._tls.recv(1 << 16):
                self._in += data
                self.num_bytes += len(data)
            if not data:
                raise Closed("it was closed")
        return list(self._frames())

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        data = self._in
        if not self._is_open:
            head, found, _ = data.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                raise Closed(bytes(head[:40]).decode("ascii", "replace"))
            self._is_open = True
            del data[: len(head) + 4]
        at = 0
        while len(data) >= at + 2:
            size, start = data[at + 1] & 127, at + 2
            if size == 126:
                size, start = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            elif size == 127:
                size, start = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
            if len(data) < start + size or len(data) < start:
                break
            yield data[at] & 15, bytes(data[start : start + size])
            at = start + size
        del data[:at]

    def say(self, payload: bytes, opcode: int = 2) -> None:
        """Send a frame, masked with zeros."""
        size = len(payload)
        length = (
            bytes([128 | size]) if size < 126
            else b"\xfe" + size.to_bytes(2, "big") if size < 1 << 16
            else b"\xff" + size.to_bytes(8, "big")
        )  # fmt: skip
        self._out += bytes([128 | opcode]) + length + bytes(4) + payload
        if self._has_tls:
            try:
                self._flush()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
            except OSError as exc:
                raise Closed(str(exc)) from exc

    def _flush(self) -> None:
        assert self._tls is not None
        while self._out:
            del self._out[: self._tls.send(self._out[: 1 << 14])]


# ---- the ledger, once for all peers of a process


class Copy:
    """Records of the ledger as the peers of one process have them, each read once."""

    def __init__(self) -> None:
        self.raw: dict[int, bytes] = {}
        self.news: dict[int, AnyBody] = {}
        self.hashes: dict[int, bytes] = {}
        self._known = range(0)
        self._told: list[int] = []
        self._reader = BodyReader()

    def take(self, index: int, raw: bytes) -> None:
        """Take in a record, if it is new."""
        if index in self.raw:
            return
        self.raw[index] = raw
        record, body = record_from_bytes(raw), None
        with contextlib.suppress(RemoteFault):  # of an op whose PLAN lies before the SNAPSHOT
            body = self._reader.read(record)
        known = self._known
        if index == known.stop:
            self._known = range(known.start, index + 1)
        elif index > known.stop:
            self._known = range(index, index + 1)
        if isinstance(body, Plan | Freeze | Reassign | SliceFreeze | Commit | Skip | Attest):
            self.news[index] = body
            insort(self._told, index)
        if isinstance(body, Plan):
            self.hashes[body.op] = record.hash

    def has_news(self, first: int, last: int) -> bool:
        """Return False if all of these records are known, and none says anything to a peer."""
        at = bisect_left(self._told, first)
        is_known = first >= self._known.start and last < self._known.stop
        return not is_known or (at < len(self._told) and self._told[at] <= last)


def root_after(op: int) -> bytes:
    """The root of everybody's state after an op."""
    return content_hash(b"state %d" % op)


class Parts:
    """What members of an op would have exchanged, drawn from names."""

    def __init__(self, plan: Plan, plan_hash: bytes) -> None:
        self.plan, self.plan_hash = plan, plan_hash
        self.plan_id = int.from_bytes(plan_hash[:8], "little")
        self.members = {member.peer for member in plan.members}
        self.givers = [member.peer for member in plan.members if member.weight]
        self.frozen: tuple[bytes, ...] = ()
        self._roots = {peer: self._drawn(peer) for peer in self.givers}

    def _drawn(self, peer: bytes) -> tuple[bytes, ...]:
        base = b"part %d" % self.plan.op + peer
        return tuple(content_hash(base + b" %d" % at) for at in range(len(self.plan.slices)))

    def roots_of(self, peer: bytes) -> tuple[bytes, ...]:
        """The slice roots of a contribution."""
        return self._roots[peer]

    def sum_of(self, index: int) -> tuple[bytes, ...]:
        """Chunk hashes of a slice's result."""
        base = b"sum %d %d " % (self.plan.op, index)
        return tuple(content_hash(base + b"%d" % n) for n in range(num_chunks(self.plan, index)))


# ---- peers


class Peer:
    """One light peer."""

    def __init__(self, crowd: "Crowd", source: str, is_joiner: bool) -> None:
        self.crowd, self.source, self.is_joiner = crowd, source, is_joiner
        self.identity, self.boot = Identity.create(), os.urandom(8)
        self.line: Line | None = None
        self.head, self.holds_from, self.now_index = -1, 0, -1
        self.op, self.begun_s = -1, 0.0
        self.came_s = self.probe_s = 0.0
        self.told, self.steps, self.failed = 0, 0, 0
        self.owned: dict[int, list[tuple[int, int]]] = {}
        self._image = 0

    def dial(self, now_s: float) -> None:
        """Come, or come again."""
        self.begun_s, self.came_s = now_s, 0.0
        self.line = Line(self.crowd.place, self.source, self.crowd.context)
        self.crowd.watch(self)

    def lost(self, why: str) -> None:
        """The connection has ended; come again soon."""
        crowd = self.crowd
        crowd.counts["lost: " + why if self.came_s else "turned away"] += 1
        crowd.forget(self)
        if self.came_s:
            crowd.here -= 1
        self.failed = 1 if self.came_s else self.failed + 1
        self.came_s = 0.0
        crowd.after(pause_s(self.failed, crowd.rng), lambda: self.dial(time.monotonic()))

    def say(self, message: Message) -> None:
        """Send a message, if the connection stands."""
        if self.line is not None and self.came_s:
            self._send(encode(message))

    def _send(self, data: bytes, opcode: int = 2) -> None:
        assert self.line is not None
        self.crowd.said[int(time.monotonic())] += 1
        try:
            self.line.say(data, opcode)
        except Closed as exc:
            self.lost(str(exc))
            return
        if self.line.waits_to_write:
            self.crowd.watch(self)

    # ---- what it hears

    def hear(self, opcode: int, data: bytes, now_s: float) -> None:
        """A frame came."""
        if opcode == 10:
            self.crowd.probes.append((self.probe_s, now_s - self.probe_s))
            return
        if opcode == 9:
            self._send(data, 10)
            return
        if opcode == 8:
            raise Closed("goodbye")
        size = data[3] - 0xA0
        kind = data[4 : 4 + size]
        if kind in (b"listens", b"waiting", b"keep", b"unreached"):
            return
        raw = msgpack.unpackb(data, strict_map_key=False)
        if kind == b"records":
            self._read(raw["first_index"], raw["records"], now_s)
        elif kind == b"hashes":
            have = Have(
                raw["plan_id"], raw["slice_index"], raw["attempt"], raw["set_id"],
                (True,) * len(raw["chunk_hashes"]),
            )  # fmt: skip
            self.crowd.after(random.uniform(0.0, EXCHANGE_S / 2), lambda: self.say(have))
        elif kind == b"challenge":
            self._knock(raw["nonce"])
        elif kind == b"welcome":
            self._enter(raw["now_index"], now_s)
        elif kind == b"image":
            self._image += len(raw["data"])
            if raw["records"]:
                self.head = self.holds_from = record_from_bytes(raw["records"][1]).index
            if self._image >= raw["num_bytes"]:
                self._image = 0
                self._take_state(self.crowd.newest)
                self._up_to_date(now_s)
        elif kind == b"tell":
            index = raw["first_index"]
            mine = self.crowd.copy.raw.get(index) if index >= self.holds_from else None
            self.say(History(index, (mine,) if mine else ()))
        elif kind == b"refused":
            self.crowd.counts[raw["code"]] += 1

    def _knock(self, nonce: bytes) -> None:
        crowd = self.crowd
        head_hash = b""
        if self.head >= 0:
            head_hash = record_from_bytes(crowd.copy.raw[self.head]).hash
        hello = encode(Hello(
            self.boot, "light", self.identity.curve_key, self.source, crowd.port, self.head,
            head_hash, 1 << 30, 2_000_000, 10_000_000,
            Brings(RUN, OWN, LAYOUT, NUM_VALUES, OWN), takes_image=True,
        ))  # fmt: skip
        payload = knock_payload(nonce, crowd.invite.cert_sha256, hello)
        knock = Knock(
            limits.PROTOCOL_VERSION, self.identity.peer_id, crowd.invite.secret, hello,
            self.identity.sign(payload),
        )  # fmt: skip
        self._send(encode(knock))

    def _enter(self, now_index: int, now_s: float) -> None:
        crowd = self.crowd
        crowd.here += 1
        self.came_s, self.now_index = now_s, now_index
        crowd.peers[self.identity.peer_id] = self
        if self.is_joiner:
            crowd.joined.append((self.begun_s, now_s - self.begun_s))
        self.say(Places(()))
        self.told += 1
        self._report(self.told)
        if crowd.offers and self.op < 0:
            self.say(Offer(root_after(0), NUM_VALUES, LAYOUT))

    def _report(self, life: int) -> None:
        """PROGRESS, again and again for as long as this connection stands."""
        if life != self.told or not self.came_s:
            return
        self.steps += 1
        crowd = self.crowd
        self.say(Progress(
            self.head, 1_000_000 * self.steps, 1_000_000 * self.steps, "training", self.steps, 2.5,
            1000.0 + self.steps % 7, 2000 * self.steps, 5000 * self.steps, 300 * self.steps, 0,
            2_000_000, 10_000_000, holds_from=self.holds_from,
        ))  # fmt: skip
        if self.steps % PROBE_EVERY == life % PROBE_EVERY and self.came_s:
            self.probe_s = time.monotonic()
            self._send(b"probe", 9)
        is_busy = any(self.identity.peer_id in parts.members for parts in crowd.under_way())
        pause_s = limits.PROGRESS_S if is_busy else crowd.progress_s
        pause_s *= random.random() if self.steps == 1 else 1.0
        crowd.after(pause_s, lambda: self._report(life))

    def _read(self, first: int, records: Sequence[bytes], now_s: float) -> None:
        last = first + len(records) - 1
        if not self.crowd.copy.has_news(max(first, self.head + 1), last):
            self.head = max(self.head, last)
            records = ()
        for index, raw in enumerate(records, first):
            if index <= self.head:
                continue
            self.crowd.copy.take(index, raw)
            self.head = index
            if (body := self.crowd.copy.news.get(index)) is not None:
                self._follow(body, now_s)
        self._up_to_date(now_s)

    def _up_to_date(self, now_s: float) -> None:
        if self.now_index >= 0 and self.head >= self.now_index:
            if self.is_joiner:
                self.crowd.caught_up.append((self.begun_s, now_s - self.begun_s))
            self.now_index = -1

    # ---- what it does in rounds

    def _follow(self, body: AnyBody, now_s: float) -> None:
        crowd = self.crowd
        if isinstance(body, Plan):
            parts = crowd.parts_of(body)
            crowd.plans[body.op].append(now_s)
            if self.identity.peer_id in parts.members:
                self.told += 1
                self._report(self.told)
            if self.identity.peer_id in parts.givers:
                self._give(parts)
        elif isinstance(body, Reassign) and body.op in crowd.parts:
            if body.owner == self.identity.peer_id:
                self._own(crowd.parts[body.op], body.slice_index, body.attempt)
        elif isinstance(body, Freeze) and body.op in crowd.parts:
            for place in self.owned.get(body.op, ()):
                if not place[1]:
                    self._sum(crowd.parts[body.op], place, body.contributors)
        elif isinstance(body, SliceFreeze) and body.op in crowd.parts:
            place = body.slice_index, body.attempt
            if place in self.owned.get(body.op, ()):
                self._sum(crowd.parts[body.op], place, body.contributors)
        elif isinstance(body, Commit):
            crowd.outcomes[body.op] = "merged"
            self._take_state(body.op)
        elif isinstance(body, Skip):
            crowd.outcomes[body.op] = body.reason
            self._take_state(body.op)
        elif isinstance(body, Attest) and body.op == 0:
            self._take_state(0)

    def _take_state(self, op: int) -> None:
        if op < 0:
            return

        def take() -> None:
            self.op = max(self.op, op)
            root = root_after(crowd.newest_commit(op))
            self.say(Applied(op, root))
            crowd.after(
                INNER_S + random.uniform(0.0, SPREAD_S),
                lambda: self.say(Ready(op + 1, 32, op, root)) if self.op == op else None,
            )

        crowd = self.crowd
        crowd.newest = max(crowd.newest, op)
        crowd.after(random.uniform(0.0, STATE_S), take)

    def _give(self, parts: Parts) -> None:
        """ROOTS, and GOT for each contribution that would come in."""
        own, plan = self.identity.peer_id, parts.plan
        roots = parts.roots_of(own)
        sign = self.identity.sign(contribution_payload(parts.plan_hash, root_over(roots)))
        after = self.crowd.after
        after(
            random.uniform(0.0, EXCHANGE_S / 4),
            lambda: self.say(Roots(parts.plan_id, roots, sign)),
        )
        for index, spec in enumerate(plan.slices):
            if spec.owner == own:
                self._own(parts, index, 0)

    def _own(self, parts: Parts, index: int, attempt: int) -> None:
        """Be the owner of a slice, to whom contributions come one by one."""
        self.owned.setdefault(parts.plan.op, []).append((index, attempt))
        self.owned.pop(parts.plan.op - 4, None)
        complete: dict[bytes, bytes] = {}

        def got(peer: bytes) -> None:
            complete[peer] = parts.roots_of(peer)[index]
            self.say(Got(parts.plan_id, index, attempt, dict(complete)))

        for peer in parts.givers:
            self.crowd.after(random.uniform(0.0, EXCHANGE_S / 2), lambda peer=peer: got(peer))

    def _sum(self, parts: Parts, place: tuple[int, int], contributors: Sequence[bytes]) -> None:
        """Publish the result of an own slice."""
        index, attempt = place
        named = tuple(sorted(contributors))
        hashes = parts.sum_of(index)
        inputs = inputs_of({peer: parts.roots_of(peer)[index] for peer in named})
        payload = result_payload(parts.plan_hash, index, attempt, slice_root(hashes), inputs)
        done = SliceDone(
            parts.plan_id, index, attempt, set_id(named), hashes, inputs,
            self.identity.sign(payload),
        )  # fmt: skip
        self.crowd.after(random.uniform(0.0, 0.5), lambda: self.say(done))


# ---- a process full of peers


class Crowd:
    """The peers of one process, and its loop."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.invite = Invite.parse(order["invite"])
        self.place = (self.invite.host, self.invite.port)
        self.progress_s = order["progress_s"]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self.copy, self.parts = Copy(), dict[int, Parts]()
        self.offers = order["first"] == 0 and not order["joins"]
        self.newest = -1
        self.here = 0
        self.rng = random.Random()
        self.peers: dict[bytes, Peer] = {}
        self.counts: Counter[str] = Counter()
        self.probes: list[tuple[float, float]] = []
        self.joined: list[tuple[float, float]] = []
        self.caught_up: list[tuple[float, float]] = []
        self.plans = defaultdict[int, list[float]](list)
        self.said, self.heard_bytes = Counter[int](), Counter[int]()  # by seconds
        self.outcomes: dict[int, str] = {}
        self._poll, self._watched = select.epoll(), dict[int, Peer]()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.late: list[tuple[float, float]] = []
        listener = socket.create_server(("0.0.0.0", 0), backlog=64)
        listener.setblocking(False)
        self.port = int(listener.getsockname()[1])
        self._listener = listener
        self._poll.register(listener.fileno(), select.EPOLLIN)
        # Peers of a swarm are told apart by nothing else here than their addresses.
        addresses = range(order["first"] // PEERS_PER_ADDRESS, 1 << 20)
        per = 1 if order["joins"] else PEERS_PER_ADDRESS
        half = 128 * order["joins"]
        for number in range(order["count"]):
            at = addresses[number // per]
            source = f"127.{half + 1 + (at >> 16)}.{at >> 8 & 255}.{1 + at % 250}"
            peer = Peer(self, source, order["joins"])
            self.after(
                order["begins_s"] - time.monotonic() + number / order["per_s"],
                lambda peer=peer: peer.dial(time.monotonic()),
            )

    # ---- its loop

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something later."""
        self._number += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._number, act))

    def watch(self, peer: Peer) -> None:
        """Hear of a peer's connection."""
        assert peer.line is not None
        mask = select.EPOLLIN | (select.EPOLLOUT if peer.line.waits_to_write else 0)
        number = peer.line.fileno()
        known = self._watched.get(number)
        self._watched[number] = peer
        (self._poll.modify if known is peer else self._poll.register)(number, mask)

    def forget(self, peer: Peer) -> None:
        """Its connection has ended."""
        if peer.line is not None:
            self._poll.unregister(peer.line.fileno())
            del self._watched[peer.line.fileno()]
            peer.line.close()
            peer.line = None

    def run(self) -> None:
        """Until the other end of standard input speaks."""
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN)
        told_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= told_s:
                told_s = now_s + 1.0
                planned = max(self.plans, default=0)
                said = {"here": self.here, "op": self.newest, "planned": planned, **self.counts}
                print(json.dumps(said), flush=True)
            while self._timers and self._timers[0][0] <= now_s:
                due_s, _, act = heapq.heappop(self._timers)
                act()
            due_s = self._timers[0][0] if self._timers else now_s + 1.0
            wait_s = max(0.0, min(due_s, told_s) - time.monotonic())
            for number, mask in self._poll.poll(wait_s):
                if number == sys.stdin.fileno():
                    self._end(*map(float, sys.stdin.readline().split()))
                    return
                if number == self._listener.fileno():
                    self._listener.accept()[0].close()
                elif (peer := self._watched.get(number)) is not None:
                    self._serve(peer, mask)
            self.late.append((now_s, time.monotonic() - now_s - wait_s))

    def _serve(self, peer: Peer, mask: int) -> None:
        line = peer.line
        assert line is not None
        had_to_write, num_bytes, now_s = line.waits_to_write, line.num_bytes, time.monotonic()
        try:
            for opcode, data in line.ready():
                peer.hear(opcode, data, now_s)
                if peer.line is not line:
                    return
        except Closed as exc:
            peer.lost(str(exc))
            return
        self.heard_bytes[int(now_s)] += line.num_bytes - num_bytes
        if had_to_write and not line.waits_to_write:
            self.watch(peer)

    # ---- what it notes

    def parts_of(self, plan: Plan) -> Parts:
        """What the members of an op exchange."""
        known = self.parts.get(plan.op)
        plan_hash = self.copy.hashes[plan.op]
        if known is None or known.plan_hash != plan_hash:
            self.parts[plan.op] = known = Parts(plan, plan_hash)
            self.parts.pop(plan.op - 4, None)
        return known

    def under_way(self) -> Iterator[Parts]:
        """Ops without an outcome yet."""
        return (parts for op, parts in self.parts.items() if op not in self.outcomes)

    def newest_commit(self, op: int) -> int:
        """The op whose state is in place after this one."""
        while op and self.outcomes.get(op, "merged") != "merged":
            op -= 1
        return op

    def _end(self, begin_s: float, end_s: float) -> None:
        """Print what was seen in this time."""

        def within(told: list[tuple[float, float]]) -> list[float]:
            return [round(seconds, 5) for at_s, seconds in told if begin_s <= at_s < end_s]

        def in_all(by_s: Counter[int]) -> int:
            return sum(number for at_s, number in by_s.items() if begin_s <= at_s < end_s)

        print(json.dumps({
            "probes": within(self.probes), "joined": within(self.joined),
            "caught_up": within(self.caught_up), "late": within(self.late),
            "plans": [
                round(max(at) - min(at), 3)
                for at in self.plans.values() if begin_s <= min(at) < end_s
            ],
            "outcomes": {str(op): why for op, why in self.outcomes.items()},
            "messages": in_all(self.said), "num_bytes": in_all(self.heard_bytes),
        }), flush=True)  # fmt: skip


# ---- the coordinator


def config_of(places: int) -> settings.RunConfig:
    """A run of peers that bring model and data."""
    return settings.RunConfig(
        run=settings.RunSection(name=RUN, rounds=100_000),
        model=settings.ModelSection(kind="custom"),
        data=settings.DataSection(source="own"),
        exchange=settings.ExchangeSection(
            codec="none", chunk_values=CHUNK_VALUES, start_peers=8, min_contributors=1,
            wait_ready_s=SPREAD_S, deadline_floor_s=4 * EXCHANGE_S,
        ),
        admission=settings.AdmissionSection(peers_max=places),
    )  # fmt: skip


def coordinate(places: int, folder: str, profile: str) -> None:
    """Serve one run; the invite is the line on stdout."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), stop.set)
        await serve(
            config_of(places), Path(folder), "127.0.0.1", 0, "127.0.0.1",
            on_ready=lambda invite: print(invite, flush=True), stop=stop,
        )  # fmt: skip

    if not profile:
        asyncio.run(main())
        return
    import cProfile

    profiler = cProfile.Profile()
    try:
        profiler.runcall(asyncio.run, main())
    finally:
        profiler.dump_stats(profile)


# ---- all together


def raise_limits(needed: int) -> None:
    """Allow this process and those that it starts so many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SystemExit(
            f"This machine lets a process have {hard} files open, and {needed} are needed: raise"
            f" the hard limit ('ulimit -n {needed}' as root, or LimitNOFILE of the service)."
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class Process:
    """One process of the benchmark."""

    def __init__(self, order: dict[str, Any], cores: set[int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--order", json.dumps(order)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        os.sched_setaffinity(self._process.pid, cores)
        self.pid = self._process.pid
        self.newest: dict[str, Any] = {}

    def line(self) -> str:
        """The next line that it says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def look(self) -> dict[str, Any]:
        """Its newest word on how it goes."""
        said = self.line()
        if not said:
            raise SystemExit("a process of the benchmark has ended; what it said is above")
        self.newest = json.loads(said)
        return self.newest

    def say(self, text: str) -> None:
        """Tell it something."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """What it says last."""
        last = ""
        while said := self.line():
            last = said
        return dict(json.loads(last))

    def end(self) -> None:
        """Have it end."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(20.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Run:
    """One run of the benchmark: a coordinator, and processes full of peers.

    Args:
        options: those of the command line.
        folder: state directory of the coordinator.
    """

    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        cores = sorted(os.sched_getaffinity(0))
        ours = {cores[0]} if len(cores) > 1 else set(cores)
        self._options = options
        self._theirs = set(cores) - ours or set(cores)
        self._progress_s = min(
            limits.PROGRESS_MAX_S,
            limits.PROGRESS_S * math.ceil(max(1, options.peers) / limits.PROGRESS_PEERS),
        )
        self._num_joiners = int(options.joiners * (options.seconds + 5))
        places = options.peers + self._num_joiners + 100
        raise_limits(places + 1024)  # descriptors of the coordinator
        order = {
            "role": "coordinator", "places": places, "folder": folder, "profile": options.profile
        }  # fmt: skip
        self.crowds: list[Process] = []
        self.server = Process(order, ours)
        self._invite = ""

    def begin(self) -> None:
        """Wait until the coordinator serves, and a little longer."""
        self._invite = self.server.line().strip()
        if not self._invite:
            raise SystemExit("the coordinator did not start; what it said is above")
        time.sleep(2.0)

    def end(self) -> None:
        """Have all processes end."""
        for process in (*self.crowds, self.server):
            process.end()

    def have_all_come(self) -> float:
        """Have the peers come, and wait until all are in; the seconds that this took."""
        options = self._options
        share = math.ceil(options.peers / options.processes)
        begins_s = time.monotonic() + 3.0
        for first in range(0, options.peers, share):
            count = min(share, options.peers - first)
            self._start(first, count, begins_s, options.ramp / options.processes, joins=False)
        _wait_for(self.crowds, options.peers, begins_s)
        return time.monotonic() - begins_s

    def have_joiners_come(self, begins_s: float) -> None:
        """Have new keys come from then on."""
        self._start(0, self._num_joiners, begins_s, self._options.joiners, joins=True)

    def _start(self, first: int, count: int, begins_s: float, per_s: float, *, joins: bool) -> None:
        order = {
            "role": "peers", "invite": self._invite, "first": first, "count": count,
            "begins_s": begins_s, "per_s": per_s, "joins": joins, "progress_s": self._progress_s,
        }  # fmt: skip
        self.crowds.append(Process(order, self._theirs))

    def look_until(self, moment_s: float, crowds: Sequence[Process]) -> None:
        """Hear what these processes say, until then."""
        while time.monotonic() < moment_s:
            for crowd in crowds:
                crowd.look()
            _tell(self._options, self.crowds, self.server)

    def flood(self) -> contextlib.AbstractContextManager[list[int]]:
        """Forged knocks, if they are wanted, and how many came each second."""
        if not self._options.forged:
            return contextlib.nullcontext([0])
        return attack("guesses", self._invite, [], "")

    def seen(self, began_s: float, ended_s: float) -> dict[str, Any]:
        """Figures of the peers within this time. They end."""
        here = sum(one.newest.get("here", 0) for one in self.crowds)
        told, counts = [], Counter[str]()
        for crowd in self.crowds:
            crowd.say(f"{began_s} {ended_s}")
            told.append(crowd.result())
            counts.update(
                {k: v for k, v in crowd.newest.items() if k not in ("here", "op", "planned")}
            )
        return {"here": here, "counts": dict(counts), **_together(told, ended_s - began_s)}


@contextlib.contextmanager
def _begun(options: argparse.Namespace, folder: str) -> Iterator[Run]:
    run = Run(options, folder)
    try:
        run.begin()
        yield run
    finally:
        run.end()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One run of the benchmark."""
    with (
        tempfile.TemporaryDirectory(prefix="coordinator-load-") as folder,
        _begun(options, folder) as run,
    ):
        pid = run.server.pid
        empty_mb = resident_mb(pid)
        ramp_s = run.have_all_come()
        run.look_until(time.monotonic() + options.settle, run.crowds)
        full_mb, settled = resident_mb(pid), tuple(run.crowds)
        begins_s = time.monotonic() + (6.0 if options.joiners else 1.0)
        if options.joiners:
            run.have_joiners_come(begins_s)
        with run.flood() as tried:
            run.look_until(begins_s, settled)
            cpu_began_s, began_s = cpu_s(pid), time.monotonic()
            run.look_until(began_s + options.seconds, run.crowds)
            ended_s = time.monotonic()
            busy_s = cpu_s(pid) - cpu_began_s
        last_mb, seen = resident_mb(pid), run.seen(began_s, ended_s)
    return {
        "peers": options.peers, "ramp_s": ramp_s, "seconds": ended_s - began_s,
        "core": busy_s / (ended_s - began_s),
        "message_us": 1e6 * busy_s / max(1, seen["messages"]),
        "empty_mb": empty_mb, "full_mb": full_mb, "last_mb": last_mb,
        "peer_kb": 1e3 * (full_mb - empty_mb) / options.peers,
        "last_peer_kb": 1e3 * (last_mb - empty_mb) / max(1, seen["here"]),
        "forged_per_s": median(tried or [0]), **seen,
    }  # fmt: skip


def _together(told: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Figures of all processes as one."""
    probes, late = _all(told, "probes"), _all(told, "late")
    joined, caught_up = _all(told, "joined"), _all(told, "caught_up")
    outcomes = {op: why for one in told for op, why in one["outcomes"].items()}
    return {
        "messages": sum(one["messages"] for one in told),
        "probes": len(probes), "p50_ms": 1e3 * _at(probes, 0.5),
        "p99_ms": 1e3 * _at(probes, 0.99), "worst_ms": 1e3 * max(probes, default=0.0),
        "client_p99_ms": 1e3 * _at(late, 0.99), "client_worst_ms": 1e3 * max(late, default=0.0),
        "joined_per_s": len(joined) / seconds,
        "join_p50_s": _at(joined, 0.5), "join_p99_s": _at(joined, 0.99),
        "caught_up_p50_s": _at(caught_up, 0.5), "caught_up_p99_s": _at(caught_up, 0.99),
        "rounds": dict(Counter(outcomes.values())),
        "plan_spread_s": max(_all(told, "plans"), default=0.0),
        "mb_a_second": sum(one["num_bytes"] for one in told) / seconds / 1e6,
    }  # fmt: skip


def show(figures: dict[str, Any], *, as_json: bool) -> None:
    """Print what was measured."""
    rows = rounded(figures)
    if as_json:
        print(json.dumps(rows))
        return
    for name, value in rows.items():
        print(f"{name.replace('_', ' '):<18} {value}")


def _wait_for(crowds: list[Process], peers: int, begins_s: float) -> None:
    """Until all are in."""
    told_s = 0.0
    while True:
        here = sum(crowd.look()["here"] for crowd in crowds)
        if here >= peers:
            return
        if time.monotonic() >= told_s:
            told_s = time.monotonic() + 5.0
            print(f"{here} of {peers} after {time.monotonic() - begins_s:.0f} s", file=sys.stderr)


def _tell(options: argparse.Namespace, crowds: list[Process], server: Process) -> None:
    if options.verbose:
        words = [json.dumps(crowd.newest) for crowd in crowds]
        print(f"{resident_mb(server.pid):.0f} MB", *words, file=sys.stderr)


def _all(told: list[dict[str, Any]], name: str) -> list[float]:
    return [value for one in told for value in one[name]]


def _at(values: list[float], share: float) -> float:
    """A quantile, 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the measurement")
    parser.add_argument("--settle", type=float, default=SETTLE_S, help="seconds before it")
    parser.add_argument("--joiners", type=float, default=0.0, help="new keys a second meanwhile")
    parser.add_argument("--forged", action="store_true", help="1 000 forged knocks a second")
    parser.add_argument("--processes", type=int, default=2, help="that hold the peers")
    parser.add_argument("--ramp", type=float, default=RAMP_PER_S, help="peers a second that come")
    parser.add_argument("--profile", default="", metavar="FILE", help="of the coordinator")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--order", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.order:
        order = json.loads(options.order)
        if order["role"] == "coordinator":
            coordinate(order["places"], order["folder"], order["profile"])
        else:
            Crowd(order).run()
        return 0
    show(measure(options), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
