"""Links of an emulation's peers: open, or modelled by relays. `namespaces` has the system's own.

A relay stands before each peer's data lane with that peer's rate down and half of the round trip,
and another one before its way to the coordinator. A peer's own cap holds it to its rate up, because
a relay sees who is dialled and not who dials.
"""

import dataclasses
import re
from collections.abc import Sequence

from swarmtrain.compare.plan import NETS, Net
from swarmtrain.config.caps import RATE_MIN
from swarmtrain.foundation.errors import cleaned, misuse
from swarmtrain.local_run.processes import LOOPBACK
from swarmtrain.local_run.relays import Line, Relay, Relays, Way
from swarmtrain_transport.credentials.invite import Invite

_NUMBER = r"([0-9]{1,6}(?:\.[0-9]{1,3})?)"


OPEN = Net(0.0, 0.0, 0.0)
"""A link without limits."""


class Links:
    """The links of one emulation: nothing between the peers but this machine's loopback, if no
    other kind says otherwise.

    Attributes:
        words: description for people.
    """

    words = "without limits"

    def where(self, name: str) -> Sequence[str]:
        """Words of a command that runs another one at this peer's end."""
        return ()

    def host(self, name: str) -> str:
        """Address at which this process listens."""
        return LOOPBACK

    def caps(self) -> tuple[str, str]:
        """Caps of a peer, up and down, as `swarmtrain.join` takes them; "" for none."""
        return "", ""

    def advertised(self, name: str) -> str:
        """HOST:PORT that other peers dial, "" for where the peer listens."""
        return ""

    def invite(self, name: str, invite: str) -> str:
        """The invite as this peer gets it."""
        return invite

    def listens(self, name: str, port: int) -> None:
        """A peer's data lane listens at this port now."""

    def close(self) -> None:
        """Remove what was made. Closing twice is allowed."""


class ModelledLinks(Links):
    """Relays with a rate and a delay."""

    def __init__(self, net: Net, names: Sequence[str]) -> None:
        self.words = f"{in_words(net)}, modelled by relays"
        self._net = net
        self._relays = Relays()
        self._data: dict[str, Relay] = {}
        self._control: dict[str, Relay] = {}
        way_s = net.round_trip_s / 2
        try:
            for name in names:
                down = Line(net.down_bytes_s, way_s)
                self._data[name] = self._relays.add({Way.THERE: down})
                up = Line(net.up_bytes_s, way_s)
                self._control[name] = self._relays.add({Way.THERE: up, Way.BACK: down})
        except BaseException:  # Ctrl+C too: nobody else would end their thread
            self._relays.close()
            raise

    def caps(self) -> tuple[str, str]:
        """See `Links.caps`: the rate up."""
        return f"{self._net.up_bytes_s / 1000:.3f}kB", ""

    def advertised(self, name: str) -> str:
        """See `Links.advertised`: its relay."""
        return f"{LOOPBACK}:{self._data[name].port}"

    def invite(self, name: str, invite: str) -> str:
        """See `Links.invite`: by way of its relay."""
        parsed, relay = Invite.parse(invite), self._control[name]
        self._relays.call(relay.aim, parsed.port)
        return str(dataclasses.replace(parsed, host=LOOPBACK, port=relay.port))

    def listens(self, name: str, port: int) -> None:
        """See `Links.listens`."""
        self._relays.call(self._data[name].aim, port)

    def close(self) -> None:
        """See `Links.close`."""
        self._relays.close()


def parse_net(text: str) -> Net:
    """``dsl``, or ``10/50:30``: Mbit/s up and down, and the round trip in ms.

    Raises:
        UserError: SWT-E610.
    """
    if text in NETS:
        return NETS[text]
    match = re.fullmatch(rf"{_NUMBER}/{_NUMBER}(?::{_NUMBER})?", text.strip())
    net = None
    if match:
        up, down, trip_ms = (float(number or 0) for number in match.groups())
        net = Net(up * 125e3, down * 125e3, trip_ms / 1000)
    if net is None or min(net.up_bytes_s, net.down_bytes_s) < RATE_MIN:
        raise misuse(
            f"{cleaned(text)!r} is no link that is known here.",
            f"Known are {', '.join(NETS)}; or write Mbit/s up and down and the round trip in ms: "
            "10/50:30.",
        )
    return net


def in_words(net: Net) -> str:
    """Tell a link's figures."""
    if net == OPEN:
        return Links.words
    up, down = (rate / 125_000 for rate in (net.up_bytes_s, net.down_bytes_s))
    return f"{up:g} Mbit/s up, {down:g} down, {net.round_trip_s * 1000:g} ms there and back"
