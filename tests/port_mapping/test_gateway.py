"""Routers in the system's table of routes."""

import asyncio

from swarmtrain.port_mapping import gateway
from swarmtrain.port_mapping.gateway import bsd_router, linux_router, linux_router_6

TABLE = """\
Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
wlan0\t00000000\t0102A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
tun0\t00000000\t00000000\t0001\t0\t0\t50\t00000000\t0\t0\t0
eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
"""

TABLE_6 = """\
20010db8000100000000000000000000 40 00000000000000000000000000000000 00 \
00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
fe80000000000000020000fffe000001 00000400 00000002 00000000 00450003 eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
00000000000000000000000000000000 ffffffff 00000001 00000000 00200200 lo
"""

ROUTE_GET = """\
   route to: default
destination: default
       mask: default
    gateway: {}
  interface: en0
      flags: <UP,GATEWAY,DONE,STATIC,PRCLONING>
"""


def test_the_cheapest_default_route_of_linux_is_taken():
    assert linux_router(TABLE) == ("192.168.1.1", 0)
    assert linux_router(TABLE.splitlines()[0]) is None
    assert linux_router_6(TABLE_6) == ("fe80::200:ff:fe00:1", "eth0")
    assert linux_router_6("") is None


def test_the_answer_of_route_on_macos_is_read():
    assert bsd_router(ROUTE_GET.format("192.168.1.1")) == ("192.168.1.1", "")
    assert bsd_router(ROUTE_GET.format("fe80::1%en0")) == ("fe80::1", "en0")
    assert bsd_router("route: writing to routing socket: not in table") is None


def test_a_system_that_tells_nothing_has_no_routers(monkeypatch, tmp_path):
    monkeypatch.setattr(gateway.sys, "platform", "linux")
    monkeypatch.setattr(gateway, "_ROUTES", tmp_path / "missing")
    monkeypatch.setattr(gateway, "_ROUTES_6", tmp_path / "missing")
    monkeypatch.setattr(gateway, "own_host", lambda version: "192.168.1.5")
    assert asyncio.run(gateway.gateways()) == ()
    (tmp_path / "missing").write_text("head\nnonsense\n")
    assert asyncio.run(gateway.gateways()) == ()
