"""The way to a run, with each failure that can be made on loopback: doctor names it."""

import asyncio
import datetime
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from swarmtrain.config.options import Endpoint
from swarmtrain.doctor.asking import Answer, Tried
from swarmtrain.doctor.connection import of_answer, of_peers
from swarmtrain.doctor.examination import examine_way
from swarmtrain.doctor.findings import BAD, NOTE, OK, Finding
from swarmtrain.foundation.control_lane import CHECK_PATH, Checked
from swarmtrain.peer.disk import identity_file
from swarmtrain.peer.network.proxy import Proxy
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from tests.coordinator.rig import SECRET, WALL_S, Rig, add_invite, connected, run, scripted, serving
from tests.peer.connect_proxy import PASSWORD, proxying
from tests.peer.portal import portal

LOOPBACK = Endpoint("127.0.0.1", 0)
ALICE = Identity.create()


async def look(
    invite: Invite, directory: Path, *, proxy: Proxy | None = None, listen: Endpoint = LOOPBACK
) -> list[Finding]:
    found: list[Finding] = []
    await examine_way(invite, directory, listen, found.append, lambda host, port: proxy)
    return found


def bad(found: list[Finding]) -> list[tuple[str, str]]:
    for one in found:
        assert one.level == OK or (one.meaning or one.remedy), one
    return [(one.name, one.code) for one in found if one.level == BAD]


def named(found: list[Finding], name: str) -> Finding:
    return next(one for one in found if one.name == name and one.what)


def test_where_all_is_well_nothing_is_joined_and_no_use_is_taken(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path, uses_max=1) as rig:
            records = rig.store.records()
            found = await look(rig.invite(), tmp_path / "peer")
            assert bad(found) == []
            names = [one.name for one in found if one.level == OK]
            for name in ("connection", "certificate", "coordinator", "invite", "way back", "rates"):
                assert name in names
            assert rig.machine.heard.empty() and rig.store.records() == records
            assert rig.store.invites()[0].uses == 0 and not rig.app._door._promised
            assert not (tmp_path / "peer").exists()
            async with connected(rig.invite(), ALICE):
                pass

    run(scene())


def test_three_peers_are_dialled_that_the_coordinator_names(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
            port = listener.sockets[0].getsockname()[1]
            rig.machine.places = [("otter", "127.0.0.1", port), ("lynx", "not an address", 70_000)]
            found = named(await look(rig.invite(), tmp_path), "peers")
            assert "otter" in found.what and "lynx" in found.what
            listener.close()

    run(scene())


def test_a_member_is_known_by_its_key_though_its_invite_is_used_up(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path, uses_max=1) as rig:
            async with connected(rig.invite(), ALICE):
                identity_file.save(ALICE, tmp_path / identity_file.FILE_NAME)
                found = await look(rig.invite(), tmp_path)
                assert bad(found) == [] and "already" in named(found[4:], "invite").what
            assert bad(await look(rig.invite(), tmp_path / "new")) == [("invite", "SWT-E311")]

    run(scene())


def expired(rig: Rig) -> bytes:
    add_invite(rig.store, b"expired-expired!", uses_max=0, expires_at=WALL_S - 1, wall_s=0.0)
    return b"expired-expired!"


def withdrawn(rig: Rig) -> bytes:
    row = add_invite(rig.store, b"revoked-revoked!", uses_max=0, expires_at=0.0, wall_s=0.0)
    rig.store.revoke_invite(row.invite_id)
    return b"revoked-revoked!"


@pytest.mark.parametrize(
    ("secret", "code"),
    [(lambda rig: b"f" * 16, "SWT-E313"), (expired, "SWT-E314"), (withdrawn, "SWT-E315")],
)
def test_an_invite_that_opens_nothing_is_named(
    tmp_path: Path, secret: Callable[[Rig], bytes], code: str
) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            found = await look(rig.invite(secret(rig)), tmp_path / "peer")
            assert bad(found) == [("invite", code)]
            assert not any(one.name in ("way back", "rates") for one in found)

    run(scene())


def test_an_invite_of_another_run_is_named(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            rig.app._door._misfit = lambda brings: ("SWT-E316", f"not {brings.run}")
            found = await look(rig.invite(), tmp_path / "peer")
            assert bad(found) == [("invite", "SWT-E316")]
            assert named(found[4:], "invite").what == "not demo"

    run(scene())


def test_a_damaged_key_is_named(tmp_path: Path) -> None:
    (tmp_path / identity_file.FILE_NAME).write_text("{")
    invite = Invite("127.0.0.1", 9, "demo", bytes(32), SECRET)
    assert bad(asyncio.run(look(invite, tmp_path))) == [("key", "SWT-E302")]


def test_a_full_run_is_a_note(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path, peers_max=1) as rig, connected(rig.invite(), ALICE):
            found = await look(rig.invite(), tmp_path / "peer")
            assert bad(found) == [] and found[-1].code == "SWT-E701"

    run(scene())


def test_a_coordinator_that_is_not_ready_is_named(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            rig.app.is_ready = False
            found = await look(rig.invite(), tmp_path / "peer")
            assert bad(found) == [("coordinator", "SWT-E708")]

    run(scene())


def test_a_port_that_nobody_listens_at_and_another_key_are_named(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            other = Invite("127.0.0.1", rig.port, "demo", bytes(32), SECRET)
            assert bad(await look(other, tmp_path / "peer")) == [("certificate", "SWT-E301")]
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            invite = Invite("127.0.0.1", nobody.getsockname()[1], "demo", bytes(32), SECRET)
            found = await look(invite, tmp_path / "peer")
            assert bad(found) == [("connection", "SWT-E203")]
            assert "refused" in found[-1].what and "nothing listens" in found[-1].meaning

    run(scene())


def test_a_name_without_an_address_is_named(tmp_path: Path) -> None:
    invite = Invite("nowhere.invalid", 8400, "demo", bytes(32), SECRET)
    found = asyncio.run(look(invite, tmp_path))
    assert bad(found) == [("name", "SWT-E209")]


@pytest.mark.parametrize("has_tls", [True, False])
def test_a_login_page_is_named(tmp_path: Path, has_tls: bool) -> None:
    async def scene() -> None:
        async with portal(tmp_path, has_tls=has_tls) as (invite, _):
            assert bad(await look(invite, tmp_path)) == [("certificate", "SWT-E208")]

    run(scene())


@pytest.mark.parametrize("status", [b"407 Proxy Authentication Required", b"403 Forbidden"])
def test_a_proxy_that_refuses_is_named_without_its_password(tmp_path: Path, status: bytes) -> None:
    async def scene() -> None:
        async with proxying(b"HTTP/1.1 " + status + b"\r\n\r\n") as proxy:
            invite = Invite("192.0.2.7", 8400, "demo", bytes(32), SECRET)
            found = await look(invite, tmp_path, proxy=proxy.proxy)
            assert bad(found) == [("proxy", "SWT-E207")]
            assert status[:3].decode() in found[-1].what and PASSWORD not in repr(found)

    run(scene())


def test_by_a_proxy_all_of_it_is_found_too(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, proxying() as proxy:
            found = await look(rig.invite(), tmp_path / "peer", proxy=proxy.proxy)
            assert bad(found) == [] and named(found, "rates").level == OK
            assert named(found, "proxy").level == NOTE

    run(scene())


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_clock_that_is_off_is_a_note(tmp_path: Path, hours: int) -> None:
    async def scene() -> None:
        there = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=hours)

        async def handler(request: web.Request) -> web.StreamResponse:
            date = there.strftime("%a, %d %b %Y %H:%M:%S GMT")
            return web.Response(text="ok\n", headers={"Date": date})

        async with scripted(tmp_path, handler) as (invite, _):
            clock = named(await look(invite, tmp_path / "peer"), "time")
            assert (clock.level, clock.code) == (NOTE, "SWT-E410")
            assert ("ahead of" if hours > 0 else "behind") in clock.what and "10" in clock.what

    run(scene())


def test_a_coordinator_that_cannot_be_asked_is_a_note(tmp_path: Path) -> None:
    async def scene() -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            return web.Response(status=404 if request.path == CHECK_PATH else 200)

        async with scripted(tmp_path, handler) as (invite, _):
            found = await look(invite, tmp_path / "peer")
            assert bad(found) == [] and found[-1].code == "SWT-E703"

    run(scene())


@pytest.mark.parametrize("answer", ["", "[]", '{"code": 1}', "x" * 9000, None])
def test_an_answer_that_makes_no_sense_is_named(tmp_path: Path, answer: str | None) -> None:
    async def scene() -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            if request.path != CHECK_PATH:
                return web.Response(text="ok\n")
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.send_bytes(b"\x80") if answer is None else await socket.send_str(answer)
            await socket.close()
            return socket

        async with scripted(tmp_path, handler) as (invite, _):
            assert bad(await look(invite, tmp_path / "peer")) == [("invite", "SWT-E203")]

    run(scene())


def test_a_port_that_cannot_be_reached_is_a_note(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            with socket.socket() as deaf:
                deaf.bind(("127.0.0.1", 0))
                listen = Endpoint("127.0.0.1", deaf.getsockname()[1])
                found = await look(rig.invite(), tmp_path / "peer", listen=listen)
            back = named(found, "way back")
            assert (back.level, back.code) == (NOTE, "SWT-E206") and str(listen.port) in back.what

    run(scene())


SAID = Checked("", "", False, "198.51.100.7", 50_000, True, 0)


@pytest.mark.parametrize(
    ("own", "told", "level"),
    [
        (("198.51.100.7", 50_000), "no router", OK),
        (("192.168.1.5", 50_000), "keeps port numbers", OK),
        (("192.168.1.5", 40_000), "changes port numbers", OK),
        (("100.64.1.5", 40_000), "shares it among customers", NOTE),
    ],
)
def test_the_router_is_told_by_what_the_coordinator_sees(
    own: tuple[str, int], told: str, level: str
) -> None:
    address = named(list(of_answer(Answer(SAID, own, 4242, True), None)), "address")
    assert told in address.what and address.level == level


def test_something_else_that_answers_in_this_machines_place_is_no_way_back() -> None:
    back = named(list(of_answer(Answer(SAID, ("192.168.1.5", 1), 4242, False), None)), "way back")
    assert back.level == NOTE and "something else answers" in back.what
    unasked = msgspec.structs.replace(SAID, is_reached=None)
    back = named(list(of_answer(Answer(unasked, ("", 0), 4242, False), None)), "way back")
    assert "not tried" in back.what


def test_an_address_that_is_not_this_machine_s_is_named(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig:
            listen = Endpoint("192.0.2.7", 0)
            found = await look(rig.invite(), tmp_path / "peer", listen=listen)
            assert bad(found) == []
            assert [one.code for one in found if one.name == "way back"] == ["SWT-E202"]

    run(scene())


def test_peers_are_told_with_their_round_trips() -> None:
    assert list(of_peers([])) == []
    (one,) = of_peers([Tried("otter", 0.0123), Tried("lynx", None)])
    assert one.level == OK and one.what == "round trips: otter 12.3 ms, lynx not reached"
    (none,) = of_peers([Tried("otter", None)])
    assert none.level == NOTE and none.remedy
