"""Two groups over real links, in memory and by ZeroMQ: all machines are those of production."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest

from swarmtrain_transport import actions as do
from swarmtrain_transport.links.link import Address, PeerId
from swarmtrain_transport.peer.local_peer import Card
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire.records import Commit, Record, bodies_of
from tests.transport.group_swarm import GroupMember, GroupSwarm
from tests.transport.links.link_rig import (
    RETRY_S,
    MemoryWorld,
    Scenario,
    Station,
    World,
    ZmqWorld,
    run_in,
)
from tests.transport.plain_arithmetic import PlainArithmetic
from tests.transport.rig import sign_as, verify
from tests.transport.swarm import Member

ROUNDS = 4


@pytest.fixture(params=[MemoryWorld, ZmqWorld], ids=["memory", "zmq"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    return lambda scenario: run_in(request.param, scenario)


class LinkedSwarm(GroupSwarm):
    """Swarm whose peers' frames go over the links of stations."""

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, **settings)
        self.stations: dict[PeerId, Station] = {}

    def enlist(self, station: Station, *groups: int) -> None:
        self.stations[station.id] = station
        self.add_to(station.id, *groups)

    def member_of(
        self, peer: PeerId, boot: bytes, records: Iterable[Record],
        arithmetic: PlainArithmetic | None,
    ) -> GroupMember:  # fmt: skip
        at: Address = self.stations[peer].address
        member = GroupMember(peer, boot, self.now_s)
        card = Card(peer, boot, "name", at.curve_key, at.host, max(1, at.port))
        member.machine = Participant(
            card, arithmetic or PlainArithmetic(), sign_as(peer), verify, list, records, self.now_s
        )
        return member

    def _carry(self, member: Member, actions: Iterable[do.PeerAction]) -> None:
        link = self.stations[member.peer].link
        for action in actions:
            match action:
                case do.SendFrame():
                    link.send(action.peer, action.frame)
                case do.AllowPeer():
                    link.allow(self.stations[action.address.peer_id].address)
                case _:
                    super()._carry(member, [action])

    def hear(self) -> bool:
        """Hand over what has come; whether anything had."""
        heard = False
        for peer, station in self.stations.items():
            frames, station.heard.frames = station.heard.frames, []
            for source, frame in frames:
                member = self.members[peer]
                self._carry(member, member.machine.frame(source, frame, self.now_s))
            heard = heard or bool(frames)
        while any(self.up.values()) or any(self.down.values()):
            self.step()
            heard = True
        return heard


async def settle(world: World) -> None:
    """Let what is under way arrive, as far as that needs waiting."""
    if isinstance(world, MemoryWorld):
        world.network.pump()
        return
    assert isinstance(world, ZmqWorld)
    with suppress(TimeoutError):
        async with asyncio.timeout(RETRY_S):
            await world._hear()


async def go_on(world: World, swarm: LinkedSwarm, is_there: Callable[[], bool]) -> None:
    for _ in range(4_000):
        if is_there():
            return
        if not swarm.hear():
            swarm.pass_time(0.1)
        await settle(world)
    raise AssertionError("it did not come to that")


@pytest.mark.parametrize("at_once", [1, 2])
def test_two_groups_train_over_a_link(run: Callable[[Scenario], None], at_once: int) -> None:
    async def scenario(world: World) -> None:
        swarm = LinkedSwarm(
            1, fragments=((16, 8), ()), at_once=at_once, rounds=ROUNDS, start_peers=2,
            min_contributors=2,
        )  # fmt: skip
        for name, groups in (("ada", (0,)), ("ben", (0, 1)), ("cat", (1,))):
            swarm.enlist(await world.add(name), *groups)
        await go_on(world, swarm, lambda: all(one.finished for one in swarm.members.values()))
        done = [body.group for body in bodies_of(swarm.records) if isinstance(body, Commit)]
        assert sorted(done) == [0] * ROUNDS + [1] * ROUNDS
        # Over sockets the kernel decides which group's frames come first, so one may be ahead.
        if isinstance(world, MemoryWorld):
            assert any(all(counts) for counts in swarm.most_under_way), "ops of both at once"
        assert not any(member.faults or member.halted for member in swarm.members.values())
        assert not any(station.heard.faults for station in swarm.stations.values())

    run(scenario)


@pytest.mark.parametrize("name", ["ada", "ben", "cat"])
def test_whoever_dies_comes_back_over_a_link_into_its_own_groups(
    run: Callable[[Scenario], None], name: str
) -> None:
    async def scenario(world: World) -> None:
        swarm = LinkedSwarm(1, rounds=ROUNDS, start_peers=2, min_contributors=2)
        of = {"ada": (0,), "ben": (0, 1), "cat": (1,)}
        ids = {}
        for peer, groups in of.items():
            station = await world.add(peer)
            ids[peer] = station.id
            swarm.enlist(station, *groups)
        views = swarm.hall.view.groups
        await go_on(world, swarm, lambda: all(view.committed >= 1 for view in views.values()))
        old = swarm.members[ids[name]]
        swarm.kill(old.peer)
        swarm.come_back(old)
        await go_on(world, swarm, lambda: all(one.finished for one in swarm.members.values()))
        assert tuple(swarm.members[old.peer].machine.groups) == of[name]
        assert not any(member.faults or member.halted for member in swarm.members.values())

    run(scenario)
