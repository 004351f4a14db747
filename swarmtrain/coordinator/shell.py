"""The shell around the coordinator's machine: carries out its actions, records before messages.

All of it runs on one event loop, and every call runs to its end without awaiting, so nothing can
come between a record that was made durable and the messages that follow from it. The records of an
event therefore block the loop for one fsync; a round has a handful of them. Messages are queued per
peer and sent by that peer's own task, so a slow peer delays nobody; one whose queue overflows is
cut off.

When the store cannot keep a record, the shell stops for good: nothing is sent after that, and the
next start goes on from what is on the disk.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

from swarmtrain.coordinator.disk.store_errors import StoreLost
from swarmtrain.foundation.errors import cleaned
from swarmtrain_transport.actions import Adopt, Append, CoordinatorAction, SendToPeer
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.coordinator.status import CoordinatorStatus
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.links.ways import Side
from swarmtrain_transport.wire.messages import (
    RELAY,
    CoordinatorMessage,
    Hello,
    Image,
    Listens,
    PeerMessage,
    Records,
    Refused,
    StandsBy,
    Waiting,
    encode,
)
from swarmtrain_transport.wire.records import Record

logger = logging.getLogger(__name__)

OUTLET_MESSAGES_MAX = 4096
"""Messages waiting for one peer: the hashes of every slice of an op and the records of one."""

AT_HAND_BYTES = 16 << 20
"""Encoded messages that are kept for others who are sent the same: an image of a crowd, and the
newest records."""

OUTLET_BYTES_MAX = 64 << 20
"""Bytes waiting for one peer: its window of records, and the hashes of an op's slices."""


BROKEN = "The peer %s broke the protocol and is cut off: %s"
UNREAD = "The peer %s does not read what it is sent and is cut off."


Keep = Callable[[*tuple[Record, ...]], None]
"""Makes records durable before it returns, all or none (`Store.append`)."""

Addresses = tuple[tuple[str, int], ...]
"""Hosts and ports."""


class Outlet:
    """Queue of letters that wait to be sent to one connection.

    Args:
        abort: cuts the connection at once, without sending the rest.
    """

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self.was_in = False
        """True for a peer that needed no invite, as it was let in before."""
        self.told = ""
        """Text last sent to this connection about what the run waits for."""
        self.others: Addresses = ()
        """Coordinators that stand by, as last told to this connection."""
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting_bytes = 0
        self.is_heard = False
        """True once the peer has said something after HELLO."""
        self.welcome_bytes = 0
        """Bytes that it was to be sent before that."""
        self._is_closing = False

    def put(self, data: bytes) -> bool:
        """Queue a message; False when the peer does not drain its queue."""
        if self._is_closing:
            return True
        full = self._waiting.qsize() >= OUTLET_MESSAGES_MAX
        if full or self._waiting_bytes + len(data) > OUTLET_BYTES_MAX:
            return False
        self._waiting_bytes += len(data)
        if not self.is_heard:
            self.welcome_bytes += len(data)
        self._waiting.put_nowait(data)
        return True

    def finish(self) -> None:
        """Close the connection after what is queued. Later messages are dropped."""
        if not self._is_closing:
            self._is_closing = True
            self._waiting.put_nowait(None)

    def refuse(self, code: str, text: str) -> None:
        """Tell the peer why, then close its connection."""
        self.put(encode(Refused(code, text)))
        self.finish()

    def abort(self) -> None:
        """Cut the connection now."""
        self.finish()
        self._abort()

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes that are queued and not sent yet."""
        return self._waiting_bytes

    async def next(self) -> bytes | None:
        """The next message to send, None when it is time to close."""
        data = await self._waiting.get()
        self._waiting_bytes -= len(data or b"")
        return data


class Shell:
    """Feeds the machine and does what it asks for.

    Args:
        keep: makes records durable.
        adopt: the same with records of earlier lives, and the new term (`Store.adopt`).
        clock: monotonic seconds, the machine's `now_s`.
    """

    def __init__(
        self,
        machine: Rendezvous,
        keep: Keep,
        adopt: Callable[[tuple[Record, ...], int], None],
        *,
        roster: Callable[[], Collection[PeerId]],
        clock: Callable[[], float],
    ) -> None:
        self.machine = machine
        self._keep = keep
        self._adopt = adopt
        self._roster = roster
        self._clock = clock
        self._outlets: dict[PeerId, Outlet] = {}
        self._guests: dict[PeerId, Outlet] = {}
        """Peers that would take a place, and were in no roster when it was looked at last."""
        self._at_hand: dict[int, tuple[CoordinatorMessage, bytes]] = {}
        self._bytes_at_hand = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[None] = self._loop.create_future()
        """Ends with the error that stopped the shell for good."""
        self.finished = asyncio.Event()
        """Set when the last op is committed and nobody is in any more."""

    # ---- events

    def start(self) -> None:
        """Begin the machine's life."""
        self._step(lambda now_s: self.machine.start(now_s))

    def connect(
        self, peer: PeerId, outlet: Outlet, hello: Hello, invite_id: str, remote: str = ""
    ) -> None:
        """The peer came through the door; an older connection of it is cut."""
        older = self._outlets.get(peer)
        self._outlets[peer], outlet.was_in = outlet, not invite_id
        if hello.brings.model != RELAY:
            self._guests[peer] = outlet
        if older is not None:
            older.abort()
        self._step(
            lambda now_s: self.machine.connected(
                peer, hello, now_s, invite_id=invite_id, remote=remote
            ),
            peer,
        )

    def is_elsewhere(self, peer: PeerId, boot: bytes) -> bool:
        """Return True if another process of the peer is connected, and was heard just now."""
        if peer not in self._outlets:
            return False
        return self.machine.is_elsewhere(peer, boot, self.now_s())

    def receive(self, peer: PeerId, outlet: Outlet, message: PeerMessage) -> RemoteFault | None:
        """A message of the peer. One of a connection that was replaced is dropped. How it broke the
        protocol, if it did."""
        if self._outlets.get(peer) is not outlet:
            return None
        return self._step(lambda now_s: self.machine.received(peer, message, now_s), peer)

    def disconnect(self, peer: PeerId, outlet: Outlet) -> bool:
        """The connection ended. False when it had been replaced by a newer one."""
        if self._outlets.get(peer) is not outlet:
            return False
        del self._outlets[peer]
        self._guests.pop(peer, None)
        self._step(lambda now_s: self.machine.disconnected(peer, now_s))
        return True

    def dialled(self, peer: PeerId, *, is_open: bool) -> None:
        """A connection to the address that a peer tells was tried from here."""
        self._step(lambda now_s: self.machine.dialled(peer, is_open=is_open, now_s=now_s))

    def mirrored(self, token: bytes, side: Side, host: str, port: int) -> None:
        """A side of a meeting came to our own port, from this address."""
        self._step(lambda now_s: self.machine.mirrored(token, side, host, port, now_s))

    def obey(self, decide: Callable[[float], tuple[CoordinatorAction, ...]]) -> None:
        """Have the machine carry out an order that somebody gives on this computer."""
        self._step(decide)

    def stop(self) -> None:
        """Close every connection after what is queued. Peers train on and look for a restart."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for outlet in self._outlets.values():
            outlet.finish()

    def inform(self, text: str, seen_s: float | None) -> None:
        """Tell every connection, once, what the run waits for; "" when it goes on."""
        for outlet in self._outlets.values():
            if outlet.told != text:
                outlet.told = text
                outlet.put(encode(Waiting(text, seen_s)))

    def spread(self, others: Addresses) -> None:
        """Tell every connection, once, which coordinators stand by."""
        for outlet in self._outlets.values():
            if outlet.others != others:
                outlet.others = others
                outlet.put(encode(StandsBy(others)))

    # ---- questions

    @property
    def has_failed(self) -> bool:
        """True if the shell stopped for good."""
        return self.failure.done()

    @property
    def num_lines(self) -> int:
        """Number of connections."""
        return len(self._outlets)

    def others_in(self, peer: PeerId, by_invite: bool) -> int:
        """Count the peers other than this one that are in, or wait to come in: a coordinator that
        has just started lets nobody new in for some seconds. A peer of the roster has a place, and
        one that has no JOIN yet takes none of theirs."""
        roster = self._roster()
        if peer in roster:
            return len(roster) - 1
        for one in [guest for guest in self._guests if guest in roster]:
            del self._guests[one]  # it has its JOIN by now
        waiting = (outlet for one, outlet in self._guests.items() if one != peer)
        return len(roster) + sum(by_invite or outlet.was_in for outlet in waiting)

    def outlook(self) -> CoordinatorStatus:
        """The run without its peers, now."""
        return self.machine.outlook(self._clock())

    def now_s(self) -> float:
        """The shell's monotonic clock."""
        return self._clock()

    def fail(self, error: Exception) -> None:
        """Stop for good: something beside the machine's own records could not be kept."""
        if not self.has_failed and not self._is_stopped:
            self._fail(error)

    # ---- carrying out

    def _step(
        self,
        decide: Callable[[float], tuple[CoordinatorAction, ...]],
        peer: PeerId | None = None,
    ) -> RemoteFault | None:
        broken = None
        if self.has_failed or self._is_stopped:
            return None
        try:
            try:
                actions = decide(self._clock())
            except RemoteFault as fault:
                if peer is None:
                    raise
                broken = fault
                logger.warning(BROKEN, peer.hex()[:8], fault)
                outlet = self._outlets.get(peer)
                if outlet is not None:
                    outlet.refuse("SWT-E501", cleaned(str(fault)))
                actions = ()
            self._carry_out(actions)
        except Exception as exc:
            # A record that is not kept, or a bug: either way the machine no longer knows what
            # the disk knows, and only a restart brings them together again.
            self._fail(exc)
            return None
        self._arm_timer()
        if self.machine.is_finished and not self._roster():
            self.finished.set()
        return broken

    def _carry_out(self, actions: tuple[CoordinatorAction, ...]) -> None:
        self._make_durable(actions)
        encoded: dict[int, bytes] = {}
        for action in actions:
            if isinstance(action, Append | Adopt):
                continue
            outlet = self._outlets.get(action.peer)
            if outlet is None:
                continue
            if isinstance(action, SendToPeer):
                # The same message often goes to everybody; `actions` keeps it, and its id, alive.
                key = id(action.message)
                if key not in encoded:
                    encoded[key] = self._encoded(action.message)
                if not outlet.put(encoded[key]):
                    logger.warning(UNREAD, action.peer.hex()[:8])
                    outlet.abort()
            else:
                outlet.finish()

    def _make_durable(self, actions: tuple[CoordinatorAction, ...]) -> None:
        """Keep the records of an event: as many as follow on each other with one fsync."""
        records: list[Record] = []
        for action in actions:
            if isinstance(action, Append):
                records.append(action.record)
            elif isinstance(action, Adopt):
                if records:
                    self._keep(*records)
                    records.clear()
                logger.warning(
                    "A peer has brought %d decisions of an earlier life.", len(action.records)
                )
                self._adopt(action.records, action.term)
        if records:
            self._keep(*records)

    def _encoded(self, message: CoordinatorMessage) -> bytes:
        """Encode a message. Those that many peers are sent, at different times, are kept for a
        while as the objects that they are."""
        if not isinstance(message, Records | Image | Listens):
            return encode(message)
        known = self._at_hand.pop(id(message), None)
        if known is None:
            known = message, encode(message)
            self._bytes_at_hand += len(known[1])
        self._at_hand[id(message)] = known
        while self._bytes_at_hand > AT_HAND_BYTES:
            _, data = self._at_hand.pop(next(iter(self._at_hand)))
            self._bytes_at_hand -= len(data)
        return known[1]

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wakeup_s = self.machine.next_wakeup_s
        if wakeup_s is not None:
            self._timer = self._loop.call_later(max(0.0, wakeup_s - self._clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._step(lambda now_s: self.machine.tick(now_s))

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, StoreLost):  # which is no end where coordinators share a store
            logger.error("The coordinator stops: %s", error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.failure.set_exception(error)
        for outlet in tuple(self._outlets.values()):
            outlet.abort()
