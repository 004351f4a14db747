"""A simulated peer's part in meetings: a stand-in for the production dialler, without sockets.

It does what `links.dialler` does, as far as the coordinator sees it: each try takes time, and what
comes of it is for the routers to say.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from swarmtrain.simulate.checks.way_checks import WayChecks
from swarmtrain.simulate.ground.routers import Routers
from swarmtrain.simulate.ground.scene import Scene
from swarmtrain_transport import limits
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.links.ways import Side, Way
from swarmtrain_transport.wire.messages import (
    LOST,
    Carried,
    Carry,
    Carrying,
    CoordinatorMessage,
    Meet,
    Met,
    Part,
    PeerMessage,
    Place,
    Places,
    Welcome,
)

_DIAL_S = 0.3
_REFUSED = 0.5
"""Part of the tries that a router refuses at once; the others run out of time."""

_RATE = 10**6
MAPPED_PORT = 2


class Doorman(Protocol):
    """The coordinator's own port."""

    def takes(self, token: bytes, side: Side) -> Way | None:
        """Take a connection that brings a token."""

    def show(self, token: bytes, side: Side, host: str, port: int) -> None:
        """A connection has come from this address."""


class Dialling:
    """One process's.

    Args:
        peer: peer of that process.
        routers: routers of the world.
        scene: clock and chance.
        doorman: the coordinator's port.
        watch: looks on.
        later: lets the process do something later, if it still lives then.
        say: sends a control message.
    """

    def __init__(
        self,
        peer: PeerId,
        routers: Routers,
        scene: Scene,
        doorman: Doorman,
        watch: WayChecks,
        later: Callable[[float, Callable[[], object]], None],
        say: Callable[[PeerMessage], None],
    ) -> None:
        self._peer, self._routers, self._scene = peer, routers, scene
        self._doorman, self._watch, self._later, self._say = doorman, watch, later, say
        self._asked: dict[bytes, Meet] = {}
        self._standing: dict[bytes, Met] = {}
        self._carries: dict[bytes, set[Side]] = {}
        self._dialling: set[bytes] = set()

    def heard(self, message: CoordinatorMessage) -> bool:
        """Do this side's part; False if it is none."""
        match message:
            case Welcome():
                self.tell()
                return False
            case Meet():
                self._watch.asked(self._peer, message)
                deaf = self._routers.deaf
                if deaf.get(self._peer, 0) > 0:
                    deaf[self._peer] -= 1
                else:
                    self._meet(message)
            case Part():
                only = self._routers.only_way(message.token)
                self._watch.parted(self._peer, message.token, only)
                is_own = self._standing.pop(message.token, None) is not None
                self._asked.pop(message.token, None)
                self._carries.pop(message.token, None)
                self._routers.end(message.token, is_noticed=not is_own)
            case Carry() if self._routers.relays(self._peer):
                self._watch.carries(self._peer, message.token)
                self._carries[message.token] = set[Side]()
                self._say(Carried(message.token, 0, is_over=False))
            case Carry():
                pass
            case _:
                return False
        return True

    def tell(self) -> None:
        """Tell all that a coordinator has to know."""
        is_mapped, host = self._peer in self._routers.mapped, self._routers.remotes[self._peer]
        self._say(Places((Place("mapped", host, MAPPED_PORT),) if is_mapped else ()))
        if self._routers.relays(self._peer):
            self._say(Carrying(1, _RATE, -1))
        for met in self._standing.values():
            self._say(met)

    def lost(self, token: bytes) -> None:
        """Notice that a way is no more."""
        self._standing.pop(token, None)
        self._later(0.0, lambda: self._say(Met(token, False, LOST)))

    def doubt(self, token: bytes) -> None:
        """Say, as a receiver, that a way is no good."""
        self._say(Met(token, False, "no"))

    def _meet(self, asked: Meet) -> None:
        token, other, routers = asked.token, asked.peer, self._routers
        if asked.sends and routers.lets_in(self._peer, other):
            self._say(Met(token, True, peer=other, way=Way.DIALLED))
            return
        self._asked[token] = asked
        side = Side.SENDER if asked.sends else Side.RECEIVER
        self._later(limits.MEET_S, lambda: self._fail(asked))
        match asked.way:
            case Way.DIALLED:
                act = self._dials
            case Way.TURNED if asked.sends:
                return
            case Way.TURNED:
                act = self._turns
            case Way.PUNCHED if asked.port:
                act = self._punches
            case Way.PUNCHED:
                act = partial(self._shows, side)
            case _:
                act = partial(self._relays, side)
        self._later(_DIAL_S * (0.1 + self._scene.rng.random()), lambda: self._try(asked, act))

    def _try(self, asked: Meet, act: Callable[[Meet], bool]) -> None:
        is_over = self._asked.get(asked.token) is not asked
        if not is_over and not act(asked) and self._scene.rng.random() < _REFUSED:
            self._fail(asked)

    def _fail(self, asked: Meet) -> None:
        if self._asked.get(asked.token) is asked:
            del self._asked[asked.token]
            self._say(Met(asked.token, False, "timeout"))

    def _made(self, way: Way, token: bytes, relay: PeerId | None = None) -> None:
        """Send by a connection from now on."""
        asked = self._asked.pop(token)
        other = self._other(asked)
        if other is not None:
            del other._asked[token]
        self._routers.stand(token, (self._peer, asked.peer), way, relay)
        met = Met(token, True, peer=asked.peer, way=way)
        self._later(_DIAL_S * self._scene.rng.random(), lambda: self._confirm(met))

    def _confirm(self, met: Met) -> None:
        if self._routers.is_standing(met.token):
            self._standing[met.token] = met
            self._say(met)

    def _other(self, asked: Meet) -> "Dialling | None":
        """The other side, if it was asked the same."""
        other = self._routers.ends.get(asked.peer)
        assert other is None or isinstance(other, Dialling)
        return other if other is not None and asked.token in other._asked else None

    def _shows(self, side: Side, asked: Meet) -> bool:
        host, port = self._routers.remotes[self._peer], self._scene.rng.randrange(1024, 65536)
        self._doorman.show(asked.token, side, host, port)
        return True

    def _arrives(self, asked: Meet) -> bool:
        is_mapped = asked.port == MAPPED_PORT and asked.peer in self._routers.mapped
        return is_mapped or self._routers.lets_in(self._peer, asked.peer)

    def _dials(self, asked: Meet) -> bool:
        if not self._arrives(asked) or asked.peer not in self._routers.ends:
            return False
        self._made(Way.DIALLED, asked.token)
        return True

    def _turns(self, asked: Meet) -> bool:
        other = self._other(asked)
        if other is None or not self._arrives(asked):
            return False
        other._made(Way.TURNED, asked.token)
        return True

    def _punches(self, asked: Meet) -> bool:
        """Dial; the later of the two finds the other dialling."""
        self._dialling.add(asked.token)
        other = self._other(asked)
        if not self._routers.punches(self._peer, asked.peer):
            return False
        if other is not None and asked.token in other._dialling:
            (self if asked.sends else other)._made(Way.PUNCHED, asked.token)
        return True

    def _relays(self, side: Side, asked: Meet) -> bool:
        relay: PeerId | None = b""
        if not asked.host:
            if self._doorman.takes(asked.token, side) is not Way.RELAYED:
                return False
        else:
            relay = self._routers.at(asked.host)
            end = self._routers.ends.get(relay) if relay is not None else None
            if relay is None or not isinstance(end, Dialling):
                return False
            sides = end._carries.get(asked.token, {*Side})
            if side in sides or not self._routers.lets_in(self._peer, relay):
                return False
            sides.add(side)
        self._dialling.add(asked.token)
        other = self._other(asked)
        if other is not None and asked.token in other._dialling:
            (self if asked.sends else other)._made(Way.RELAYED, asked.token, relay)
        return True
