"""Peers hold the history for each other: gaps, freed disks, a coordinator that has lost it."""

import pytest

from swarmtrain.simulate.faults.plan import Fault
from swarmtrain.simulate.processes.peer import PeerDisk
from swarmtrain.simulate.world import World
from swarmtrain_transport import limits
from swarmtrain_transport.peer.ledger_copy import ranges_of

ROUNDS = 14


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_EVERY_BYTES", 2500)
    monkeypatch.setattr(limits, "RECORDS_BATCH_BYTES", 1000)
    monkeypatch.setattr(limits, "LEDGER_MEMORY_BYTES", 1000)
    monkeypatch.setattr(limits, "HISTORY_ASK_S", 2.0)


def ended(world: World) -> World:
    world.run()
    assert not world.violations, world.violations
    whole = world.swarm.coordinator.disk
    for peer in world.swarm.survivors:
        assert peer.machine.ledger.head_hash == whole[-1].hash
        assert all(whole[record.index] == record for record in peer.disk.records)
    return world


def started(peers: int, *faults: Fault) -> World:
    world = World(peers, rounds=ROUNDS, faults=faults)
    world.start()
    return world


def holders(world: World) -> int:
    return sum(len(ranges_of(peer.disk.records)) == 1 for peer in world.swarm.survivors)


def test_newcomers_fetch_the_history_until_enough_hold_it(monkeypatch) -> None:
    monkeypatch.setattr(limits, "HISTORY_HOLDERS", 3)
    world = ended(started(2, *[Fault(300 + 20 * i, newcomers=1) for i in range(4)]))
    assert len(world.swarm.survivors) == 6
    assert 3 <= holders(world) <= 4


@pytest.mark.parametrize("needed", [1, 2])
def test_disks_are_freed_as_long_as_enough_hold_all(monkeypatch, needed) -> None:
    monkeypatch.setattr(limits, "HISTORY_HOLDERS", needed)
    monkeypatch.setattr(limits, "LEDGER_DISK_BYTES", 4000)
    world = ended(started(5))
    assert holders(world) == needed + 1, "one of them may leave"


@pytest.mark.parametrize("at_s", [9.0, 14.0])
def test_a_lost_ledger_comes_back_from_those_who_hold_all_of_it(monkeypatch, at_s) -> None:
    monkeypatch.setattr(limits, "HISTORY_HOLDERS", 1)
    monkeypatch.setattr(limits, "LEDGER_DISK_BYTES", 4000)
    world = started(5)
    coordinator = world.swarm.coordinator
    before = []

    def lose() -> None:
        assert holders(world) < 5, "some have freed theirs"
        before.extend(coordinator.disk)
        world.swarm.crash_coordinator(1.0)
        coordinator.disk.clear()
        coordinator.term = 0
        world.invariants.restored = True
        world.invariants.demands.trouble_all(40.0)

    world.scene.clock.at(at_s, lose)
    ended(world)
    assert len(before) > 35 and coordinator.disk[: len(before) - 5] == before[:-5]


def test_a_peer_that_freed_its_disk_comes_back_with_it(monkeypatch) -> None:
    monkeypatch.setattr(limits, "HISTORY_HOLDERS", 1)
    monkeypatch.setattr(limits, "LEDGER_DISK_BYTES", 4000)
    world = started(5)
    came_back = []

    def die() -> None:
        victim = next(p for p in world.swarm.survivors if len(ranges_of(p.disk.records)) > 1)
        victim.kill()
        old = victim.disk
        disk = PeerDisk(list(old.records), old.begins, old.image, old.own)
        world.scene.clock.after(1.0, lambda: world.swarm.come_back(victim, disk))
        came_back.append(victim.peer_id)

    world.scene.clock.at(12.0, die)
    ended(world)
    assert world.swarm.peers[came_back[0]].is_finished
