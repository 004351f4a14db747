"""`swarmtrain relay`: passes bytes on between members of one run, and does nothing else.

It has no model, no ledger and no state: only a control lane, a port, and the tokens that the
coordinator names. Whoever brings another one is sent away.
"""

import asyncio
import os
import random
import socket
from collections.abc import Callable

from swarmtrain.config.options import Endpoint
from swarmtrain.console.units import human_bytes
from swarmtrain.peer.network.control import ControlClient
from swarmtrain_transport import limits
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.links.doorway import Doorway
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.relay import Relay
from swarmtrain_transport.links.zmq_sockets import listen, resolve
from swarmtrain_transport.wire.messages import (
    RELAY,
    Brings,
    Carried,
    Carry,
    Carrying,
    CoordinatorMessage,
    Hello,
    Part,
    Place,
    Places,
)

LOOK_S = 2.0
SAY_S = 60.0
"""Pause between two lines for people."""


class RelayProcess:
    """One process that relays.

    Args:
        invite: invite to the run.
        name: name shown to others.
        bytes_per_s: rate at which it passes on.
        daily: bytes that it passes on before it leaves, 0 for no limit.
        say: prints a line for people.
    """

    def __init__(
        self, invite: Invite, name: str, bytes_per_s: int, daily: int, say: Callable[[str], None]
    ) -> None:
        self._invite, self._say = invite, say
        self._rate, self._daily = bytes_per_s, daily
        self._identity = Identity.create()
        self._name = name or self._identity.default_name
        self._boot = os.urandom(8)
        self._port, self._places = 0, tuple[Place, ...]()
        self._moved = self._told = 0
        self._is_full = asyncio.Event()

    async def run(self, there: Endpoint, advertise: Endpoint | None, stop: asyncio.Event) -> None:
        """Relay until `stop` is set, or the day's bytes are moved.

        Raises:
            UserError: the coordinator cannot be reached or refuses.
            ListenFailed: nothing can be listened on.
        """
        loop = asyncio.get_running_loop()
        public = listen(there.host, await resolve(there.host, there.port), there.port)
        public.setblocking(False)
        self._port = advertise.port if advertise is not None else public.getsockname()[1]
        if advertise is not None:
            self._places = (Place("told", advertise.host, advertise.port),)
        self._relay = Relay(loop, self._carried, TokenBucket(self._rate, loop.time()))
        doorway = Doorway(loop, lambda far: far.close(), self._relay.greeted, lambda: None)
        self._control = ControlClient(
            self._invite, self._identity, self._hello, self, rng=random.Random(), waits=True
        )
        loop.add_reader(public, lambda: _accept(public, doorway))
        ends = [
            asyncio.ensure_future(part)
            for part in (
                stop.wait(), self._is_full.wait(), self._look(), self._control.run()
            )
        ]  # fmt: skip
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            await self._control.close()
            for one in ends:
                one.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            loop.remove_reader(public)
            public.close()
            doorway.close()
            self._relay.close()
        self._say(f"Passed on {human_bytes(self._moved)}.")

    # ---- ControlHandler

    def on_up(self, *, is_first: bool) -> None:
        """The knock was sent."""
        if is_first:
            self._say(f"Relaying for {self._invite.run}, {human_bytes(self._rate)}/s at most.")

    def on_down(self) -> None:
        """The control lane went away: what is carried goes on."""

    def on_message(self, message: CoordinatorMessage) -> None:
        """Take what the coordinator says: tokens that are to be expected, or are void."""
        match message:
            case Carry():
                self._relay.expect(message.token)
            case Part():
                self._relay.part(message.token)
            case _:  # the first words: we are in
                self._tell()

    def _hello(self) -> Hello:
        host = self._places[0].host if self._places else ""
        return Hello(
            self._boot, self._name, self._identity.curve_key, host, self._port, -1, b"", 0,
            brings=Brings(run=self._invite.run, model=RELAY),
        )  # fmt: skip

    def _tell(self) -> None:
        left = max(0, self._daily - self._moved) if self._daily else -1
        self._control.send(Places(self._places))
        self._control.send(Carrying(self._port, self._rate, left))

    def _carried(self, token: bytes, num_bytes: int, is_over: bool) -> None:
        self._moved += num_bytes
        self._control.send(Carried(token, num_bytes, is_over))
        if self._daily and self._moved >= self._daily:
            self._is_full.set()

    async def _look(self) -> None:
        said_s = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(LOOK_S)
            self._relay.look()
            now_s = asyncio.get_running_loop().time()
            if now_s >= said_s + SAY_S and self._moved > self._told:
                said_s, self._told = now_s, self._moved
                self._say(f"{human_bytes(self._moved)} passed on, {len(self._relay)} ways now.")


def _accept(public: socket.socket, doorway: Doorway) -> None:
    for _ in range(limits.CELL_PEERS_MAX):
        try:
            far, _ = public.accept()
        except OSError:
            return
        doorway.enter(far)
