"""Ways between peers that cannot be dialled: each carries frames, and ends when it should.

Peers tell ports at which nobody listens. The test is the coordinator: it draws tokens, and has a
port at which it sees from where somebody comes, and relays.
"""

import asyncio
import gc
import secrets
import socket
import struct
import warnings
from collections.abc import Callable, Coroutine
from contextlib import closing

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.links.dialler import Dialler
from swarmtrain_transport.links.doorway import Doorway
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.relay import Relay
from swarmtrain_transport.links.tcp import can_tell
from swarmtrain_transport.links.ways import PREAMBLE_BYTES, Preamble, Side, Way
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.wire.messages import LOST, Meet, Met
from tests.transport.links.link_rig import Station, ZmqWorld, noise, part, reach, run_in


class Home:
    """A peer whose port nobody can dial, as far as the others are told."""

    def __init__(self, station: Station, town: "Town") -> None:
        assert isinstance(station.link, ZmqLink)
        self.station, self.link = station, station.link
        self.met: list[Met] = []
        loop = asyncio.get_running_loop()
        self.dialler = Dialler(loop, self.link, lambda: town.address, self._tell)
        self.link.greet = self.dialler.greeted
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            self.told = Address(
                station.id, station.address.curve_key, "127.0.0.1", silent.getsockname()[1]
            )

    def _tell(self, met: Met) -> None:
        self.met.append(met)
        self.station.heard.heard.set()

    @property
    def link_address(self) -> tuple[str, int]:
        """Where it really listens."""
        return self.link.address.host, self.link.address.port

    def is_up(self, token: bytes) -> bool:
        return any(met.token == token and met.is_up for met in self.met)


class Town:
    """The world's stations, and the coordinator's port."""

    def __init__(self, world: ZmqWorld, gate: TokenBucket | None = None) -> None:
        self.world = world
        self.homes: list[Home] = []
        self.carried: list[tuple[bytes, int, bool]] = []
        self.seen: dict[tuple[bytes, Side], tuple[str, int]] = {}
        self.refused = 0
        loop = asyncio.get_running_loop()
        self.relay = Relay(loop, lambda *told: self.carried.append(told), gate)
        self.is_relay = False
        self._shown: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = self._listener.getsockname()
        self.doorway = Doorway(loop, lambda far: far.close(), self._greet, self._refuse)
        loop.add_reader(self._listener, self._accept)

    async def add(self, name: str) -> Home:
        home = Home(await self.world.add(name), self)
        for other in self.homes:
            for one, there in ((home, other), (other, home)):
                one.link.allow(there.told)
                one.link.warm((there.station.id,))
        self.homes.append(home)
        return home

    def _accept(self) -> None:
        self.doorway.enter(self._listener.accept()[0])

    def _refuse(self) -> None:
        self.refused += 1

    def _greet(self, preamble: Preamble, far: socket.socket) -> bool:
        if self.is_relay:
            return self.relay.greeted(preamble, far)
        self.seen[preamble.token, preamble.side] = far.getpeername()
        self._shown.append(far)
        for home in self.homes:
            home.station.heard.heard.set()
        return True

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        for one in (self._listener, *self._shown):
            one.close()
        self.doorway.close()
        self.relay.close()
        for home in self.homes:
            home.dialler.close()


Story = Callable[[Town, Home, Home], Coroutine[None, None, None]]


def between_two(story: Story, gate: TokenBucket | None = None) -> None:
    async def scenario(world: ZmqWorld) -> None:
        with closing(Town(world, gate)) as town:
            await story(town, await town.add("ada"), await town.add("ben"))

    run_in(ZmqWorld, scenario)


async def meet(town: Town, sender: Home, receiver: Home, way: Way) -> bytes:
    """Arrange a meeting as the coordinator does; returns its token once the way stands."""
    token = secrets.token_bytes(32)
    to, by = receiver.station.id, sender.station.id
    if way is Way.TURNED:
        sender.dialler.meet(Meet(token, to, True, way))
        receiver.dialler.meet(Meet(token, by, False, way, *sender.link_address))
    elif way is Way.PUNCHED:
        sender.dialler.meet(Meet(token, to, True, way))
        receiver.dialler.meet(Meet(token, by, False, way))
        sides = [(token, side) for side in Side]
        await town.world.until(lambda: all(side in town.seen for side in sides))
        sender.dialler.meet(Meet(token, to, True, way, *town.seen[token, Side.RECEIVER]))
        receiver.dialler.meet(Meet(token, by, False, way, *town.seen[token, Side.SENDER]))
    else:
        town.is_relay = True
        town.relay.expect(token)
        sender.dialler.meet(Meet(token, to, True, way))
        receiver.dialler.meet(Meet(token, by, False, way))
    await town.world.until(lambda: sender.is_up(token))
    return token


MADE = [Way.TURNED, Way.PUNCHED, Way.RELAYED]


@pytest.mark.parametrize("way", MADE)
def test_frames_go_whole_and_in_order_by_each_way(way: Way) -> None:
    async def story(town: Town, ada: Home, ben: Home) -> None:
        assert ada.link.unreached(0.0) == (ben.station.id,)
        await meet(town, ada, ben, way)
        assert ada.link.ways() == {ben.station.id: way}
        assert ada.link.unreached(0.0) == ()
        bodies = [noise(200_000, seed) for seed in range(20)]
        for number, body in enumerate(bodies):
            assert ada.link.send(ben.station.id, part(number, body))
        heard = ben.station.heard
        await town.world.until(lambda: len(heard.frames) == len(bodies))
        assert heard.chunks_from(ada.station.id) == list(range(len(bodies)))
        assert [bytes(frame.body) for _, frame in heard.frames] == bodies
        assert ben.link.unreached(0.0) == (ada.station.id,)  # the other direction is its own

    between_two(story)


@pytest.mark.parametrize("way", MADE)
def test_tcp_s_counts_are_those_of_the_connection_to_the_network(way: Way) -> None:
    async def story(town: Town, ada: Home, ben: Home) -> None:
        await meet(town, ada, ben, way)
        for number in range(10):
            ada.link.send(ben.station.id, part(number, noise(100_000, number)))
        await town.world.until(lambda: len(ben.station.heard.frames) == 10)
        if ada.link.acknowledged() is None:
            return  # this system does not tell
        peer, count = ben.station.id, 1_000_000
        await town.world.repeat(lambda: None, lambda: ada.link.acknowledged().get(peer, 0) > count)
        assert ada.link.acknowledged()[peer] < 1.1 * count
        assert ada.link.paths()[peer]

    between_two(story)


@pytest.mark.parametrize("way", MADE)
def test_a_way_that_breaks_is_told_and_another_one_carries_on(way: Way) -> None:
    async def story(town: Town, ada: Home, ben: Home) -> None:
        token = await meet(town, ada, ben, way)
        await reach(town.world, ada.station, ben.station)
        for connection in list(ben.link._proxy._connections.values()):
            connection.cut()
        for home in (ada, ben):  # the receiver knows at once, where a router has forgotten it
            await town.world.until(lambda home=home: Met(token, False, LOST) in home.met)
            assert Met(token, False, LOST) in home.dialler.standing(), "again after WELCOME"
            assert not home.dialler.standing()
        assert ada.link.unreached(0.0) == (ben.station.id,)
        await meet(town, ada, ben, Way.TURNED)
        await reach(town.world, ada.station, ben.station)

    between_two(story)


def test_the_best_of_several_ways_is_taken_and_what_is_parted_from_ends() -> None:
    async def story(town: Town, ada: Home, ben: Home) -> None:
        peer = ben.station.id
        tokens = {way: await meet(town, ada, ben, way) for way in (Way.PUNCHED, Way.RELAYED)}
        assert ada.link.ways()[peer] is Way.PUNCHED
        ada.dialler.part(tokens[Way.PUNCHED])
        assert ada.link.ways()[peer] is Way.RELAYED
        assert ben.dialler.heard_by_relay() == (ada.station.id,) != ada.dialler.heard_by_relay()
        await reach(town.world, ada.station, ben.station)
        ada.link.redial(peer, "127.0.0.1", ben.link.address.port)
        await town.world.repeat(
            lambda: ada.link.send(peer, part(1)), lambda: ada.link.ways()[peer] is Way.DIALLED
        )

    between_two(story)


def test_a_relay_takes_little_in_ahead_where_both_are_near() -> None:
    async def story(town: Town, ada: Home, ben: Home) -> None:
        await meet(town, ada, ben, Way.RELAYED)
        await reach(town.world, ada.station, ben.station)
        town.relay.look()
        ends = [far for pair in town.relay._carried.values() for far in pair._ends.values()]
        taken = [far.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for far in ends]
        assert len(taken) == 2
        if can_tell():
            assert max(taken) <= 2 * limits.RELAY_NEAR_BYTES

    between_two(story)


def test_a_connection_that_is_reset_at_once_leaves_nothing_behind() -> None:
    # Found in a run of 48 peers: half of the way stayed, and took a connection that was closed.
    async def story(town: Town, ada: Home, ben: Home) -> None:
        failed, told = list[object](), list[bool]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failed.append(context))
        with socket.create_server(("127.0.0.1", 0)) as server:
            for _ in range(5):
                near = socket.create_connection(server.getsockname())
                far, _ = server.accept()
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                near.close()
                ada.link.send_by(ben.station.id, far, Way.TURNED, bytes(32), told.append)
        await town.world.repeat(lambda: None, lambda: len(told) == 5)
        await meet(town, ada, ben, Way.TURNED)
        assert told == [False] * 5 and not failed

    between_two(story)


def test_who_loses_a_plain_connection_tells_once() -> None:
    async def story(town: Town, ada: Home, ben: Home) -> None:
        peer, told = ben.station.id, Met(b"", False, LOST, ben.station.id, Way.DIALLED)
        ada.link.redial(peer, "127.0.0.1", ben.link.address.port)
        await town.world.repeat(
            lambda: ada.dialler.look(), lambda: ada.link.ways()[peer] is Way.DIALLED
        )
        ada.dialler.look()
        assert told not in ada.met
        ada.link.redial(peer, "127.0.0.1", 9)
        await town.world.until(lambda: ada.link.ways()[peer] is None)
        for _ in range(3):
            ada.dialler.look()
        assert ada.met.count(told) == 1

    between_two(story)


def test_another_address_is_dialled_until_that_is_given_up() -> None:
    async def story(town: Town, ada: Home, ben: Home) -> None:
        peer, token = ben.station.id, secrets.token_bytes(32)
        ada.dialler.meet(Meet(token, peer, True, Way.DIALLED, *ben.link_address))
        await town.world.until(lambda: ada.is_up(token))
        assert ada.link.ways()[peer] is Way.DIALLED
        await reach(town.world, ada.station, ben.station)
        ada.dialler.part(token)
        await town.world.until(lambda: ada.link.ways()[peer] is None)

    between_two(story)


def test_a_token_is_good_for_one_connection_of_the_side_that_it_was_given_to() -> None:
    async def story(town: Town, ada: Home, ben: Home) -> None:
        token = secrets.token_bytes(32)
        ada.dialler.meet(Meet(token, ben.station.id, True, Way.TURNED))
        assert not await is_kept(ada, Preamble(Side.SENDER, token).encode())
        assert not await is_kept(ada, Preamble(Side.RECEIVER, bytes(32)).encode())
        ben.dialler.meet(Meet(token, ada.station.id, False, Way.TURNED, *ada.link_address))
        await town.world.until(lambda: ada.is_up(token))
        assert not await is_kept(ada, Preamble(Side.RECEIVER, token).encode())
        assert ada.link.stats.refused["preamble"] == 3

    between_two(story)


async def is_kept(home: Home, said: bytes) -> bool:
    """True if a stranger who says this is not sent away, and nothing is ever answered."""
    reader, writer = await asyncio.open_connection(*home.link_address)
    writer.write(said)
    answer = await reader.read(64)
    writer.close()
    assert answer == b""
    return False


@pytest.mark.parametrize(
    "said",
    [b"\0", b"\0swarm", b"\0" * PREAMBLE_BYTES, b"\0swarm\x02\x01" + bytes(32),
     b"\0swarm\x01\x03" + bytes(32)],
    ids=["cut", "magic", "nothing", "version", "side"],
)  # fmt: skip
def test_whoever_says_no_preamble_is_sent_away_unanswered(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PREAMBLE_S", 0.2)

    async def story(town: Town, ada: Home, ben: Home) -> None:
        assert not await is_kept(ada, said)
        assert ada.link.stats.refused["preamble"] == 1

    between_two(story)


def test_a_flood_of_strangers_keeps_few_and_lets_members_in() -> None:
    async def story(town: Town, ada: Home, ben: Home) -> None:
        opened = [await asyncio.open_connection(*ada.link_address) for _ in range(300)]
        for _, writer in opened:
            writer.write(b"\0sw")
        await town.world.repeat(
            lambda: None, lambda: ada.link.stats.refused.get("preamble", 0) >= 300 - 128
        )
        assert len(ada.link._proxy._doorway) <= limits.LINK_UNHEARD_MAX
        await meet(town, ada, ben, Way.TURNED)
        await reach(town.world, ada.station, ben.station)
        for _, writer in opened:
            writer.close()

    between_two(story)


def test_a_meeting_to_which_nobody_comes_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEET_S", 0.2)

    async def story(town: Town, ada: Home, ben: Home) -> None:
        peer, dead = ben.station.id, ben.told
        for number, (way, sends, there) in enumerate([
            (Way.TURNED, True, ()), (Way.TURNED, False, (dead.host, dead.port)),
            (Way.RELAYED, True, (dead.host, dead.port)), (Way.PUNCHED, True, ()),
        ]):  # fmt: skip
            token = bytes([number]) * 32
            ada.dialler.meet(Meet(token, peer, sends, way, *there))
            await town.world.until(lambda count=number + 1: len(ada.met) == count)
            assert ada.met[-1].token == token
            assert not ada.met[-1].is_up
        assert len(ada.dialler) == 0

    between_two(story)


def test_what_a_relay_moves_is_counted_and_it_cannot_read_or_change_it() -> None:
    async def story(town: Town, ada: Home, ben: Home) -> None:
        token = await meet(town, ada, ben, Way.RELAYED)
        ada.link.send(ben.station.id, part(1, noise(500_000)))
        await town.world.until(lambda: len(ben.station.heard.frames) == 1)
        town.relay.look()
        assert 500_000 < sum(moved for one, moved, _ in town.carried if one == token) < 600_000
        town.relay.part(token)
        ben.dialler.part(token)
        assert not ben.dialler.heard_by_relay()
        await town.world.until(lambda: Met(token, False, "lost") in ada.met)
        assert town.carried[-1][2]
        assert len(town.relay) == 0

    between_two(story)


def test_a_meeting_that_is_given_up_before_its_part_has_begun_leaves_nothing_behind() -> None:
    async def story(town: Town, ada: Home, ben: Home) -> None:
        token = secrets.token_bytes(16)
        ada.dialler.meet(Meet(token, ben.station.id, True, Way.RELAYED))
        ada.dialler.part(token)
        await asyncio.sleep(0)
        gc.collect()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        between_two(story)
    assert not [one for one in told if "never awaited" in str(one.message)]
