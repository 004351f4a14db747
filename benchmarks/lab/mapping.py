"""A real router daemon (miniupnpd) behind which `swarmtrain.port_mapping` asks for a port; as root.

Three namespaces: a machine at home, its router, and somebody outside, who dials. Each row is one
protocol that the router speaks: seconds until the port was there, whether somebody outside got in,
whether the port was closed after leaving; with --restart also how long it was closed after the
router had restarted. UPnP needs the extra: pip install '.[upnp]'.

    python benchmarks/lab/mapping.py [--only PCP,NAT-PMP,UPnP,IPv6] [--restart]
"""

import argparse
import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[2] / part) for part in (".", "transport", "optimizers")
]

HOME, ROUTER, OUT = "mp-home", "mp-router", "mp-out"
PORT = 9000

NET = f"""
netns add {HOME}
netns add {ROUTER}
netns add {OUT}
link add lan netns {ROUTER} type veth peer name lan netns {HOME}
link add wan netns {ROUTER} type veth peer name wan netns {OUT}
-n {HOME} addr add 192.168.77.2/24 dev lan
-n {HOME} addr add 2001:db8:1::2/64 dev lan nodad
-n {ROUTER} addr add 192.168.77.1/24 dev lan
-n {ROUTER} addr add 2001:db8:1::1/64 dev lan nodad
-n {ROUTER} addr add 5.5.5.1/24 dev wan
-n {ROUTER} addr add 2001:db8:2::1/64 dev wan nodad
-n {OUT} addr add 5.5.5.2/24 dev wan
-n {OUT} addr add 2001:db8:2::2/64 dev wan nodad
-n {HOME} link set lo up
-n {HOME} link set lan up
-n {ROUTER} link set lo up
-n {ROUTER} link set lan up
-n {ROUTER} link set wan up
-n {OUT} link set wan up
-n {HOME} route add default via 192.168.77.1
-n {HOME} -6 route add default via 2001:db8:1::1
-n {OUT} -6 route add default via 2001:db8:2::1
"""

FIREWALL = """
table inet filter {
  chain forward { type filter hook forward priority 0; policy drop;
    ct state established,related accept; iifname lan accept; jump miniupnpd; }
  chain input { type filter hook input priority 0; policy accept; DROP }
  chain miniupnpd { }
  chain prerouting { type nat hook prerouting priority -100; jump prerouting_miniupnpd; }
  chain postrouting { type nat hook postrouting priority 100; jump postrouting_miniupnpd;
    ip saddr 192.168.77.0/24 oifname wan masquerade; }
  chain prerouting_miniupnpd { }
  chain postrouting_miniupnpd { }
}
"""

NO_PCP = "udp dport 5351 @th,64,8 2 drop;"

CONFIG = """
ext_ifname=wan
listening_ip=lan
enable_natpmp={pmp}
enable_upnp={upnp}
secure_mode=yes
uuid=00000000-0000-0000-0000-000000000001
ipv6_disable=no
allow 1024-65535 192.168.77.0/24 1024-65535
"""

ROWS = {"PCP": ("yes", "no", ""), "NAT-PMP": ("yes", "no", NO_PCP), "UPnP": ("no", "yes", ""),
        "IPv6": ("yes", "no", "")}  # fmt: skip


def run(*words: str, given: str = "") -> None:
    subprocess.run(words, input=given, text=True, check=True, stdout=subprocess.DEVNULL)


def make_net(stack: ExitStack) -> None:
    for name in (HOME, ROUTER, OUT):
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        stack.callback(subprocess.run, ["ip", "netns", "del", name])
    for line in NET.strip().splitlines():
        run("ip", *line.split())
    for key in ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"):
        run("ip", "netns", "exec", ROUTER, "sysctl", "-qw", key)


def start_router(row: str, folder: Path) -> subprocess.Popen:
    pmp, upnp, drop = ROWS[row]
    (folder / "conf").write_text(CONFIG.format(pmp=pmp, upnp=upnp))
    with suppress(subprocess.CalledProcessError):
        subprocess.run(["ip", "netns", "exec", ROUTER, "nft", "flush", "ruleset"], check=True)
    run("ip", "netns", "exec", ROUTER, "nft", "-f", "-", given=FIREWALL.replace("DROP", drop))
    return subprocess.Popen(
        ["ip", "netns", "exec", ROUTER, "miniupnpd", "-d", "-f", folder / "conf",
         "-P", folder / "pid"],
        stdout=(folder / "log").open("a"), stderr=subprocess.STDOUT,
    )  # fmt: skip


def gets_in(place: list) -> bool:
    try_it = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1.0)"
    words = ["ip", "netns", "exec", OUT, sys.executable, "-c", try_it, place[1], str(place[2])]
    return subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0


def measure(row: str, folder: Path, *, restarts: bool) -> dict:
    router = start_router(row, folder)
    time.sleep(1.0)
    words = ["ip", "netns", "exec", HOME, sys.executable, __file__, "--inside"]
    home = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        said = json.loads(home.stdout.readline())
        version = 6 if row == "IPv6" else 4
        places = [one for one in said["places"] if (":" in one[1]) == (version == 6)]
        if not places:
            return {"row": row, **said, "log": (folder / "log").read_text()[-1500:]}
        result = {"row": row, "seconds": said["seconds"], "place": places[0],
                  "in": gets_in(places[0])}  # fmt: skip
        if restarts:
            router.terminate()
            router.wait()
            begun = time.monotonic()
            router = start_router(row, folder)
            while not gets_in(places[0]) and time.monotonic() < begun + 90:
                time.sleep(0.5)
            result["again_s"] = round(time.monotonic() - begun, 1)
        home.communicate("\n")
        # The listener is gone too: only the rule tells whether the port was given back.
        rules = subprocess.run(["ip", "netns", "exec", ROUTER, "nft", "list", "ruleset"],
                               capture_output=True, text=True, check=True).stdout  # fmt: skip
        return result | {"given_back": str(PORT) not in rules}
    finally:
        home.kill()
        router.terminate()
        router.wait()


async def inside() -> None:
    """At home: listen, ask, tell, leave when told."""
    from swarmtrain.port_mapping.mapper import Mapper

    logging.basicConfig(level=os.environ.get("LOG", "WARNING"), stream=sys.stderr)
    servers = [await asyncio.start_server(lambda reader, writer: writer.close(), host, PORT)
               for host in ("0.0.0.0", "2001:db8:1::2")]  # fmt: skip
    mapper, begun = Mapper(PORT), time.monotonic()
    mapper.start()
    await mapper.decided()
    places = [(one.kind, one.host, one.port) for one in mapper.places()]
    seconds = round(time.monotonic() - begun, 2)
    print(json.dumps({"seconds": seconds, "places": places, "why": mapper.why}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await mapper.close()
    for server in servers:
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(ROWS))
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--inside", action="store_true")
    asked = parser.parse_args()
    if asked.inside:
        asyncio.run(inside())
        return
    if os.geteuid() or not all(map(shutil.which, ("ip", "nft", "miniupnpd"))):
        sys.exit("This needs root, ip, nft and miniupnpd.")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_net(stack)
        for row in asked.only.split(","):
            print(json.dumps(measure(row, folder, restarts=asked.restart)), flush=True)


if __name__ == "__main__":
    main()
