"""Connections to the coordinator's port that are no control lanes: those of meetings."""

import asyncio
import secrets
from pathlib import Path

import pytest

from swarmtrain.coordinator.meeting_place import MeetingPlace, plain
from swarmtrain_transport import limits
from swarmtrain_transport.links.ways import Preamble, Side, Way
from tests.coordinator.rig import Rig, run, serving

TOKENS = {way: secrets.token_bytes(32) for way in (Way.PUNCHED, Way.RELAYED)}


class Knowing:
    """A shell and its machine, as far as a meeting asks them."""

    def __init__(self) -> None:
        self.machine = self
        self.shown: list[tuple[bytes, Side, str, int]] = []
        self.moved = 0
        self.left = {(token, side): way for way, token in TOKENS.items() for side in Side}

    def takes(self, token: bytes, side: Side) -> Way | None:
        return self.left.pop((token, side), None)

    def mirrored(self, token: bytes, side: Side, host: str, port: int) -> None:
        self.shown.append((token, side, host, port))

    def carried(self, num_bytes: int) -> None:
        self.moved += num_bytes


class Town:
    """The coordinator's port, and those who call there."""

    def __init__(self, rig: Rig, shell: Knowing) -> None:
        self.rig, self.shell = rig, shell
        self.writers: list[asyncio.StreamWriter] = []

    async def call(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection that begins with these bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.rig.port)
        self.writers.append(writer)
        writer.write(data)
        return reader, writer


def said(way: Way, side: Side) -> bytes:
    return Preamble(side, TOKENS[way]).encode()


async def until(condition) -> None:
    while not condition():  # nothing tells of it; `run` bounds it
        await asyncio.sleep(0.002)


def meeting(tmp_path: Path, story, rate: int = 10_000_000) -> None:
    async def main() -> None:
        async with serving(tmp_path) as rig:
            shell = Knowing()
            town = Town(rig, shell)
            place = MeetingPlace(shell, rate)
            rig.porch.greet = place.greet
            try:
                await story(town)
            finally:
                place.close()
                for writer in town.writers:
                    writer.close()

    run(main())


def test_a_peer_is_seen_from_where_it_comes_and_nothing_is_answered(tmp_path: Path) -> None:
    async def story(town: Town) -> None:
        shown = town.shell.shown
        _, writer = await town.call(said(Way.PUNCHED, Side.SENDER))
        await until(lambda: shown)
        port = writer.get_extra_info("sockname")[1]
        assert shown == [(TOKENS[Way.PUNCHED], Side.SENDER, "127.0.0.1", port)]
        again, _ = await town.call(said(Way.PUNCHED, Side.SENDER))
        assert await again.read(64) == b""  # a token is good once

    meeting(tmp_path, story)


def test_two_sides_of_a_token_are_passed_on_to_each_other(tmp_path: Path) -> None:
    async def story(town: Town) -> None:
        one, sending = await town.call(said(Way.RELAYED, Side.SENDER) + b"greeting")
        other, answering = await town.call(said(Way.RELAYED, Side.RECEIVER))
        assert await other.readexactly(8) == b"greeting"
        answering.write(b"answer")
        assert await one.readexactly(6) == b"answer"
        sending.close()
        assert await other.read(64) == b""
        await until(lambda: town.shell.moved == 14)

    meeting(tmp_path, story)


def test_who_relays_nothing_sends_both_away(tmp_path: Path) -> None:
    async def story(town: Town) -> None:
        one, _ = await town.call(said(Way.RELAYED, Side.SENDER))
        assert await one.read(64) == b""

    meeting(tmp_path, story, rate=0)


@pytest.mark.parametrize(
    "data",
    [b"\0", b"\0swarm\x01\x01", Preamble(Side.SENDER, bytes(32)).encode(), b"\0" * 40],
    ids=["cut", "no token", "unknown", "nothing"],
)
def test_a_preamble_of_nobody_is_sent_away_and_leaves_no_stranger(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PREAMBLE_S", 0.2)

    async def story(town: Town) -> None:
        caller, _ = await town.call(data)
        assert await caller.read(64) == b""
        await until(lambda: town.rig.porch.strangers == 0)

    meeting(tmp_path, story)


def test_an_address_of_both_families_is_told_as_people_write_it() -> None:
    hosts = ("::ffff:192.0.2.1", "192.0.2.1", "2001:db8::1")
    assert [plain(host) for host in hosts] == ["192.0.2.1", "192.0.2.1", "2001:db8::1"]
