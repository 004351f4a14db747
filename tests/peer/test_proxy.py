"""The way out through a web proxy: found, asked, and named when it refuses; its password is not."""

import asyncio
import socket
import traceback
from pathlib import Path

import pytest
from aiohttp import web

from swarmtrain.foundation.errors import UserError, render
from swarmtrain.peer.network import proxy as proxies
from swarmtrain.peer.network.control import CoordinatorUnreachable, WrongKey
from swarmtrain.peer.network.probe import probe
from swarmtrain.peer.network.proxy import Proxy, ProxyFailed, connect_through, proxy_for
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.wire.messages import Welcome
from tests.coordinator.rig import SECRET, Listener, client_of, run, scripted, serving
from tests.peer.connect_proxy import AUTHORIZATION, PASSWORD, proxying
from tests.peer.portal import portal

ALICE = Identity.create()


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("host", "excepted", "is_used"),
    [
        ("coordinator.example", "", True),
        ("192.0.2.7", "", True),
        ("127.0.0.1", "", False),
        ("::1", "", False),
        ("localhost", "", False),
        ("coordinator.example", "*", False),
        ("coordinator.example", "example.org, .example", False),
        ("coordinator.example", "coordinator.example:8400", False),
        ("192.0.2.7", "192.0.2.0/24", False),
        ("192.0.2.7", "192.0.3.0/24,nonsense/x", True),
        ("2001:db8::7", "2001:db8::/32", False),
        ("2001:db8::7", "2001:db8::7", False),
        ("2001:db8::7", "2001:db8:1::/48", True),
    ],
)
def test_a_proxy_is_taken_from_the_environment_but_for_what_is_excepted(
    monkeypatch: pytest.MonkeyPatch, host: str, excepted: str, is_used: bool
) -> None:
    assert proxy_for(host, 8400) is None
    monkeypatch.setenv("HTTPS_PROXY", "http://otter:horse%20battery@proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", excepted)
    found = proxy_for(host, 8400)
    assert found == (Proxy("proxy.example", 3128, AUTHORIZATION) if is_used else None)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("proxy.example:3128", Proxy("proxy.example", 3128)),
        ("http://proxy.example", Proxy("proxy.example", 80)),
        ("HTTP://[2001:db8::1]:8080/", Proxy("2001:db8::1", 8080)),
        ("http://:pw@proxy.example:1", Proxy("proxy.example", 1, "Basic OnB3")),
    ],
)
def test_addresses_of_proxies_are_read_as_others_read_them(text: str, parsed: Proxy) -> None:
    assert Proxy.parse(text) == parsed


@pytest.mark.parametrize(
    "text", ["socks5h://a:secret-word@b:1", "http://a:secret-word@b:99999", "http://[a:secret-word"]
)
def test_an_address_that_makes_no_sense_is_named_without_its_password(text: str) -> None:
    with pytest.raises(UserError) as caught:
        Proxy.parse(text)
    assert caught.value.code == "SWT-E207"
    assert "secret-word" not in "".join(traceback.format_exception(caught.value))


def test_the_coordinator_is_reached_by_a_proxy_that_reads_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as rig, proxying() as proxy:
            listener = Listener()
            client = client_of(
                rig.invite(), ALICE, listener, find_proxy=lambda host, port: proxy.proxy
            )
            running = asyncio.create_task(client.run())
            await listener.hears(Welcome)
            await client.close()
            await running
            (head,) = proxy.heads
            assert head.startswith(f"CONNECT 127.0.0.1:{rig.port} HTTP/1.1\r\n")
            assert f"Proxy-Authorization: {AUTHORIZATION}\r\n" in head
            found = await probe(rig.invite(), proxy.proxy)
            assert found.fault is None and found.is_pinned and found.is_ready

    run(scene())


def test_the_certificate_is_pinned_through_a_proxy_too(tmp_path: Path) -> None:
    """Also where the proxy leads to another server: not a byte of HTTP is said to that."""

    async def scene() -> None:
        heard: list[str] = []

        async def handler(request: web.Request) -> web.StreamResponse:
            heard.append(request.path)
            return web.Response()

        (tmp_path / "theirs").mkdir()
        (tmp_path / "ours").mkdir()
        async with (
            scripted(tmp_path / "theirs", handler) as (theirs, _),
            serving(tmp_path / "ours") as rig,
            proxying(to=theirs.port) as proxy,
        ):
            client = client_of(
                rig.invite(), ALICE, Listener(), find_proxy=lambda host, port: proxy.proxy
            )
            with pytest.raises(WrongKey) as caught:
                await client.run()
            assert caught.value.code == "SWT-E301"
            assert heard == [] and client.bytes_out == 0

    run(scene())


REFUSALS = [
    (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "HTTP 407"),
    (b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n<html>", "HTTP 403"),
    (b"220 mail.example ESMTP\r\n", "does not answer"),
    (b"x" * 100_000, "does not answer"),
]


@pytest.mark.parametrize(("says", "named"), REFUSALS)
def test_a_proxy_that_refuses_is_named_and_its_password_is_not(
    says: bytes, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with proxying(says) as proxy:
            invite = Invite("192.0.2.7", 8400, "demo", bytes(32), SECRET)
            client = client_of(invite, ALICE, Listener(), find_proxy=lambda host, port: proxy.proxy)
            with pytest.raises(CoordinatorUnreachable) as caught:
                await client.run()
            told = [
                render(caught.value), "".join(traceback.format_exception(caught.value)),
                repr(caught.value), repr(proxy.proxy), str(proxy.proxy), caplog.text,
                repr([record.args for record in caplog.records]),
            ]  # fmt: skip
            assert caught.value.code == "SWT-E207"
            if "HTTP 4" in named:
                assert all(named in text for text in (told[0], caplog.text))
            assert str(proxy.proxy) in told[0]
            for text in told:
                assert PASSWORD not in text and AUTHORIZATION.split()[1] not in text
                assert "horse" not in text

    with caplog.at_level("DEBUG"):
        run(scene())


def test_a_proxy_that_is_not_there_is_named() -> None:
    async def scene() -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            proxy = Proxy("127.0.0.1", nobody.getsockname()[1])
            with pytest.raises(ProxyFailed, match="does not answer"):
                await connect_through(proxy, "192.0.2.7", 1)
            found = await probe(Invite("192.0.2.7", 1, "demo", bytes(32), SECRET), proxy)
            assert found.fault is not None and found.fault.code == "SWT-E207"

    run(scene())


def test_what_the_host_says_first_is_left_in_the_socket() -> None:
    async def scene() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\xff\0\0\0greeting of ZMTP")
            writer.write_eof()
            await reader.read()
            writer.transport.abort()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server, proxying() as proxy:
            port = server.sockets[0].getsockname()[1]
            connection = await connect_through(proxy.proxy, "127.0.0.1", port)
            reader, writer = await asyncio.open_connection(sock=connection)
            assert await reader.read() == b"\xff\0\0\0greeting of ZMTP"
            writer.close()

    run(scene())


def test_a_proxy_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with proxying(is_silent=True) as proxy:
            with pytest.raises(ProxyFailed, match="did not answer in"):
                await connect_through(proxy.proxy, "192.0.2.7", 1)

    monkeypatch.setattr(proxies, "PROXY_TIMEOUT_S", 0.05)
    run(scene())


@pytest.mark.parametrize("has_tls", [True, False])
def test_a_login_page_in_the_coordinators_place_is_named(tmp_path: Path, has_tls: bool) -> None:
    async def scene() -> None:
        async with portal(tmp_path, has_tls=has_tls) as (invite, heard):
            with pytest.raises((WrongKey, CoordinatorUnreachable)) as caught:
                await client_of(invite, ALICE, Listener()).run()
            assert caught.value.code == "SWT-E208"
            assert "login page" in caught.value.meaning
            if has_tls:
                assert "Guest Wi-Fi" in caught.value.what and not any(heard)
            assert not any(SECRET in data or b"control" in data for data in heard)

    run(scene())


def test_a_name_without_an_address_is_told_from_a_closed_port() -> None:
    async def scene() -> None:
        invite = Invite("nowhere.invalid", 8400, "demo", bytes(32), SECRET)
        with pytest.raises(CoordinatorUnreachable) as caught:
            await client_of(invite, ALICE, Listener()).run()
        assert caught.value.code == "SWT-E209" and "nowhere.invalid" in caught.value.what

    run(scene())
