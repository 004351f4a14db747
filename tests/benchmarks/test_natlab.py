"""Each kind of router does what natlab.sh says of it. As root, with nftables; else skipped."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "lab" / "natlab.sh"
PORT, SOURCE = 7000, 5555

SERVE = """
import socket, sys
server = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("listening", flush=True)
for _ in range(16):
    print(*server.accept()[1], flush=True)
"""

DIAL = """
import socket, sys
host, port, source = sys.argv[1], *map(int, sys.argv[2:])
end = socket.socket()
end.settimeout(1.0)
end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
end.bind(("0.0.0.0", source))
try:
    end.connect((host, port))
except OSError as error:
    print(type(error).__name__)
else:
    print("connected")
"""


def cannot() -> str:
    """Why namespaces with routers cannot be made here; "" if they can."""
    if sys.platform != "linux" or os.geteuid():
        return "network namespaces are made by root on Linux"
    for tool in ("ip", "nft"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    name = f"nk-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespaces: {made.stderr.strip()}"
    rules = "table inet t { chain c { type nat hook postrouting priority srcnat; masquerade; }; }"
    tried = subprocess.run(
        ["ip", "netns", "exec", name, "nft", rules], capture_output=True, text=True
    )
    subprocess.run(["ip", "netns", "del", name], check=True)
    return f"no NAT: {tried.stderr.splitlines()[0]}" if tried.returncode else ""


WHY = cannot()
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)


class Net:
    """A lab that is up."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._environment = {**os.environ, "LAB_NET": f"nk{os.getpid()}", "LAB_HOME": str(folder)}
        self._serving: list[subprocess.Popen[str]] = []
        self.order("up", *words)

    def order(self, *words: str) -> str:
        done = subprocess.run(
            [SCRIPT, *words], env=self._environment, check=True, text=True, stdout=subprocess.PIPE
        )
        return done.stdout

    def outside(self, place: str) -> str:
        """The address that the internet sees."""
        return self.order("addresses", place).split()[2]

    def dial(self, place: str, host: str, source: int = 0) -> str:
        words = (sys.executable, "-c", DIAL, host, str(PORT), str(source))
        return self.order("run", place, *words).strip()

    def serve(self, place: str) -> "subprocess.Popen[str]":
        """A listener, whose lines are the addresses of who has come."""
        serving = subprocess.Popen(
            [SCRIPT, "run", place, sys.executable, "-c", SERVE, str(PORT)],
            env=self._environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._serving.append(serving)
        assert serving.stdout is not None
        assert serving.stdout.readline() == "listening\n"
        return serving

    def close(self) -> None:
        self.order("down")
        for serving in self._serving:
            serving.communicate()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Net]]:
    nets: list[Net] = []
    yield nets
    for net in nets:
        net.close()


def seen(serving: "subprocess.Popen[str]") -> tuple[str, int]:
    assert serving.stdout is not None
    host, port = serving.stdout.readline().split()
    return host, int(port)


def test_who_is_let_in_and_under_which_port_each_goes_out(made: list[Net], tmp_path: Path) -> None:
    kinds = ("none", "cone", "restricted", "symmetric")
    net = Net(tmp_path, "hub=none", "hut=none", *(f"{kind}={kind}" for kind in kinds))
    made.append(net)
    for kind in kinds:
        net.serve(kind)
    hub, hut = net.serve("hub"), net.serve("hut")
    let_in = {kind: net.dial("hub", net.outside(kind)) for kind in kinds}
    assert let_in == {
        "none": "connected", "cone": "connected", "restricted": "TimeoutError",
        "symmetric": "TimeoutError",
    }  # fmt: skip
    for kind in kinds:
        ports = []
        for place, serving in (("hub", hub), ("hut", hut)):
            assert net.dial(kind, net.outside(place), SOURCE) == "connected"
            host, port = seen(serving)
            assert host == net.outside(kind)
            ports.append(port)
        if kind == "symmetric":
            assert ports[0] != ports[1] and SOURCE not in ports
        else:
            assert ports == [SOURCE, SOURCE]


def test_routers_that_refuse_say_so_at_once(made: list[Net], tmp_path: Path) -> None:
    net = Net(tmp_path, "--refuse", "hub=none", "home=restricted")
    made.append(net)
    net.serve("home")
    assert net.dial("hub", net.outside("home")) == "ConnectionRefusedError"


def test_a_router_that_moves_has_another_address_and_two_inside_stay_neighbours(
    made: list[Net], tmp_path: Path
) -> None:
    net = Net(tmp_path, "hub=none", "home=restricted:2")
    made.append(net)
    hub, before = net.serve("hub"), net.outside("home")
    net.order("move", "home")
    assert net.outside("home") != before
    assert net.dial("home.1", net.outside("hub")) == "connected"
    assert seen(hub)[0] == net.outside("home.0") == net.outside("home.1")
    inside = net.order("addresses", "home.0").split()[1]
    net.serve("home.0")
    assert net.dial("home.1", inside) == "connected"


def test_nothing_is_left_of_a_net_that_is_down(tmp_path: Path) -> None:
    net = Net(tmp_path, "hub=none", "home=cone")
    net.close()
    spaces = subprocess.run(["ip", "netns", "list"], check=True, text=True, stdout=subprocess.PIPE)
    assert f"nk{os.getpid()}" not in spaces.stdout
