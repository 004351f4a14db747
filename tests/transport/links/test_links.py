"""One contract, two links: what link.py promises, asked of memory_link and of zmq_link alike."""

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.wire.frames import Frame, FrameKind, pack
from tests.transport.links.link_rig import (
    MemoryWorld,
    Scenario,
    Station,
    World,
    ZmqWorld,
    identity_of,
    introduce,
    noise,
    part,
    reach,
    run_in,
)


@pytest.fixture(params=[MemoryWorld, ZmqWorld], ids=["memory", "zmq"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    return lambda scenario: run_in(request.param, scenario)


Run = Callable[[Scenario], None]


async def acquainted(world: World, *names: str) -> list[Station]:
    """Stations that allow each other and have been heard by each other once."""
    stations = [await world.add(name) for name in names]
    introduce(*stations)
    for source in stations:
        for target in stations:
            if source is not target:
                await reach(world, source, target)
    for station in stations:
        station.heard.frames.clear()
    return stations


def test_frames_of_one_sender_arrive_in_order(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        for number in range(200):
            assert ada.link.send(ben.id, part(number + 1, noise(number % 7 * 20_000)))
        await world.until(lambda: 200 in ben.heard.chunks_from(ada.id))
        assert [n for n in ben.heard.chunks_from(ada.id) if n] == list(range(1, 201))

    run(scenario)


def test_every_field_of_a_frame_survives_the_way(run: Run) -> None:
    sent = Frame(FrameKind.BLOB, 2**64 - 1, 5, 6, 7, 8, 9, b"x" * 5000)

    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        ada.link.send(ben.id, sent)
        await world.until(lambda: any(f.kind is FrameKind.BLOB for _, f in ben.heard.frames))
        (arrived,) = [f for _, f in ben.heard.frames if f.kind is FrameKind.BLOB]
        assert replace(arrived, body=bytes(arrived.body)) == sent

    run(scenario)


def test_a_frame_names_the_sender_whose_key_the_connection_proved(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben, cy = await acquainted(world, "ada", "ben", "cy")
        ada.link.send(cy.id, part(1))
        ben.link.send(cy.id, part(2))
        await world.until(lambda: {1, 2} <= {f.chunk for _, f in cy.heard.frames})
        senders = {frame.chunk: peer for peer, frame in cy.heard.frames if frame.chunk}
        assert senders == {1: ada.id, 2: ben.id}

    run(scenario)


def test_a_key_that_is_not_allowed_is_dropped_counted_and_reported_without_a_name(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben, stranger = [await world.add(name) for name in ("ada", "ben", "stranger")]
        introduce(ada, ben)
        stranger.link.allow(ben.address)
        await world.repeat(
            lambda: stranger.link.send(ben.id, part(1)),
            lambda: ben.link.stats.refused.get("key", 0) > 0,
        )
        await reach(world, ada, ben)
        assert stranger.id not in {peer for peer, _ in ben.heard.frames}
        assert {(peer, fault.reason) for peer, fault in ben.heard.faults} == {(None, "key")}

    run(scenario)


def test_a_peer_that_was_refused_at_first_is_heard_once_it_is_allowed(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = [await world.add(name) for name in ("ada", "ben")]
        ada.link.allow(ben.address)
        await world.repeat(
            lambda: ada.link.send(ben.id, part(1)),
            lambda: (
                ben.link.stats.refused.get("key", 0) > 1
                or (isinstance(world, MemoryWorld) and ben.link.stats.refused.get("key", 0) > 0)
            ),
        )
        ben.link.allow(ada.address)
        await reach(world, ada, ben)

    run(scenario)


def test_a_revoked_key_is_refused_frame_by_frame_and_cannot_be_reached(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        ben.link.revoke(ada.id)
        assert not ben.link.send(ada.id, part(9))
        ada.link.send(ben.id, part(1))
        await world.until(lambda: ben.link.stats.refused.get("key", 0) > 0)
        assert ben.heard.frames == []
        peer, fault = ben.heard.faults[-1]
        assert (peer, fault.reason) == (None, "key")

    run(scenario)


def test_a_revoked_key_that_is_allowed_again_is_heard_again(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        ben.link.revoke(ada.id)
        ada.link.send(ben.id, part(1))
        await world.until(lambda: ben.link.stats.refused.get("key", 0) > 0)
        ben.link.allow(ada.address)
        await reach(world, ada, ben)
        await reach(world, ben, ada)

    run(scenario)


def test_revoking_somebody_unknown_changes_nothing(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        ada.link.revoke(b"?" * 32)
        await reach(world, ada, ben)

    run(scenario)


def test_a_body_of_exactly_the_limit_arrives_whole_and_one_byte_more_is_not_sent(run: Run) -> None:
    body = noise(limits.FRAME_BYTES_MAX)

    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        with pytest.raises(LocalFault):
            ada.link.send(ben.id, part(1, body + b"x"))
        assert ada.link.send(ben.id, part(2, body))
        await world.until(lambda: 2 in ben.heard.chunks_from(ada.id))
        assert hashlib.sha256(body).digest() in ben.heard.digests()
        assert 1 not in ben.heard.chunks_from(ada.id)

    run(scenario)


def test_malformed_frames_are_reported_by_name_and_the_link_goes_on(run: Run) -> None:
    header, body = pack(part(1, noise(2000)))
    broken = {
        "frame": (b"XX" + header[2:], bytes(body)),
        "version": (header[:2] + b"\x09" + header[3:], bytes(body)),
        "length": (header, bytes(body)[:-1]),
        "checksum": (header, bytes(body)[:-1] + b"!"),
    }

    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        for bad_header, bad_body in broken.values():
            world.send_raw(ada, ben, bad_header, bad_body)
        ada.link.send(ben.id, part(3))
        await world.until(lambda: 3 in ben.heard.chunks_from(ada.id))
        assert [(peer, fault.reason) for peer, fault in ben.heard.faults if peer] == [
            (ada.id, reason) for reason in broken
        ]
        assert {reason: ben.link.stats.refused[reason] for reason in broken} == dict.fromkeys(
            broken, 1
        )
        assert 1 not in ben.heard.chunks_from(ada.id)

    run(scenario)


def test_sending_to_somebody_unknown_is_refused(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = [await world.add(name) for name in ("ada", "ben")]
        assert not ada.link.send(ben.id, part(1))
        assert ada.link.stats.frames_sent == 0

    run(scenario)


def test_a_full_queue_refuses_further_frames(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, gone = [await world.add(name) for name in ("ada", "gone")]
        ada.link.allow(gone.address)
        gone.link.close()
        taken = 0
        while taken <= limits.LINK_SEND_QUEUE_FRAMES and ada.link.send(gone.id, part(taken)):
            taken += 1
        assert taken == limits.LINK_SEND_QUEUE_FRAMES

    run(scenario)


def test_a_peer_that_restarts_on_another_port_is_reached_at_its_new_address(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        ben.link.close()
        again = await world.add("ben")
        assert again.address.port != ben.address.port
        ada.link.allow(again.address)
        again.link.allow(ada.address)
        await reach(world, ada, again)
        await reach(world, again, ada)

    run(scenario)


def test_a_peer_without_an_address_is_heard_and_reached_once_it_has_one(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await world.add("ada"), await world.add("ben")
        ada.link.allow(Address(ben.id, ben.identity.curve_key))
        ben.link.allow(ada.address)
        assert not ada.link.send(ben.id, part(1)) and ada.heard.faults == []
        await reach(world, ben, ada)
        ada.link.allow(ben.address)
        await reach(world, ada, ben)

    run(scenario)


def test_allowing_the_same_address_again_does_not_disturb_the_connection(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        for number in range(50):
            ada.link.send(ben.id, part(number + 1))
            ada.link.allow(ben.address)
            ben.link.allow(ada.address)
        await world.until(lambda: 50 in ben.heard.chunks_from(ada.id))
        assert [n for n in ben.heard.chunks_from(ada.id) if n] == list(range(1, 51))

    run(scenario)


def test_allowing_oneself_is_ignored(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada = await world.add("ada")
        ada.link.allow(ada.address)
        assert not ada.link.send(ada.id, part(1))
        assert ada.heard.faults == []

    run(scenario)


def test_nobody_is_admitted_with_the_key_of_another_peer(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        liar = identity_of("liar")
        ben.link.allow(Address(liar.peer_id, ada.identity.curve_key, "127.0.0.1", 1))
        assert [(peer, fault.reason) for peer, fault in ben.heard.faults][-1] == (
            liar.peer_id,
            "key",
        )
        assert not ben.link.send(liar.peer_id, part(1))
        await reach(world, ada, ben)
        assert liar.peer_id not in {peer for peer, _ in ben.heard.frames}

    run(scenario)


def test_a_link_does_not_talk_to_a_listener_with_another_key_than_announced(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        impostor = await world.add("impostor")
        impostor.link.allow(ada.address)
        claimed = Address(ben.id, ben.identity.curve_key, "127.0.0.1", impostor.address.port)
        ada.link.allow(claimed)
        ada.link.send(ben.id, part(1))
        await reach(world, ben, ada)
        ada.link.allow(ben.address)
        await reach(world, ada, ben)
        assert impostor.heard.frames == []
        assert impostor.link.stats.frames_received == 0

    run(scenario)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "*",
        "127.0.0.1;10.0.0.1",
        "a b",
        "::1%eth0",
        "x" * 300,
        "host:1",
        "[::1]",
        "-a",
        "localhost",
        "peer.example.org",
        "0.0.0.0",
        "::",
        "239.1.2.3",
        "ff02::1",
    ],
)
def test_an_address_that_is_none_is_refused_and_counted(run: Run, host: str) -> None:
    async def scenario(world: World) -> None:
        ada = await world.add("ada")
        odd = identity_of("odd")
        ada.link.allow(Address(odd.peer_id, odd.curve_key, host, 4000))
        assert ada.link.stats.refused == {"address": 1}
        assert not ada.link.send(odd.peer_id, part(1))

    run(scenario)


def test_counters_hold_headers_and_bodies_of_both_directions(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        await world.until(lambda: True)
        sent, received = replace(ada.link.stats), replace(ben.link.stats)
        for number in range(3):
            ada.link.send(ben.id, part(number + 1, noise(100_000)))
        await world.until(lambda: 3 in ben.heard.chunks_from(ada.id))
        assert ada.link.stats.frames_sent - sent.frames_sent == 3
        assert ada.link.stats.bytes_sent - sent.bytes_sent == 3 * 100_048
        late = [f for _, f in ben.heard.frames if not f.chunk]
        assert ben.link.stats.frames_received - received.frames_received == 3 + len(late)
        arrived = ben.link.stats.bytes_received - received.bytes_received
        assert arrived == 3 * 100_048 + 48 * len(late)

    run(scenario)


def test_large_bodies_arrive_intact_and_may_be_kept(run: Run) -> None:
    bodies = [noise(1 << 20, seed) for seed in range(12)]

    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        for number, body in enumerate(bodies):
            assert ada.link.send(ben.id, part(number + 1, memoryview(body)))
        await world.until(lambda: 12 in ben.heard.chunks_from(ada.id))
        ada.link.close()
        ben.link.close()
        kept = [frame.body for _, frame in ben.heard.frames if frame.chunk]
        assert [bytes(body) for body in kept] == bodies
        assert all(memoryview(body).readonly for body in kept)

    run(scenario)


def test_closing_twice_is_harmless_and_a_closed_link_sends_nothing(run: Run) -> None:
    async def scenario(world: World) -> None:
        ada, ben = await acquainted(world, "ada", "ben")
        ada.link.close()
        ada.link.close()
        assert not ada.link.send(ben.id, part(1))
        ada.link.revoke(ben.id)
        with pytest.raises(LocalFault):
            ada.link.allow(ben.address)

    run(scenario)
