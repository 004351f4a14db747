"""The coordinator's port as a place to meet: peers see here how they look, and may be passed on.

A connection that begins with a preamble (`links.ways`) is no member's control lane. The machine
says what its token is for. Nothing is answered, and nothing is read of it but the preamble.
"""

import asyncio
import socket

from swarmtrain.coordinator.shell import Shell
from swarmtrain_transport import limits
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.relay import Relay
from swarmtrain_transport.links.ways import Preamble, Way

SHOWN_S = 2 * limits.MEET_S
"""A connection that shows how a peer looks stays for so long: as it ends, the router may forget."""

LOOK_S = 2.0


class MeetingPlace:
    """Takes connections for meetings.

    Args:
        shell: shell of the machine that knows what each token is for.
        relay_bytes_per_s: rate at which bytes are passed on, 0 for not at all.
    """

    def __init__(self, shell: Shell, relay_bytes_per_s: int) -> None:
        self._shell = shell
        self._loop = asyncio.get_running_loop()
        gate = TokenBucket(relay_bytes_per_s, self._loop.time()) if relay_bytes_per_s else None
        self._relay = Relay(self._loop, self._carried, gate)
        self._relays = relay_bytes_per_s > 0
        self._shown: dict[socket.socket, asyncio.TimerHandle] = {}
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def greet(self, preamble: Preamble, far: socket.socket) -> bool:
        """Take a connection by its preamble; False if nobody expects it."""
        token, side = preamble.token, preamble.side
        match self._shell.machine.takes(token, side):
            case Way.PUNCHED:
                try:
                    host, port = far.getpeername()[:2]
                except OSError:
                    return False
                self._shown[far] = self._loop.call_later(SHOWN_S, self._forget, far)
                self._shell.mirrored(token, side, plain(host), port)
                return True
            case Way.RELAYED if self._relays:
                self._relay.expect(token)
                return self._relay.greeted(preamble, far)
        return False

    def part(self, token: bytes) -> None:
        """End what is passed on for a token."""
        self._relay.part(token)

    def close(self) -> None:
        """End all."""
        self._timer.cancel()
        self._relay.close()
        for far, timer in self._shown.items():
            timer.cancel()
            far.close()

    def _forget(self, far: socket.socket) -> None:
        del self._shown[far]
        far.close()

    def _carried(self, token: bytes, num_bytes: int, is_over: bool) -> None:
        self._shell.machine.carried(num_bytes)

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        self._relay.look()


def plain(host: str) -> str:
    """An address as people write it: a listener for both families sees IPv4 as ::ffff:1.2.3.4."""
    return host.removeprefix("::ffff:") if "." in host else host
