"""Network namespaces of Linux, one per peer, on one switch, with links that tc shapes.

A peer behind a router has two, the outer one of which is the router. They need root, `ip` and `tc`,
for a delay the kernel's netem, for routers `nft`. Their names bear this process's id; those of a
process that is gone are removed before new ones are made. No others are touched.
"""

import contextlib
import itertools
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from swarmtrain.compare.plan import Net
from swarmtrain.emulate import routers
from swarmtrain.emulate.links import Links, in_words
from swarmtrain.foundation.errors import UserError
from swarmtrain.local_run.place import COORDINATOR

_HEAD = "swte"
_SWITCH = "switch"
_NETWORK = "10.77.0"
_PACKET_BYTES = 1500
_BURST_S, _BURST_BYTES_MIN = 0.008, 1 << 16
"""Two ticks of a kernel's clock: less would not reach the rate."""

_QUEUE_S = 0.2
"""A router at a link's end holds so many seconds' worth."""


class NoNamespaces(Exception):
    """Network namespaces cannot be had here; the text says why."""

    def told(self) -> UserError:
        """Return the error for people who asked for namespaces."""
        return UserError(
            "SWT-E652",
            f"Network namespaces cannot be made: {self}.",
            "Links of the system's own need Linux, root, the commands ip and tc, and netem; "
            "routers need nft, too.",
            "Leave out --links and --routers, and relays model the links instead.",
        )


class Namespaces(Links):
    """Namespaces with shaped links, until they are closed.

    Args:
        net: link of each peer. The coordinator's has its delay alone.
        kinds: kinds of router that peers are behind, dealt out in turn.

    Raises:
        NoNamespaces: they cannot be had here.
    """

    def __init__(self, net: Net, names: Sequence[str], kinds: Sequence[str] = ()) -> None:
        behind = f", behind routers ({', '.join(kinds)})" if kinds else ""
        self.words = f"{in_words(net)}{behind}, in network namespaces"
        self._prefix = f"{_HEAD}{os.getpid()}"
        self._index = {name: index for index, name in enumerate((COORDINATOR, *names))}
        self._network = routers.OUTSIDE if kinds else _NETWORK
        self._kinds = dict(zip(names, itertools.cycle(kinds or (routers.NONE,)), strict=False))
        if os.geteuid():
            raise NoNamespaces("only root may make them")
        _remove_left()
        try:
            self._make(net)
        except BaseException:  # Ctrl+C too: they would outlive this process
            self.close()
            raise

    def where(self, name: str) -> Sequence[str]:
        """See `Links.where`."""
        return "ip", "netns", "exec", self._space(name)

    def host(self, name: str) -> str:
        """See `Links.host`: everywhere, of a peer behind a router."""
        return "0.0.0.0" if self._is_behind(name) else self._outside(name)

    def close(self) -> None:
        """See `Links.close`."""
        _remove(f"{self._prefix}-")

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{self._index[name]}"

    def _is_behind(self, name: str) -> bool:
        return self._kinds.get(name, routers.NONE) != routers.NONE

    def _outside(self, name: str) -> str:
        return f"{self._network}.{self._index[name] + 1}"

    def _make(self, net: Net) -> None:
        switch = f"{self._prefix}-{_SWITCH}"
        _do("ip", "netns", "add", switch)
        _do("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _do("ip", "-n", switch, "link", "set", "bridge", "up")
        for name, index in self._index.items():
            space, port = self._space(name), f"port{index}"
            if self._is_behind(name):
                space += "-router"
            _do("ip", "netns", "add", space)
            _do("ip", "-n", switch, "link", "add", port, "type", "veth",
                "peer", "name", "eth0", "netns", space)  # fmt: skip
            _do("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _do("ip", "-n", space, "addr", "add", f"{self._outside(name)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _do("ip", "-n", space, "link", "set", device, "up")
            if self._is_behind(name):
                self._make_home(name, space)
            # A packet from a peer to another passes two of these: half of the round trip.
            delay_s = net.round_trip_s / 4
            is_peer = name != COORDINATOR
            for where, device, rate in (
                (space, "eth0", net.up_bytes_s),
                (switch, port, net.down_bytes_s),
            ):
                shaping = _shaping(rate if is_peer else 0.0, delay_s)
                if shaping:
                    _do("tc", "-n", where, "qdisc", "add", "dev", device, "root", *shaping)

    def _make_home(self, name: str, router: str) -> None:
        """Make the namespace behind a router, and the router one."""
        space = self._space(name)
        _do("ip", "netns", "add", space)
        _do("ip", "-n", router, "link", "add", "lan", "type", "veth",
            "peer", "name", "eth0", "netns", space)  # fmt: skip
        ends = (router, "lan", routers.ROUTER), (space, "eth0", routers.PEER)
        for where, device, address in ends:
            _do("ip", "-n", where, "addr", "add", f"{address}/24", "dev", device)
            _do("ip", "-n", where, "link", "set", device, "up")
        _do("ip", "-n", space, "link", "set", "lo", "up")
        _do("ip", "-n", space, "route", "add", "default", "via", routers.ROUTER)
        within = ("ip", "netns", "exec", router)
        _do(*within, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        _do(*within, "nft", "-f", "-", said=routers.rules(self._kinds[name]))


def _shaping(bytes_s: float, delay_s: float) -> tuple[str, ...]:
    """Words of tc that make a device so fast and so late."""
    rate = f"{bytes_s * 8:.0f}bit"
    if delay_s:
        held_s = _QUEUE_S + delay_s
        packets = max(100, int((bytes_s or 125e6) * held_s / _PACKET_BYTES))
        delay = ("netem", "limit", str(packets), "delay", f"{delay_s * 1000:g}ms")
        return (*delay, "rate", rate) if bytes_s else delay
    if not bytes_s:
        return ()
    burst = max(_BURST_BYTES_MIN, int(bytes_s * _BURST_S))
    return "tbf", "rate", rate, "burst", str(burst), "latency", f"{_QUEUE_S * 1000:g}ms"


def _do(*words: str, said: str = "") -> None:
    try:
        done = subprocess.run(words, input=said, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoNamespaces(f"{words[0]}: {error.strerror}") from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        if "netem" in words and "unknown" in why:
            why = "this kernel has no netem"
        raise NoNamespaces(why)


def _remove(head: str) -> None:
    """Remove the namespaces whose names begin so, with the devices in them."""
    with contextlib.suppress(NoNamespaces, OSError):
        for path in Path("/run/netns").iterdir():
            if path.name.startswith(head):
                _do("ip", "netns", "del", path.name)


def _remove_left() -> None:
    """Remove what an emulation has left that was killed."""
    with contextlib.suppress(OSError):
        for path in Path("/run/netns").iterdir():
            match = re.fullmatch(rf"{_HEAD}([0-9]+)-.*", path.name)
            if match and not Path("/proc", match[1]).exists():
                _remove(path.name)
