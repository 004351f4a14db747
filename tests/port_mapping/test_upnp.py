"""UPnP: what is believed of whoever answers a search; the rest only where the extra is."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from swarmtrain.port_mapping import upnp
from swarmtrain.port_mapping.answers import Granted, Refused
from swarmtrain.port_mapping.gateway import Gateway
from swarmtrain.port_mapping.upnp import Upnp, is_of, location_in, search_request

LOOPBACK = "127.0.0.1"
ROUTER = "192.168.1.1"
ANSWER = b"HTTP/1.1 200 OK\r\nST: x\r\nLocation: http://192.168.1.1:49000/igd.xml\r\n\r\n"


def test_only_the_routers_own_address_is_taken_from_an_answer():
    assert location_in(ANSWER, ROUTER) == "http://192.168.1.1:49000/igd.xml"
    assert location_in(ANSWER, "192.168.1.2") == ""
    for wrong in (
        ANSWER.replace(b"http:", b"https:"), ANSWER.replace(b"200 OK", b"404"),
        ANSWER.replace(b"192.168.1.1:", b"192.168.1.1@evil.example:"),
        ANSWER.replace(b"192.168.1.1:", b"[::1:"), ANSWER.replace(b"Location", b"Elsewhere"),
        ANSWER + b"x" * 3000, b"", bytes(100),
    ):  # fmt: skip
        assert location_in(wrong, ROUTER) == ""
    assert not is_of(f"ftp://{ROUTER}/x", ROUTER) and not is_of("http://[", ROUTER)


def test_a_search_names_what_is_searched_for():
    lines = search_request(("239.255.255.250", 1900)).split(b"\r\n")
    assert lines[0] == b"M-SEARCH * HTTP/1.1" and b"HOST: 239.255.255.250:1900" in lines
    assert lines[-2:] == [b"", b""]


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(upnp, "is_installed", lambda: False)
    talk = Upnp(Gateway(LOOPBACK, LOOPBACK), 9000, lambda: 0.0)
    answer = asyncio.run(talk.map_port(None))
    assert isinstance(answer, Refused) and "swarmtrain[upnp]" in answer.why


with_the_extra = pytest.mark.skipif(
    not upnp.is_installed(), reason="needs the extra: pip install '.[upnp]'"
)

DESCRIPTION = """<?xml version="1.0"?>
<root xmlns="urn:schemas-upnp-org:device-1-0"><device>
<deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType>
<friendlyName>r</friendlyName><manufacturer>m</manufacturer><modelName>n</modelName>
<UDN>uuid:1</UDN><serviceList><service>
<serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType>
<serviceId>urn:upnp-org:serviceId:WANIPConn1</serviceId>
<controlURL>/control</controlURL><eventSubURL>/events</eventSubURL><SCPDURL>/scpd</SCPDURL>
</service></serviceList></device></root>"""

ARGUMENTS = {
    "GetExternalIPAddress": (("NewExternalIPAddress", "out"),),
    "AddPortMapping": tuple(
        (name, "in")
        for name in (
            "NewRemoteHost", "NewExternalPort", "NewProtocol", "NewInternalPort",
            "NewInternalClient", "NewEnabled", "NewPortMappingDescription", "NewLeaseDuration",
        )
    ),
    "GetSpecificPortMappingEntry": (
        ("NewRemoteHost", "in"), ("NewExternalPort", "in"), ("NewProtocol", "in"),
        ("NewInternalPort", "out"), ("NewInternalClient", "out"),
    ),
    "DeletePortMapping": (
        ("NewRemoteHost", "in"), ("NewExternalPort", "in"), ("NewProtocol", "in"),
    ),
}  # fmt: skip

TYPES = {"NewEnabled": "boolean", "NewLeaseDuration": "ui4", "NewExternalPort": "ui2",
         "NewInternalPort": "ui2"}  # fmt: skip


def scpd() -> str:
    actions = "".join(
        f"<action><name>{name}</name><argumentList>" + "".join(
            f"<argument><name>{one}</name><direction>{way}</direction>"
            f"<relatedStateVariable>{one}</relatedStateVariable></argument>"
            for one, way in arguments
        ) + "</argumentList></action>"
        for name, arguments in ARGUMENTS.items()
    )  # fmt: skip
    names = {one for arguments in ARGUMENTS.values() for one, _ in arguments}
    table = "".join(
        f'<stateVariable sendEvents="no"><name>{name}</name>'
        f"<dataType>{TYPES.get(name, 'string')}</dataType></stateVariable>"
        for name in sorted(names)
    )
    return (
        '<?xml version="1.0"?><scpd xmlns="urn:schemas-upnp-org:service-1-0">'
        f"<actionList>{actions}</actionList><serviceStateTable>{table}</serviceStateTable></scpd>"
    )


class Igd(asyncio.DatagramProtocol):
    """A router that speaks UPnP: SSDP on one port, HTTP on another."""

    def __init__(self) -> None:
        self.description, self.calls = DESCRIPTION, []
        self.refuses: dict[str, list[int]] = {}
        self.table: dict[str, str] = {}
        self.port = 0

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        self._transport.sendto(b"HTTP/1.1 200 OK\r\nLOCATION: http://10.9.9.9/x\r\n\r\n", sender)
        place = f"http://{LOOPBACK}:{self.port}/description"
        self._transport.sendto(f"HTTP/1.1 200 OK\r\nLOCATION: {place}\r\n\r\n".encode(), sender)

    async def http(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/description" and self.description == "endless":
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(bytes(65_536))
        if request.path == "/description":
            return web.Response(text=self.description, content_type="text/xml")
        if request.path == "/scpd":
            return web.Response(text=scpd(), content_type="text/xml")
        name = request.headers["SOAPAction"].strip('"').partition("#")[2]
        body = await request.text()
        self.calls.append(name)
        if self.refuses.get(name):
            return self._fault(self.refuses[name].pop(0))
        port = body.partition("<NewExternalPort>")[2].partition("<")[0]
        told = {}
        if name == "AddPortMapping":
            self.table[port] = body
        elif name == "DeletePortMapping":
            del self.table[port]
        elif name == "GetExternalIPAddress":
            told = {"NewExternalIPAddress": "203.0.113.7"}
        elif port not in self.table:
            return self._fault(714)
        else:
            told = {"NewInternalPort": "9000", "NewInternalClient": LOOPBACK}
        return self._soap(name + "Response", "".join(f"<{k}>{v}</{k}>" for k, v in told.items()))

    def _soap(self, name: str, inner: str, status: int = 200) -> web.Response:
        text = (
            '<?xml version="1.0"?><s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/">'
            f'<s:Body><u:{name} xmlns:u="urn:schemas-upnp-org:service:WANIPConnection:1">{inner}'
            f"</u:{name}></s:Body></s:Envelope>"
        )
        return web.Response(text=text, content_type="text/xml", status=status)

    def _fault(self, code: int) -> web.Response:
        text = (
            '<?xml version="1.0"?><s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/">'
            "<s:Body><s:Fault><faultcode>s:Client</faultcode><faultstring>UPnPError</faultstring>"
            '<detail><UPnPError xmlns="urn:schemas-upnp-org:control-1-0">'
            f"<errorCode>{code}</errorCode><errorDescription>no</errorDescription></UPnPError>"
            "</detail></s:Fault></s:Body></s:Envelope>"
        )
        return web.Response(text=text, content_type="text/xml", status=500)


@asynccontextmanager
async def talking(igd: Igd, clock=lambda: 0.0):
    loop = asyncio.get_running_loop()
    runner = web.ServerRunner(web.Server(igd.http))
    await runner.setup()
    site = web.TCPSite(runner, LOOPBACK, 0)
    await site.start()
    igd.port = site._server.sockets[0].getsockname()[1]
    transport, _ = await loop.create_datagram_endpoint(lambda: igd, local_addr=(LOOPBACK, 0))
    ssdp = transport.get_extra_info("sockname")
    try:
        async with asyncio.timeout(20):
            yield Upnp(Gateway(LOOPBACK, LOOPBACK, ssdp=ssdp), 9000, clock)
    finally:
        transport.close()
        await runner.cleanup()


@with_the_extra
def test_a_port_is_mapped_looked_after_and_given_back():
    now = [1000.0]

    async def scene() -> None:
        igd = Igd()
        async with talking(igd, lambda: now[0]) as talk:
            granted = await talk.map_port(None)
            assert granted == Granted("203.0.113.7", 9000, upnp.LEASE_S)
            assert "<NewLeaseDuration>600</NewLeaseDuration>" in igd.table["9000"]
            now[0] += 45
            assert await talk.map_port(granted) == granted
            assert igd.calls.count("AddPortMapping") == 1
            igd.table.clear()  # it has forgotten
            assert await talk.map_port(granted) == granted and "9000" in igd.table
            now[0] += upnp.LEASE_S / 2 + 1
            assert await talk.map_port(granted) == granted
            assert igd.calls.count("AddPortMapping") == 3
            await talk.unmap_port(granted)
            assert not igd.table

    asyncio.run(scene())


@with_the_extra
@pytest.mark.parametrize(
    ("codes", "port", "lease_s"), [([718], 17_943, 600), ([725], 9000, 0), ([725, 718], 17_943, 0)]
)
def test_another_port_or_a_lease_without_end_is_asked_for_where_it_must(codes, port, lease_s):
    async def scene() -> None:
        igd = Igd()
        igd.refuses["AddPortMapping"] = codes.copy()
        async with talking(igd) as talk:
            assert await talk.map_port(None) == Granted("203.0.113.7", port, lease_s)

    asyncio.run(scene())


@with_the_extra
@pytest.mark.parametrize(
    "description",
    [
        "endless", "", "<root>", DESCRIPTION.replace("WANIPConnection", "Printer"),
        DESCRIPTION.replace("/control<", "http://192.0.2.9/control<"),
        DESCRIPTION.replace("<root", "<!DOCTYPE x [<!ENTITY a 'b'>]><root"),
        "<root xmlns='urn:schemas-upnp-org:device-1-0'>" + "<device><deviceList>" * 5000,
    ],
    ids=["endless", "empty", "cut", "printer", "elsewhere", "entities", "deep"],
)  # fmt: skip
def test_a_router_that_talks_nonsense_is_left_at_once(description):
    async def scene() -> None:
        igd = Igd()
        igd.description = description
        async with talking(igd) as talk:
            assert isinstance(await talk.map_port(None), Refused)
            assert not igd.calls

    asyncio.run(scene())


@with_the_extra
def test_who_does_not_answer_a_search_is_given_up(monkeypatch):
    monkeypatch.setattr(upnp, "SEARCH_S", 0.05)

    async def scene() -> None:
        igd = Igd()
        igd.datagram_received = lambda data, sender: None
        async with talking(igd) as talk:
            assert await talk.map_port(None) == Refused("no answer")

    asyncio.run(scene())
