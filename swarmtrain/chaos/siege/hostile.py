"""A hostile member as a process: `python -m swarmtrain.chaos.siege.hostile NAME STATE_DIR`.

It is `swarmtrain join` in all that it does not lie about: its keys, door, lanes and machine are
those of production, and it trains. The invite comes as the first line of standard input and an
`Order` as each line after it, so that whoever drives it says when. On standard output it tells
what `join --json-events` tells, and how often it has offended.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from swarmtrain.chaos.siege.libzmq_attack import Backtalker, Flooder
from swarmtrain.chaos.siege.offences import Liar, Offence, Order
from swarmtrain.config.options import Endpoint, JoinOptions
from swarmtrain.foundation import events
from swarmtrain.foundation import signals as ending
from swarmtrain.foundation.errors import UserError
from swarmtrain.foundation.events import Event, Offended
from swarmtrain.peer.network.control import ControlClient
from swarmtrain.peer.network.shell import PeerShell
from swarmtrain.peer.run import run_peer
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.links.link import Address, Link, LinkStats, PeerId
from swarmtrain_transport.wire.frames import Frame
from swarmtrain_transport.wire.messages import (
    Applied,
    CoordinatorMessage,
    LeaseRequest,
    PeerMessage,
    Progress,
)

_HOST = "127.0.0.1"

_BEAT_S = 0.01
_FLOOD_PER_BEAT = 30
"""Messages: three thousand a second, as fast as a small machine can make them."""

_FLOOD_WAITING_MAX = 3000
"""Messages that may wait for a coordinator which takes them slowly. More would be cut off by our
own client, and then it is not the coordinator that has ended it."""

_KNOCK_EVERY_S = 5.0
_KNOCK_STAYS_S = 20.0
"""A key that was let in under a name stays for so long."""

_COUNT_EVERY_S = 0.5

_LOOK_S = 0.1
_SMALL_MESSAGES = 12
"""Ten fill the queue of a socket that nobody reads."""


class HostileShell(PeerShell):
    """A peer's network side that offends as it is told.

    Args:
        orders: lines of `Order`, read until its end.
        emit: puts out an event for programs.
    """

    def __init__(
        self, *args: Any, orders: BinaryIO, emit: Callable[[Event], None], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._orders = orders
        self._emit = emit
        self._liar = Liar()
        self._counted: Counter[str] = Counter()
        self._keys: list[str] = []
        self._is_silent = True
        self._knocked_s = self._counted_s = 0.0

    def _start_machine(self, *args: Any) -> None:
        super()._start_machine(*args)
        assert self._link is not None
        self._link = _LyingLink(self._link, self._passes, self._frame_later, self._is_own)
        self.spawn(self._hear())
        self.spawn(self._offend())

    # ---- between the machine and its lanes

    def send(self, message: PeerMessage) -> None:
        """Send what the liar makes of a control message."""
        told = self._liar.said(message, self._op, self._others)
        if told is not None:
            self._later(self._liar.delay_s(told, self._op), partial(super().send, told))

    def _passes(self, frame: Frame) -> bool:
        return self._liar.passes(frame.kind, self._op)

    def _frame_later(self, frame: Frame, send: Callable[[], object]) -> bool:
        """Have a frame sent later if it is to be; False if it is not."""
        delay_s = self._liar.delay_s(frame.kind, self._op)
        if delay_s:
            self._later(delay_s, send)
        return delay_s > 0

    def _later(self, delay_s: float, send: Callable[[], object]) -> None:
        if delay_s:
            self._loop.call_later(delay_s, send)
        else:
            send()

    def _is_own(self, peer: PeerId) -> bool:
        return peer.hex() in self._keys

    @property
    def _op(self) -> int:
        """The op that is under way, or comes next."""
        participant = self._participant
        if participant is None:
            return 0
        exchange = participant.first.exchange
        return participant.applied_op + 1 if exchange is None else exchange.view.plan.op

    @property
    def _others(self) -> list[PeerId]:
        """The other contributors of the op that is under way."""
        exchange = self._participant.first.exchange if self._participant is not None else None
        weights = exchange.view.weights if exchange is not None else {}
        return sorted(peer for peer in weights if peer != self._identity.peer_id)

    # ---- orders

    async def _hear(self) -> None:
        """Take orders until whoever gives them is gone."""
        reader = asyncio.StreamReader()
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._orders
        )
        with contextlib.closing(transport):
            while line := await reader.readline():
                self._liar.order = msgspec.json.decode(line, type=Order)

    # ---- deeds of its own

    async def _offend(self) -> None:
        """Do what is on, a little at every beat."""
        while True:
            now_s = self._now_s()
            if self._liar.is_on(Offence.FLOOD, self._op):
                self._flood()
            if now_s >= self._knocked_s + _KNOCK_EVERY_S and self._liar.is_on(
                Offence.SLOW_NAME, self._op
            ):
                self._knocked_s = now_s
                self.spawn(self._knock())
            if self._is_silent and self._liar.is_on(Offence.TALKBACK, self._op):
                self._is_silent = False
                self.spawn(self._talk_back())
            if now_s >= self._counted_s + _COUNT_EVERY_S:
                self._counted_s = now_s
                self._emit_counts()
            await asyncio.sleep(_BEAT_S)

    def _emit_counts(self) -> None:
        if self._liar.counts != self._counted:
            self._counted = self._liar.counts.copy()
            self._emit(Offended(self._counted, tuple(self._keys)))

    def _flood(self) -> None:
        """Requests that cost much to answer, reports of states that there are not, and progress."""
        control, counts = self._control, self._liar.counts
        if control is None or not control.is_up:
            return
        if control._outgoing.qsize() > _FLOOD_WAITING_MAX:  # no honest peer has to know it
            return
        for number in range(_FLOOD_PER_BEAT // 3):
            op = max(0, self._op - 1 - number)
            for message in (
                LeaseRequest(1), Applied(op, os.urandom(32)), Progress(-1, 0, 0, "flooding"),
            ):  # fmt: skip
                super().send(message)
                counts[Offence.FLOOD] += 1

    async def _knock(self) -> None:
        """Come in under a new key, to be dialled by a name that no server knows."""
        self._liar.counts[Offence.SLOW_NAME] += 1
        name = f"{os.urandom(6).hex()}.chaos.invalid"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KNOCK_STAYS_S):
                await self._come_in(Identity.create(), name, 1)

    async def _come_in(self, identity: Identity, host: str, port: int) -> None:
        """Be another member, that has no state, until this is cancelled or refused."""
        assert self._participant is not None
        self._keys.append(identity.peer_id.hex())
        hello = msgspec.structs.replace(
            self._participant.hello(), boot=os.urandom(8), name=identity.default_name,
            curve_key=identity.curve_key, host=host, port=port,
            head_index=-1, head_hash=b"", states=(),
        )  # fmt: skip
        client = ControlClient(self._invite, identity, lambda: hello, _Deaf(), rng=self._rng)
        with contextlib.suppress(UserError):
            await client.run()

    async def _talk_back(self) -> None:
        """Have all others dial a socket that fills their queues and resets, and do the same to
        theirs, as another member, so that this one's own part goes on."""
        assert self._participant is not None
        identity = Identity.create()
        stop = threading.Event()
        backtalker = Backtalker(identity)
        view, me = self._participant.view, self._identity.peer_id
        targets = [self._participant.address_of(peer) for peer in view.roster if peer != me]
        member = asyncio.ensure_future(
            self._come_in(identity, backtalker.address.host, backtalker.address.port)
        )
        attack = asyncio.to_thread(self._attack, identity, backtalker, targets, stop)
        attacking = asyncio.ensure_future(attack)
        try:
            while self._liar.is_on(Offence.TALKBACK, self._op):
                await asyncio.sleep(_LOOK_S)
        finally:
            stop.set()
            member.cancel()
            await asyncio.gather(member, attacking, return_exceptions=True)
            self._is_silent = True

    def _attack(
        self,
        identity: Identity,
        backtalker: Backtalker,
        targets: Sequence[Address],
        stop: threading.Event,
    ) -> None:
        """Runs on a thread of its own, as sockets that wait are no good for a loop."""
        with contextlib.ExitStack() as stack:
            hostile: list[Backtalker | Flooder] = [stack.enter_context(backtalker)]
            hostile += [stack.enter_context(Flooder(identity, target)) for target in targets]
            while not stop.is_set():
                for one in hostile:
                    if one.wait(1, _LOOK_S):
                        one.send(_SMALL_MESSAGES)
                        one.reset()
                        self._liar.counts[Offence.TALKBACK] += 1


class _LyingLink:
    """The real link, but for the frames that do not pass or pass later, and for members that we
    are ourselves: what these do to others must not hit us."""

    def __init__(
        self,
        link: Link,
        passes: Callable[[Frame], bool],
        is_later: Callable[[Frame, Callable[[], object]], bool],
        is_own: Callable[[PeerId], bool],
    ) -> None:
        self._link = link
        self._passes = passes
        self._is_later = is_later
        self._is_own = is_own

    @property
    def stats(self) -> LinkStats:
        """Counters of the real link."""
        return self._link.stats

    def allow(self, address: Address) -> None:
        """See the real link."""
        if not self._is_own(address.peer_id):
            self._link.allow(address)

    def warm(self, peers: Iterable[PeerId]) -> None:
        """See the real link."""
        self._link.warm(peers)

    def revoke(self, peer: PeerId) -> None:
        """See the real link."""
        self._link.revoke(peer)

    def send(self, peer: PeerId, frame: Frame) -> bool:
        """Send as the real link does, or as if it had gone."""
        if not self._passes(frame) or self._is_later(frame, partial(self._link.send, peer, frame)):
            return True
        return self._link.send(peer, frame)


class _Deaf:
    """A control lane of which nothing is wanted but that it stands."""

    def on_up(self, *, is_first: bool) -> None:
        """Nothing is said."""

    def on_down(self) -> None:
        """Nothing is missed."""

    def on_message(self, message: CoordinatorMessage) -> None:
        """Nothing is heard."""


def main() -> int:
    """Run until it is told to stop, or thrown out."""
    name, state_dir = sys.argv[1], Path(sys.argv[2])
    # Unbuffered, for what comes after the first line belongs to the network side.
    orders = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
    options = JoinOptions(
        invite=Invite.parse(orders.readline().decode().strip()), name=name,
        listen=Endpoint(_HOST, 0), state_dirs=(state_dir,), json_events=True,
    )  # fmt: skip

    def say(text: str) -> None:
        ending.tell(text, sys.stderr)

    try:
        make_shell = partial(HostileShell, orders=orders, emit=events.write)
        return run_peer(options, say=say, emit=events.write, make_shell=make_shell)
    except UserError as error:
        say(f"{error.code}: {error.what} {error.meaning}")
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
