"""Bytes and modelled seconds: what a comparison says of links that it does not have.

The model: every peer has the same link, or a part of it, and what an op moves leaves and arrives at
full rate, both ways at once; an op takes four round trips besides (READY and PLAN, parts and
results, GOT and FREEZE, HAVE and COMMIT). An inner step takes what the fastest peer's core takes,
divided by the relative speed of who makes it. An op that is placed some inner steps after it began
is hidden behind these steps; what it takes longer is waited for, by everybody: where peers go
apart, those that have no part in an op would train on, and the time told is too long. Slices follow
the rates of links as in a run. Headers and retries are left out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmtrain.compare.plan import NETS, Net
from swarmtrain_transport.links.link import PeerId

ROUND_TRIPS = 4


@dataclass(frozen=True, slots=True)
class Traffic:
    """Payload bytes of one op.

    Attributes:
        up: bytes that each peer sends.
        down: bytes that each peer receives.
        ahead: share of it that is known before the inner steps and travels during them.
        links: each peer's part of the link's rates, 1 where nothing is said.
    """

    up: Mapping[PeerId, int]
    down: Mapping[PeerId, int]
    ahead: float = 0.0
    links: Mapping[PeerId, float] = field(default_factory=dict)

    def seconds(self, net: Net) -> float:
        """From the last part's readiness until everybody has the result."""
        return self._moving_s(net) * (1 - self.ahead) + ROUND_TRIPS * net.round_trip_s

    def ahead_s(self, net: Net) -> float:
        """Seconds of the bytes that travel before the op."""
        return self._moving_s(net) * self.ahead

    def waited_s(self, net: Net, hidden_s: float, ahead_s: float) -> float:
        """Seconds that steps do not hide, of which so many are made meanwhile, and before."""
        late_s = max(0.0, self.seconds(net) - hidden_s)
        return late_s + max(0.0, self.ahead_s(net) - ahead_s)

    def _moving_s(self, net: Net) -> float:
        return max(
            max(sent / net.up_bytes_s / self._part(peer) for peer, sent in self.up.items()),
            max(got / net.down_bytes_s / self._part(peer) for peer, got in self.down.items()),
        )

    def _part(self, peer: PeerId) -> float:
        return self.links.get(peer, 1.0)


class Costs:
    """Adds up what a run sends and how long it would take.

    Args:
        net: everybody's link, where it has the whole of it.
        num_peers: number of peers in the run.

    Attributes:
        seconds: modelled seconds so far.
        exchange_s: seconds in which nobody trained; where some did, the share of those who did not.
        seconds_by_net: seconds as they would be over each link, by its name.
        peak_bytes: most bytes that one peer sends per inner step, with an op spread evenly over
            the steps that it has.
    """

    def __init__(self, net: Net, num_peers: int) -> None:
        self.seconds = 0.0
        self.exchange_s = 0.0
        self.peak_bytes = 0
        self.seconds_by_net = dict.fromkeys(NETS, 0.0)
        self._net = net
        self._num_peers = num_peers
        self._sent = 0

    @property
    def bytes_up_per_peer(self) -> int:
        """Bytes sent so far, averaged over peers."""
        return round(self._sent / self._num_peers)

    def stepped(self, seconds: float) -> None:
        """All have made the inner steps that fit into so many seconds."""
        self.seconds += seconds
        for name in NETS:
            self.seconds_by_net[name] += seconds

    def exchanged(
        self, traffic: Traffic, *, hidden_s: float, ahead_s: float, delay_steps: int, steps: int,
        waits: float = 1.0,
    ) -> None:  # fmt: skip
        """An op has moved so much.

        Args:
            traffic: bytes of the op.
            hidden_s: seconds of inner steps that were made between its begin and its end.
            ahead_s: seconds of inner steps that were made before its begin, since the last op.
            delay_steps: inner steps that it may take.
            steps: inner steps of a round, in which travels what is known before.
            waits: share of all inner steps a second that are not made while it is waited for.
        """
        waited_s = waits * traffic.waited_s(self._net, hidden_s, ahead_s)
        self.exchange_s += waited_s
        self.seconds += waited_s
        for name, net in NETS.items():
            self.seconds_by_net[name] += waits * traffic.waited_s(net, hidden_s, ahead_s)
        self._sent += sum(traffic.up.values())
        busiest = max(traffic.up.values())
        rate = busiest * (1 - traffic.ahead) / max(1, delay_steps)
        rate += busiest * traffic.ahead / max(1, steps)
        self.peak_bytes = max(self.peak_bytes, math.ceil(rate))
