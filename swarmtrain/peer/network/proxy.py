"""The way out through a web proxy: which one there is, and a connection through it.

Offices and schools often let nothing out but through a proxy. HTTPS_PROXY names it and NO_PROXY
excepts hosts, as for any other program; Macs and Windows also know it by their settings. It is
asked with CONNECT and then passes bytes on. What goes through is encrypted from end to end, so it
sees who talks to whom and how much. Its password is sent to it alone, and shown nowhere.
"""

import asyncio
import base64
import contextlib
import ipaddress
import re
import socket
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain_transport.credentials.invite import names_its_reader

PROXY_TIMEOUT_S = 10.0
"""To reach a proxy, and for it to reach whom it is asked for."""

ANSWER_BYTES_MAX = 8 << 10
"""Head of a proxy's answer; that of a refusal is followed by a page that nobody reads."""

AUTHORIZATION_HEADER = "Proxy-Authorization"

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")


class ProxyFailed(ConnectionError):
    """The proxy did not give the connection.

    Attributes:
        status: HTTP status of its refusal, 0 without one.
    """

    def __init__(self, proxy: "Proxy", what: str, status: int = 0) -> None:
        super().__init__(f"the proxy {proxy} {what}")
        self.proxy = proxy
        self.status = status

    @classmethod
    def refused(cls, proxy: "Proxy", status: int) -> "ProxyFailed":
        """It answered, but not with the connection."""
        what = "wants a name and a password" if status == 407 else "refuses the connection"
        return cls(proxy, f"{what} (HTTP {status})", status)

    def explained(self) -> UserError:
        """The error as people see it."""
        remedy = "Ask whoever runs the proxy to let it through, or except the host: NO_PROXY=HOST."
        if self.status == 407:
            remedy = "Put them into its address: HTTPS_PROXY=http://NAME:PASSWORD@HOST:PORT."
        return UserError(
            "SWT-E207", f"{str(self)[0].upper()}{str(self)[1:]}.",
            "HTTPS_PROXY, or this system's settings, name that proxy for all connections.", remedy,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that is asked in plain HTTP. `str()` is its address without the password.

    Attributes:
        authorization: value of the header that lets us in, "" for none.
    """

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    def __str__(self) -> str:
        return _joined(self.host, self.port)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of a request that are for the proxy alone."""
        return {AUTHORIZATION_HEADER: self.authorization} if self.authorization else {}

    @classmethod
    def parse(cls, text: str) -> "Proxy":
        """The proxy in an address such as ``http://name:password@host:3128``.

        Raises:
            UserError: SWT-E207; the address is not repeated, as it may hold a password.
        """
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port or 80
        except ValueError:
            raise _unfit("is no address") from None
        if parts.scheme.lower() != "http":
            raise _unfit(f"is of a kind that is not spoken here ({cleaned(parts.scheme)})")
        if not host:
            raise _unfit("is no address")
        given = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        packed = base64.b64encode(given.encode()).decode()
        return cls(host, port, "" if parts.username is None else f"Basic {packed}")


def proxy_for(host: str, port: int) -> Proxy | None:
    """Return the proxy by which this machine reaches a host, None for directly.

    Raises:
        UserError: SWT-E207, the address of the proxy makes no sense.
    """
    known = urllib.request.getproxies()
    if not (text := known.get("https", "").strip()) or names_its_reader(host):
        return None
    is_excepted = _is_in(host, known.get("no", "")) or any(
        urllib.request.proxy_bypass(name) for name in (_joined(host, port), host)
    )
    return None if is_excepted else Proxy.parse(text)


def options_of(proxy: Proxy | None) -> Mapping[str, Any]:
    """Return what an HTTP client of aiohttp's is told of a proxy, with each request."""
    return {} if proxy is None else {"proxy": f"http://{proxy}", "proxy_headers": proxy.headers}


async def connect_through(proxy: Proxy, host: str, port: int) -> socket.socket:
    """Open a connection to a host by a proxy. Nothing of what the host says is taken from it.

    Returns:
        Connected socket that does not block.

    Raises:
        ProxyFailed: the proxy does not answer, or refuses.
    """
    try:
        async with asyncio.timeout(PROXY_TIMEOUT_S):
            connection = await connect(proxy.host, proxy.port)
            try:
                status = await _ask(connection, proxy, _joined(host, port))
                if not 200 <= status < 300:
                    raise ProxyFailed.refused(proxy, status)
            except BaseException:
                connection.close()
                raise
    except ProxyFailed:
        raise
    except TimeoutError as exc:
        raise ProxyFailed(proxy, f"did not answer in {PROXY_TIMEOUT_S:.0f} s") from exc
    except OSError as exc:
        reason = cleaned(exc.strerror or str(exc))
        raise ProxyFailed(proxy, f"does not answer ({reason})") from exc
    return connection


async def connect(host: str, port: int) -> socket.socket:
    """Open a connection to the first address of a host that takes it.

    Raises:
        OSError: none does; socket.gaierror, the name has no address.
    """
    loop = asyncio.get_running_loop()
    failed: OSError | None = None
    for family, kind, number, _, place in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        try:
            connection = socket.socket(family, kind, number)
        except OSError as exc:  # a family that this system has not
            failed = exc
            continue
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, place)
        except OSError as exc:
            connection.close()
            failed = exc
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failed or OSError("the name has no address")


async def _ask(connection: socket.socket, proxy: Proxy, target: str) -> int:
    """Ask for a connection; returns the status of the answer, whose head is read and no more."""
    loop = asyncio.get_running_loop()
    heads = {"Host": target, **proxy.headers}
    lines = [f"CONNECT {target} HTTP/1.1", *(f"{name}: {text}" for name, text in heads.items())]
    await loop.sock_sendall(connection, "".join(f"{line}\r\n" for line in [*lines, ""]).encode())
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        # Byte by byte: the host may speak first, and its words are not ours.
        byte = await loop.sock_recv(connection, 1)
        if not byte:
            raise ProxyFailed(proxy, "broke the connection off")
        if len(head) >= ANSWER_BYTES_MAX:
            raise ProxyFailed(proxy, "gave no answer that HTTP knows")
        head += byte
    if (known := _STATUS.match(head)) is None:
        raise ProxyFailed(proxy, "gave no answer that HTTP knows")
    return int(known[1])


def _is_in(host: str, excepted: str) -> bool:
    """Return True for an address in one of the excepted networks, such as 10.0.0.0/8."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        for part in excepted.split(","):
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(part.strip().strip("[]"), strict=False):
                    return True
    return False


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _unfit(what: str) -> UserError:
    return UserError(
        "SWT-E207", f"The proxy that HTTPS_PROXY names {what}.",
        "All connections to other networks would go through it.",
        "Name an http:// proxy, as in HTTPS_PROXY=http://HOST:PORT, or unset it.",
    )  # fmt: skip
