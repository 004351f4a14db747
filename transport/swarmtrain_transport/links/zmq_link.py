"""The data lane over the internet: link.Link's contract on ZeroMQ sockets with CURVE.

One DEALER only receives, behind our own TCP proxy; one DEALER per allowed peer only sends. A peer
is known by the CURVE key that its connection proved. Keys that are not allowed are turned away at
the handshake. No file of a link but this one, zmq_sockets and zmq_turned knows zmq.

Why it is so:
- Sockets are drained by `loop.add_reader`, not by coroutines: no task can die unseen, and `close`
  needs no await.
- ZMQ_IMMEDIATE is 0: frames queue (bounded) while a connection is being made. With 1 the first
  frames of an op to a peer that has just been allowed would be refused, and the machine would
  only repeat them at its next nudge, a second later.
- libzmq 4.3.5 gives a connection up for good after ZAP code 400 and after anything that is not
  ZMTP, and after 300 it sits in the handshake until HANDSHAKE_IVL (all measured). So we answer
  400, and each sender's monitor shows a disconnection that libzmq does not retry; the route is
  then opened anew after a pause. A peer that learns of our key late is reached within 2 s.
- libzmq 4.3.5 stops reading a connection whose queue is full. If it then fails, the next heartbeat
  ends the process: libzmq's own timer's, or a PING that the peer has left in its buffer, once the
  queue is read again; and a full queue that is read after its connection was made anew does so
  too (`!_io_error`, `_input_stopped`, all measured or read). So nobody of ours sends heartbeats,
  and TCP finds dead lines. Connections that we hear by end at our proxy and never fail for libzmq.
  Those that we send by are never read, only looked at; one with something in it is closed whole.
- The receiver is no ROUTER: that one ends the process if a peer has chosen the routing id that
  comes next.

libzmq resolves names on its one I/O thread, which stalls it: only IP addresses are let through.
"""

import asyncio
import functools
import socket as sockets
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Self

import zmq

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.links.allow_list import not_allowed
from swarmtrain_transport.links.link import Address, LinkHandler, LinkStats, PeerId
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.parallel_flows import Path
from swarmtrain_transport.links.reception import Reception
from swarmtrain_transport.links.tcp import Connections, Moved, can_tell
from swarmtrain_transport.links.ways import Preamble, Way
from swarmtrain_transport.links.zmq_bundle import Bundle
from swarmtrain_transport.links.zmq_proxy import Local, Proxy, is_ours
from swarmtrain_transport.links.zmq_sockets import (
    Ground,
    Reader,
    Socket,
    listen,
    make_receiver,
    resolve,
)
from swarmtrain_transport.links.zmq_turned import TurnedRoute
from swarmtrain_transport.wire.frames import Frame, Packer


class ZmqLink:
    """One peer's end of the data lane; made by `ZmqLink.open` on the loop that will own it."""

    def __init__(
        self,
        ground: Ground,
        address: Address,
        handler: LinkHandler,
        receiver: Socket,
        public: sockets.socket,
        local: Local,
        gate: TokenBucket | None,
    ) -> None:
        """For `open`, which made the sockets."""
        self._ground = ground
        self._address = address
        self._reception = Reception(address.peer_id, handler)
        self._routes: dict[PeerId, Bundle] = {}
        self._open: dict[PeerId, Bundle] = {}
        self._shut: set[tuple[bytes, int]] = set()
        self._connections = Connections()
        self._is_open = True
        self._look_timer = ground.loop.call_later(limits.LINK_LOOK_S, self._look)
        self._packer = Packer()
        is_capped = gate is not None and gate.is_capped
        hold = limits.CAPPED_RECEIVE_BYTES if is_capped else limits.LINK_HOLD_BYTES
        self._proxy = Proxy(ground.loop, public, local, hold, self._greeted, self._refused_preamble)
        self.greet: Callable[[Preamble, sockets.socket], bool] = lambda preamble, far: False
        self.closed: Callable[[PeerId], None] = lambda peer: None
        self.redialled: Callable[[PeerId], None] = lambda peer: None
        self._zap = Reader(ground.loop, ground.zap, self._on_zap)
        self._receiver = Reader(ground.loop, receiver, self._on_message, gate)

    @classmethod
    async def open(
        cls,
        identity: Identity,
        host: str,
        port: int,
        handler: LinkHandler,
        gate: TokenBucket | None = None,
    ) -> Self:
        """A link that listens on `host` and `port` (0 for a free one) and admits nobody yet.

        Args:
            identity: keys of this peer.
            host: address to listen on.
            port: likewise.
            handler: hears of frames and faults.
            gate: cap on what is taken in. One that is set later takes in first what has come by
                then: queues are as long as they were made.

        Raises:
            PortInUse: another socket listens there.
            ListenFailed: `host` is not an address of this machine, or the port is not permitted.
            LocalFault: this libzmq was built without CURVE.
        """
        if not zmq.has("curve"):
            raise LocalFault("libzmq has no CURVE; install the pyzmq wheel from the registry")
        numeric = await resolve(host, port)
        is_capped = gate is not None and gate.is_capped
        public = listen(host, numeric, port, is_capped=is_capped)
        loop, local = asyncio.get_running_loop(), Local()
        try:
            ground = Ground(loop, zmq.Context(io_threads=1), identity)
            try:
                receiver = make_receiver(ground, local.endpoint, is_capped=is_capped)
                real = Address(identity.peer_id, identity.curve_key, host, public.getsockname()[1])
                return cls(ground, real, handler, receiver, public, local, gate)
            except BaseException:
                ground.context.destroy(linger=0)
                raise
        except BaseException:
            public.close()
            local.close()
            raise

    def gate_changed(self) -> None:
        """Read on by the gate as it is now."""
        self._receiver.hurry()

    @property
    def address(self) -> Address:
        """Name and place by which this link listens: the host as asked for, the real port."""
        return self._address

    @property
    def stats(self) -> LinkStats:
        """Counters since the link was opened."""
        return self._reception.stats

    def peers_at(self) -> list[tuple[str, int]]:
        """Return the addresses to which this link has connections."""
        return [(one.address.host, one.address.port) for one in self._open.values()]

    def moved(self) -> Moved | None:
        """Bytes that really went over the network, as TCP counts them; None if it does not say."""
        for bundle in self._open.values():
            bundle.suit()
        sending = {one for bundle in self._open.values() for one in bundle.connections()}
        sent = self._connections.moved(sending)
        if sent is None:
            return None
        return Moved(sent.up + self._proxy.bytes_out, sent.down + self._proxy.bytes_in)

    def acknowledged(self) -> dict[PeerId, int] | None:
        """Bytes that each reachable peer has acknowledged since its connection was made, None if
        TCP does not say."""
        if not can_tell():
            return None
        found = {peer: bundle.acked() for peer, bundle in self._open.items()}
        return {peer: count for peer, count in found.items() if count is not None}

    def unreached(self, seconds: float) -> tuple[PeerId, ...]:
        """Return the peers to which no connection could be made for so long. One that nothing is
        sent to is dialled by nobody, and not among them."""
        since_s = self._ground.loop.time() - seconds
        down = {peer: bundle.down_since_s for peer, bundle in self._open.items()}
        return tuple(sorted(p for p, at_s in down.items() if at_s is not None and at_s <= since_s))

    def paths(self) -> dict[PeerId, list[Path]]:
        """Return TCP's counts of the connections to each reachable peer; empty if TCP does not
        tell."""
        return {peer: bundle.paths() for peer, bundle in self._open.items()}

    def widen(self, peer: PeerId, width: int) -> None:
        """Send what is large to this peer by so many connections, if it is known."""
        if peer in self._routes:
            self._routes[peer].widen(width)

    def pace(self, paces: Mapping[PeerId, float]) -> None:
        """Send no faster than so many bytes per second to each of these, until told otherwise."""
        for peer in paces.keys() & self._open.keys():
            self._open[peer].pace(paces[peer])

    def ways(self) -> dict[PeerId, Way | None]:
        """Return by which way frames go now to each peer that has been sent to lately, None where
        none stands."""
        return {peer: bundle.way for peer, bundle in self._open.items()}

    def redial(self, peer: PeerId, host: str = "", port: int = 0) -> None:
        """Dial a peer at another of its addresses, now and from now on, if it is known; without one
        at that which it was allowed with, and not before it is needed. `redialled` hears of it, as
        there is one connection again."""
        if (bundle := self._routes.get(peer)) is not None:
            told = bundle.address
            bundle.redial(host or told.host, port or told.port)
            self.redialled(peer)
            if host:
                self.warm((peer,))

    def renew(self, gone: Collection[str] | None = None) -> None:
        """Make connections anew that are known to be dead, and dial at once where there is none;
        queued frames are lost.

        Args:
            gone: addresses that this machine had until now; None for all of its own.
        """
        for bundle in self._open.values():
            bundle.renew(gone)
        self._proxy.renew(gone)

    def adopt(self, far: sockets.socket, ended: Callable[[], None]) -> None:
        """Hear by a connection that this side, or both, have dialled, until it has ended; the link
        owns it then."""
        self._proxy.adopt(far, ended)

    def send_by(
        self, peer: PeerId, far: sockets.socket, way: Way, token: bytes,
        told: Callable[[bool], None],
    ) -> None:  # fmt: skip
        """Send by a connection that the peer has dialled, or both; it is the link's from now on.

        Args:
            peer: receiver; closed if it is not known.
            far: the connection.
            way: kind of the way.
            token: token of the meeting.
            told: hears True once the peer has proved its key on it, and False when it is gone.
        """
        bundle = self._routes.get(peer)
        if bundle is None:
            far.close()
            self._ground.loop.call_soon(told, False)
            return
        hears = functools.partial(self._met, bundle, token, told)
        try:
            route = TurnedRoute(self._ground, bundle.address, far, self._proxy.pool, hears)
        except OSError:  # it has just ended
            far.close()
            self._ground.loop.call_soon(told, False)
            return
        bundle.met(token, way, route)
        self._open[peer] = bundle

    def part(self, token: bytes) -> None:
        """Close the connection of a meeting, if there is one to send by."""
        for bundle in self._open.values():
            bundle.part(token)

    def allow(self, address: Address) -> None:
        """Admit a peer, which may then be sent to; a changed address replaces the old one.

        Nothing is dialled before the first frame, or `warm`. An address that cannot be one, or
        another peer's key, is refused and counted.

        Raises:
            LocalFault: the link is closed.
        """
        if not self._is_open:
            raise LocalFault("allow() on a closed link")
        if not self._reception.admit(address):
            return
        old = self._routes.get(address.peer_id)
        if old is not None and old.address.curve_key == address.curve_key:
            old.address = address
            old.redial(address.host, address.port)  # ways that a meeting made may still stand
            return
        self._drop(address.peer_id)
        self._shut = {pair for pair in self._shut if pair[0] != address.curve_key}
        self._routes[address.peer_id] = Bundle(self._ground, address)

    def revoke(self, peer: PeerId) -> None:
        """Stop hearing and reaching a peer. Unknown peers are ignored."""
        self._reception.allowed.remove(peer)
        self._drop(peer)

    def _drop(self, peer: PeerId) -> None:
        self._close(peer, linger_s=0.0)
        self._routes.pop(peer, None)

    def _close(self, peer: PeerId, linger_s: float = limits.LINK_LINGER_S) -> None:
        """Have no connection to a peer, until it is needed again. libzmq's thread may not yet have
        sent what it was handed last."""
        if (bundle := self._open.pop(peer, None)) is not None:
            bundle.close(linger_s)
            self.closed(peer)

    def warm(self, peers: Iterable[PeerId]) -> None:
        """Have connections to these peers, as frames for them are soon to come; unknown ones are
        ignored. Beyond LINK_WAYS_MAX that one is closed which was used longest ago and could be
        dialled again."""
        for peer in peers:
            if (bundle := self._routes.get(peer)) is None:
                continue
            bundle.use()
            if peer not in self._open:
                self._open[peer] = bundle
                if len(self._open) > limits.LINK_WAYS_MAX:
                    others = [one for one in self._open if one != peer]
                    dialled = [one for one in others if not self._open[one].is_met]
                    oldest = min(dialled, key=lambda one: self._open[one].used_s, default=peer)
                    if oldest != peer:
                        self._close(oldest)

    def send(self, peer: PeerId, frame: Frame) -> bool:
        """Queue one frame; False when there is no route to the peer or its queue is full.

        A body of `limits.ZERO_COPY_BYTES` or more is not copied: it must not change until it is
        sent, and the machines' buffers do not change before COMMIT.

        Raises:
            LocalFault: the body is larger than the limit.
        """
        self.warm((peer,))
        if (bundle := self._open.get(peer)) is None:
            return False
        header, body = self._packer.pack(frame)
        is_large = len(body) >= limits.ZERO_COPY_BYTES
        route = bundle.route_for(len(body), is_large=len(body) >= limits.FLOW_FRAME_BYTES)
        try:
            route.socket.send(header, zmq.SNDMORE | zmq.NOBLOCK, copy=True)
            route.socket.send(body, zmq.NOBLOCK, copy=not is_large)
        except zmq.Again:
            return False
        self.stats.frames_sent += 1
        self.stats.bytes_sent += len(header) + len(body)
        return True

    def close(self) -> None:
        """Close all sockets; frames not yet sent are lost. A second call does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._look_timer.cancel()
        for peer in list(self._routes):
            self.revoke(peer)
        self._receiver.close()
        self._zap.close()
        self._ground.context.destroy(linger=0)
        self._proxy.close()

    def _on_message(self, parts: list[zmq.Frame]) -> None:
        key = _proved_key(parts[-1])
        descriptor = _descriptor(parts[-1])
        connection = self._proxy.connection_of(descriptor)
        if connection is not None:
            connection.was_read(key)
        peer = self._reception.allowed.peer_of(key)
        if peer is not None:
            self._reception.take(peer, [_content(part) for part in parts])
            return
        # A revoked key's connection is broken once: the descriptor may be somebody else's by the
        # time that further queued frames of it are read. ZAP refuses its return.
        if connection is not None and (key, descriptor) not in self._shut:
            self._shut.add((key, descriptor))
            connection.cut()
        self._reception.refuse(None, not_allowed(key))

    def _met(self, bundle: Bundle, token: bytes, told: Callable[[bool], None], is_up: bool) -> None:
        if is_up:
            bundle.stands()
        else:
            bundle.part(token)
        told(is_up)

    def _greeted(self, preamble: Preamble, far: sockets.socket) -> bool:
        return self.greet(preamble, far)

    def _refused_preamble(self) -> None:
        fault = RemoteFault("preamble", "a connection that did not say whose it is")
        self._reception.refuse_handshake(fault, self._ground.loop.time())

    def _look(self) -> None:
        """Name and cut off whoever talks back, or does not end a message; make dead connections
        anew, and close idle ones."""
        for peer, bundle in list(self._open.items()):
            bundle.cut_stuck()
            if bundle.cut_talkers():
                self._reception.refuse(peer, RemoteFault("backtalk", "over our own connection"))
            if bundle.is_idle() or not bundle.is_open:
                self._close(peer)
        for _ in range(self._proxy.take_floods()):
            self._reception.refuse(None, RemoteFault("flood", "a message that does not end"))
        self._look_timer = self._ground.loop.call_later(limits.LINK_LOOK_S, self._look)

    def _on_zap(self, parts: list[zmq.Frame]) -> None:
        """One handshake that proved a key; libzmq waits for the verdict (ZeroMQ RFC 27)."""
        # Routing id and an empty delimiter come first, as for a REQ socket.
        route, delimiter, *request = [part.bytes for part in parts]
        if not is_ours(request[3:4]):
            request[-1] = b""
        reply, refusal = self._reception.allowed.zap_reply(request)
        # Never blocks: libzmq puts no limit on this pipe.
        self._zap.socket.send_multipart([route, delimiter, *reply])
        if refusal is not None:
            self._reception.refuse_handshake(refusal, self._ground.loop.time())


def _proved_key(part: zmq.Frame) -> bytes:
    """The CURVE key that ZAP named for this connection; b"" matches no peer."""
    try:
        return bytes.fromhex(str(part.get("User-Id")))
    except (zmq.ZMQError, ValueError):
        return b""


def _descriptor(part: zmq.Frame) -> int:
    """Return the descriptor of the connection that a message came by, -1 if that is gone."""
    try:
        return int(part.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def _content(part: zmq.Frame) -> Buffer:
    """Small parts are copied out of their message; a view of a large one keeps it alive."""
    return part.bytes if len(part) < limits.ZERO_COPY_BYTES else part.buffer.toreadonly()
