"""UPnP: the router is found by SSDP, and asked by SOAP through `async-upnp-client`.

That package is an extra; without it this way is passed over. SSDP is done here: of all devices of a
network only the router itself is listened to, and only addresses of its own are read. Its answers
are bounded, in bytes and in time.
"""

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from swarmtrain.port_mapping.answers import Granted, Refused
from swarmtrain.port_mapping.gateway import Gateway

logger = logging.getLogger(__name__)

SEARCH_S = 4.0
TALK_S = 14.0
"""Seconds for all that is asked of a router: some take one for each answer."""

BYTES_MAX = 128 * 1024
"""Longest answer that is read: descriptions have 5 to 20 KiB."""

LEASE_S = 600
"""Lifetime that is asked for. Routers write what they forward to a memory that wears out."""

TRIES = 4
"""External ports that are tried where somebody else has the first one."""

_SSDP_BYTES_MAX = 2048
_DEVICE = "urn:schemas-upnp-org:device:InternetGatewayDevice:1"
_SERVICES = tuple(
    f"urn:schemas-upnp-org:service:{name}"
    for name in ("WANIPConnection:2", "WANIPConnection:1", "WANPPPConnection:1")
)
_CONFLICTS = frozenset({718, 729})
_ONLY_PERMANENT = 725


def is_installed() -> bool:
    """Return True if the extra is there."""
    return find_spec("async_upnp_client") is not None


def search_request(ssdp: tuple[str, int]) -> bytes:
    """Return the datagram that searches for a router. One of version 2 answers it too."""
    lines = (
        "M-SEARCH * HTTP/1.1", f"HOST: {ssdp[0]}:{ssdp[1]}", 'MAN: "ssdp:discover"', "MX: 2",
        f"ST: {_DEVICE}", "", "",
    )  # fmt: skip
    return "\r\n".join(lines).encode()


def location_in(data: bytes, router: str) -> str:
    """Return the address of the router's description, "" if a datagram names none of its own."""
    if len(data) > _SSDP_BYTES_MAX or not data.startswith(b"HTTP/1.1 200"):
        return ""
    match = re.search(rb"\r\nlocation:[ \t]*(http://[!-~]+)\r\n", data, re.IGNORECASE)
    url = match[1].decode() if match else ""
    return url if is_of(url, router) else ""


def is_of(url: str, router: str) -> bool:
    """Return True if a URL leads to the router: whatever answers must not send us elsewhere."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.hostname == router
    except ValueError:
        return False


class Upnp:
    """Conversations with one router about one port.

    Args:
        gateway: router of IPv4.
        port: TCP port here.
        clock: monotonic seconds.
    """

    def __init__(self, gateway: Gateway, port: int, clock: Callable[[], float]) -> None:
        self._gateway = gateway
        self._port = port
        self._clock = clock
        self._service: Any = None
        self._added_s = float("-inf")

    async def map_port(self, before: Granted | None) -> Granted | Refused:
        """Have the port forwarded, if need be the one that was granted before."""
        if not is_installed():
            return Refused("not tried, for it needs a package: pip install 'swarmtrain[upnp]'")
        try:
            async with asyncio.timeout(SEARCH_S + TALK_S):
                if self._service is None:
                    self._service = await self._find()
                if self._service is None:
                    return Refused("no answer")
                return await self._map(before)
        except TimeoutError:
            self._service = None
            return Refused("the router is too slow")
        except Exception as error:  # a stranger's bytes in a package that is not ours
            self._service = None
            logger.debug("UPnP failed", exc_info=True)
            return Refused(f"the router talks nonsense or not at all ({type(error).__name__})")

    async def unmap_port(self, granted: Granted) -> None:
        """Give the port back, if the router still listens."""
        try:
            async with asyncio.timeout(TALK_S):
                await self._call("DeletePortMapping", granted.port)
        except Exception:  # as above; what is not given back ends with its lease
            logger.debug("UPnP failed", exc_info=True)

    async def _find(self) -> Any:
        from async_upnp_client.client_factory import UpnpFactory

        location = await _search(self._gateway)
        if not location:
            return None
        factory = UpnpFactory(_requester(self._gateway.host), non_strict=True)
        device = await factory.async_create_device(location)
        return next((one for name in _SERVICES if (one := device.find_service(name))), None)

    async def _map(self, before: Granted | None) -> Granted | Refused:
        from async_upnp_client.exceptions import UpnpActionError

        named = await self._service.action("GetExternalIPAddress").async_call()
        host = str(ipaddress.ip_address(named["NewExternalIPAddress"]))
        port, lease_s, code = self._port if before is None else before.port, LEASE_S, 0
        if before is not None and await self._is_there(port):
            return Granted(host, port, LEASE_S)
        for _ in range(TRIES):
            try:
                await self._call(
                    "AddPortMapping", port, NewInternalPort=self._port, NewEnabled=True,
                    NewInternalClient=self._gateway.own_host, NewLeaseDuration=lease_s,
                    NewPortMappingDescription="swarmtrain",
                )  # fmt: skip
            except UpnpActionError as error:
                code = error.error_code
                if code == _ONLY_PERMANENT and lease_s:
                    lease_s = 0
                elif code in _CONFLICTS:
                    port = 1024 + (port + 7919) % 64_000
                else:
                    break
            else:
                self._added_s = self._clock()
                return Granted(host, port, lease_s)
        return Refused(f"the router does not allow it (code {code})")

    async def _is_there(self, port: int) -> bool:
        """Return True if the router has the mapping yet, and for long enough."""
        from async_upnp_client.exceptions import UpnpActionError

        if self._clock() > self._added_s + LEASE_S / 2:
            return False
        try:
            entry = await self._call("GetSpecificPortMappingEntry", port)
        except UpnpActionError:
            return False
        there = (str(entry["NewInternalClient"]), entry["NewInternalPort"])
        return there == (self._gateway.own_host, self._port)

    async def _call(self, name: str, port: int, **words: object) -> Mapping[str, Any]:
        key = {"NewRemoteHost": "", "NewExternalPort": port, "NewProtocol": "TCP"}
        answer: Mapping[str, Any] = await self._service.action(name).async_call(**key, **words)
        return answer


def _requester(router: str) -> Any:
    from async_upnp_client.client import UpnpRequester
    from async_upnp_client.const import HttpRequest, HttpResponse

    class Bounded(UpnpRequester):  # type: ignore[misc]
        """Reads so much of one router and no more, and of nobody else."""

        async def async_http_request(self, http_request: HttpRequest) -> HttpResponse:
            """See UpnpRequester."""
            if not is_of(http_request.url, router):
                raise ConnectionError("the router names somebody else's address")
            async with aiohttp.ClientSession() as session, session.request(
                http_request.method, http_request.url, headers=http_request.headers,
                data=http_request.body, allow_redirects=False,
            ) as response:  # fmt: skip
                body = b""
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > BYTES_MAX:
                        raise ConnectionError("the router's answer has no end")
                text = body.decode(errors="replace")
                return HttpResponse(response.status, response.headers, text)

    return Bounded()


async def _search(gateway: Gateway) -> str:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as searching:
        searching.setblocking(False)
        searching.bind((gateway.own_host, 0))
        try:
            async with asyncio.timeout(SEARCH_S):
                for _ in range(2):  # nobody repeats a datagram that is lost
                    await loop.sock_sendto(searching, search_request(gateway.ssdp), gateway.ssdp)
                while True:
                    data, sender = await loop.sock_recvfrom(searching, _SSDP_BYTES_MAX + 1)
                    if sender[0] == gateway.host and (url := location_in(data, gateway.host)):
                        return url
        except TimeoutError:
            return ""
